import numpy as np


def gate_and_up(fused: np.ndarray, bias: np.ndarray, form: str) -> tuple[np.ndarray, ...]:
    """(gate [I, H], up [I, H], gate_bias [I], up_bias [I])"""
    ...
