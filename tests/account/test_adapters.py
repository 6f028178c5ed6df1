"""Adapters as PEFT writes them: their parameters, beside the base and trained on."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import pytest

from gateup.account.plan import plan
from gateup.account.report.console import make_console
from gateup.account.report.json_report import shown_to_json
from gateup.account.report.shape_flow import render_shown
from gateup.account.show import show
from gateup.errors import UsageError
from tests.account.pasting import pasted

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

LLAMA: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}
MOE = LLAMA | {
    "num_hidden_layers": 2,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "head_dim": 16,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("Llama", {"target_modules": "all-linear"}),
    "pattern": ("Llama", {"target_modules": r".*layers\.[01]\.mlp\.(gate|up)_proj"}),
    "table": ("Llama", {}),
    "one layer": ("Llama", {"target_modules": ["q_proj"], "layers_to_transform": [1]}),
    "ranks": ("Llama", {"target_modules": ["q_proj", "up_proj"], "rank_pattern": {"up_proj": 4}}),
    "embedding": ("Llama", {"target_modules": ["embed_tokens", "q_proj"]}),
    "dora": ("Llama", {"target_modules": ["q_proj"], "use_dora": True}),
    "whole": ("Llama", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    "experts": ("Qwen3Moe", {"target_modules": ["q_proj", "gate_proj", "up_proj", "down_proj"]}),
}


def trained_by_peft(kind: str, folder: Path) -> int:
    """Writes base and adapter into `folder`; the parameters PEFT trains."""
    family, lora = KINDS[kind]
    config = getattr(transformers, f"{family}Config")(**(MOE if family == "Qwen3Moe" else LLAMA))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.bfloat16)
        base.save_pretrained(folder / "base")
        base.config._name_or_path = str(folder / "base")
        base.name_or_path = str(folder / "base")
        model = peft.get_peft_model(base, peft.LoraConfig(r=8, **lora))
        model.save_pretrained(folder / "adapter", save_embedding_layers=False)
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"whole"}))
def test_parameters_are_those_that_peft_trains(tmp_path: Path, kind: str) -> None:
    n = trained_by_peft(kind, tmp_path)
    folder, base = tmp_path / "adapter", str(tmp_path / "base")
    beside = plan(folder, base=base, ctx=64)
    assert beside.checkpoint.problems == ()
    assert beside.figures["adapter.params"].value == n
    trained = plan(folder, base=base, ctx=64, train="lora")
    assert trained.figures["adapter.params"].value == n
    states = {i.label: i.nbytes for i in trained.memory.items}
    assert states["adapters"] == 4 * n
    assert states["optimizer: adamw"] == 8 * n


def test_an_adapter_beside_its_base_is_in_the_peak(tmp_path: Path) -> None:
    n = trained_by_peft("linear", tmp_path)
    with_it = plan(tmp_path / "adapter", base=str(tmp_path / "base"), ctx=64)
    without = plan(tmp_path / "base", ctx=64)
    assert with_it.memory.peaks["load"] == without.memory.peaks["load"] + 4 * n
    assert with_it.figures["memory.peak"].value == sum(
        i.nbytes for i in with_it.memory.alive(with_it.memory.peak_phase)
    )
    item = next(i for i in with_it.memory.items if i.label == "adapter, not merged")
    assert (item.figure.kind, item.group) == ("exact", "adapter")
    vllm = plan(tmp_path / "adapter", base=str(tmp_path / "base"), ctx=64, engine="vllm")
    item = next(i for i in vllm.memory.items if i.label == "adapter, not merged")
    assert (item.nbytes, item.figure.kind) == (2 * n, "estimate")
    note = next(n for n in with_it.notes if "counted apart" in n)
    assert note.endswith(f"it adds {2 * n:,} FLOPs a token")


def test_what_one_token_uses_of_an_adapter(tmp_path: Path) -> None:
    """2 of 8 experts: per layer q 8·(64 + 64); gate_up 2·16·(64 + 64) and down 2·8·(32 + 64)."""
    trained_by_peft("experts", tmp_path)
    p = plan(tmp_path / "adapter", base=str(tmp_path / "base"), ctx=64)
    used = 2 * (8 * 128 + 2 * 16 * 128 + 2 * 8 * 96)
    assert any(n.endswith(f"it adds {2 * used:,} FLOPs a token") for n in p.notes)
    assert p.figures["adapter.mlp_share"].value == pytest.approx(1 - 2 * 8 * 128 / 47_104)


def test_other_ranks_or_targets_make_another_adapter(tmp_path: Path) -> None:
    trained_by_peft("one layer", tmp_path)
    asked: dict[str, Any] = {"base": str(tmp_path / "base"), "ctx": 64, "train": "lora"}
    folder = tmp_path / "adapter"
    assert plan(folder, **asked).figures["adapter.params"].value == 8 * 128
    assert plan(folder, rank=4, **asked).figures["adapter.params"].value == 3 * 4 * 128
    assert plan(folder, targets="mlp", **asked).workload.training is not None
    full = plan(folder, **{**asked, "train": "full"})
    assert "full training: the adapter in adapter is left out" in full.notes


@pytest.mark.parametrize("train", [None, "lora", "full"])
def test_a_remedys_command_names_adapter_and_base(tmp_path: Path, train: str | None) -> None:
    """Pasted, it plans for the bytes printed; full training given up makes a new adapter."""
    trained_by_peft("one layer", tmp_path)
    folder, base = tmp_path / "adapter", str(tmp_path / "base")
    asked: dict[str, Any] = {"ctx": 1 << 20, "batch": 64, "train": train, "device": "2GB"}
    found = plan(folder, base=base, **asked).verdict
    assert found is not None
    told = [r for r in found.remedies if r.command]
    assert told
    for r in told:
        assert r.command.startswith(f"gateup plan {folder} --base {base} ")
        assert pasted(r.command).memory.peak == r.peak


def test_modules_stored_whole_are_said(tmp_path: Path) -> None:
    n = trained_by_peft("whole", tmp_path)
    asked: dict[str, Any] = {"base": str(tmp_path / "base"), "ctx": 64}
    beside = plan(tmp_path / "adapter", **asked)
    assert beside.figures["adapter.params"].value == n
    head = 256 * 64
    item = next(i for i in beside.memory.items if i.label == "adapter, not merged")
    assert item.nbytes == 4 * (n - head) + 2 * head
    trained = plan(tmp_path / "adapter", train="lora", **asked)
    assert any(f"({head:,} parameters) are not counted as trained" in x for x in trained.notes)


def test_show_has_the_adapter_beside_its_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # paths of any length leave the other cells whole
    n = trained_by_peft("ranks", tmp_path)
    base = str(tmp_path / "base")
    shown = show(tmp_path / "adapter", base=base)
    text = io.StringIO()
    render_shown(shown, make_console(text))
    lines = [" ".join(x.split()) for x in text.getvalue().splitlines()]
    for line in (
        "adapter: rank, alpha 4, 8; 8",
        "adapter: targets q_proj, up_proj",
        "adapter: tensors = 12",
        f"adapter: parameters = {n:,}",
    ):
        assert line in lines
    assert any(x.startswith(f"adapter: bytes = {4 * n:,} (") for x in lines)
    document = shown_to_json(shown)["adapter"]
    assert (document["rank"], document["params"], document["bytes"]) == (8, n, 4 * n)
    with pytest.raises(UsageError, match="is a model of its own"):
        show(base, base=base)
