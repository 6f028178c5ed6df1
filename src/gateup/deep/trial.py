"""A short text through a model, once for each way that gate and up could be meant.

All ways go through the layers side by side, so that each weight is read once. Letters: N tokens of
all ways together, T of one, H hidden_size, I intermediate_size, V vocab_size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from gateup.checks.measured import LayerRun, Order, Trial
from gateup.deep.text import TEXT
from gateup.engine.config import LayerConfig
from gateup.engine.layerwise import Layerwise, dense
from gateup.engine.loading import Progress
from gateup.engine.model import route
from gateup.engine.tokenizer import Tokenizer
from gateup.engine.weights import LayerWeights, MLPWeights
from gateup.errors import InputError
from gateup.files.checkpoint import Checkpoint
from gateup.files.tensors import TensorFiles
from gateup.model.spec import GatedMLPSpec, ModelSpec
from gateup.ops.activations import Act, activation
from gateup.ops.packed import linear

MAX_TOKENS = 384
MIN_TOKENS = 16
# h is next to nothing below this share of the median neuron's largest |h| (none of SmolLM2's
# 46,080 neurons is below 0.1 of it).
DEAD = 1e-3
# An expert's neurons are judged where so many tokens came by.
ENOUGH = 32
# |gate| from which the activation's slope is within 0.06 of 0 or 1.
FLAT = {"silu": 5.0, "gelu": 2.4, "gelu_tanh": 2.4, "sigmoid": 5.0}

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read gate and up: from what gate's and up's rows gave as declared."""

    key: str
    words: str
    of: Callable[[torch.Tensor, torch.Tensor], Pair]


def readings(spec: ModelSpec) -> tuple[Reading, ...]:
    """As declared first, then what a converter may have done instead."""
    out = [
        Reading("declared", "as declared", lambda g, u: (g, u)),
        Reading("swapped", "gate and up exchanged", lambda g, u: (u, g)),
    ]
    layer = next((x.mlp for x in spec.layers if isinstance(x.mlp, GatedMLPSpec)), None)
    if layer is not None and layer.layout.form == "concat":
        up_first = layer.layout.order == "up_gate"

        def fused(g: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
            return torch.cat([u, g] if up_first else [g, u], -1)

        def even(g: torch.Tensor, u: torch.Tensor) -> Pair:
            rows = fused(g, u)
            return rows[..., ::2], rows[..., 1::2]

        def odd(g: torch.Tensor, u: torch.Tensor) -> Pair:
            rows = fused(g, u)
            return rows[..., 1::2], rows[..., ::2]

        out.append(Reading("interleaved", "as neighbours, even = gate, odd = up", even))
        out.append(Reading("interleaved, up first", "as neighbours, even = up, odd = gate", odd))
    return tuple(out)


def trial(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    files: TensorFiles,
    progress: Progress | None = None,
) -> Trial:
    """The text's loss under every reading, and what it does in the layers as declared.

    Raises what engine.loading.load does, and InputError where the tokenizer gives too few tokens.
    """
    with torch.inference_mode():
        return _trial(checkpoint, tokenizer, files, progress)


def _trial(
    checkpoint: Checkpoint, tokenizer: Tokenizer, files: TensorFiles, progress: Progress | None
) -> Trial:
    spec = checkpoint.spec
    ids = torch.tensor(_tokens(tokenizer, spec))
    ways = readings(spec)
    model = Layerwise(checkpoint, files, len(ids), progress)
    x = model.embedded(ids).repeat(len(ways), 1)
    runs = []
    for i, layer, w in model.layers():
        x = model.attended(x, layer, w)
        watch = _Watch(len(ids), activation(layer.act), ways)
        branch = _mlp(model.mlp_input(x, w), layer, w, watch)
        runs.append(watch.run(i, branch[: len(ids)]))
        x = model.added(x, branch, w.mlp_post_norm)
    losses = _losses(model, x, ids, len(ways))
    orders = tuple(Order(r.key, r.words, v) for r, v in zip(ways, losses, strict=True))
    return Trial(len(ids), spec.vocab_size, orders, tuple(runs), _names(checkpoint))


def _tokens(tokenizer: Tokenizer, spec: ModelSpec) -> list[int]:
    limit = min(MAX_TOKENS, spec.max_position_embeddings or MAX_TOKENS)
    ids = [i for i in tokenizer.encode(TEXT) if i < spec.vocab_size][:limit]
    if len(ids) < MIN_TOKENS:
        raise InputError(
            f"the tokenizer makes {len(ids)} tokens of an English text of {len(TEXT):,} characters",
            expected=f"{MIN_TOKENS} or more",
        )
    return ids


def _names(checkpoint: Checkpoint) -> tuple[str, ...]:
    """What the files call the first layer's gate and up."""
    rows = {
        n
        for r in checkpoint.spec.rows
        if r.layer is not None and r.part == "mlp" and r.matmul
        for n in (r.name,)
        if r.role.rpartition(".")[2] in ("gate_proj", "up_proj", "gate_up_proj")
    }
    names: dict[str, str] = {}
    for h in checkpoint.headers:
        if h.canonical in rows and h.canonical is not None:
            names.setdefault(h.canonical, h.name)
    first = [r.layer for r in checkpoint.spec.rows if r.name in names]
    if not first:
        return ()
    wanted = [r.name for r in checkpoint.spec.rows if r.layer == first[0] and r.name in names]
    return tuple(names[n] for n in wanted[:2])


def _mlp(h: torch.Tensor, layer: LayerConfig, w: LayerWeights, watch: _Watch) -> torch.Tensor:
    """h [N, H] -> [N, H], each way's tokens by its own reading."""
    rows = torch.arange(h.shape[0])
    if isinstance(w.mlp, MLPWeights):
        return _gated(h, w.mlp, rows, watch)
    assert layer.moe is not None
    weights, chosen = route(h, w.mlp.router, layer.moe)
    out = torch.zeros_like(h)
    for e in sorted(set(chosen.flatten().tolist())):
        token, place = torch.where(chosen == e)
        y = _gated(h[token], w.mlp.experts[e], rows[token], watch)
        out.index_add_(0, token, y * weights[token, place, None])
    return out


def _gated(h: torch.Tensor, w: MLPWeights, rows: torch.Tensor, watch: _Watch) -> torch.Tensor:
    """One MLP over tokens [n, H] that stand at `rows` of all."""
    gate = linear(h, dense(w.gate), w.gate_bias)
    up = linear(h, dense(w.up), w.up_bias)
    product = torch.empty_like(gate)
    for way, reading in enumerate(watch.ways):
        mine = rows // watch.length == way
        if not bool(mine.any()):
            continue
        g, u = reading.of(gate[mine], up[mine])
        product[mine] = watch.act.gated(g, u)
        if way == 0:
            watch.take(g, product[mine])
    return linear(product, dense(w.down), w.down_bias)


@dataclass
class _Watch:
    """What the MLP of one layer does as declared."""

    length: int
    act: Act
    ways: Sequence[Reading]
    width: int = 0
    dead: int = 0
    open: int = 0
    shut: int = 0
    h_max: float = 0.0
    h_at: int = 0
    flat: float | None = field(init=False)

    def __post_init__(self) -> None:
        self.flat = FLAT.get(self.act.name)

    def take(self, gate: torch.Tensor, product: torch.Tensor) -> None:
        """gate and h [n, I] of one MLP or one expert."""
        largest = product.abs().amax(0)
        top, at = _largest(largest)
        if not top <= self.h_max:  # NaN counts as larger
            self.h_max, self.h_at = top, at
        if gate.shape[0] < ENOUGH:
            return
        median = float(largest.median())
        limit = DEAD * (median if median > 0 else float(largest.max()))
        self.width += largest.numel()
        self.dead += int((largest <= limit).sum())
        if self.flat is not None:
            self.open += int((gate.amin(0) > self.flat).sum())
            self.shut += int((gate.amax(0) < -self.flat).sum())

    def run(self, layer: int, output: torch.Tensor) -> LayerRun:
        top, at = _largest(output.abs().amax(0))
        return LayerRun(
            layer=layer,
            act=self.act.name,
            width=self.width,
            dead=self.dead,
            open=self.open,
            shut=self.shut,
            h_max=self.h_max,
            h_at=self.h_at,
            out_max=top,
            out_at=at,
        )


def _largest(values: torch.Tensor) -> tuple[float, int]:
    """The largest and where; NaN before everything, as torch's max has it."""
    found = values.max(0)
    return float(found.values), int(found.indices)


def _losses(model: Layerwise, x: torch.Tensor, ids: torch.Tensor, ways: int) -> list[float]:
    """Mean next-token loss of each way, in nats."""
    wanted = ids.roll(-1).repeat(ways)
    each = torch.empty(len(wanted))
    for rows, logits in model.logits(x):
        each[rows] = F.cross_entropy(logits, wanted[rows], reduction="none")
    mean: list[float] = each.view(ways, -1)[:, :-1].double().mean(1).tolist()
    return mean
