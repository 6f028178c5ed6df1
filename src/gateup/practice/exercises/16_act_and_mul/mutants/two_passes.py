import numpy as np


def act_and_mul(memory, tokens, width, block):
    for t in range(tokens):
        for start in range(0, width, block):
            n = min(block, width - start)
            gate = memory.load(t * 2 * width + start, n)
            memory.store(t * width + start, gate * 0.5 * (1 + np.tanh(gate / 2)))
    for t in range(tokens):
        for start in range(0, width, block):
            n = min(block, width - start)
            up = memory.load(t * 2 * width + width + start, n)
            memory.store(t * width + start, memory.load_out(t * width + start, n) * up)
