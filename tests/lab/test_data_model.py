"""The Model page's numbers against `gateup plan`, `show` and `check`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateup.account.plan import plan
from gateup.account.report.json_report import to_json
from gateup.checks.runner import check
from gateup.lab.data_model import (
    FIGURES,
    consequences,
    edited,
    hidden_width,
    mlp_width,
    shape_changes,
    view,
)
from gateup.lab.errors import LabError
from gateup.lab.models import Models
from gateup.model import presets


@pytest.fixture(scope="module")
def models() -> Models:
    return Models()


@pytest.mark.parametrize(("name", "quant"), [("llama-3-8b", "q4_k_m"), ("qwen3-30b-a3b", "")])
def test_the_figures_are_those_of_plan(models: Models, name: str, quant: str) -> None:
    shown = view(models.open(name), quant, 8192)
    document = to_json(plan(name, quant=quant or None, ctx=8192))
    for path in FIGURES:
        *parents, last = path.split(".")
        node = document
        for parent in parents:
            node = node[parent]
        assert shown.figures[path].value == node[last]["value"], path
        assert shown.figures[path].formula == node[last]["formula"], path
    scores = document["flops"]["decode"]["attention_scores"]["value"]
    assert shown.decode["attention"] == document["flops"]["attention"]["value"] + scores
    assert sum(r.model.params for r in shown.parts) == document["params"]["total"]["value"]


def test_a_changed_width_is_the_model_of_that_config(models: Models, tmp_path: Path) -> None:
    now = edited(models.open("llama-3-8b"), 3072, 14_368)
    config = {**presets.PRESETS["llama-3-8b"].config}
    config |= {"hidden_size": 3072, "intermediate_size": 14_368}
    (tmp_path / "config.json").write_text(json.dumps(config))
    document = to_json(plan(tmp_path / "config.json", quant="q4_k_m"))
    shown = view(now, "q4_k_m", 4096)
    assert shown.figures["params.total"].value == document["params"]["total"]["value"]
    assert shown.figures["bytes.total"].value == document["bytes"]["total"]["value"]
    found = consequences(now, "q4_k_m", 8).findings
    checked = check(tmp_path / "config.json", quant="q4_k_m", tp=8).findings
    assert [f.title for f in found] == [
        f.title for f in checked if f.rule.startswith(("quant.", "split.", "config."))
    ]
    assert "quant.rows" in {f.rule for f in found}


def test_kv_heads_that_are_fewer_than_ranks_are_said(models: Models) -> None:
    found = consequences(models.open("llama-3-8b"), "", 1)
    assert (found.degrees, found.kv_heads) == ((2, 4, 8, 16), 8)
    assert consequences(models.open("llama-2-7b"), "", 1).kv_heads is None  # 32 of them


def test_what_a_width_changes(models: Models) -> None:
    before = models.open("llama-3-8b")
    changes = shape_changes(before.spec, edited(before, 0, 14_368).spec)
    assert [(c.role, c.count, c.before, c.after) for c in changes] == [
        ("gate_proj", 32, (14336, 4096), (14368, 4096)),
        ("up_proj", 32, (14336, 4096), (14368, 4096)),
        ("down_proj", 32, (4096, 14336), (4096, 14368)),
    ]
    assert edited(before, 0, 0) is before
    assert edited(before, 4096, 14_336) is before


def test_heads_that_do_not_divide_are_refused(models: Models) -> None:
    with pytest.raises(LabError, match="4112 is not a multiple of the 32 attention heads") as e:
        edited(models.open("llama-3-8b"), 4112, 0)
    assert e.value.expected == "4096 or 4128"


def test_which_widths_there_are_to_drag(models: Models) -> None:
    def keys(name: str) -> tuple[str | None, str | None]:
        spec = models.open(name).spec
        return tuple(w.key if w else None for w in (hidden_width(spec), mlp_width(spec)))

    assert keys("deepseek-v3") == ("hidden_size", "moe_intermediate_size")
    assert keys("llama-4-scout") == ("hidden_size", "intermediate_size")  # under text_config
    assert keys("openelm-3b") == ("model_dim", None)  # every layer its own
    scout = models.open("llama-4-scout")
    assert edited(scout, 0, 8224).spec.params > scout.spec.params


def test_a_models_own_value_is_a_step_of_its_slider(models: Models) -> None:
    for name in presets.PRESETS:
        spec = models.open(name).spec
        for width in (hidden_width(spec), mlp_width(spec)):
            if width is not None:
                assert width.low < width.value < width.high
                assert (width.value - width.low) % width.step == 0
