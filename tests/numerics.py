"""The project's one rule for "as accurate as plain torch", and the means to apply it.

A fast path is as good as the plain one when, on the same inputs, its error against a float64
reference is at most 1.05 times the plain low-precision path's by relative Frobenius norm and
2 times by worst element, pooled over eight seeds. No literal tolerance appears anywhere else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

SEEDS = range(8)
FROBENIUS, WORST = 1.05, 2.0

Results = Tensor | Mapping[str, Tensor] | Sequence[Tensor]
Run = Callable[[int], Results]


def assert_as_good(fast: Run, plain: Run, reference: Run, *, seeds: Sequence[int] = SEEDS) -> None:
    """Run all three on each seed and hold `fast` to the rule, result by result.

    Each is called with a seed and returns a tensor, a mapping or a sequence of tensors (y and the
    gradients, say); `reference` computes in float64. `fast` runs on poisoned memory: what it
    leaves unwritten is NaN and fails.
    """
    rows: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {}
    for seed in seeds:
        with poisoned():
            ours = _named(fast(seed))
        theirs, truth = _named(plain(seed)), _named(reference(seed))
        assert ours.keys() == theirs.keys() == truth.keys(), (
            f"results differ in kind: {sorted(ours)}, {sorted(theirs)}, {sorted(truth)}"
        )
        for name in truth:
            rows.setdefault(name, []).append((ours[name], theirs[name], truth[name]))
    for name, triples in rows.items():
        _hold(name, triples)


def errors(result: Sequence[Tensor], truth: Sequence[Tensor]) -> tuple[float, float]:
    """Relative Frobenius error and worst element's error (relative to the truth's RMS)."""
    diff = torch.cat(
        [(r.double() - t.double()).flatten() for r, t in zip(result, truth, strict=True)]
    )
    scale = torch.cat([t.double().flatten() for t in truth])
    norm = scale.norm().item() or 1.0
    rms = norm / max(scale.numel(), 1) ** 0.5
    worst = diff.abs().max().item() / rms if diff.numel() else 0.0
    return diff.norm().item() / norm, worst


def _hold(name: str, triples: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
    ours, theirs, truth = ([t[i].detach() for t in triples] for i in range(3))
    for o, p, t in zip(ours, theirs, truth, strict=True):
        assert t.dtype == torch.float64, f"{name}: the reference is {t.dtype}, not float64"
        assert o.shape == p.shape == t.shape, f"{name}: {o.shape}, {p.shape}, {t.shape}"
        assert o.dtype == p.dtype, f"{name}: fast is {o.dtype}, plain {p.dtype}"
        assert torch.isfinite(o).all(), f"{name}: not finite (unwritten memory, or an overflow)"
    # No result in this dtype can be nearer than the truth rounded to it.
    rounded = errors([t.to(o.dtype) for o, t in zip(ours, truth, strict=True)], truth)
    limits = [max(a, b) for a, b in zip(errors(theirs, truth), rounded, strict=True)]
    got = errors(ours, truth)
    for what, error, limit, factor in zip(
        ("Frobenius", "worst element"), got, limits, (FROBENIUS, WORST), strict=True
    ):
        assert error <= factor * limit, (
            f"{name}: {what} error {error:.3e} is {error / (limit or 1e-300):.3f}× plain's"
            f" {limit:.3e}; at most {factor}×"
        )


def _named(results: Results) -> dict[str, Tensor]:
    if isinstance(results, Tensor):
        return {"y": results}
    if isinstance(results, Mapping):
        return dict(results)
    return {str(i): r for i, r in enumerate(results)}


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Fill what torch.empty and its kin return with NaN."""
    was, warn = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was, warn_only=warn)
        torch.utils.deterministic.fill_uninitialized_memory = fill
