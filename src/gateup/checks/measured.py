"""What reading the weights and running a text through a model found, as numbers.

`gateup.deep` fills these in; the rules that judge them (deep_rules.py) need neither torch nor the
weights. Letters: I intermediate_size, V vocab_size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FLOAT16_MAX = 65504.0


@dataclass(frozen=True, slots=True)
class NotFinite:
    """A tensor with values that are no numbers.

    first  where the first of them is: [row, column], experts' axis in front where stacked
    """

    name: str
    nans: int
    infinities: int
    first: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QuietRows:
    """One layer's gate, up (rows) or down (columns): neurons whose weights are next to nothing.

    role   "gate", "up" or "down"; of every expert together
    quiet  how many of the `of` have no weight above QUIET times the median of their largest ones
    zero   how many of these are exactly zero
    name   the first tensor of them
    """

    layer: int
    role: str
    quiet: int
    zero: int
    of: int
    name: str


@dataclass(frozen=True, slots=True)
class SecondHead:
    """A head that is stored although the config ties it to the embedding [V, H].

    rows     V
    unequal  rows with another value than the embedding's
    largest  the largest difference of two values; nan where one of them is no number
    """

    name: str
    rows: int
    unequal: int
    largest: float


@dataclass(frozen=True, slots=True)
class WeightScan:
    """Every tensor of the files, read once.

    tensors  how many were read; integers (packed codes, positions) have nothing to find
    head     compared with the embedding, where it should not be there
    """

    tensors: int
    not_finite: tuple[NotFinite, ...] = ()
    quiet: tuple[QuietRows, ...] = ()
    head: SecondHead | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """One way to read gate and up, and what the text costs when they are read so.

    key    "declared", "swapped", "halves", "halves, up first", "interleaved", …
    words  in a sentence: "gate and up exchanged"
    loss   mean next-token loss in nats; ln V is that of guessing
    """

    key: str
    words: str
    loss: float


@dataclass(frozen=True, slots=True)
class LayerRun:
    """What the text does in one layer's MLP, as the architecture declares it.

    width        neurons looked at: I, or those of all experts that saw enough tokens
    dead         of these, the ones whose h = act(gate) ⊙ up stays next to nothing on every token
    open, shut   the ones whose gate is on one flat side of the activation on every token
    h_max, h_at  largest |h|, what down_proj reads, and its neuron
    out_max, out_at  largest |output| of down_proj, and its channel
    """

    layer: int
    act: str
    width: int
    dead: int
    open: int
    shut: int
    h_max: float
    h_at: int
    out_max: float
    out_at: int


@dataclass(frozen=True, slots=True)
class Trial:
    """A text through the model.

    orders  how gate and up may be read: as declared first
    gate_up names of the first layer's gate and up in the files
    """

    tokens: int
    vocab: int
    orders: tuple[Order, ...]
    layers: tuple[LayerRun, ...]
    gate_up: tuple[str, ...] = field(default=())
