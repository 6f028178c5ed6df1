"""The search for combinations of changes that make a scenario fit, the cheapest first.

A change lies on an axis (weights' format, KV type, context, ...), whose options are ordered by how
much they save. Every option is first tried alone. From its bytes by phase and group a combination's
peak is foretold (a group's bytes are products, so factors multiply within it), and what is foretold
to fit is then computed in full: nothing is returned that was not.

Order: the worst loss of any part first (`LOSSES`; much of the model on the host ranks with "some"),
then the sum of the parts' costs and slowdowns, then the number of changes. A combination that
contains a fitting one is left out, and of those on the same axes, give or take a smaller physical
batch, the cheapest stands for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from gateup.account.memory import MemoryPlan
from gateup.account.scenario import Scenario
from gateup.errors import GateupError

# What a change takes away. "hardware": nothing but more devices; "capability": less can be done
# (a shorter context, a smaller model).
LOSSES = ("none", "tiny", "some", "hardware", "capability")

# With so many answers, those of three changes are not looked for.
ENOUGH = 4

# memory() calls a search may make: 0.5 to 4 ms each (Llama-3-8B to DeepSeek-V3).
BUDGET = 200

Price = tuple[int, float, int]
Profile = dict[tuple[str, str], int]


@dataclass(frozen=True)
class Option:
    """One change. loss: index of LOSSES; cost ranks within it; slow ranks the speed it takes.

    step  how far a numeric axis has gone (0 is unchanged)
    place the loss it is ranked with; None: its own. What is slow is no better than what loses
          some quality.
    """

    label: str
    apply: Callable[[Scenario], Scenario]
    loss: int = 0
    cost: float = 0.0
    slow: float = 0.0
    step: int = 0
    place: int | None = None


@dataclass(frozen=True)
class Axis:
    """Options of one kind, each saving more than the one before.

    at     numeric axes: the option at any step, so that the least that fits can be found
    alone  not combined with others (a sibling model)
    rival  axes of the same rival are not combined: they do the same thing
    keep   one answer of such an axis is shown, however many are cheaper
    """

    name: str
    options: tuple[Option, ...]
    at: Callable[[int], Option] | None = None
    alone: bool = False
    rival: str = ""
    keep: bool = False


@dataclass(frozen=True)
class Found:
    """A combination that fits: options by axis, in the axes' order."""

    choice: tuple[tuple[Axis, Option], ...]
    scenario: Scenario
    plan: MemoryPlan

    @property
    def price(self) -> Price:
        return price([o for _, o in self.choice])


def price(options: Sequence[Option]) -> Price:
    return (
        max((o.loss if o.place is None else max(o.loss, o.place) for o in options), default=0),
        sum(o.cost + o.slow for o in options),
        len(options),
    )


def sensible(options: Sequence[Option]) -> bool:
    """Nobody buys devices and gives up capability in one."""
    losses = {LOSSES[o.loss] for o in options}
    return not {"hardware", "capability"} <= losses


def nearest(peak: Callable[[int], int], capacity: int, good: int, bad: int) -> int:
    """The integer nearest to `bad` whose peak fits; `peak` is monotone, good fits, bad does not.

    Guesses by straight line through the two ends (most peaks are piecewise linear), and halves
    where that did not help.
    """
    low, high = peak(good), peak(bad)
    halve = False
    while abs(good - bad) > 1:
        width = abs(bad - good)
        part = width // 2 if halve or high <= low else (capacity - low) * width // (high - low)
        part = min(max(part, 1), width - 1)
        guess = good + part if bad > good else good - part
        value = peak(guess)
        if value <= capacity:
            good, low = guess, value
        else:
            bad, high = guess, value
        halve = not halve and abs(bad - good) * 2 > width
    return good


class Search:
    """One search over `axes` from `scenario`. `calls` counts memory() calls."""

    def __init__(self, scenario: Scenario, capacity: int, axes: Sequence[Axis]) -> None:
        self.scenario, self.capacity, self.axes = scenario, capacity, tuple(axes)
        self.calls = 0
        self.base = scenario.memory()
        self.smallest = self.base.peak
        self.found: list[Found] = []
        self._plans: dict[tuple[str, ...], tuple[Scenario, MemoryPlan] | None] = {}
        self._tried: dict[str, list[tuple[Option, Profile]]] = {}

    def run(self, limit: int) -> list[Found]:
        """At most `limit` combinations, cheapest first."""
        for axis in self.axes:
            self._single(axis)
        for size in (2, 3):
            if len(self.found) < (limit if size == 2 else ENOUGH):
                self._combine(size, limit)
        if not self.found:
            self._everything()
        return self.chosen(limit)

    def chosen(self, limit: int) -> list[Found]:
        """One of each set of axes, fewest changes first within a loss; none that changes more than
        a cheaper one does. The best on an axis to `keep` is never cut off.
        """
        by_axes: dict[frozenset[str], Found] = {}
        for found in sorted(self.found, key=lambda f: (f.price[0], f.price[2], f.price[1])):
            names = frozenset(a.name for a, _ in found.choice)
            by_axes.setdefault(names - {"ubatch"} or names, found)
        out: dict[frozenset[str], Found] = {}
        for names, found in sorted(by_axes.items(), key=lambda x: x[1].price):
            if not any(cheaper <= names for cheaper in out):
                out[names] = found
        chosen = list(out.values())
        best, rest = chosen[:limit], chosen[limit:]
        kept = next((f for f in rest if any(a.keep for a, _ in f.choice)), None)
        if kept is not None and not any(a.keep for f in best for a, _ in f.choice):
            best[-1] = kept
        return best

    def _evaluate(
        self, choice: Sequence[tuple[Axis, Option]]
    ) -> tuple[Scenario, MemoryPlan] | None:
        """The changed scenario and its plan; None where the change cannot be made."""
        key = tuple(f"{a.name}={o.label}" for a, o in choice)
        if key not in self._plans:
            if self.calls >= BUDGET:
                return None
            self.calls += 1
            scenario = self.scenario
            try:
                for _, option in choice:
                    scenario = option.apply(scenario)
                self._plans[key] = scenario, scenario.memory()
            except GateupError:  # a split, format or architecture that cannot be
                self._plans[key] = None
        done = self._plans[key]
        if done is not None:
            self.smallest = min(self.smallest, done[1].peak)
        return done

    def _need(self, choice: Sequence[tuple[Axis, Option]]) -> int:
        """The peak, less what another engine reserves less than this one; past the capacity
        where the change cannot be made.
        """
        done = self._evaluate(choice)
        if done is None:
            return self.capacity + 1
        before, (after, plan) = self.scenario, done
        if before.device is None or after.device is None:
            return plan.peak
        ours, theirs = (
            x.device.capacity(x.workload.engine) for x in (before, after) if x.device is not None
        )
        return plan.peak + ours - theirs

    def _fits(self, choice: Sequence[tuple[Axis, Option]]) -> bool:
        return self._need(choice) <= self.capacity

    def _add(self, choice: Sequence[tuple[Axis, Option]]) -> None:
        done = self._evaluate(choice)
        assert done is not None
        self.found.append(Found(tuple(choice), *done))

    def _single(self, axis: Axis) -> None:
        """Try an axis' options alone, up to the first that fits."""
        before = 0
        for option in axis.options:
            done = self._evaluate([(axis, option)])
            if done is None:
                continue
            if self._fits([(axis, option)]):
                self._add(self._refine([(axis, option)], before))
                return
            self._tried.setdefault(axis.name, []).append((option, profile(done[1])))
            before = option.step

    def _refine(self, choice: list[tuple[Axis, Option]], before: int) -> list[tuple[Axis, Option]]:
        """The last axis with steps, moved back to the least step after `before` that fits."""
        places = [i for i, (axis, _) in enumerate(choice) if axis.at is not None]
        if not places:
            return choice
        i = places[-1]
        axis, option = choice[i]

        def moved(step: int) -> list[tuple[Axis, Option]]:
            assert axis.at is not None
            return [*choice[:i], (axis, axis.at(step)), *choice[i + 1 :]]

        def need(step: int) -> int:
            return self._need(moved(step))

        return moved(nearest(need, self.capacity, option.step, before))

    def _combine(self, size: int, limit: int) -> None:
        """Combinations of `size` axes that do not fit with fewer."""
        base = profile(self.base)
        usable = [a for a in self.axes if not a.alone and a.name in self._tried]
        candidates = []
        for axes in combinations(usable, size):
            rivals = [a.rival for a in axes if a.rival]
            if len(set(rivals)) < len(rivals):
                continue
            for tried in product(*(self._tried[a.name] for a in axes)):
                options = [o for o, _ in tried]
                if sensible(options) and foretold(base, [p for _, p in tried]) <= self.capacity:
                    candidates.append((axes, options))
        candidates.sort(key=lambda c: price(c[1]))
        for axes, options in candidates:
            if len(self.found) >= limit or self.calls >= BUDGET:
                return
            choice = list(zip(axes, options, strict=True))
            if self._answered(choice) or not self._fits(choice):
                continue
            if any(self._fits(part) for part in _parts(choice)):
                continue
            self._add(self._refine(choice, self._before(choice)))

    def _before(self, choice: Sequence[tuple[Axis, Option]]) -> int:
        """The step before the one that the last numeric axis of `choice` is at."""
        for axis, option in reversed(choice):
            if axis.at is not None:
                steps = [o.step for o in axis.options if o.step < option.step]
                return max(steps, default=0)
        return 0

    def _answered(self, choice: Sequence[tuple[Axis, Option]]) -> bool:
        """Whether a combination found is part of this one, or is on the same axes and so, being
        found before, cheaper.
        """
        by_axis = {a.name: (a, o) for a, o in choice}
        return any(
            len(found.choice)
            == len(choice)
            == len(by_axis.keys() & {a.name for a, _ in found.choice})
            or all(a.name in by_axis and _at_least(*by_axis[a.name], o) for a, o in found.choice)
            for found in self.found
        )

    def _everything(self) -> None:
        """All axes as far as they go; if that fits, each taken back as far as it can be."""
        choice = [
            (a, self._tried[a.name][-1][0])
            for a in self.axes
            if not a.alone and a.name in self._tried
        ]
        if not self._fits(choice):
            return
        for axis, _ in sorted(choice, key=lambda c: price([c[1]]), reverse=True):
            i = next(i for i, (a, _) in enumerate(choice) if a is axis)
            less: list[list[tuple[Axis, Option]]] = [[*choice[:i], *choice[i + 1 :]]]
            less += [
                [*choice[:i], (axis, o), *choice[i + 1 :]] for o, _ in self._tried[axis.name][:-1]
            ]
            choice = next((c for c in less if c and self._fits(c)), choice)
        self._add(choice)


def _parts(choice: Sequence[tuple[Axis, Option]]) -> Iterator[list[tuple[Axis, Option]]]:
    """The combination with one change less, for each change."""
    for i in range(len(choice)):
        yield [*choice[:i], *choice[i + 1 :]]


def _at_least(axis: Axis, option: Option, other: Option) -> bool:
    """Whether `option` goes as far as `other` on their axis."""
    if axis.at is not None:
        return option.step >= other.step
    labels = [o.label for o in axis.options]
    return labels.index(option.label) >= labels.index(other.label)


def profile(plan: MemoryPlan) -> Profile:
    """Bytes by (phase, group)."""
    return {
        (phase, group): nbytes
        for phase in plan.peaks
        for group, nbytes in plan.by_group(phase).items()
    }


def foretold(base: Profile, changed: Sequence[Profile]) -> int:
    """The peak of changes made together, from their profiles made alone."""
    phases: dict[str, float] = {}
    keys = set(base).union(*changed)
    for phase, group in keys:
        start = base.get((phase, group), 0)
        if start:
            value = float(start)
            for one in changed:
                value *= one.get((phase, group), 0) / start
        else:
            value = float(max(one.get((phase, group), 0) for one in changed))
        phases[phase] = phases.get(phase, 0.0) + value
    return int(max(phases.values(), default=0.0))
