WIDE = {"eager": 3, "fused": 3, "gate_up": 2, "input": 0, "checkpoint": 0}


def saved_bytes(mode, tokens, H, I, layers, itemsize):
    numbers = layers * tokens * (H + WIDE[mode] * I)
    if mode == "checkpoint":
        numbers += tokens * 3 * I
    return numbers * itemsize
