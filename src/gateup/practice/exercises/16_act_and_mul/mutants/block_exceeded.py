import numpy as np


def act_and_mul(memory, tokens, width, block):
    for t in range(tokens):
        gate = memory.load(t * 2 * width, width)
        up = memory.load(t * 2 * width + width, width)
        memory.store(t * width, gate * 0.5 * (1 + np.tanh(gate / 2)) * up)
