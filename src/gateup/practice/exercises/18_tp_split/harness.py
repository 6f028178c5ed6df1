"""An all-reduce that counts its calls and keeps what it was first given."""

import numpy as np


def call(solution, function, x, w_gate, w_up, w_down, tp):
    """(y [tp, T, H], calls, the parts of the first call [tp, …])."""
    given = []

    def all_reduce(parts):
        parts = [np.array(part) for part in parts]
        if len(parts) != tp:
            raise ValueError(f"all_reduce got {len(parts)} arrays from {tp} ranks")
        given.append(np.stack(parts))
        return [given[-1].sum(axis=0) for _ in range(tp)]

    y = getattr(solution, function)(x, w_gate, w_up, w_down, tp, all_reduce)
    return y, len(given), given[0] if given else np.zeros(0, x.dtype)
