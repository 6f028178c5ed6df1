"""A trainer's file against the model it is for: its name, its template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateup.checks.finding import Finding
from gateup.checks.inputs import named_model
from gateup.checks.runner import check
from gateup.errors import UsageError

LORA = {"stage": "sft", "finetuning_type": "lora", "lora_target": "all", "cutoff_len": 512}


def found(base: str | Path, rule_id: str, **values: Any) -> list[Finding]:
    report = check(base, trainer=LORA | values)
    assert not report.failed
    return [f for f in report.findings if f.rule == rule_id]


@pytest.mark.parametrize(
    ("template", "base"),
    [
        ("llama3", "llama-2-7b"),
        ("llama2", "llama-3-8b"),
        ("gemma2", "qwen3-4b"),
        ("llama3", "mistral-7b"),
        ("qwen", "llama-3-8b"),
        ("qwen", "llama-2-7b"),
        ("mistral", "qwen2.5-7b"),
        ("phi4", "gemma-3-4b"),
    ],
)
def test_a_template_of_another_family_is_seen_without_a_tokenizer(template: str, base: str) -> None:
    (f,) = found(base, "trainer.family", template=template)
    assert f.severity == "warning"
    assert f.title.startswith(f"template {template} is not of the family of {base} (")
    assert "--tokenizer" in f.remedy


def test_the_remedy_names_the_familys_own() -> None:
    (f,) = found("llama-3-8b", "trainer.family", template="qwen")
    assert (f.evidence[0].subject, f.evidence[0].found) == ("model_type", "llama")
    assert "Templates for llama by preset llama-3-8b: llama3." in f.remedy


@pytest.mark.parametrize(
    ("template", "base"),
    [
        ("llama3", "llama-3.1-8b"),
        ("llama2", "llama-2-7b"),
        ("gemma3", "gemma-3-4b"),
        ("gemma", "gemma-2-9b"),
        ("qwen", "smollm2-1.7b"),
        ("qwen", "qwen2.5-7b"),
        ("mistral", "mixtral-8x7b"),
        ("phi", "phi-3-mini"),
        ("default", "llama-2-7b"),
        ("no_such", "llama-2-7b"),
        (["llama3"], "llama-2-7b"),
    ],
)
def test_templates_that_may_be_right(template: Any, base: str) -> None:
    assert found(base, "trainer.family", template=template) == []


def test_the_tokens_are_looked_at_where_a_tokenizer_is(tmp_path: Path) -> None:
    added = [{"id": 2, "content": "<|im_start|>"}]
    path, values = tmp_path / "tokenizer.json", LORA | {"template": "qwen"}

    def findings() -> list[Finding]:
        path.write_text(
            json.dumps({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": added}),
        )
        report = check("llama-3-8b", trainer=values, tokenizer=tmp_path)
        assert "trainer.template" in report.ran
        return [f for f in report.findings if f.rule in ("trainer.template", "trainer.family")]

    (f,) = findings()
    assert f.rule == "trainer.template"
    assert [e.subject for e in f.evidence] == ["<|im_end|>"]
    added.append({"id": 3, "content": "<|im_end|>"})
    assert findings() == []


def test_without_a_tokenizer_the_tokens_were_not_checked() -> None:
    report = check("llama-3-8b", trainer=LORA | {"template": "llama3"})
    assert "trainer.template" not in report.ran
    assert report.skipped["trainer.template"].startswith("no tokenizer was found")


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "family"),  # known
        ("meta-llama/Llama-3.1-8B", "model"),  # known, of the same shapes
        ("meta-llama/Llama-2-7b-hf", "vocab_size"),  # known
        ("acme/qwen-something", "family"),  # by its words
        ("/data/models/Gemma-7B-acme", "family"),
        ("acme/Llama-70B-acme", "parameters"),
    ],
)
def test_the_file_names_another_model(name: str, subject: str) -> None:
    (f,) = found("llama-3-8b", "trainer.model", model_name_or_path=name)
    assert f.severity == "warning"
    assert f.title == f"model_name_or_path names {name!r}; llama-3-8b is checked"
    assert subject in [e.subject for e in f.evidence]


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Meta-Llama-3-8B-Instruct",
        "acme/llama-8b-acme",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-8B-acme",
        "acme/whatever",
        "${oc.env:MODEL}",
        "",
        None,
        17,
    ],
)
def test_the_file_names_this_model_or_says_nothing_of_it(name: Any) -> None:
    assert found("llama-3-8b", "trainer.model", model_name_or_path=name) == []
    assert found("llama-3-8b", "trainer.model", base_model=name) == []


@pytest.fixture
def run_folder(tmp_path: Path, tiny: dict[str, Any]) -> Path:
    """Two models and a trainer's file that names the one beside it."""
    for name, config in (("one", tiny), ("two", tiny | {"intermediate_size": 128})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    (tmp_path / "sft.yaml").write_text(yaml.safe_dump(LORA | {"model_name_or_path": "./one"}))
    return tmp_path


def test_a_path_is_compared_by_what_lies_there(run_folder: Path) -> None:
    file = run_folder / "sft.yaml"

    def of(model: str) -> list[Finding]:
        report = check(run_folder / model, trainer=file)
        return [f for f in report.findings if f.rule == "trainer.model"]

    assert of("one") == []
    assert of("one/config.json") == []
    (f,) = of("two")
    assert "parameters" in [e.subject for e in f.evidence]


def test_the_model_of_the_file_is_taken_where_none_is_given(run_folder: Path) -> None:
    assert named_model(run_folder / "sft.yaml") == str(run_folder / "one")
    (run_folder / "hub.yaml").write_text("base_model: Qwen/Qwen2.5-7B\n")
    assert named_model(run_folder / "hub.yaml") == "Qwen/Qwen2.5-7B"
    (run_folder / "none.yaml").write_text("lora_rank: 8\n")
    with pytest.raises(UsageError, match="the trainer's file names none"):
        named_model(run_folder / "none.yaml")
