WIDE = {"eager": 4, "fused": 3, "gate_up": 2, "input": 0, "checkpoint": 0}


def saved_bytes(mode: str, tokens: int, H: int, I: int, layers: int, itemsize: int) -> int:
    """Bytes that the MLPs of all layers keep for the backward pass: an int."""
    numbers = layers * tokens * (H + WIDE[mode] * I)
    if mode == "checkpoint":
        numbers += tokens * WIDE["eager"] * I  # one layer at a time is recomputed
    return numbers * itemsize
