"""Splits: each known fault with its right answer, more of its kind, and twins that are sound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateup.account.parallel import faults
from gateup.account.workload import Parallel
from gateup.checks import split_rules
from gateup.checks.context import Context
from gateup.checks.finding import Finding
from gateup.checks.rule import rules_of
from gateup.checks.runner import check
from gateup.model.presets import PRESETS

RULES = {r.id: r for r in rules_of([split_rules])}
Described = Callable[..., Context]

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def config(preset: str, **changes: Any) -> dict[str, Any]:
    return {**PRESETS[preset].config, **changes}


def run(rule: str, context: Context) -> list[Finding]:
    return RULES[rule](context)


def test_awq_groups_at_tp_2(described: Described) -> None:
    """29568 = 231 × 128: no rank of two holds whole groups; 29696 would."""
    context = described(config("qwen2.5-72b"), tp=2, quant="awq:128")
    (found,) = run("split.width", context)
    assert found.severity == "error"
    assert found.title == (
        "tp 2: intermediate_size 29568 gives 14784 a rank, no whole number of groups of 128"
    )
    assert "pad to 29696 before quantising: tp 2, 4, 8 then fit; costs 251,658,240 weights" in (
        found.remedy
    )
    assert "changes no output" in found.remedy
    assert "do not lower intermediate_size to 29440" in found.remedy
    assert "drops 128 trained channels" in found.remedy
    assert "231 = 3 × 7 × 11 does not divide by 2" in found.cause
    assert found.evidence[0].found == "29568 / 2 = 14784 = 115.5 × 128"
    assert dict(found.numbers) == {
        "tp": 2,
        "width": 29568,
        "group": 128,
        "padded": 29696,
        "added_weights": 3 * 8192 * 128 * 80,
        "largest_tp": 1,
    }
    assert run("split.heads", context) == []


@pytest.mark.parametrize("tp", [4, 8])
def test_awq_groups_at_higher_degrees(described: Described, tp: int) -> None:
    (found,) = run("split.width", described(config("qwen2.5-72b"), tp=tp, quant="awq:128"))
    assert found.numbers["padded"] == 29696
    assert found.numbers["largest_tp"] == 1


def test_padded_width_is_sound(described: Described) -> None:
    for tp in (2, 4, 8):
        wider = config("qwen2.5-72b", intermediate_size=29696)
        assert run("split.width", described(wider, tp=tp, quant="awq:128")) == []


def test_smaller_groups_are_offered_where_they_fit(described: Described) -> None:
    at_2 = run("split.width", described(config("qwen2.5-72b"), tp=2, quant="awq:128"))
    at_4 = run("split.width", described(config("qwen2.5-72b"), tp=4, quant="awq:128"))
    assert "awq:64: 14784 = 231 × 64" in at_2[0].remedy
    assert "awq:32: 7392 = 231 × 32" in at_4[0].remedy
    assert run("split.width", described(config("qwen2.5-72b"), tp=2, quant="awq:64")) == []
    assert run("split.width", described(config("qwen2.5-72b"), tp=4, quant="awq:32")) == []


def test_the_checkpoint_s_own_quantisation_counts(described: Described) -> None:
    awq = {"quant_method": "awq", "group_size": 128, "bits": 4}
    (found,) = run("split.width", described(config("qwen2.5-72b", quantization_config=awq), tp=2))
    assert found.evidence[0].source == "config.json, field quantization_config"
    # Unquantised, half of it is a whole number.
    assert run("split.width", described(config("qwen2.5-72b"), tp=2)) == []


@pytest.mark.parametrize(
    ("tp", "rank", "padded"), [(2, "320", 768), (4, "160", 1024), (8, "80", 1024)]
)
def test_fp8_blocks_of_experts(described: Described, tp: int, rank: str, padded: int) -> None:
    """A rank's 320, 160, 80 are no whole blocks, whatever gate and up come to together."""
    model = config("qwen3-30b-a3b", moe_intermediate_size=640, quantization_config=FP8)
    (found,) = run("split.width", described(model, tp=tp))
    assert found.severity == "error"
    assert f"640 gives {rank} a rank" in found.title
    assert found.numbers["padded"] == padded
    assert found.numbers["largest_tp"] == 1
    assert f"pad to {padded} before quantising" in found.remedy
    assert found.remedy.startswith("expert parallel keeps every expert whole")
    assert f"--tp {tp} --ep {tp}" in found.remedy
    assert found.evidence[1].expected == "whole at tp 1"


def test_fp8_blocks_evidence_lists_every_degree(described: Described) -> None:
    model = config("qwen3-30b-a3b", moe_intermediate_size=640, quantization_config=FP8)
    (found,) = run("split.width", described(model, tp=8))
    assert found.evidence[1].found == "640 / 320 / 160 / 80 at tp 1 / 2 / 4 / 8"
    assert "768 is enough for tp 2" in found.remedy
    assert found.numbers["added_weights"] == 3 * 2048 * 384 * 128 * 48


def test_the_fused_width_is_no_help(described: Described) -> None:
    """2 · 320 = 640 is a multiple of 128; each half has scales of its own."""
    model = config("qwen3-30b-a3b", moe_intermediate_size=640, quantization_config=FP8)
    (found,) = run("split.width", described(model, tp=2))
    assert "gate and up together, 640, are a multiple of 128 is no help" in found.cause
    (found,) = run("split.width", described(model, tp=4))
    assert "gate and up together" not in found.cause


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_expert_widths_that_fit(described: Described, tp: int) -> None:
    model = config("qwen3-30b-a3b", moe_intermediate_size=1024, quantization_config=FP8)
    assert run("split.width", described(model, tp=tp)) == []
    assert run("split.width", described(config("qwen3-30b-a3b"), tp=tp)) == []


def test_more_expert_widths(described: Described) -> None:
    """Qwen3-235B: 1536 / 8 = 192; a width of 2560 at 8: 320."""
    qwen = config("qwen3-235b-a22b", quantization_config=FP8)
    (found,) = run("split.width", described(qwen, tp=8))
    assert "1536 gives 192 a rank" in found.title
    assert found.numbers["largest_tp"] == 4
    assert found.numbers["padded"] == 2048
    assert run("split.width", described(qwen, tp=4)) == []
    other = config("qwen3-235b-a22b", moe_intermediate_size=2560, quantization_config=FP8)
    (found,) = run("split.width", described(other, tp=8))
    assert "2560 gives 320 a rank" in found.title
    assert run("split.width", described(other, tp=4)) == []


@pytest.mark.parametrize(
    ("width", "group", "fits", "fails"),
    [
        (29568, 128, (1,), (2, 4, 8)),
        (2880, 64, (1,), (2, 4, 8)),
        (2880, 32, (1, 2), (4, 8)),
        (1856, 64, (1,), (2, 4)),
        (10944, 64, (1,), (2, 4)),
        (10944, 32, (1, 2), (4, 8)),
        (1408, 128, (1,), (2, 4, 8)),
        (1408, 64, (1, 2), (4, 8)),
    ],
)
def test_known_offenders(
    described: Described, width: int, group: int, fits: tuple[int, ...], fails: tuple[int, ...]
) -> None:
    model = config("llama-2-70b", intermediate_size=width)
    for tp in (*fits, *fails):
        found = run("split.width", described(model, tp=tp, quant=f"gptq:{group}"))
        assert bool(found) == (tp in fails), (width, group, tp)
        assert bool(found) == bool(width % (tp * group))
        if found:
            padded = found[0].numbers["padded"]
            assert isinstance(padded, int)
            assert padded % (tp * group) == 0
            assert 0 < padded - width <= tp * group


@pytest.mark.parametrize("preset", ["deepseek-v2-lite", "qwen1.5-moe-a2.7b", "gpt-oss-20b"])
def test_unquantised_offenders_split_evenly(described: Described, preset: str) -> None:
    for tp in (2, 4, 8):
        assert run("split.width", described(config(preset), tp=tp)) == []


def test_padding_counts_experts_and_biases(described: Described) -> None:
    """gpt-oss: 24 layers of 32 experts, each 3 · 2880 · Δ and a bias for gate and for up."""
    (found,) = run("split.width", described(config("gpt-oss-20b"), tp=8, quant="fp8:128"))
    more = 3072 - 2880
    assert found.numbers["added_weights"] == 24 * 32 * (3 * 2880 * more + 2 * more)


def test_padding_goes_by_the_configs_own_description(described: Described) -> None:
    """The weights said to be added are those of the description with the padded width."""
    for preset, key, wanted in (
        ("qwen2.5-72b", "intermediate_size", 29696),
        ("qwen3-30b-a3b", "moe_intermediate_size", 1024),
        ("gpt-oss-20b", "intermediate_size", 3072),
    ):
        quant = "awq:128" if preset == "qwen2.5-72b" else "fp8:128"
        before = described(config(preset), tp=8, quant=quant)
        after = described(config(preset, **{key: wanted}))
        (found,) = run("split.width", before)
        assert found.numbers["padded"] == wanted
        assert found.numbers["added_weights"] == after.spec.params - before.spec.params


def test_an_unquantised_width_that_is_odd(described: Described) -> None:
    """Without groups the width need only be a multiple of tp; the text speaks of no groups."""
    (found,) = run("split.width", described(config("llama-3-8b", intermediate_size=14338), tp=8))
    assert found.severity == "error"
    assert found.title == "tp 8: intermediate_size 14338 gives 1792.25 a rank, not whole"
    assert [(e.subject, e.found, e.expected) for e in found.evidence] == [
        ("intermediate_size", "14338 / 8 = 1792.25", "a multiple of 8"),
        (
            "intermediate_size a rank",
            "14338 / 7169 / 3584.5 / 1792.25 at tp 1 / 2 / 4 / 8",
            "whole at tp 1, 2",
        ),
    ]
    assert found.cause == (
        "gate and up are cut by rows and down by columns, I / tp channels a rank. "
        "14338 = 2 × 67 × 107 does not divide by 8."
    )
    assert found.remedy == (
        f"pad to 14344: tp 2, 4, 8 then fit; costs {3 * 4096 * 6 * 32:,} weights and changes no"
        " output (14340 is enough for tp 4); as it is, --tp 2 is the largest that fits"
    )


def test_the_width_s_own_groups_are_named(described: Described) -> None:
    (found,) = run("split.width", described(config("qwen2.5-72b"), tp=8, quant="awq:128"))
    assert found.evidence[0].expected == "a multiple of 1024 (8 ranks × groups of 128)"
    assert found.evidence[0].source == "--quant awq:128"
    assert found.evidence[1].found == "29568 / 14784 / 7392 / 3696 at tp 1 / 2 / 4 / 8"
    assert "or quantise" not in found.remedy  # 29568 / 8 = 3696 = 115.5 × 32
    assert "do not lower intermediate_size to 28672: it drops 896" in found.remedy


def test_experts_fewer_than_ranks_stay_cut(described: Described) -> None:
    """8 experts on 16 ranks: expert parallel cannot keep each whole."""
    model = config("mixtral-8x7b", intermediate_size=14208, quantization_config=FP8)
    (at_8,) = run("split.width", described(model, tp=8))
    assert at_8.remedy.startswith("expert parallel")
    wider = {**model, "num_attention_heads": 64, "head_dim": 64}
    (at_16,) = run("split.width", described(wider, tp=16))
    assert "expert parallel" not in at_16.remedy


def test_padding_that_the_heads_do_not_follow(described: Described) -> None:
    model = config("qwen2-0.5b", intermediate_size=4865)
    (found,) = run("split.width", described(model, tp=8))
    assert found.remedy.startswith("tp 8 is ruled out in the first place, whatever the width: 14")
    assert "for tp 2 pad to 4866: costs 64,512 weights" in found.remedy
    odd = config("smollm2-135m", intermediate_size=1537)
    (found,) = run("split.width", described(odd, tp=2))
    assert found.remedy.startswith("tp 2 is ruled out in the first place, whatever the width: 9")


def test_gguf_blocks_only_warn(described: Described) -> None:
    """llama.cpp cuts by rows; an engine that cuts down by columns meets the blocks of 256."""
    (found,) = run("split.width", described(config("llama-2-7b"), tp=2, quant="q4_k_m"))
    assert found.severity == "warning"
    assert "5504 a rank" in found.title
    assert "llama.cpp's own row split" in found.cause
    assert run("split.width", described(config("llama-3-8b"), tp=2, quant="q4_k_m")) == []
    assert run("split.width", described(config("llama-2-7b"), tp=2, quant="q4_0")) == []


def test_widths_of_their_own_are_one_finding(described: Described) -> None:
    context = described(config("openelm-3b"), tp=4, quant="q4_k_m")
    found = run("split.width", context)
    assert len(found) == 1
    assert found[0].title == ("tp 4: 25 of the layers' widths give a rank no whole groups of 256")
    assert len(found[0].evidence) == 6
    assert found[0].severity == "warning"
    padded = sum(-(-x.mlp.intermediate_size // 1024) * 1024 for x in context.spec.layers if x.mlp)
    there = sum(x.mlp.intermediate_size for x in context.spec.layers if x.mlp)
    assert found[0].numbers["added_weights"] == 3 * context.spec.hidden_size * (padded - there)
    plain = run("split.width", described(config("openelm-3b"), tp=6))
    assert [f.severity for f in plain] == ["error"]
    assert plain[0].title.endswith("give a rank no whole width")


def test_heads_that_do_not_divide(described: Described) -> None:
    """Qwen2-0.5B, hidden size 896: 14 heads and 2 KV heads."""
    (found,) = run("split.heads", described(config("qwen2-0.5b"), tp=4))
    assert found.severity == "error"
    assert "14 attention heads do not divide by tp 4" in found.title
    assert found.evidence[0].found == "14 / 4 = 3.5 a rank"
    assert "use --tp 2" in found.remedy
    assert run("split.heads", described(config("qwen2-0.5b"), tp=2)) == []


@pytest.mark.parametrize(
    ("preset", "tp", "what"),
    [
        ("smollm2-135m", 2, "9 attention heads"),
        ("phi-4", 16, "40 attention heads"),
        ("llama-1-30b", 8, "52 attention heads"),
    ],
)
def test_more_heads(described: Described, preset: str, tp: int, what: str) -> None:
    found = run("split.heads", described(config(preset), tp=tp))
    assert any(what in f.title and f.severity == "error" for f in found)


def test_kv_heads_that_neither_divide_nor_are_divided(described: Described) -> None:
    (found,) = run("split.heads", described(config("phi-4"), tp=4))
    assert "10 KV heads neither divide by tp 4 nor divide it" in found.title
    assert "use --tp 2" in found.remedy


@pytest.mark.parametrize(("tp", "copies"), [(16, 2), (32, 4)])
def test_copied_kv_heads_are_a_note(described: Described, tp: int, copies: int) -> None:
    (found,) = run("split.heads", described(config("llama-3-70b"), tp=tp))
    assert found.severity == "note"
    assert found.numbers["copies"] == copies
    assert run("split.heads", described(config("llama-3-70b"), tp=8)) == []


def test_fp8_blocks_of_rows_of_k_and_v(described: Described) -> None:
    """2 KV heads of 64 at tp 2: 64 rows of k, half a block of 128."""
    model = config("qwen2-0.5b", num_attention_heads=16, head_dim=64, quantization_config=FP8)
    found = run("split.heads", described(model, tp=2))
    assert [f.severity for f in found] == ["error"]
    assert "k_proj, v_proj" in found[0].title
    assert found[0].numbers["k_proj"] == 64
    assert run("split.heads", described(config("llama-3-8b", quantization_config=FP8), tp=8)) == []


def test_latent_attention_copies_nothing(described: Described) -> None:
    assert run("split.heads", described(config("deepseek-v3"), tp=8)) == []


@pytest.mark.parametrize(
    ("preset", "tp", "rank", "idle"),
    [
        ("qwen1.5-moe-a2.7b", 2, 704, 1 / 12),
        ("gpt-oss-20b", 2, 1440, 1 / 16),
        ("deepseek-v2-lite", 8, 176, 5 / 16),
    ],
)
def test_idle_tiles_are_a_note(
    described: Described, preset: str, tp: int, rank: int, idle: float
) -> None:
    (found,) = run("split.align", described(config(preset), tp=tp))
    assert found.severity == "note"
    assert found.numbers["rank_width"] == rank
    assert found.numbers["idle"] == pytest.approx(idle)
    assert f"of {rank} a rank leaves {idle:.1%}" in found.title


def test_which_sizes_divide_a_rank_s_width(described: Described) -> None:
    (found,) = run("split.align", described(config("qwen1.5-moe-a2.7b"), tp=2))
    assert found.evidence[0].found == "704 = 5.5 × 128 a rank; divides by 8, 64"
    assert found.evidence[0].expected == "a multiple of 128: 1536 in all"
    (found,) = run("split.align", described(config("llama-2-7b", intermediate_size=11004), tp=4))
    assert found.evidence[0].found.endswith("divides by none of 8, 64, 128")
    (found,) = run("split.align", described(config("deepseek-v2-lite"), tp=8))
    assert found.title.endswith("idle, and of 2 other widths less")


def test_full_tiles_say_nothing(described: Described) -> None:
    for tp in (1, 2, 4, 8):
        assert run("split.align", described(config("llama-3-8b"), tp=tp)) == []


def test_what_cannot_be_split_has_no_alignment(described: Described) -> None:
    assert run("split.align", described(config("qwen2.5-72b"), tp=2, quant="awq:128")) == []


def test_vocabulary_padding(described: Described) -> None:
    (found,) = run("split.vocab", described(config("granite-3.1-8b"), tp=2))
    assert found.severity == "note"
    assert (found.numbers["vllm"], found.numbers["megatron"]) == (49216, 49408)
    assert found.evidence[0].expected == "a multiple of 256"
    assert f"take {(49408 - 49155) * 4096:,} weights" in found.cause  # tied: one matrix
    (found,) = run("split.vocab", described(config("llama-2-7b", vocab_size=32001), tp=2))
    assert f"take {(32256 - 32001) * 4096 * 2:,} weights" in found.cause
    assert run("split.vocab", described(config("llama-3-8b"), tp=2)) == []


@pytest.mark.parametrize(("vocab", "tp"), [(32000, 3), (151936, 7)])
def test_vocabulary_that_vllm_refuses(described: Described, vocab: int, tp: int) -> None:
    (found,) = run("split.vocab", described(config("llama-2-7b", vocab_size=vocab), tp=tp))
    assert found.severity == "warning"
    assert f"do not divide by {tp}" in found.title


def test_one_rank_is_never_at_fault(described: Described) -> None:
    for preset in PRESETS:
        context = described(config(preset), tp=1)
        for rule in RULES.values():
            assert all(f.severity == "note" for f in rule(context)), (preset, rule.id)


def test_rules_agree_with_what_refuses_a_plan(described: Described) -> None:
    """A plan refuses exactly the splits that these rules call errors."""
    for preset in ("qwen2-0.5b", "phi-4", "llama-3-8b", "qwen3-30b-a3b", "deepseek-v2-lite"):
        for tp in (1, 2, 3, 4, 6, 8, 16):
            context = described(config(preset), tp=tp)
            stored = split_rules.target(context).stored
            refused = faults(context.spec, stored, Parallel(tp=tp))
            found = [*run("split.heads", context), *run("split.width", context)]
            assert bool(refused) == any(f.severity == "error" for f in found), (preset, tp)


def test_padding_is_not_advised_where_the_heads_refuse_anyway() -> None:
    found = check("llama-3-8b", tp=3, quant="gptq:128").findings
    (f,) = [f for f in found if f.rule == "split.width"]
    assert f.remedy.startswith("tp 3 is ruled out in the first place, whatever the width: 32 att")
    assert "pad to" not in f.remedy
    assert "2^4 × 7 does not divide by 3" in f.cause
    assert "use --tp 2, the largest below it" in f.remedy
    assert "14592" not in f.remedy
