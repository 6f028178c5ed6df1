"""The documents of --json: valid by their schemas, and every path documented, both ways."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gateup.account.measure import Measured, Measurements
from gateup.account.plan import plan
from gateup.account.report.json_report import (
    figure_json,
    measured_json,
    paths,
    schema,
    shown_to_json,
    to_json,
)
from gateup.account.show import show
from gateup.model import presets

DOCS = Path(__file__).parents[3] / "docs" / "json-schema.md"
FIGURE = {"value", "unit", "kind", "formula", "numbers", "source"}

# Keys of these objects depend on the model or the run.
OPEN = re.compile(
    r"^(bytes\.by_type|device\.flops|memory\.peaks|roofline|"
    r"flops\.(?:decode|prefill|training)\.gemm|layers\[\]\.(?:params|flops_per_token))\.([^.]+)"
)

# Together these have every path: both outcomes, training, MLA, experts, classic, an adapter.
RUNS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama-3-8b", {"quant": "q4_k_m", "ctx": 32768, "device": "8GB"}),
    ("deepseek-v3", {"ctx": 4096, "device": "16xh100"}),
    ("llama-3-8b", {"train": "lora", "ctx": 4096, "device": "rtx4090"}),
    ("mistral-7b-v0.1", {}),
    ("gpt2", {}),
)


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    return [to_json(plan(name, **options)) for name, options in RUNS]


def documented(heading: str) -> set[str]:
    """Paths of the tables below a heading."""
    text = DOCS.read_text(encoding="utf-8")
    part = text[text.index(f"## `{heading}`") :]
    end = part.find("\n## ", 4)
    return set(re.findall(r"^\| `([^`]+)` \|", part[: end if end > 0 else None], re.M))


def leaves(document: dict[str, Any]) -> set[str]:
    """Paths that end at a value or at a figure, with open keys as `*`."""
    out = set()
    for path in paths(document):
        # an engine's name may have a dot
        path = re.sub(r"^(verdict\.(remedies\[\]\.)?flags)\..*", r"\1.*", path)
        if path not in ("model.source.kind", "device.kind", "measured.rows[].unit"):
            path = re.sub(r"\.(value|unit|kind|formula|numbers|source)$", "", path)
        out.add(OPEN.sub(r"\1.*", path))
    return out


def test_plans_are_valid(documents: list[dict[str, Any]]) -> None:
    validator = Draft202012Validator(schema("plan"))
    for document in documents:
        assert [e.message for e in validator.iter_errors(document)] == []
        assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_every_preset_gives_a_valid_document() -> None:
    validator = Draft202012Validator(schema("plan"))
    for name in presets.PRESETS:
        document = to_json(plan(name, ctx=64))
        assert next(validator.iter_errors(document), None) is None, name
        assert document["params"]["total"]["value"] == presets.spec(name).params


def test_the_schema_can_say_no(documents: list[dict[str, Any]]) -> None:
    validator = Draft202012Validator(schema("plan"))
    for path, wrong in (
        (("params", "total", "kind"), "guess"),
        (("params", "total"), 8_030_261_248),
        (("run", "ctx"), 0),
        (("schema",), "gateup.plan/2"),
        (("model", "layer_kinds"), None),
        (("verdict", "fits"), "no"),
    ):
        document = json.loads(json.dumps(documents[0]))
        place = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = wrong
        assert not validator.is_valid(document), path


def test_every_documented_path_exists(documents: list[dict[str, Any]]) -> None:
    found = {p for d in documents for p in leaves(d)}
    missing = documented("gateup.plan/1") - found
    # Of a file that is opened: tests/account/test_file_size.py.
    assert {m for m in missing if not m.startswith(("measured.", "file.bytes"))} == set()


def test_every_path_is_documented(documents: list[dict[str, Any]]) -> None:
    known = documented("gateup.plan/1")
    for document in documents:
        for path in leaves(document):
            inside = path.startswith("verdict.remedies[].run.") or any(
                k.startswith((path + ".", path + "[]")) for k in known
            )
            assert path in known or inside, path


def test_show_is_valid_and_documented() -> None:
    validator = Draft202012Validator(schema("show"))
    for name in ("llama-3-8b", "deepseek-v3", "gpt2"):
        document = shown_to_json(show(name))
        assert [e.message for e in validator.iter_errors(document)] == []
    found = {p for p in paths(document) if not p.startswith("model") and p not in ("schema",)}
    known = documented("gateup.show/1")
    assert known - found == set()
    parents = {"tensors", "flow", "flow.steps", "flow.total", "generator", "notes"}
    assert found - known == parents


def test_show_and_plan_agree() -> None:
    shown = shown_to_json(show("mixtral-8x7b"))
    document = to_json(plan("mixtral-8x7b"))
    assert shown["params"] == document["params"]["total"]["value"]
    assert sum(t["bytes"] for t in shown["tensors"]) == document["bytes"]["total"]["value"]
    assert shown["model"] == document["model"]


def figures_in(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        if set(value) == FIGURE:
            return [value]
        return [f for v in value.values() for f in figures_in(v)]
    if isinstance(value, list):
        return [f for v in value for f in figures_in(v)]
    return []


def test_units_have_one_name_each(documents: list[dict[str, Any]]) -> None:
    text = DOCS.read_text(encoding="utf-8")
    row = next(x for x in text.splitlines() if x.startswith("| `unit`"))
    named = set(re.findall(r"`([^`]+)`", row)) - {"unit"}
    used = {f["unit"] for d in documents for f in figures_in(d)}
    assert used <= named
    assert "bytes" not in used


def test_parts_sum_to_totals(documents: list[dict[str, Any]]) -> None:
    for d in documents:
        for group in ("params", "bytes"):
            names = ("embedding", "attention", "mlp", "norm", "head", "other")
            parts = sum(d[group][p]["value"] for p in names if p in d[group])
            assert parts == d[group]["total"]["value"]
        assert sum(t["bytes"] for t in d["bytes"]["by_type"].values()) == parts
        for phase, figure in d["memory"]["peaks"].items():
            alive = [i for i in d["memory"]["items"] if phase in i["phases"]]
            assert figure["value"] == sum(i["bytes"]["value"] for i in alive)
        peak = d["memory"]["peak"]["value"]
        assert peak == max(f["value"] for f in d["memory"]["peaks"].values())


def test_measurements_stand_beside_predictions() -> None:
    p = plan("qwen3-0.6b")
    seen = Measured("mlp_saved", "saved", p.figures["kv.total"], 100, "B", "here")
    got = measured_json(Measurements((seen,), ("no llama.cpp",)))
    assert got is not None
    assert got["rows"][0]["predicted"] == figure_json(p.figures["kv.total"])
    assert got["rows"][0]["observed"] == 100
    assert got["notes"] == ["no llama.cpp"]
    document = {**to_json(p), "measured": got}
    assert Draft202012Validator(schema("plan")).is_valid(document)
    found = {x for x in leaves(document) if x.startswith("measured.")}
    assert found - documented("gateup.plan/1") == {"measured.rows"}
