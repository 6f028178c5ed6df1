"""The rows, columns and experts on the Split page compute what one rank computes."""

from __future__ import annotations

import numpy as np
import pytest

from gateup.account.parallel import ranks
from gateup.account.scenario import stored_in
from gateup.account.workload import Parallel
from gateup.errors import UsageError
from gateup.lab.data_split import Range, Split, kinds, split
from gateup.model import presets
from gateup.model.layout import GateUpLayout, join


def _of(name: str, tp: int, ep: int = 1, kind: int = 0) -> Split:
    return split(presets.spec(name), kind, "bf16", Parallel(tp=tp, ep=ep), 2048)


def _take(held: tuple[Range, ...]) -> np.ndarray:
    return np.concatenate([np.arange(a, b + 1) for a, b in held])


@pytest.mark.parametrize("name", ["llama-3-8b", "phi-3-mini", "gpt-oss-20b"])
def test_the_ranks_parts_sum_to_the_whole_output(name: str) -> None:
    """x through each rank's rows and columns, as the page lists them, summed over ranks."""
    found = _of(name, 4)
    rng = np.random.default_rng(0)
    I, H = found.width, 3
    gate, up, down = (rng.standard_normal((I, H)) for _ in range(3))
    form = found.layout.form
    layout = GateUpLayout(form=form, order=found.layout.order)
    stored = None if form == "split" else join(gate, up, layout)
    x = rng.standard_normal(H)

    def mlp(g: np.ndarray, u: np.ndarray, d: np.ndarray) -> np.ndarray:
        return np.asarray((g @ x / (1 + np.exp(-(g @ x))) * (u @ x)) @ d)

    total = np.zeros(H)
    for part in found.parts:
        if stored is None:
            g, u = gate[_take(part.gate)], up[_take(part.up)]
        elif form == "concat":
            g, u = stored[_take(part.gate)], stored[_take(part.up)]
        else:  # gate and up are neighbours: even and odd rows of the same range
            assert part.gate == part.up
            g, u = stored[_take(part.gate)][::2], stored[_take(part.up)][1::2]
        total += mlp(g, u, down[_take(part.down)])
    np.testing.assert_allclose(total, mlp(gate, up, down), rtol=1e-12, atol=1e-12)


def test_rows_as_the_layouts_have_them() -> None:
    assert _of("llama-3-8b", 8).parts[1].gate == ((1792, 3583),)
    concat = _of("phi-3-mini", 4).parts[1]
    assert (concat.gate, concat.up) == (((2048, 4095),), ((10240, 12287),))
    assert _of("gpt-oss-20b", 4).parts[1].gate == ((1440, 2879),)
    classic = _of("gpt2", 4).parts[3]
    assert (classic.gate, classic.up, classic.down) == ((), ((2304, 3071),), ((2304, 3071),))


def test_experts_whole_shared_out_or_cut() -> None:
    whole = _of("qwen3-30b-a3b", 1, 8)
    assert [p.experts for p in whole.parts] == [(16 * r, 16 * r + 15) for r in range(8)]
    assert {p.down for p in whole.parts} == {((0, 767),)}
    both = _of("qwen3-30b-a3b", 4, 2)  # two ranks share each half of the experts
    assert [p.experts for p in both.parts] == [(0, 63), (0, 63), (64, 127), (64, 127)]
    assert [p.down[0] for p in both.parts] == [(0, 383), (384, 767)] * 2
    assert _of("deepseek-v3", 8).experts == 0  # its first layers are dense
    assert _of("deepseek-v3", 8, 8, kind=1).parts[7].experts == (224, 255)


def test_kv_heads_are_copied_where_ranks_outnumber_them() -> None:
    parts = _of("llama-3-8b", 16).parts
    assert [p.kv_heads for p in parts[:4]] == [(0, 0), (0, 0), (1, 1), (1, 1)]
    assert parts[3].heads == (6, 7)


def test_a_split_that_cannot_be_says_why_and_what_can() -> None:
    found = _of("smollm2-135m", 8)
    assert found.parts == ()
    assert [m.value for m in found.faults] == [9, 3]
    assert found.largest == 3
    with pytest.raises(UsageError, match="layers 0-31 of llama-3-8b have no experts"):
        _of("llama-3-8b", 1, 2)


def test_the_figures_are_the_accounts() -> None:
    spec, parallel = presets.spec("llama-3-8b"), Parallel(tp=8)
    stored = stored_in(spec, "bf16")
    (rank,) = ranks(spec, stored, parallel, "transformers")
    figures = _of("llama-3-8b", 8).figures
    assert figures["weights"].value == sum(rank.nbytes(t) for t in stored)
    assert figures["all_reduce"].value == 2048 * 4096 * 2


def test_the_kinds_of_layers() -> None:
    assert [label for label, _ in kinds(presets.spec("deepseek-v3"))] == ["0-2", "3-60"]
    assert len(kinds(presets.spec("gemma-3-27b"))) == 1  # windows differ, MLPs do not
