import numpy as np


def gate_and_up(fused: np.ndarray, bias: np.ndarray, form: str) -> tuple[np.ndarray, ...]:
    """(gate [I, H], up [I, H], gate_bias [I], up_bias [I])"""
    if form == "interleaved_in_out":
        fused, form = fused.T, "interleaved"  # from here on the output axis comes first
    I = len(bias) // 2
    gate, up = {
        "halves": (slice(None, I), slice(I, None)),
        "halves_up_first": (slice(I, None), slice(None, I)),
        "interleaved": (slice(0, None, 2), slice(1, None, 2)),
    }[form]
    return fused[gate], fused[up], bias[gate], bias[up]
