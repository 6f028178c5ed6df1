"""A module's forward, tile by tile over tokens, computed again in backward or kept tile by tile.

Beside torch.utils.checkpoint: the gradient of each parameter comes back once, summed over tiles
in float32, however many tiles there are, so that hooks on it fire once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call

from gateup.errors import UsageError
from gateup.ops.arguments import once
from gateup.ops.gemm import wide_dtype
from gateup.ops.mlp_ops import autocasts
from gateup.ops.rows import Rows, spans
from gateup.ops.tracing import transformed

Span = slice | None


def recomputed(body: nn.Module, *inputs: Tensor, tile: int | None, keep: bool) -> Tensor:
    """body(*inputs), each [..., ·] and mapped token by token, in tiles of `tile` (None: whole).

    keep  True: each tile keeps its own graph; False: only the inputs, and backward runs the body
          again with the same random numbers, under the same autocast

    Under torch.func's transforms the body is called as it is.
    """
    if transformed():
        y: Tensor = body(*inputs)
        return y
    names, parameters = [], []
    for name, parameter in body.named_parameters():
        if parameter.requires_grad:
            names.append(name)
            parameters.append(parameter)
    return _apply(body, names, (tile, keep), len(inputs), *inputs, *parameters)


class _Moment(NamedTuple):
    """What a body may read besides its inputs: random numbers and autocast."""

    device: torch.device
    cpu: Tensor
    cuda: Tensor | None
    cast: dict[str, Any] | None

    @classmethod
    def now(cls, device: torch.device) -> _Moment:
        cast = None
        if autocasts(device.type):
            # No cache: a weight cast without a graph must not be found by a later forward.
            dtype = torch.get_autocast_dtype(device.type)
            cast = {"device_type": device.type, "dtype": dtype, "cache_enabled": False}
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(device, torch.get_rng_state(), cuda, cast)

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self.cast is not None:
                stack.enter_context(torch.autocast(**self.cast))
            yield

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """The same numbers and casts; the generators go on afterwards as if nothing had been."""
        devices = [self.device] if self.cuda is not None else []
        with torch.random.fork_rng(devices=devices):
            torch.set_rng_state(self.cpu)
            if self.cuda is not None:
                torch.cuda.set_rng_state(self.cuda, self.device)
            with self.autocast():
                yield


# functional_call puts its tensors into the modules and takes them out again. Two threads at once
# would each take the other's for the module's own, and leave them there for good.
_SWAPPED = threading.RLock()


def _alone() -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if torch.compiler.is_compiling() else _SWAPPED


class _Run(NamedTuple):
    """The body with the parameters it is to use, by name."""

    body: nn.Module
    names: Sequence[str]
    parameters: Sequence[Tensor]

    def __call__(self, inputs: Sequence[Tensor]) -> Tensor:
        swapped = dict(zip(self.names, self.parameters, strict=True))
        with _alone():
            y: Tensor = functional_call(self.body, swapped, tuple(inputs))
        return y


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, body: nn.Module, names: list[str], how: Any, count: int, *tensors: Tensor
    ) -> Tensor:
        tile, keep = how
        inputs, parameters = tensors[:count], tensors[count:]
        ctx.body, ctx.names, ctx.count, ctx.keep = body, names, count, keep
        needs = ctx.needs_input_grad[4:]
        keep = keep and any(needs)
        leaves = _leaves(parameters, needs[count:]) if keep else list(parameters)
        run = _Run(body, names, leaves)
        ctx.leaves, ctx.parameters, ctx.versions = leaves, parameters, _versions(parameters)
        ctx.spans, ctx.shapes = _spans(inputs[0], tile), [t.shape for t in inputs]
        ctx.graphs, ctx.moments = [], []
        y: Tensor | None = None
        for span in ctx.spans:
            rows = _rows(inputs, span)
            if keep:
                part, graph = _with_graph(run, rows, needs[:count])
                ctx.graphs.append(graph)
            else:
                moment = _Moment.now(inputs[0].device)
                ctx.moments.append(moment)
                with moment.autocast():
                    part = run(rows)
            y = _write(y, part, span, inputs[0])
        assert y is not None
        if not keep:
            ctx.save_for_backward(*inputs)
        return y if len(ctx.spans) == 1 else y.view(*inputs[0].shape[:-1], y.shape[-1])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad[4:]
        grads = _gradients(ctx, dy.detach(), needs)
        return None, None, None, None, *once("gated_mlp_modules", grads)


def _gradients(ctx: Any, dy: Tensor, needs: Sequence[bool]) -> list[Tensor | None]:
    """Of the inputs, then of the parameters; summed over tiles, parameters' in float32."""
    count, whole = ctx.count, ctx.saved_tensors
    if not ctx.graphs:
        _refuse_changed(ctx)
    sums: list[Tensor | None] = [None] * len(needs)
    single = len(ctx.spans) == 1
    for number, span in enumerate(ctx.spans):
        if ctx.graphs:
            graph, leaves = ctx.graphs[number], ctx.leaves
        else:
            leaves = _leaves(ctx.parameters, needs[count:])
            run = _Run(ctx.body, ctx.names, leaves)
            with ctx.moments[number].again():
                _, graph = _with_graph(run, _rows(whole, span), needs[:count])
        wanted = [t for t, needed in zip((*graph.inputs, *leaves), needs, strict=True) if needed]
        grad = dy if span is None else Rows(dy)[span]
        parts = iter(
            torch.autograd.grad(
                graph.edge, wanted, grad, retain_graph=bool(ctx.graphs), allow_unused=True
            )
        )
        for i, needed in enumerate(needs):
            part = next(parts) if needed else None
            if part is None:
                continue
            if single:
                sums[i] = part
            elif i < count:
                sums[i] = _write(sums[i], part, span, dy)
            else:
                sums[i] = _add(sums[i], part)
    return _finish(sums, ctx, single)


def _versions(parameters: Sequence[Tensor]) -> list[int]:
    """How often each was written to; asked of no tracer, which knows nothing of it."""
    return [] if torch.compiler.is_compiling() else [p._version for p in parameters]


def _refuse_changed(ctx: Any) -> None:
    """UsageError where a parameter was written to since forward, as autograd refuses it of what
    it keeps: computed again with other weights, the gradients would be of neither."""
    if not ctx.versions or torch.compiler.is_compiling():
        return
    pairs = zip(ctx.names, _versions(ctx.parameters), ctx.versions, strict=True)
    changed = [name for name, now, was in pairs if now != was]
    if changed:
        raise UsageError(
            f"{', '.join(changed)} changed in place between forward and backward",
            expected="the weights of the forward pass, which backward computes with again",
            remedy="call optimizer.step() after backward()",
        )


def _finish(sums: list[Tensor | None], ctx: Any, single: bool) -> list[Tensor | None]:
    if single:
        return sums
    for i, total in enumerate(sums):
        if total is not None:
            sums[i] = (
                total.view(ctx.shapes[i])
                if i < ctx.count
                else total.to(ctx.parameters[i - ctx.count].dtype)
            )
    return sums


class _Graph(NamedTuple):
    """One tile's graph: its inputs as leaves, and the edge where y's gradient enters."""

    inputs: list[Tensor]
    edge: GradientEdge


def _with_graph(run: _Run, rows: Sequence[Tensor], needs: Sequence[bool]) -> tuple[Tensor, _Graph]:
    leaves = _leaves(rows, needs)
    with torch.enable_grad():
        y = run(leaves)
    # The edge, not y: y's own memory is not part of what is kept.
    return y.detach(), _Graph(leaves, get_gradient_edge(y))


def _leaves(tensors: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor]:
    """Aliases without history: hooks on the tensors themselves do not fire for each tile."""
    return [t.detach().requires_grad_(n) for t, n in zip(tensors, needs, strict=True)]


def _spans(x: Tensor, tile: int | None) -> list[Span]:
    tokens = x.numel() // max(1, x.shape[-1])
    if tile is None or tokens <= tile:
        return [None]
    return list(spans(tokens, tile))


def _rows(tensors: Sequence[Tensor], span: Span) -> list[Tensor]:
    return list(tensors) if span is None else [Rows(t)[span] for t in tensors]


def _write(whole: Tensor | None, part: Tensor, span: Span, like: Tensor) -> Tensor:
    """Put a tile's rows into the whole, which the first tile allocates."""
    if span is None:
        return part
    if whole is None:
        tokens = like.numel() // like.shape[-1]
        whole = part.new_empty((tokens, part.shape[-1]))
    whole[span] = part
    return whole


def _add(total: Tensor | None, part: Tensor) -> Tensor:
    if total is None:
        return part.to(wide_dtype(part.dtype), copy=True)
    return total.add_(part)


# torch does not type Function.apply.
_apply: Callable[..., Tensor] = _Recomputed.apply
