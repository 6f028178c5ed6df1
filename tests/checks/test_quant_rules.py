"""Quantisation: rows that are no whole groups, types that fall back, what was quantised before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateup.checks import quant_rules
from gateup.checks.context import Context
from gateup.checks.finding import Finding
from gateup.checks.rule import rules_of
from gateup.files.checkpoint import open_model
from gateup.model.families import FAMILIES
from gateup.model.presets import PRESETS
from gateup.model.quant.gguf_file import tensors_of

RULES = {r.id: r for r in rules_of([quant_rules])}
Described = Callable[..., Context]


def config(preset: str, **changes: Any) -> dict[str, Any]:
    return {**PRESETS[preset].config, **changes}


def run(rule: str, context: Context) -> list[Finding]:
    return RULES[rule](context)


def test_only_ffn_down_falls_back(described: Described) -> None:
    """14464 = 56.5 × 256, and rows of gate and up are 4096 long."""
    model = config("llama-2-7b", intermediate_size=14464)
    (found,) = run("quant.rows", described(model, quant="q3_k_s"))
    assert found.severity == "warning"
    assert {e.subject.partition(" (")[2] for e in found.evidence} == {
        "32 blk.*.ffn_down)",
    }
    by_type = {e.expected.split(",")[0]: e.found for e in found.evidence}
    assert by_type["Q3_K"] == "rows of 14464 = 56.5 × 256: Q4_0 (IQ4_NL in older builds)"
    assert "All other tensors have their type" in found.cause
    assert found.cause.startswith("A row must be whole blocks, and rows of 14464 are not.")
    assert found.title == "Q3_K_S: 32 tensors cannot have the type meant for them"
    assert found.numbers["tensors"] == 32
    assert (
        "pad intermediate_size 14464 to 14592 before converting: mends 32 of the 32" in found.remedy
    )
    assert "no padding changes" not in found.remedy
    assert f"costs {3 * 4096 * 128 * 32:,} weights" in found.remedy


def test_the_cost_of_a_fallback_is_exact(described: Described) -> None:
    """Bytes given less bytes meant: of Q3_K_S, every ffn_down Q4_0 (18/32) for Q3_K (110/256)."""
    model = config("llama-2-7b", intermediate_size=14464)
    context = described(model, quant="q3_k_s")
    (found,) = run("quant.rows", context)
    elements = 14464 * 4096 * 32
    assert found.numbers["extra_bytes"] == elements * 18 // 32 - elements * 110 // 256
    assert found.numbers["file_bytes"] == sum(t.nbytes for t in tensors_of(context.spec, "q3_k_s"))


@pytest.mark.parametrize(
    ("model", "fmt", "kinds", "type_"),
    [
        (config("qwen2-0.5b"), "q4_k_m", "blk.*.ffn_gate", "Q5_0"),
        (config("gpt-oss-20b"), "q5_k_s", "blk.*.ffn_up_exps", "Q5_1"),
        (config("deepseek-v2-lite"), "q4_k_s", "blk.*.ffn_down", "Q5_1"),
        (config("smollm2-135m"), "q6_k", "blk.*.attn_q", "Q8_0"),
    ],
)
def test_more_rows_that_fall_back(
    described: Described, model: dict[str, Any], fmt: str, kinds: str, type_: str
) -> None:
    (found,) = run("quant.rows", described(model, quant=fmt))
    evidence = [e.found for e in found.evidence if kinds in e.subject]
    assert any(e.endswith(type_) for e in evidence)
    assert (
        sum(int(e.subject.split(" ")[0]) if " (" in e.subject else 1 for e in found.evidence)
        == (found.numbers["tensors"])
    )
    assert found.more == 0
    extra = found.numbers["extra_bytes"]
    assert isinstance(extra, int)
    assert extra > 0


def test_rows_without_blocks_of_32_are_f16(described: Described) -> None:
    model = config("llama-2-7b", intermediate_size=11000)
    (found,) = run("quant.rows", described(model, quant="q4_k_m"))
    assert all(e.found.endswith("F16") for e in found.evidence)
    assert "with these tensors in F16" in found.remedy


@pytest.mark.parametrize(
    ("preset", "fmt"),
    [("llama-3-8b", "q4_k_m"), ("llama-2-7b", "q3_k_m"), ("qwen2-0.5b", "q8_0"), ("phi-4", "bf16")],
)
def test_whole_rows_say_nothing(described: Described, preset: str, fmt: str) -> None:
    assert run("quant.rows", described(config(preset), quant=fmt)) == []


def test_padding_removes_the_fallback(described: Described) -> None:
    model = config("llama-2-7b", intermediate_size=14592)
    assert run("quant.rows", described(model, quant="q3_k_s")) == []


@pytest.mark.parametrize("preset", ["qwen2-0.5b", "smollm2-135m"])
def test_a_tied_embedding_falls_back_alone(described: Described, preset: str) -> None:
    """Q4_0 takes every row, but a tied embedding is meant to be Q6_K, whose blocks are of 256."""
    (found,) = run("quant.rows", described(config(preset), quant="q4_0"))
    assert found.title == "Q4_0: 1 tensor cannot have the type meant for it"
    assert found.evidence[0].subject == "token_embd.weight"


def test_a_family_without_gguf(described: Described, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "llama", replace(FAMILIES["llama"], gguf_arch=None))
    (found,) = run("quant.rows", described(config("llama-3-8b"), quant="q4_k_m"))
    assert found.severity == "error"
    assert found.title == (
        "no GGUF can be made: LlamaForCausalLM has no GGUF architecture in llama.cpp"
    )


def test_a_model_that_llama_cpp_has_no_tensors_for(described: Described) -> None:
    untied = config("openelm-3b", share_input_output_layers=False)
    (found,) = run("quant.rows", described(untied, quant="q4_k_m"))
    assert found.severity == "error"
    tied = run("quant.rows", described(config("openelm-3b"), quant="q4_k_m"))
    assert [f for f in tied if f.severity == "error"] == []


def test_groups_of_hidden_size(described: Described) -> None:
    """2880 = 22.5 × 128; of 64 it is 45."""
    (found,) = run("quant.group", described(config("gpt-oss-20b"), quant="awq:128"))
    assert found.severity == "error"
    assert found.evidence[0].found == "in 2880 = 22.5 × 128"
    assert "use awq:64" in found.remedy
    assert "hidden_size 2880 cannot be padded" in found.remedy
    assert run("quant.group", described(config("gpt-oss-20b"), quant="awq:64")) == []


@pytest.mark.parametrize(
    ("preset", "fmt", "role"),
    [
        ("deepseek-v2-lite", "gptq:128", "mlp.down_proj"),
        ("smollm2-135m", "awq:128", "q_proj"),
        ("smollm2-360m", "gptq:128", "gate_proj"),
    ],
)
def test_more_groups(described: Described, preset: str, fmt: str, role: str) -> None:
    (found,) = run("quant.group", described(config(preset), quant=fmt))
    assert any(role in e.subject for e in found.evidence)


def test_a_width_is_padded_before_quantising(described: Described) -> None:
    """10944 = 85.5 × 128 in DeepSeek-V2-Lite's one dense layer; its experts' 1408 = 11 × 128."""
    (found,) = run("quant.group", described(config("deepseek-v2-lite"), quant="gptq:128"))
    assert f"pad intermediate_size 10944 to 11008 before quantising: costs {3 * 2048 * 64:,}" in (
        found.remedy
    )
    assert "moe_intermediate_size" not in found.remedy


@pytest.mark.parametrize("fmt", ["awq:128", "gptq:128", "fp8:128", "fp8", "nf4", "int8"])
def test_whole_groups_say_nothing(described: Described, fmt: str) -> None:
    for preset in ("llama-3-8b", "qwen2-0.5b", "qwen2.5-72b"):
        assert run("quant.group", described(config(preset), quant=fmt)) == []


def test_one_matrix(described: Described) -> None:
    """One dense layer before the experts: one down_proj of 10944."""
    (found,) = run("quant.group", described(config("deepseek-v2-lite"), quant="gptq:128"))
    assert found.title == "1 matrix is no whole groups of gptq:128"
    assert found.evidence[0].subject == "model.layers.0.mlp.down_proj.weight"
    (found,) = run("quant.group", described(config("smollm2-135m"), quant="awq:128"))
    assert found.title == "180 matrices are no whole groups of awq:128"
    assert found.evidence[0].subject.endswith("q_proj.weight and 29 like it")


def test_the_largest_group_that_fits_all_is_offered(described: Described) -> None:
    model = config("llama-2-7b", intermediate_size=11040)
    (found,) = run("quant.group", described(model, quant="awq:128"))
    assert found.remedy.startswith("use awq:32,")  # 11040 = 172.5 × 64
    none = config("llama-2-7b", intermediate_size=11016)
    (found,) = run("quant.group", described(none, quant="awq:128"))
    assert "use awq" not in found.remedy


def test_short_fp8_blocks_warn(described: Described) -> None:
    (found,) = run("quant.group", described(config("gpt-oss-20b"), quant="fp8:128"))
    assert found.severity == "warning"
    assert "vLLM and SGLang refuse" in found.cause


def test_fp8_as_published_says_nothing(described: Described) -> None:
    """DeepSeek-V3 is published in FP8 blocks, with 576 rows in the replicated kv_a_proj."""
    assert run("quant.group", described(config("deepseek-v3"), quant="fp8:128")) == []


def test_a_group_the_method_does_not_have(described: Described) -> None:
    (found,) = run("quant.group", described(config("llama-3-8b"), quant="awq:100"))
    assert found.severity == "error"
    assert "the group is 100" in found.title


def test_types_that_need_an_importance_matrix(described: Described) -> None:
    for fmt in ("iq2_xxs", "IQ1_S", "q2_k_s"):
        (found,) = run("quant.imatrix", described(config("llama-3-8b"), quant=fmt))
        assert found.severity == "error"
        assert "llama-quantize makes no" in found.title
        assert not any("token_embd" in e.subject for e in found.evidence)
    for fmt in ("q4_k_m", "iq4_xs", "awq:128"):
        assert run("quant.imatrix", described(config("llama-3-8b"), quant=fmt)) == []


@pytest.mark.parametrize("fmt", ["q8_0", "q4_k_m", "awq:128"])
def test_quantising_twice(smollm2_gguf: Path, fmt: str) -> None:
    (found,) = run("quant.twice", Context(open_model(smollm2_gguf), quant=fmt))
    assert found.severity == "warning"
    assert found.title.startswith("the model is Q4_1 already")


def test_quantising_a_quantised_checkpoint(described: Described) -> None:
    gptq = {"quant_method": "gptq", "group_size": 128}
    context = described(config("qwen2.5-7b", quantization_config=gptq), quant="q4_k_m")
    (found,) = run("quant.twice", context)
    assert "gptq:128 already" in found.title


def test_quantising_once(described: Described, smollm2_gguf: Path) -> None:
    assert run("quant.twice", described(config("qwen2.5-7b"), quant="q4_k_m")) == []
    demo = open_model(smollm2_gguf)
    assert run("quant.twice", Context(demo, quant="q4_1")) == []
    assert run("quant.twice", Context(demo, quant="f16")) == []


# ---- routed experts ------------------------------------------------------------------------------


def test_bitsandbytes_leaves_routed_experts(described: Described) -> None:
    (found,) = run("quant.experts", described(config("mixtral-8x7b"), quant="nf4"))
    assert found.severity == "warning"
    assert found.numbers["expert_params"] == 8 * 3 * 4096 * 14336 * 32 == 45_097_156_608
    assert "45,097,156,608 of 46,702,792,704 parameters (97%), 90.19 GB in bf16" in found.title
    trainer = {"quantization_bit": 8, "stage": "sft", "finetuning_type": "lora"}
    (found,) = run("quant.experts", described(config("qwen3-30b-a3b"), trainer=trainer))
    assert found.title.startswith("int8 leaves the routed experts")
    declared = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    model = config("deepseek-v2-lite", quantization_config=declared)
    assert len(run("quant.experts", described(model))) == 1


def test_transformers_has_no_linear_layer_among_them() -> None:
    import torch
    from transformers import AutoModelForCausalLM, MixtralConfig

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 96}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(MixtralConfig(**sizes, num_local_experts=4))
    layers = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    assert not [n for n in layers if "experts" in n]
    assert [n for n, _ in model.named_parameters() if "experts" in n]


@pytest.mark.parametrize(
    ("preset", "quant", "trainer"),
    [
        ("mixtral-8x7b", "awq:128", None),
        ("mixtral-8x7b", "q4_k_m", None),
        ("mixtral-8x7b", None, {"quantization_bit": 4, "quantization_method": "hqq"}),
        ("mixtral-8x7b", None, {"stage": "sft"}),
        ("llama-3-8b", "nf4", None),
    ],
)
def test_others_reach_them(
    described: Described, preset: str, quant: str | None, trainer: dict[str, Any] | None
) -> None:
    assert run("quant.experts", described(config(preset), quant=quant, trainer=trainer)) == []


def test_padding_that_helps_some_says_how_many(described: Described) -> None:
    """H = 896 = 3.5 × 256 keeps most rows as they are, whatever the width is padded to."""
    model = config("qwen2-0.5b", intermediate_size=4800)
    (found,) = run("quant.rows", described(model, quant="q4_k_m"))
    total = found.numbers["tensors"]
    assert isinstance(total, int)
    assert f"mends 24 of the {total}" in found.remedy
    assert f"the other {total - 24} keep rows of 896, which no padding changes" in found.remedy


def test_many_kinds_of_rows_still_add_up(described: Described) -> None:
    (found,) = run("quant.rows", described(config("smollm2-135m"), quant="q4_k_m"))
    assert (
        found.numbers["tensors"]
        == 181
        == sum(int(e.subject.split(" ")[0]) if " (" in e.subject else 1 for e in found.evidence)
    )
    assert "token_embd" in " ".join(e.subject for e in found.evidence)
    assert "blk.*.token_embd" not in str(found)


def test_a_matrix_is_needed_where_a_tensor_gets_such_a_type(described: Described) -> None:
    """Rows of 576 fall back to types that need none; all but ffn_down's."""
    (found,) = run("quant.imatrix", described(config("smollm2-135m"), quant="iq2_xxs"))
    assert found.severity == "error"
    assert all("ffn_down" in e.subject for e in found.evidence)
    narrow = config("smollm2-135m", intermediate_size=1504)
    (found,) = run("quant.imatrix", described(narrow, quant="iq2_xxs"))
    assert found.severity == "note"
    assert "no tensor of this model gets such a type" in found.title
