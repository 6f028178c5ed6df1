import numpy as np


def act_and_mul(memory, tokens, width, block):
    for t in range(tokens):
        for i in range(width):
            at = t * 2 * width + 2 * i
            gate, up = memory.load(at, 1), memory.load(at + 1, 1)
            memory.store(t * width + i, gate * 0.5 * (1 + np.tanh(gate / 2)) * up)
