import numpy as np


def act_and_mul(memory, tokens, width, block):
    for t in range(tokens):
        for start in range(0, width, block):
            n = min(block, width - start)
            at = t * 2 * width + start
            s = 0.5 * (1 + np.tanh(memory.load(at, n) / 2))
            y = memory.load(at, n) * s * memory.load(at + width, n)
            memory.store(t * width + start, y)
