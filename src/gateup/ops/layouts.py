"""Gate and up as views of one fused tensor, by declared layout."""

from __future__ import annotations

from torch import Tensor

from gateup.errors import UsageError
from gateup.model.layout import GateUpLayout

CONCAT = GateUpLayout(form="concat")

# What an op's schema can carry: a layout as one word.
_WORDS = {
    ("concat", "gate_up"): "concat",
    ("concat", "up_gate"): "concat_up_first",
    ("interleaved", "gate_up"): "interleaved",
    ("interleaved", "up_gate"): "interleaved_up_first",
}
FUSED = tuple(_WORDS.values())


def word(layout: GateUpLayout) -> str:
    """The layout's word; UsageError for one that is not of a single fused tensor."""
    if not isinstance(layout, GateUpLayout):
        raise UsageError(
            f"layout is {layout!r}",
            expected='a gateup.ops.GateUpLayout, such as GateUpLayout("concat")',
        )
    found = _WORDS.get((layout.form, layout.order))
    if found is None or layout.stacked:
        raise UsageError(
            f"layout {layout} does not describe one fused gate and up",
            expected='form "concat" or "interleaved", order "gate_up" or "up_gate", not stacked',
        )
    return found


def halves(fused: Tensor, layout_word: str) -> tuple[Tensor, Tensor]:
    """(gate, up), each a view [..., I] of `fused` [..., 2I]."""
    width = fused.shape[-1] // 2
    if layout_word.startswith("concat"):
        first, second = fused[..., :width], fused[..., width:]
    else:
        first, second = fused[..., ::2], fused[..., 1::2]
    return (second, first) if layout_word.endswith("up_first") else (first, second)


def even_width(width: int, what: str) -> int:
    """Half of a fused width; UsageError naming the tensor `what` when it is odd."""
    if width % 2:
        raise UsageError(
            f"{what} has the odd width {width}",
            expected="an even one: gate and up are its two halves",
        )
    return width // 2
