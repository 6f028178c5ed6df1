"""Adapters by their numbers, and whether they change anything."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gateup.checks.finding import Finding
from gateup.checks.runner import CheckReport, check

SIZE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160,
    "tie_word_embeddings": False,
}
Change = Callable[[dict[str, torch.Tensor], dict[str, Any]], None]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small Llama and what PEFT saves beside it: plain, with DoRA, with whole modules."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    root = tmp_path_factory.mktemp("saved")
    out = {}
    for name, more in {
        "plain": {},
        "dora": {"use_dora": True},
        "whole": {"modules_to_save": ["embed_tokens", "lm_head"]},
        "embedding": {"target_modules": ["embed_tokens", "down_proj"]},
    }.items():
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**SIZE))
        if name == "plain":
            model.save_pretrained(root / "base")
        config = LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": "all-linear"} | more)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            get_peft_model(model, config).save_pretrained(root / name)
        out[name] = root / name
    return out | {"base": root / "base"}


@pytest.fixture
def changed(saved: dict[str, Path], tmp_path: Path) -> Callable[..., CheckReport]:
    """(which, change of (tensors, config), moved) -> the check of such an adapter.

    moved  B's are not zero, as after training
    """

    def make(
        which: str = "plain", change: Change | None = None, *, moved: bool = True, **asked: Any
    ) -> CheckReport:
        tensors = load_file(saved[which] / "adapter_model.safetensors")
        config = json.loads((saved[which] / "adapter_config.json").read_text())
        if moved:
            for name in tensors:
                if ".lora_B" in name or ".lora_embedding_A" in name:
                    tensors[name] = tensors[name] + 0.01
        if change:
            change(tensors, config)
        folder = tmp_path / "adapter"
        folder.mkdir(exist_ok=True)
        save_file(tensors, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(config))
        return check(saved["base"], adapter=folder, **asked)

    return make


def of(report: CheckReport, rule: str = "adapter.") -> list[Finding]:
    assert not report.failed
    return [f for f in report.findings if f.rule.startswith(rule)]


def one(report: CheckReport, rule: str) -> Finding:
    found = of(report)
    assert [f.rule for f in found] == [rule], [f.title for f in found]
    return found[0]


@pytest.mark.parametrize("which", ["plain", "dora", "whole", "embedding"])
def test_what_peft_saves_after_training_passes_clean(
    changed: Callable[..., CheckReport], which: str
) -> None:
    assert of(changed(which)) == []


# --- identity --------------------------------------------------------------------------------


def test_e4_every_b_is_zero(changed: Callable[..., CheckReport]) -> None:
    f = one(changed(moved=False), "adapter.identity")
    assert f.severity == "error"
    assert f.title == "adapter is an exact identity: 14 of 14 lora_B are zero"
    assert "no gradient reached it" in f.cause
    assert "reentrant mode with frozen embeddings" in f.cause
    assert "model.enable_input_require_grads()" in f.remedy
    assert '"use_reentrant": false' in f.remedy
    assert "Rank, alpha and learning rate are not at fault" in f.remedy
    assert f.numbers == {"zero": 14, "halves": 14}


def test_e4_with_the_trainers_file_names_the_cause(changed: Callable[..., CheckReport]) -> None:
    trainer = {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
        "target_modules": "all-linear",
        "r": 4,
    }
    report = changed(moved=False, trainer=trainer)
    (f,) = of(report, "adapter.identity")
    assert "the trainer's file has use_reentrant true" in f.cause
    assert [g.severity for g in of(report, "trainer.checkpointing")] == ["warning"]


def test_some_b_zero_is_a_warning_that_names_them(changed: Callable[..., CheckReport]) -> None:
    def change(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        for name in tensors:
            if "layers.1" in name and "lora_B" in name:
                tensors[name] = torch.zeros_like(tensors[name])

    f = one(changed(change=change), "adapter.identity")
    assert f.severity == "warning"
    assert f.title == "7 of 14 lora_B are zero: these modules were not trained"
    assert all("layers.1" in e.subject for e in f.evidence)


def test_an_embeddings_adapter_starts_with_a_at_zero(changed: Callable[..., CheckReport]) -> None:
    f = one(changed("embedding", moved=False), "adapter.identity")
    assert f.numbers["zero"] == 3  # down_proj's B in two layers, the embedding's A


@pytest.mark.parametrize("which", ["dora", "whole"])
def test_beside_other_trained_weights_only_the_lora_part_is_one(
    changed: Callable[..., CheckReport], which: str
) -> None:
    f = one(changed(which, moved=False), "adapter.identity")
    assert f.title.startswith("the LoRA part of the adapter is an exact identity")


def test_a_real_reentrant_run_leaves_b_at_zero(saved: dict[str, Path], tmp_path: Path) -> None:
    """The cause that the rule names, run: torch's reentrant checkpoint on a frozen input."""
    from torch.utils.checkpoint import checkpoint

    def gradient(reentrant: bool, input_grad: bool) -> bool:
        torch.manual_seed(0)
        weight = torch.randn(4, 4)
        b = torch.zeros(4, 2, requires_grad=True)
        a = torch.randn(2, 4, requires_grad=True)
        x = torch.randn(3, 4, requires_grad=input_grad)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = checkpoint(lambda x: x @ (weight + b @ a).T, x, use_reentrant=reentrant)
        if y.requires_grad:
            y.sum().backward()
        return b.grad is not None and bool(b.grad.any())

    assert not gradient(reentrant=True, input_grad=False)
    assert gradient(reentrant=True, input_grad=True)
    assert gradient(reentrant=False, input_grad=False)


# --- pairs and ranks -------------------------------------------------------------------------


def test_a_half_alone(changed: Callable[..., CheckReport]) -> None:
    def change(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        del tensors["base_model.model.model.layers.0.mlp.up_proj.lora_B.weight"]

    f = one(changed(change=change), "adapter.pairs")
    assert f.title == "1 adapted module with only one of A and B"
    assert f.evidence[0].subject == "model.layers.0.mlp.up_proj"
    assert f.evidence[0].found == "A alone"


@pytest.mark.parametrize("r", [8, 2])
def test_the_config_of_another_run(changed: Callable[..., CheckReport], r: int) -> None:
    f = one(
        changed(change=lambda tensors, config: config.update(r=r, lora_alpha=2 * r)),
        "adapter.pairs",
    )
    assert f.severity == "error"
    assert f.title == "14 adapted modules of another rank than adapter_config.json says"
    assert f.evidence[0].expected == f"rank {r}"
    assert "Put r: 4 into adapter_config.json" in f.remedy


def test_rank_pattern_is_part_of_what_is_said(changed: Callable[..., CheckReport]) -> None:
    def change(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        config["rank_pattern"] = {"k_proj": 2}
        for name, t in tensors.items():
            if "k_proj" in name:
                tensors[name] = (t[:2] if "lora_A" in name else t[:, :2]).contiguous()

    assert of(changed(change=change)) == []


def test_a_rank_as_large_as_the_matrix(changed: Callable[..., CheckReport]) -> None:
    """k_proj and v_proj are [32, 64]: break-even at 32·64/96 = 21.3; q and o at 32."""

    def change(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        config.update(r=24, lora_alpha=48)
        for name, t in tensors.items():
            shape = (24, t.shape[1]) if "lora_A" in name else (t.shape[0], 24)
            tensors[name] = torch.full(shape, 0.01)

    f = one(changed(change=change), "adapter.rank")
    assert f.severity == "note"
    assert f.title == "4 of 14 adapters are as large as their matrix or larger"
    assert f.evidence[0].found == "rank 24: 2,304 parameters"
    assert f.evidence[0].expected == "fewer than the matrix's 2,048: rank below 21"
    assert f.numbers["break_even"] == 21
    assert "Lower the rank to 4 or less" in f.remedy


def test_a_rank_above_all_of_them_is_a_warning(changed: Callable[..., CheckReport]) -> None:
    def change(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        config.update(r=64, lora_alpha=128)
        for name, t in tensors.items():
            shape = (64, t.shape[1]) if "lora_A" in name else (t.shape[0], 64)
            tensors[name] = torch.full(shape, 0.01)

    f = one(changed(change=change), "adapter.rank")
    assert (f.severity, f.numbers["over"]) == ("warning", 14)


# --- scale -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "rslora", "severity", "text"),
    [
        (0, False, "error", "alpha is 0: the adapter adds nothing"),
        (0.2, False, "warning", "the scale is 0.05, far below"),
        (256, False, "warning", "the scale is 64, far above"),
        (64, True, "warning", "the scale is 32, far above"),
    ],
)
def test_scales(
    changed: Callable[..., CheckReport], alpha: float, rslora: bool, severity: str, text: str
) -> None:
    f = one(
        changed(change=lambda t, c: c.update(lora_alpha=alpha, use_rslora=rslora)),
        "adapter.scale",
    )
    assert f.severity == severity
    assert f.title.startswith(text)


@pytest.mark.parametrize(("alpha", "rslora"), [(1, False), (8, False), (16, False), (8, True)])
def test_usual_scales_are_silent(
    changed: Callable[..., CheckReport], alpha: float, rslora: bool
) -> None:
    report = changed(change=lambda t, c: c.update(lora_alpha=alpha, use_rslora=rslora))
    assert of(report) == []


def test_rslora_says_what_alpha_would_have_been(changed: Callable[..., CheckReport]) -> None:
    f = one(changed(change=lambda t, c: c.update(lora_alpha=64, use_rslora=True)), "adapter.scale")
    assert "without it, this alpha would give 16" in f.cause
    assert f.remedy == "With rsLoRA alpha 4 gives scale 2."


# --- whole modules ---------------------------------------------------------------------------


def rows(n: int, name: str = "embed_tokens") -> Change:
    def change(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        (key,) = [k for k in tensors if name in k]
        tensors[key] = torch.ones(n, 64)

    return change


@pytest.mark.parametrize(("n", "name"), [(151, "embed_tokens"), (100, "lm_head")])
def test_a3_a_shrunk_vocabulary(changed: Callable[..., CheckReport], n: int, name: str) -> None:
    f = one(changed("whole", rows(n, name)), "adapter.vocabulary")
    assert f.severity == "error"
    assert f"was shrunk to {n} rows; the base has 160" in f.title
    assert f"{160 - n} of its rows are padding" in f.cause
    assert f.remedy.startswith("Never shrink. Load with PeftModel.from_pretrained")
    assert f"resize the base to {n} first" in f.remedy


def test_a3_as_it_was(tmp_path: Path) -> None:
    """Qwen2.5-7B, 152,064 rows; 151,665 tokens; embed_tokens [151665, 3584]. Headers suffice: the
    data is a hole in the file."""
    shape, nbytes = [151_665, 3584], 151_665 * 3584 * 2
    name = "base_model.model.model.embed_tokens.weight"
    header = json.dumps({name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, nbytes]}})
    with (tmp_path / "adapter_model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header.encode())
        file.truncate(8 + len(header) + nbytes)
    config = {
        "peft_type": "LORA",
        "r": 8,
        "lora_alpha": 16,
        "target_modules": ["q_proj"],
        "modules_to_save": ["embed_tokens"],
    }
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    vocab = {f"t{i}": i for i in range(151_665)}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
    report = check("qwen2.5-7b", adapter=tmp_path, tokenizer=tmp_path)
    (f,) = of(report, "adapter.vocabulary")
    assert f.numbers == {"rows": 151_665, "vocab_size": 152_064, "padding": 399}
    assert "399 of its rows are padding" in f.cause
    assert "exactly the tokenizer's entries" in f.cause
    assert "resize the base to 151,665 first" in f.remedy


def test_a_grown_vocabulary_needs_the_resize(changed: Callable[..., CheckReport]) -> None:
    f = one(changed("whole", rows(168)), "adapter.vocabulary")
    assert "model.resize_token_embeddings(168)" in f.remedy
    assert "grew by 8 rows" in f.cause
    assert f.severity == "error"
    assert "the folder does not hold the tokenizer" in f.cause
    assert "save the tokenizer of that run into the adapter's folder" in f.remedy


def test_a_grown_vocabulary_with_its_tokenizer_is_a_note(
    changed: Callable[..., CheckReport],
) -> None:
    report = changed("whole", rows(168))
    assert report.context is not None
    assert report.context.adapter is not None
    folder = report.context.adapter.path
    vocab = {f"t{i}": i for i in range(166)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": vocab}}))
    again = check(report.context.checkpoint.path or "", adapter=folder)
    f = one(again, "adapter.vocabulary")
    assert f.severity == "note"
    assert f.cause.endswith("as the tokenizer did.")
    assert f.remedy.endswith("with the tokenizer saved beside the adapter.")


def test_a_whole_module_of_another_width(changed: Callable[..., CheckReport]) -> None:
    def change(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        (key,) = [k for k in tensors if "lm_head" in k]
        tensors[key] = torch.ones(160, 32)

    f = one(changed("whole", change), "adapter.vocabulary")
    assert f.title == "lm_head.weight in the adapter is [160, 32], the base's [160, 64]"


def test_a_module_that_was_to_be_saved_and_was_not(changed: Callable[..., CheckReport]) -> None:
    f = one(
        changed(change=lambda t, c: c.update(modules_to_save=["lm_head"])), "adapter.vocabulary"
    )
    assert f.severity == "error"
    assert f.title == "modules_to_save names lm_head, of which the file has nothing"


# --- DoRA, dtypes ----------------------------------------------------------------------------


def drop_magnitudes(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    for name in [n for n in tensors if "magnitude" in n]:
        del tensors[name]


def short_magnitude(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    name = next(n for n in tensors if "magnitude" in n and "gate_proj" in n)
    tensors[name] = tensors[name].flatten()[:-1].contiguous()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t, c: c.update(use_dora=False), "14 magnitude vectors in the file, and use_dora"),
        (drop_magnitudes, "use_dora is true, and 14 of 14 adapted modules have no magnitude"),
        (short_magnitude, "1 magnitude vector of another size than the module's outputs"),
    ],
)
def test_dora(changed: Callable[..., CheckReport], change: Change, text: str) -> None:
    f = one(changed("dora", change), "adapter.dora")
    assert f.severity == "error"
    assert f.title.startswith(text)


def test_two_dtypes(changed: Callable[..., CheckReport]) -> None:
    def change(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        for name in tensors:
            if "layers.1" in name and "q_proj" in name:
                tensors[name] = tensors[name].bfloat16()

    f = one(changed(change=change), "adapter.dtype")
    assert f.severity == "warning"
    assert f.title == "A and B in 2 dtypes: 26 f32, 2 bf16"
    assert all("layers.1.self_attn.q_proj" in e.subject for e in f.evidence)


def test_packed_numbers(changed: Callable[..., CheckReport]) -> None:
    def change(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        for name in tensors:
            tensors[name] = torch.ones(tensors[name].shape, dtype=torch.int8)

    f = one(changed(change=change), "adapter.dtype")
    assert (f.severity, f.numbers["odd"]) == ("error", 28)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_one_lower_dtype_is_silent(changed: Callable[..., CheckReport], dtype: torch.dtype) -> None:
    def change(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        for name in tensors:
            tensors[name] = tensors[name].to(dtype)

    assert of(changed(change=change)) == []


@pytest.mark.parametrize(
    ("entries", "severity"),
    [(168, "note"), (165, "note"), (160, "error"), (176, "error"), (None, "error")],
)
def test_a_vocabulary_that_grew_with_the_adapters_tokenizer(
    changed: Callable[..., CheckReport], tmp_path: Path, entries: int | None, severity: str
) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    if entries:
        vocab = {f"t{i}": i for i in range(entries)}
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
    report = changed("whole", rows(168))
    found = of(report, "adapter.vocabulary")
    assert [f.severity for f in found] == [severity]
    # What the adapter stores rows for is no fault of the model's config.
    assert [f.severity == "error" for f in of(report, "config.vocab")] == (
        [] if severity == "note" else [entries == 176] * (entries not in (None, 160))
    )
