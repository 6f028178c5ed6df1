"""The Memory page's numbers against `gateup plan`."""

from __future__ import annotations

from typing import Any

import pytest

from gateup.account.plan import plan, plan_opened
from gateup.account.report.json_report import to_json
from gateup.errors import UsageError
from gateup.lab.data_memory import at_peak, modes, options_of, phases, without_device
from gateup.lab.models import Models

VALUES: dict[str, Any] = {
    "quant": "",
    "device": "24GB",
    "ctx": 8192,
    "batch": 1,
    "engine": "",
    "kv": "",
    "execution": "eager",
    "tile": 1024,
    "tp": "1",
    "train": "",
    "checkpointing": False,
    "flash": True,
}


@pytest.mark.parametrize(
    ("name", "values", "asked"),
    [
        ("llama-3-8b", {}, {}),
        ("llama-3-8b", {"quant": "q4_k_m", "kv": "q8_0"}, {"quant": "q4_k_m", "kv": "q8_0"}),
        (
            "qwen3-30b-a3b",
            {"train": "lora", "checkpointing": True, "kv": "q8_0", "engine": "vllm"},
            {"train": "lora", "checkpointing": "layer"},
        ),
    ],
)
def test_the_phases_are_the_plans(name: str, values: dict[str, Any], asked: dict[str, Any]) -> None:
    options = options_of(VALUES | values)
    shown = plan_opened(Models().open(name), options)
    document = to_json(plan(name, ctx=8192, device="24GB", **asked))
    found = phases(shown)
    for phase, groups in found.peaks.items():
        assert sum(groups.values()) == document["memory"]["peaks"][phase]["value"]
    assert found.peak_phase == document["memory"]["peak_phase"]
    filled = {group: figure.value for group, figure in at_peak(shown).items()}
    assert filled == {g: n for g, n in found.peaks[found.peak_phase].items() if n}
    assert list(filled.values()) == sorted(filled.values(), reverse=True)
    assert [(i[0], i[3].value) for i in found.items] == [
        (i["label"], i["bytes"]["value"]) for i in document["memory"]["items"]
    ]
    assert shown.verdict is not None
    assert shown.verdict.fits == document["verdict"]["fits"]
    assert to_json(plan_opened(Models().open(name), without_device(options)))["verdict"] is None


def test_the_modes_are_drawn_from_the_plans_own_peak() -> None:
    for execution in ("eager", "fused", "tiled"):
        shown = plan_opened(
            Models().open("phi-3-mini"), options_of(VALUES | {"execution": execution})
        )
        found = modes(shown)
        item = next(i for i in shown.memory.items if i.label == "MLP")
        assert found.peaks[execution].value == item.nbytes  # type: ignore[index]
        for mode, line in found.timelines.items():
            assert line.total(line.peak) == found.peaks[mode].value
        assert found.most == found.peaks["eager"].value


def test_what_goes_with_the_run_and_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="--device 24XB"):
        plan_opened(Models().open("llama-3-8b"), options_of(VALUES | {"device": "24XB"}))
    with pytest.raises(UsageError, match="cannot be split over 16"):
        plan_opened(Models().open("smollm2-135m"), options_of(VALUES | {"tp": "16"}))


def test_engines_with_an_mlp_of_their_own_run_it_their_way() -> None:
    for values in ({"engine": "vllm"}, {"quant": "q4_k_m"}):
        assert options_of(VALUES | values | {"execution": "tiled"}).execution == "eager"
