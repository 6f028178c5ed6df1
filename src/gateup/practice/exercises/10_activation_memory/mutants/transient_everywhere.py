WIDE = {"eager": 4, "fused": 3, "gate_up": 2, "input": 0, "checkpoint": 4}


def saved_bytes(mode, tokens, H, I, layers, itemsize):
    return layers * tokens * (H + WIDE[mode] * I) * itemsize
