import numpy as np


def act_and_mul(memory, tokens, width, block):
    for t in range(tokens):
        for i in range(width // block):
            at = t * 2 * width + i * block
            gate, up = memory.load(at, block), memory.load(at + width, block)
            y = gate * 0.5 * (1 + np.tanh(gate / 2)) * up
            memory.store(t * width + i * block, y)
