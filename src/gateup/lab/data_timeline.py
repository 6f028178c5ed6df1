"""One MLP's live tensors, operation by operation, by execution mode: the Memory page's timeline.

The library gives the peak (`account.activations.mlp_transient`); this lays the same tensors out
over the steps in which they live. The tests hold the largest step against that peak for every
preset, and a dense run against torch's own storages.

A dense MLP's input and the residual live throughout and are not drawn; experts gather their input
first, so it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gateup.account.workload import Execution
from gateup.model.spec import MLP, ClassicFFNSpec, GatedMLPSpec, MoESpec

# Which colour a tensor has: wide ones by what they are, narrow ones alike.
Role = Literal["gate", "up", "act", "product", "narrow", "copy"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that is alive in a step. width: elements per token (k tokens for experts)."""

    name: str
    role: Role
    width: int


@dataclass(frozen=True, slots=True)
class Step:
    """One operation: what is alive once its result is there and before its inputs are let go."""

    name: str
    alive: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The steps of one pass over `tokens` tokens (of one tile), `size` bytes an element.

    kept  bytes of the whole output, which tiles are gathered into; 0 without tiles
    """

    steps: tuple[Step, ...]
    tokens: int
    size: int
    kept: int = 0

    def nbytes(self, tensor: Tensor) -> int:
        return tensor.width * self.tokens * self.size

    def total(self, step: Step) -> int:
        """Bytes alive in the step."""
        return self.kept + sum(self.nbytes(t) for t in step.alive)

    @property
    def peak(self) -> Step:
        return max(self.steps, key=self.total)


def timeline(
    mlp: MLP, hidden: int, tokens: int, size: int, execution: Execution, tile: int
) -> Timeline:
    """The steps of `mlp`. tile: tokens per tile, where `execution` is "tiled"."""
    fused = execution == "fused"
    steps = _experts(mlp, hidden, fused) if isinstance(mlp, MoESpec) else _dense(mlp, hidden, fused)
    tiled = execution == "tiled" and tile < tokens
    return Timeline(
        tuple(steps), tile if tiled else tokens, size, tokens * hidden * size if tiled else 0
    )


def _step(name: str, *alive: Tensor) -> Step:
    return Step(name, tuple(t for t in alive if t.width))


def _dense(mlp: GatedMLPSpec | ClassicFFNSpec, hidden: int, fused: bool) -> list[Step]:
    width = mlp.intermediate_size
    out = Tensor("down", "narrow", hidden)
    if isinstance(mlp, ClassicFFNSpec):
        return _classic(width, out, written=mlp.act == "gelu_tanh" and not fused)
    product = Tensor("act ⊙ up", "product", width)
    steps = _gating(mlp, width, product, fused)
    return [*steps, _step("down", product, out)]


def _classic(width: int, out: Tensor, *, written: bool) -> list[Step]:
    """written: transformers writes GPT-2's tanh GELU out (x/2, x³, its multiple)."""
    up, act = Tensor("fc", "up", width), Tensor("act", "act", width)
    steps = [_step("fc", up)]
    if written:
        parts = (Tensor("x/2", "copy", width), Tensor("x³", "copy", width))
        steps.append(_step("act", up, *parts, Tensor("0.0447·x³", "act", width)))
    else:
        steps.append(_step("act", up, act))
    return [*steps, _step("down", act, out)]


def _gating(mlp: GatedMLPSpec, width: int, product: Tensor, fused: bool) -> list[Step]:
    """From the projections to act(gate) ⊙ up."""
    gate, up = Tensor("gate", "gate", width), Tensor("up", "up", width)
    act = Tensor("act", "act", width)
    if fused:
        return [_step("gate", gate), _step("up", gate, up), _step("act ⊙ up", gate, up, product)]
    if mlp.act == "gpt_oss":
        return _clamped(width, product)
    if mlp.layout.form == "split":
        return [
            _step("gate", gate),
            _step("act", gate, act),
            _step("up", act, up),
            _step("act ⊙ up", act, up, product),
        ]
    return [  # one tensor: neither half can be let go before the other
        _step("gate_up", gate, up),
        _step("act", gate, up, act),
        _step("act ⊙ up", gate, up, act, product),
    ]


def _clamped(width: int, product: Tensor) -> list[Step]:
    """gpt-oss, eager: biases gathered for each token, both halves clamped, up + 1."""
    both = (Tensor("gate", "gate", width), Tensor("up", "up", width))
    bias = Tensor("bias", "copy", 2 * width)
    clamped = (Tensor("gate ≤ 7", "gate", width), Tensor("|up| ≤ 7", "up", width))
    glu, plus = Tensor("gate·σ", "act", width), Tensor("up + 1", "copy", width)
    return [
        _step("gate_up", *both, bias),
        _step("clamp", *both, bias, *clamped),
        _step("act", *both, bias, *clamped, glu),
        _step("act ⊙ up", *both, bias, *clamped, glu, plus, product),
    ]


def _experts(mlp: MoESpec, hidden: int, fused: bool) -> list[Step]:
    """transformers' grouped experts: k copies of every token, sorted by expert; shared ones
    before, whose output waits."""
    k, width = mlp.top_k, mlp.expert.intermediate_size
    steps: list[Step] = []
    waiting: tuple[Tensor, ...] = ()
    if mlp.shared:
        shared = Tensor("shared", "narrow", hidden)
        inner = _gating(
            mlp.shared,
            mlp.shared.intermediate_size,
            Tensor("act ⊙ up", "product", mlp.shared.intermediate_size),
            fused,
        )
        steps += [Step(f"shared {s.name}", s.alive) for s in inner]
        waiting = (shared,)
    gathered = Tensor("k·x", "narrow", k * hidden)
    product = Tensor("act ⊙ up", "product", k * width)
    routed = _gating(_merged(mlp.expert), k * width, product, fused)
    steps += [_step("gather", *waiting, gathered)]
    steps += [Step(s.name, (*waiting, gathered, *s.alive)) for s in routed]
    out = Tensor("k·down", "narrow", k * hidden)
    steps.append(_step("down", *waiting, gathered, product, out))
    copies = (Tensor("weighted", "copy", k * hidden), Tensor("in order", "copy", k * hidden))
    steps.append(_step("combine", *waiting, gathered, out, *copies))
    return steps


def _merged(expert: GatedMLPSpec) -> GatedMLPSpec:
    """transformers holds experts' gate and up in one tensor, however the file has them."""
    if expert.layout.form != "split":
        return expert
    return replace(expert, layout=replace(expert.layout, form="concat"))


def widest(mlps: Sequence[MLP], hidden: int) -> MLP | None:
    """The MLP whose eager peak is the largest: the one a plan's figures are of."""
    found: Mapping[MLP, int] = {
        m: (t := timeline(m, hidden, 1, 1, "eager", 1)).total(t.peak) for m in dict.fromkeys(mlps)
    }
    return max(found, key=lambda m: found[m], default=None)
