import numpy as np


def route(logits: np.ndarray, k: int, renormalise: bool) -> tuple[np.ndarray, np.ndarray]:
    """(indices [T, k], weights [T, k]) of the k best experts of each token, best first."""
    ...
