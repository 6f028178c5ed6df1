"""The search: bisection, order of prices, and combinations that hold no smaller one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateup.account.axes import axes_of
from gateup.account.machine import parse_device
from gateup.account.scenario import Scenario, stored_in
from gateup.account.search import (
    BUDGET,
    LOSSES,
    Axis,
    Option,
    Search,
    foretold,
    nearest,
    price,
    profile,
    sensible,
)
from gateup.account.workload import Workload
from gateup.errors import UsageError
from gateup.model import presets


@given(st.integers(1, 10**9), st.integers(1, 10**6), st.integers(0, 10**6), st.booleans())
def test_nearest_finds_the_edge(top: int, slope: int, base: int, falling: bool) -> None:
    """The last value that fits, whichever way the peak runs, in few steps."""
    capacity = base + slope * (top // 3)
    calls = []

    def peak(x: int) -> int:
        calls.append(x)
        return base + slope * (top + 1 - x if falling else x) + (x * x) % 3

    good, bad = (top + 1, 0) if falling else (0, top + 1)
    if peak(good) > capacity or peak(bad) <= capacity:
        return
    found = nearest(peak, capacity, good, bad)
    beyond = found + (1 if bad > good else -1)
    assert peak(found) <= capacity < peak(beyond)
    assert len(calls) < 80


def test_nearest_on_a_step() -> None:
    """Steps, plateaus and a straight line's wrong guesses: halving still ends it."""
    calls = []

    def peak(x: int) -> int:
        calls.append(x)
        return 0 if x < 123_456 else 10**12

    assert nearest(peak, 5, 0, 1 << 30) == 123_455
    assert len(calls) < 70


def option(name: str, loss: int = 0, cost: float = 0, slow: float = 0) -> Option:
    return Option(name, lambda s: s, loss, cost, slow)


def test_price_puts_quality_first_then_speed() -> None:
    none, slower = option("a", 0, 0, 1), option("b", 0, 0, 5)
    tiny, some = option("c", 1, 1), option("d", 2, 1)
    ordered = [[none], [slower], [none, slower], [tiny], [none, tiny], [some], [tiny, some]]
    prices = [price(x) for x in ordered]
    assert prices == sorted(prices)
    assert price([]) == (0, 0, 0, 0)


def test_nobody_buys_devices_and_gives_up_capability() -> None:
    hardware, capability = (option("x", LOSSES.index(n)) for n in ("hardware", "capability"))
    assert sensible([hardware])
    assert sensible([capability, option("y")])
    assert not sensible([hardware, capability])


def test_foretold_multiplies_within_a_group_and_adds_between() -> None:
    base = {("run", "weights"): 100, ("run", "kv"): 80, ("load", "weights"): 100}
    half_kv = {**base, ("run", "kv"): 40}
    small = {("run", "weights"): 30, ("run", "kv"): 80, ("load", "weights"): 30}
    new = {**base, ("run", "buffers"): 7}
    assert foretold(base, []) == 180
    assert foretold(base, [half_kv, small]) == 70
    assert foretold(base, [half_kv, half_kv]) == 120
    assert foretold(base, [small, half_kv, new]) == 77


def question(device: str = "8GB", **work: int) -> Scenario:
    spec = presets.spec("llama-3-8b")
    workload = Workload(engine="llama.cpp", **{"ctx": 32768, **work})  # type: ignore[arg-type]
    return Scenario(spec, "q4_k_m", stored_in(spec, "q4_k_m"), workload, parse_device(device))


def capacity(s: Scenario) -> int:
    assert s.device is not None
    return s.device.capacity(s.workload.engine)


def test_what_is_foretold_comes_true() -> None:
    """Pairs of changes foretold from the changes made alone: within 3% of the peak."""
    s = question()
    axes = [a for a in axes_of(s) if not a.alone and a.name != "devices"]
    base = profile(s.memory())
    for one, two in combinations(axes, 2):
        for a, b in product(one.options[::3], two.options[::3]):
            alone = [profile(o.apply(s).memory()) for o in (a, b)]
            true = b.apply(a.apply(s)).memory().peak
            assert foretold(base, alone) == pytest.approx(true, rel=0.03), (a.label, b.label)


def test_no_combination_contains_another() -> None:
    for device in ("8GB", "rtx4060", "6GB", "4GB"):
        s = question(device)
        found = Search(s, capacity(s), axes_of(s)).run(8)
        assert found
        names = [{a.name for a, _ in f.choice} for f in found]
        for f in found:
            assert f.plan.peak <= capacity(s)
            if len(f.choice) > 1:  # no part of it fits
                for i in range(len(f.choice)):
                    t = s
                    for _, o in (*f.choice[:i], *f.choice[i + 1 :]):
                        t = o.apply(t)
                    assert t.memory().peak > capacity(s)
        assert len({frozenset(n) for n in names}) == len(names)  # one for each set of axes
        assert [f.price for f in found] == sorted(f.price for f in found)


def test_a_numeric_change_goes_no_further_than_it_must() -> None:
    """One layer more on the device, or 256 tokens more, would not fit."""
    s = question()
    found = Search(s, capacity(s), axes_of(s)).run(8)
    single = {f.choice[0][0].name: f.scenario for f in found if len(f.choice) == 1}
    layers, context = single["layers"], single["context"]
    assert layers.gpu_layers is not None
    assert layers.with_(gpu_layers=layers.gpu_layers + 1).memory().peak > capacity(s)
    assert context.workload.ctx % 256 == 0
    assert context.with_(ctx=context.workload.ctx + 256).memory().peak > capacity(s)


def test_changes_that_cannot_be_made_are_passed_over() -> None:
    def impossible(s: Scenario) -> Scenario:
        raise UsageError("no")

    axes = [
        Axis("broken", (Option("broken", impossible),)),
        Axis("empty", ()),
        Axis("context", (Option("short", lambda s: s.with_(ctx=1024), 4),)),
    ]
    s = question()
    found = Search(s, capacity(s), axes).run(8)
    assert [[o.label for _, o in f.choice] for f in found] == [["short"]]


def test_more_than_three_changes_when_nothing_less_will_do() -> None:
    """Four axes that each halve a little: only all together fit."""

    def less(field: str, value: object) -> Callable[[Scenario], Scenario]:
        return lambda s: s.with_(**{field: value})

    s = question(batch=4)
    axes = [
        Axis("fmt", (Option("q2_k", less("fmt", "q2_k"), 2, 3),)),
        Axis("kv", (Option("q4_0", less("kv_type", "q4_0"), 2, 2),)),
        Axis("ctx", (Option("half", less("ctx", 16384), 4),)),
        Axis("batch", (Option("two", less("batch", 2)), Option("one", less("batch", 1)))),
    ]
    wanted = s
    for axis in axes:
        wanted = axis.options[-1].apply(wanted)
    tight = wanted.memory().peak
    (found,) = Search(s, tight, axes).run(8)
    assert [o.label for _, o in found.choice] == ["q2_k", "q4_0", "half", "one"]
    loose = tight + (1 << 30)  # then one of them can be spared, the dearest first
    found = Search(s, loose, axes).run(8)[0]
    assert found.plan.peak <= loose
    assert len(found.choice) < 4


def test_a_part_that_fits_after_all_stands_for_the_whole() -> None:
    """Two changes that save more together than foretold; a third would be for nothing."""

    def cache(s: Scenario) -> Scenario:
        return s.with_(kv_type="q8_0" if s.workload.ctx == 32768 else "q4_0")

    a = Axis("ctx", (Option("half", lambda s: s.with_(ctx=16384), 4),))
    b = Axis("kv", (Option("smaller", cache, 1),))
    c = Axis("ubatch", (Option("128", lambda s: s.with_(ubatch=128)),))
    s = question()
    alone = [profile(x.options[0].apply(s).memory()) for x in (a, b)]
    just_under = foretold(profile(s.memory()), alone) - 50 * 10**6
    found = Search(s, just_under, [a, b, c]).run(8)
    assert [[o.label for _, o in f.choice] for f in found] == [["half", "smaller"]]


def test_the_search_keeps_to_its_budget() -> None:
    for device in ("1MB", "6GB", "1GB"):
        s = question(device, batch=16)
        search = Search(s, capacity(s), axes_of(s))
        search.run(8)
        assert search.calls <= BUDGET
        assert search.smallest <= s.memory().peak
