"""Gate and up as one matrix, for inference: who may, whether it pays here, and how it is done."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor, nn

from gateup.errors import UsageError
from gateup.nn.projections import why_not_plain
from gateup.ops.gated_mlp import Weights, gated_mlp, gated_mlp_fused
from gateup.ops.layouts import CONCAT

if TYPE_CHECKING:
    from gateup.nn.gated_mlp import GatedMLP

When = Literal["always", "auto"]
_REPEATS = 7


class Merge(NamedTuple):
    """Whether gate and up are merged now, and the seconds of one call that decided it (medians;
    None where nothing was timed)."""

    merged: bool
    split_seconds: float | None = None
    fused_seconds: float | None = None


class Fused(NamedTuple):
    """weight [2I, H] and bias [2I], gate first; `gate` and `up` are the parameters within."""

    weight: Tensor
    bias: Tensor | None
    gate: Tensor
    up: Tensor

    def serves(self, gate: Tensor, up: Tensor) -> bool:
        """Whether gate and up still are this matrix's halves, and need no gradient."""
        if gate is not self.gate or up is not self.up:
            return False
        if torch.is_grad_enabled() and (gate.requires_grad or up.requires_grad):
            return False
        # A tracer sees no addresses: whether .data was exchanged since cannot be told, and the old
        # matrix would serve without a word. Compiled code takes the parts.
        if torch.compiler.is_compiling():
            return False
        width = self.weight.shape[0] // 2
        return (
            gate.data_ptr() == self.weight.data_ptr()
            and up.data_ptr() == self.weight[width:].data_ptr()
        )


def refuse_if_held(gate: nn.Linear, up: nn.Linear) -> None:
    """UsageError, in words, where somebody else counts on gate and up being apart."""
    for name, linear in (("gate_proj", gate), ("up_proj", up)):
        reason = why_not_plain(linear)
        if reason is not None:
            raise UsageError(
                f"{name} cannot be merged: {reason}",
                expected="plain nn.Linear modules that nobody else holds",
                remedy="merge adapters into the base weights first (PEFT: merge_and_unload);"
                " leave sharded and quantised parts apart",
            )
        if "weight" not in dict(linear.named_parameters(recurse=False)):
            raise UsageError(f"{name}.weight is no parameter of its module: FSDP may hold it")
    parameters = {
        f"{name}.{kind}": parameter
        for name, linear in (("gate_proj", gate), ("up_proj", up))
        for kind, parameter in linear.named_parameters(recurse=False)
    }
    for name, parameter in parameters.items():
        _refuse_training(name, parameter)
    _refuse_optimized(parameters)
    if (gate.bias is None) != (up.bias is None):
        raise UsageError("one of gate_proj and up_proj has a bias, the other none")
    a, b = gate.weight, up.weight
    if (a.dtype, a.device, a.shape) != (b.dtype, b.device, b.shape):
        raise UsageError(
            f"gate_proj.weight is {a.dtype} {tuple(a.shape)} on {a.device}, up_proj.weight"
            f" {b.dtype} {tuple(b.shape)} on {b.device}",
            expected="one dtype, shape and device",
        )


def _refuse_training(name: str, parameter: nn.Parameter) -> None:
    if parameter.is_meta:
        raise UsageError(f"{name} is on the meta device", expected="a tensor with data")
    if parameter.requires_grad:
        raise UsageError(
            f"{name} requires a gradient: merging is for inference",
            remedy="call requires_grad_(False) on the model, or leave gate and up apart to train",
        )


def _refuse_optimized(parameters: Mapping[str, nn.Parameter]) -> None:
    """UsageError where a living optimizer has one of the parameters in its groups."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    # Nothing but the garbage collector knows all optimizers: 370,000 objects with transformers
    # loaded. type(), not isinstance: some objects answer isinstance by running code of theirs.
    kinds = _subclasses(torch.optim.Optimizer)
    for optimizer in [o for o in gc.get_objects() if type(o) in kinds]:
        for group in getattr(optimizer, "param_groups", ()):
            held = next((names[id(p)] for p in group["params"] if id(p) in names), None)
            if held is not None:
                raise UsageError(
                    f"{held} is held by an optimizer ({type(optimizer).__name__})",
                    remedy="drop the optimizer, or leave gate and up apart",
                )


def _subclasses(kind: type) -> set[type]:
    found: set[type] = {kind}
    below: type
    for below in type.__subclasses__(kind):
        found |= _subclasses(below)
    return found


def fuse(gate: nn.Linear, up: nn.Linear) -> Fused:
    """One matrix of both; the parameters stay the objects they were, as views of it."""
    with torch.no_grad():
        weight, bias = _joined(gate, up)
        width = gate.weight.shape[0]
        gate.weight.data, up.weight.data = weight[:width], weight[width:]
        if bias is not None:
            gate.bias.data, up.bias.data = bias[:width], bias[width:]
    return Fused(weight, bias, gate.weight, up.weight)


def _joined(gate: nn.Linear, up: nn.Linear) -> tuple[Tensor, Tensor | None]:
    weight = torch.cat((gate.weight.detach(), up.weight.detach()))
    if gate.bias is None:
        return weight, None
    return weight, torch.cat((gate.bias.detach(), up.bias.detach()))


# What was timed in this process: layers of one size are timed once.
_MEASURED: dict[tuple[object, ...], tuple[float, float]] = {}


def faster(mlp: GatedMLP, tokens: int) -> Merge:
    """Time both forms for `tokens` rows; merged where that took less time."""
    gate, up, down = mlp.gate_proj, mlp.up_proj, mlp.down_proj
    like = gate.weight
    threads = torch.get_num_threads()
    key = (tokens, *like.shape, like.dtype, str(like.device), threads, mlp.act, mlp.options)
    if key not in _MEASURED:
        with torch.no_grad():
            weight, bias = _joined(gate, up)
            x = torch.randn(tokens, mlp.hidden_size).to(like)
            weights = Weights(gate.weight, up.weight, down.weight, gate.bias, up.bias, down.bias)

            def split() -> Tensor:
                return gated_mlp(x, weights, act=mlp.act, options=mlp.options)

            def fused() -> Tensor:
                return gated_mlp_fused(
                    x,
                    weight,
                    down.weight,
                    layout=CONCAT,
                    gate_up_bias=bias,
                    down_bias=down.bias,
                    act=mlp.act,
                    options=mlp.options,
                )

            _MEASURED[key] = _timed(split, fused, like)
    split_seconds, fused_seconds = _MEASURED[key]
    return Merge(fused_seconds < split_seconds, split_seconds, fused_seconds)


def _timed(first: object, second: object, like: Tensor) -> tuple[float, float]:
    """Median seconds of each, run in turn so that a slow moment hits both."""
    calls = (first, second)
    seconds: tuple[list[float], list[float]] = ([], [])
    for repeat in range(_REPEATS + 1):
        for call, found in zip(calls, seconds, strict=True):
            start = time.perf_counter()
            call()  # type: ignore[operator]
            if like.is_cuda:
                torch.cuda.synchronize(like.device)
            if repeat:  # the first is for warming up
                found.append(time.perf_counter() - start)
    return statistics.median(seconds[0]), statistics.median(seconds[1])
