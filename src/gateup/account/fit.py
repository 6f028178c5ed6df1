"""Does it fit, what is the most it could take, and what would make it fit."""

from __future__ import annotations

from dataclasses import dataclass

from gateup.account.figure import Figure
from gateup.account.remedies import Remedy, find_remedies
from gateup.account.roofline import roofline
from gateup.account.scenario import Scenario
from gateup.account.search import nearest
from gateup.errors import UsageError

__all__ = ["Remedy", "Verdict", "fit", "max_context", "roofline"]

# Nobody serves more; it bounds the bisection where the config states no limit.
CONTEXT_LIMIT = 1 << 30


@dataclass(frozen=True)
class Verdict:
    """The answer, per device (the fullest one).

    peak         bytes needed at the worst moment
    capacity     bytes a model can have: memory less `reserve`
    phase        the moment ("mlp", "logits", "compute", ...); `group` is what fills it most
                 ("weights", "kv", "mlp", "attention", "logits", ...)
    max_context  tokens per sequence that fit as stated, at most max_position_embeddings; 0: none
    remedies     what would make it fit, the cheapest first; empty where it fits
    smallest     the smallest peak found when nothing fits; else None
    host         bytes llama.cpp keeps in host memory besides
    notes        sentences: how devices are used, limits of max_context, why nothing fits
    scenario     what was judged
    """

    fits: bool
    peak: int
    capacity: int
    phase: str
    max_context: int
    remedies: tuple[Remedy, ...]
    group: str
    reserve: Figure
    host: Figure
    scenario: Scenario
    smallest: int | None = None
    notes: tuple[str, ...] = ()


def fit(scenario: Scenario) -> Verdict:
    """Judge `scenario` on its device; without a split of the user's, over all of its cards.

    Raises UsageError where the scenario names no device, or its split is illegal.
    """
    if scenario.device is None:
        raise UsageError("no device to fit", remedy="give one: --device 24GB")
    scenario = scenario.spread()
    device, engine = scenario.device, scenario.workload.engine
    assert device is not None  # spread keeps it
    plan, capacity = scenario.memory(), device.capacity(engine)
    fits = plan.peak <= capacity
    longest, notes = max_context(scenario, capacity)
    remedies: tuple[Remedy, ...] = ()
    smallest = None
    if not fits:
        remedies, least = find_remedies(scenario, capacity)
        if not remedies:
            smallest = least
            notes = (*notes, f"nothing tried fits; the smallest peak found is {least:,} bytes")
    groups = plan.by_group()
    return Verdict(
        fits=fits,
        peak=plan.peak,
        capacity=capacity,
        phase=plan.peak_phase,
        max_context=longest,
        remedies=remedies,
        group=max(groups, key=lambda g: groups[g], default="weights"),
        reserve=device.reserve(engine),
        host=scenario.host(),
        scenario=scenario,
        smallest=smallest,
        notes=notes,
    )


def max_context(scenario: Scenario, capacity: int) -> tuple[int, tuple[str, ...]]:
    """The largest ctx that fits as stated, and what to say about it.

    Memory never falls as the context grows, so a bisection finds it. The model's own limit caps
    it; a note says what memory alone would hold.
    """

    def peak(ctx: int) -> int:
        return scenario.with_(ctx=ctx).memory().peak

    if peak(1) > capacity:
        return 0, ("not even one token of context fits",)
    limit = scenario.spec.max_position_embeddings
    top = max(limit or CONTEXT_LIMIT, scenario.workload.ctx)
    held = top if peak(top) <= capacity else nearest(peak, capacity, 1, top)
    if limit is None:
        more = (f"memory holds {held:,} tokens and more; the config states no limit",)
        return held, more if held == top else ()
    if held < limit:
        return held, ()
    if held == limit:
        return limit, (f"max_position_embeddings {limit:,} limits the context, not memory",)
    word = "at least " if held == top else ""
    return limit, (
        f"max_position_embeddings {limit:,} limits the context; memory holds {word}{held:,} tokens",
    )
