"""The report: what people see, the JSON document by its schema and docs, the page of rules."""

from __future__ import annotations

import copy
import inspect
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gateup.account.report.console import make_console
from gateup.checks import pages
from gateup.checks.finding import SHOWN, Evidence, Finding
from gateup.checks.measured import LayerRun, Order, Trial, WeightScan
from gateup.checks.report import (
    SCHEMA,
    render,
    render_list,
    render_rule,
    rules_to_json,
    schema,
    summary,
    to_json,
)
from gateup.checks.runner import MODULES, RULES, CheckReport, check, find_rule

DOCS = Path(__file__).parents[2] / "docs"
Make = Callable[..., Any]


def shown(draw: Callable[..., None], what: Any) -> str:
    text = io.StringIO()
    draw(what, make_console(text))
    return text.getvalue()


@pytest.fixture
def faulty(tmp_path: Path, write: Make, tensors_of: Make, tiny: dict[str, Any]) -> CheckReport:
    """One error and one note."""
    folder = write(tmp_path / "m", {**tiny, "vocab_size": 100}, tensors_of(tiny))
    (folder / "old.safetensors").write_bytes(b"x")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(tensors_of(tiny), "model.safetensors")})
    )
    return check(folder)


def test_the_terminal_shows_rule_evidence_cause_and_remedy(faulty: CheckReport) -> None:
    text = shown(render, faulty)
    flat = " ".join(text.split())
    assert "error config.fields 2 tensors differ from the config" in flat
    assert "model.embed_tokens.weight: [160, 64]; expected [100, 64] (config.json)" in flat
    assert "why: The embedding was resized" in flat
    assert "remedy: set vocab_size 160 in config.json; every tensor fits then" in flat
    assert "1 error, 1 note; " in flat
    assert "not checked, no --tp was given: " in flat
    assert text.index("config.fields") < text.index("files.beside")


def test_names_from_files_are_harmless(described: Make, tiny: dict[str, Any]) -> None:
    finding = Finding(
        "a.b", "error", "[bold]t\x1b[2J", (Evidence("x\x07[/red]", "f", "e", "s"),), "\x1b", "\x9b"
    )
    report = CheckReport("n\x1b", (finding,), (), {}, {"a.c": "\x1b[1m"}, described(tiny))
    text = shown(render, report)
    assert not any(c in text for c in "\x1b\x07\x9b")
    assert "[bold]t" in text
    assert "[/red]" in text


def test_summaries(described: Make, tiny: dict[str, Any]) -> None:
    context = described(tiny)
    two = tuple(Finding("a.b", "error", "t") for _ in range(2))
    assert summary(CheckReport("n", two, ("a.b",), {}, {}, context)) == "2 errors; 1 rule ran"
    assert summary(CheckReport("n", (), ("a",), {"b": ""}, {"c": ""}, context)) == (
        "nothing found; 1 rule ran, 1 skipped, 1 failed"
    )
    assert "cannot be read" in summary(CheckReport("n", two))


def test_what_was_skipped_is_counted_by_topic(described: Make, tiny: dict[str, Any]) -> None:
    skipped = {"a.x": "no a", "a.y": "no a", "b.z": "no a", "c.w": "no c", "c.v": "no c"}
    text = shown(render, CheckReport("n", (), ("c.u",), skipped, {}, described(tiny)))
    assert "not checked, no a: a.* (2), b.z" in text
    assert "not checked, no c: c.w, c.v" in text, "c.u ran: c.* would say that it did not"


def test_evidence_is_cut_in_one_place_and_says_so(described: Make, tiny: dict[str, Any]) -> None:
    many = tuple(Evidence(f"t{i}", "f") for i in range(SHOWN + 12))
    finding = Finding("a.b", "note", "t", many)
    assert (len(finding.evidence), finding.more) == (SHOWN, 12)
    report = CheckReport("n", (finding,), (), {}, {}, described(tiny))
    assert f"  t{SHOWN - 1}: f\n  and 12 more\n" in shown(render, report)
    assert to_json(report)["findings"][0]["more"] == 12
    whole = Finding("a.b", "note", "t", many[:SHOWN])
    assert whole.more == 0
    assert "more" not in shown(render, CheckReport("n", (whole,), (), {}, {}, described(tiny)))
    for module in MODULES:
        assert "[:SHOWN]" not in inspect.getsource(module)


def test_what_was_measured_is_said_where_nothing_is_found(
    described: Make, tiny: dict[str, Any]
) -> None:
    orders = (Order("declared", "as declared", 2.8), Order("swapped", "exchanged", 23.5))
    run = LayerRun(1, "silu", 96, 0, 0, 0, 2824.0, 3, 22500.0, 5)
    context = replace(described(tiny), scan=WeightScan(30), trial=Trial(384, 160, orders, (run,)))
    text = " ".join(shown(render, CheckReport("n", (), ("a.b",), {}, {}, context)).split())
    assert "measured: 30 tensors read, every value is a number" in text
    assert "a text of 384 tokens costs 2.80 as declared, 23.50 exchanged" in text
    assert "largest |h| 2,824 in layer 1, largest |output| of down_proj 2.25e+04" not in text
    assert "largest |output| of down_proj 22,500 in layer 1" in text
    without = replace(context, trial=None)
    text = " ".join(shown(render, CheckReport("n", (), ("a.b",), {}, {}, without)).split())
    assert "tokenizer.json must lie beside the model" in text
    assert "measured" not in shown(render, CheckReport("n", (), (), {}, {}, described(tiny)))


def test_a_report_prints_itself(faulty: CheckReport, capsys: pytest.CaptureFixture[str]) -> None:
    faulty.print()
    assert capsys.readouterr().out == str(faulty) == shown(render, faulty)
    assert faulty.to_dict() == to_json(faulty)


def test_numbers_that_json_does_not_have(described: Make, tiny: dict[str, Any]) -> None:
    numbers = {"a": float("nan"), "b": float("inf"), "c": 1.5}
    finding = Finding("a.b", "note", "t", numbers=numbers)
    document = to_json(CheckReport("n", (finding,), (), {}, {}, described(tiny)))
    assert document["findings"][0]["numbers"] == {"a": "nan", "b": "inf", "c": 1.5}


def test_json_is_valid_and_complete(faulty: CheckReport) -> None:
    document = json.loads(json.dumps(to_json(faulty)))
    Draft202012Validator(schema()).validate(document)
    assert document["schema"] == SCHEMA
    assert document["counts"] == {"error": 1, "warning": 0, "note": 1}
    first = document["findings"][0]
    assert first["numbers"] == {"tensors": 2, "vocab_size.found": 100, "vocab_size.fits": 160}
    assert document["model"]["source"]["kind"] == "safetensors"
    assert {*document["ran"], *document["skipped"]} == {r.id for r in RULES}


def test_json_of_what_cannot_be_read(tmp_path: Path) -> None:
    document = to_json(check(tmp_path))
    Draft202012Validator(schema()).validate(document)
    assert document["readable"] is False
    assert document["model"] == {"name": str(tmp_path)}


def test_the_schema_can_say_no(faulty: CheckReport) -> None:
    validator = Draft202012Validator(schema())
    for path, value in (
        (("schema",), "gateup.check/2"),
        (("counts", "error"), -1),
        (("findings", 0, "severity"), "fatal"),
        (("findings", 0, "rule"), "nodot"),
        (("findings", 0, "evidence", 0, "found"), 3),
        (("surprise",), 1),
    ):
        document: Any = copy.deepcopy(to_json(faulty))
        place = document
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        assert not validator.is_valid(document), path


def test_every_path_is_documented(faulty: CheckReport) -> None:
    text = (DOCS / "json-schema.md").read_text(encoding="utf-8")
    part = text.split("## `gateup.check/1`")[1]
    found = set()

    def walk(value: Any, path: str) -> None:
        if path in ("findings[].numbers", "skipped", "failed"):
            found.add(path + ".*")
        elif isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, f"{path}.{key}" if path else key)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for inner in value:
                walk(inner, path + "[]")
        else:
            found.add(path)

    walk(to_json(faulty), "")
    for path in found:
        assert f"| `{path}` |" in part, path
    for line in part.splitlines():
        if line.startswith("| `"):
            assert line.split("`")[1] in found, line


def test_the_list_has_every_rule() -> None:
    lines = shown(render_list, RULES).splitlines()
    assert [x.split()[0] for x in lines if x and not x.startswith(" ")] == [r.id for r in RULES]
    assert rules_to_json(RULES)[0].keys() == {"id", "title", "worst", "needs", "teaches"}
    worst = {x.split()[0]: x.split()[1] for x in lines}
    assert worst["config.fields"] == "error"
    assert worst["split.vocab"] == "warning"
    assert worst["layout.order"] == "note"


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_explain_teaches_the_whole_text(rule: Any) -> None:
    text = shown(render_rule, rule)
    assert rule.id in text
    assert " ".join(rule.teaches.split()) in " ".join(text.split())
    assert f"severity: {rule.severities}" in text.splitlines()[1:3]  # a long title has two lines
    assert "\n\n\n" not in text
    assert not text.endswith("\n\n")


def test_explain_keeps_blocks_as_they_stand() -> None:
    text = shown(render_rule, find_rule("layout.order"))
    assert "    gate, up = gate_up[..., ::2], gate_up[..., 1::2]" in text


def test_the_page_is_made_from_the_rules() -> None:
    written = (DOCS / "checks.md").read_text(encoding="utf-8")
    assert written == pages.page(), "run: python -m gateup.checks.pages docs/checks.md"
    for rule in RULES:
        assert f"### {rule.id}\n" in written
    assert "Needs weights and `--deep`." in written
