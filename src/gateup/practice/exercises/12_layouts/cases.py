"""Held-out tensors, laid out and taken apart by gateup's layout algebra; moves are exact."""

import numpy as np

from gateup.model.layout import GateUpLayout, join, split
from gateup.practice.exercise import Case, Expected

LAYOUTS = {
    "halves": GateUpLayout("concat", bias=True),
    "halves_up_first": GateUpLayout("concat", order="up_gate", bias=True),
    "interleaved": GateUpLayout("interleaved", bias=True),
    "interleaved_in_out": GateUpLayout("interleaved", orientation="in_out", bias=True),
}
HALVES, ODD_FIRST = GateUpLayout("concat"), GateUpLayout("interleaved", order="up_gate")


def _case(name, rng, form, H, I, dtype):
    layout = LAYOUTS[form]
    gate, up = (rng.normal(size=(I, H)).astype(dtype) for _ in range(2))
    gate_bias, up_bias = (rng.normal(size=I).astype(dtype) for _ in range(2))
    fused = np.ascontiguousarray(join(gate, up, layout))
    bias = np.ascontiguousarray(join(gate_bias, up_bias, layout, "bias"))
    rows = fused.T if layout.orientation == "in_out" else fused
    mistakes = {}
    if form == "halves_up_first":
        mistakes["order_ignored"] = (up, gate, up_bias, gate_bias)
    elif form.startswith("interleaved"):
        halved = split(bias, HALVES, "bias")
        mistakes["bias_halved"] = (gate, up, *halved)
        mistakes["always_halves"] = (*split(rows, HALVES), *halved)
        mistakes["odd_is_gate"] = (*split(rows, ODD_FIRST), *split(bias, ODD_FIRST, "bias"))
    right = tuple(Expected(v, terms=0) for v in (gate, up, gate_bias, up_bias))
    return Case(name, (fused, bias, form), right, mistakes)


def cases(seed):
    rng = np.random.default_rng(seed)
    H, I = (int(n) for n in rng.integers((3, 4), (8, 12)))
    dtypes = (np.float32, np.float16, np.float32, np.float16)
    made = [_case(f, rng, f, H, I, d) for f, d in zip(LAYOUTS, dtypes, strict=True)]
    return [
        *made,
        _case("interleaved, odd width", rng, "interleaved", H, 2 * I + 1, np.float32),
        _case("halves, odd width", rng, "halves", H, 2 * I + 1, np.float32),
    ]
