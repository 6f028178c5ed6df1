"""layer_replication: adapters that PEFT itself makes, and numbers that are no layers."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from gateup.checks.finding import Finding
from gateup.checks.runner import CheckReport, check


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base of three layers, and an adapter on layers 0, 1, 1, 2 of it."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, LlamaConfig

    root = tmp_path_factory.mktemp("replicated")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 160}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    config = LlamaConfig(**sizes, **heads, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(root / "base")
    settings = LoraConfig(
        r=2,
        lora_alpha=4,
        target_modules=["q_proj", "up_proj"],
        layer_replication=[[0, 2], [1, 3]],
        init_lora_weights=False,
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, settings)
        layers = adapted.base_model.model.model.layers
        # What the rule says of copies: their weights are one, so a merge adds two shares to it.
        assert len(layers) == 4
        shared = [x.mlp.up_proj.base_layer.weight.data_ptr() for x in layers]
        assert shared[1] == shared[2]
        adapted.save_pretrained(root / "adapter")
        ids = torch.arange(8)[None]
        with torch.no_grad():
            before = adapted(ids).logits
            after = adapted.merge_and_unload()(ids).logits
        assert not torch.allclose(before, after, atol=1e-2)
    return root


def above_notes(report: CheckReport) -> list[Finding]:
    assert not report.failed
    return [f for f in report.findings if f.severity != "note"]


def test_what_peft_stacks_is_a_note_and_nothing_else(made: Path) -> None:
    report = check(made / "base", adapter=made / "adapter")
    assert above_notes(report) == []
    (note,) = [f for f in report.findings if f.rule == "adapter.replication"]
    assert note.title == "the adapter makes 4 layers of the base's 3, 1 copy among them"
    assert "1.33 times the base's" in note.cause
    assert note.remedy.startswith("do not merge it")


@pytest.mark.parametrize(
    "value", [[[0, 4]], [[2, 2]], [[-1, 2]], [[0, 1, 2]], "0-3", [[0, 1.5]], [0, 3], [[True, 2]]]
)
def test_numbers_that_are_no_layers(made: Path, tmp_path: Path, value: Any) -> None:
    (error,) = changed(made, tmp_path, value)
    assert error.severity == "error"
    assert "the base has layers 0 to 2" in error.title


def test_more_layers_in_the_file_than_are_stacked(made: Path, tmp_path: Path) -> None:
    (error,) = changed(made, tmp_path, [[0, 3]])
    assert error.title == "the adapter has layer 3; layer_replication stacks 3"


def changed(made: Path, tmp_path: Path, value: Any) -> list[Finding]:
    folder = tmp_path / "adapter"
    shutil.copytree(made / "adapter", folder)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "layer_replication": value}))
    report = check(made / "base", adapter=folder)
    assert not report.failed
    return [f for f in report.findings if f.rule == "adapter.replication"]
