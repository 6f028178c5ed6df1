"""Splits: shares that sum to the model, legality with its numbers, stages, fullest ranks."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateup.account.parallel import (
    SPLITS,
    block_group,
    faults,
    largest_tp,
    misfits,
    padded_vocab,
    ranks,
    stage_layers,
)
from gateup.account.workload import Engine, Parallel
from gateup.errors import UsageError
from gateup.model import presets
from gateup.model.families import FAMILIES, build_spec
from gateup.model.quant import mix
from gateup.model.quant.formats import StoredTensor, stored_as
from gateup.model.spec import ModelSpec


def spec_of(**changes: Any) -> ModelSpec:
    values = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "vocab_size": 100,
        **changes,
    }
    return build_spec(values, where="config", name="small")


def rank_bytes(
    spec: ModelSpec,
    parallel: Parallel,
    engine: Engine = "transformers",
    stored: tuple[StoredTensor, ...] | None = None,
) -> list[int]:
    """Bytes of the weights on the fullest rank of each stage."""
    stored = stored or stored_as(spec.rows, "bf16")
    return [sum(r.nbytes(t) for t in stored) for r in ranks(spec, stored, parallel, engine)]


def test_one_rank_holds_everything() -> None:
    spec = spec_of()
    assert rank_bytes(spec, Parallel()) == [2 * spec.params]


def test_two_ranks_by_hand() -> None:
    H, I, V, L = 64, 96, 100, 4
    attention = (8 * 8 * H + 2 * 2 * 8 * H + 8 * 8 * H) // 2
    mlp = 3 * H * I // 2
    whole = L * 2 * H + H
    assert rank_bytes(spec_of(), Parallel(tp=2)) == [2 * (L * (attention + mlp) + V * H + whole)]


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    """8 query heads, 2 KV heads, tp 4: a rank has 2 query heads and one whole KV head."""
    spec = spec_of()
    stored = stored_as(spec.rows, "bf16")
    (rank,) = ranks(spec, stored, Parallel(tp=4), "transformers")
    shares = {r.role: rank.share(r) for r in spec.rows if r.layer == 0}
    assert shares["q_proj"] == shares["o_proj"] == Fraction(1, 4)
    assert shares["k_proj"] == shares["v_proj"] == Fraction(1, 2)
    attention = rank.local.layers[0].attention
    assert attention is not None
    assert (attention.num_heads, attention.num_kv_heads) == (2, 1)


def test_fused_qkv_shares_by_heads() -> None:
    spec = build_spec(
        {
            "architectures": ["Phi3ForCausalLM"],
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "num_hidden_layers": 1,
            "vocab_size": 100,
        },
        where="config",
        name="phi",
    )
    (rank,) = ranks(spec, stored_as(spec.rows, "bf16"), Parallel(tp=4), "vllm")
    qkv = next(r for r in spec.rows if r.role == "qkv_proj")
    assert rank.share(qkv) == Fraction(2 + 1 + 1, 8 + 2 + 2)


def test_row_parallel_bias_is_whole() -> None:
    spec = spec_of(mlp_bias=True, attention_bias=True)
    (rank,) = ranks(spec, stored_as(spec.rows, "bf16"), Parallel(tp=2), "transformers")
    shares = {r.role: rank.share(r) for r in spec.rows if r.layer == 0}
    assert shares["down_proj.bias"] == shares["o_proj.bias"] == 1
    assert shares["gate_proj.bias"] == shares["q_proj.bias"] == Fraction(1, 2)


def test_vllm_pads_the_vocabulary_to_64() -> None:
    assert padded_vocab(100, 64, 1) == 128
    assert padded_vocab(100, 64, 2) == 64
    spec = spec_of()
    extra = rank_bytes(spec, Parallel(), "vllm")[0] - rank_bytes(spec, Parallel())[0]
    assert extra == 0  # one rank takes the file's bytes
    two = rank_bytes(spec, Parallel(tp=2), "vllm")[0] - rank_bytes(spec, Parallel(tp=2))[0]
    assert two == 2 * 2 * (64 - 50) * 64


@pytest.mark.parametrize(
    ("layers", "pp", "counts"),
    [(61, 8, [7, 7, 8, 8, 8, 8, 8, 7]), (32, 4, [8] * 4), (5, 2, [3, 2]), (3, 3, [1, 1, 1])],
)
def test_stages(layers: int, pp: int, counts: list[int]) -> None:
    stages = stage_layers(layers, pp)
    assert [len(s) for s in stages] == counts
    assert [i for s in stages for i in s] == list(range(layers))


@pytest.mark.parametrize("tied", [False, True])
def test_stages_hold_the_model_once(tied: bool) -> None:
    """A tied embedding is needed at both ends, so it is there twice."""
    spec = spec_of(tie_word_embeddings=tied)
    total = sum(rank_bytes(spec, Parallel(pp=3)))
    assert total == 2 * (spec.params + (100 * 64 if tied else 0))


def test_experts_are_shared_out_with_a_remainder() -> None:
    spec = presets.spec("qwen3-30b-a3b")  # 128 experts
    (rank,) = ranks(spec, stored_as(spec.rows, "bf16"), Parallel(ep=3), "vllm")
    expert = next(r for r in spec.rows if r.experts)
    assert rank.share(expert) == Fraction(43, 128)
    query = next(r for r in spec.rows if r.role == "q_proj")
    assert rank.share(query) == 1


def test_expert_width_is_split_where_ranks_share_an_expert() -> None:
    spec = presets.spec("qwen3-30b-a3b")
    (rank,) = ranks(spec, stored_as(spec.rows, "bf16"), Parallel(tp=4, ep=2), "vllm")
    expert = next(r for r in spec.rows if r.experts)
    assert rank.share(expert) == Fraction(1, 4)


def test_fsdp_rounds_each_tensor_up() -> None:
    spec = spec_of()
    got = rank_bytes(spec, Parallel(fsdp=7))[0]
    assert got == sum(-(-2 * r.params // 7) for r in spec.rows)


def test_indivisible_splits_say_what_would_do() -> None:
    spec = presets.spec("llama-3-8b")
    with pytest.raises(UsageError) as error:
        list(ranks(spec, stored_as(spec.rows, "bf16"), Parallel(tp=12), "vllm"))
    assert str(error.value) == (
        f"{spec.name} cannot be split over 12 tensor-parallel ranks: 32 attention heads do not "
        "divide by tp 12; 8 KV heads neither divide by tp 12 nor divide it; intermediate_size "
        "14336 does not divide by 12; the nearest width is 14340 (zero rows of gate and up, zero "
        "columns of down)\n"
        "  expected: heads and widths to divide, in whole quantisation blocks\n"
        "  remedy: use --tp 8, the largest that divides"
    )


@pytest.mark.parametrize(("tp", "nearest"), [(2, 29696), (4, 29696), (8, 29696)])
def test_awq_groups_of_qwen_72b(tp: int, nearest: int) -> None:
    """29568 = 231 groups of 128: no even split keeps groups whole; 29696 = 232 does."""
    spec = presets.spec("qwen2.5-72b")
    found = faults(spec, mix.stored(spec, "awq:128"), Parallel(tp=tp))
    assert found == [
        f"intermediate_size 29568 does not divide by {tp} ranks × blocks of 128; the nearest width "
        f"is {nearest} (zero rows of gate and up, zero columns of down)"
    ]
    assert largest_tp(spec, mix.stored(spec, "awq:128"), Parallel(tp=tp)) == 1
    assert faults(spec, stored_as(spec.rows, "bf16"), Parallel(tp=tp)) == []


@pytest.mark.parametrize(("tp", "nearest"), [(2, 768), (4, 1024), (8, 1024)])
def test_fp8_blocks_of_narrow_experts(tp: int, nearest: int) -> None:
    """moe_intermediate_size 640, block 128: 320, 160, 80 a rank are no whole blocks."""
    spec = build_spec(
        {
            "architectures": ["Qwen3MoeForCausalLM"],
            "hidden_size": 256,
            "intermediate_size": 1024,
            "moe_intermediate_size": 640,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_hidden_layers": 2,
            "vocab_size": 256,
        },
        where="config",
        name="moe",
    )
    stored = mix.stored(spec, "fp8:128")
    (fault,) = faults(spec, stored, Parallel(tp=tp))
    assert f"expert intermediate_size 640 does not divide by {tp} ranks × blocks of 128" in fault
    assert f"the nearest width is {nearest} " in fault
    assert faults(spec, stored, Parallel(tp=tp, ep=tp)) == []


def test_gguf_blocks_must_be_whole() -> None:
    """SmolLM2-135M, 9 heads: 3 ranks are right by heads; Q4_K's fallbacks cut 1536 in 32s."""
    spec = presets.spec("smollm2-135m")
    stored = mix.stored(spec, "q4_k_m")
    assert block_group(stored) == 256
    assert faults(spec, stored, Parallel(tp=3)) == []
    fault = faults(
        presets.spec("llama-3-8b"),
        mix.stored(presets.spec("llama-3-8b"), "q4_k_m"),
        Parallel(tp=32),
    )
    assert fault[0] == "o_proj's 128 input columns a rank are no whole blocks of 256"


@pytest.mark.parametrize(
    ("parallel", "text"),
    [
        (Parallel(pp=5), "--pp 5 is more than the 4 layers of small"),
        (Parallel(ep=2), "--ep 2, but small has no experts"),
    ],
)
def test_impossible_counts(parallel: Parallel, text: str) -> None:
    spec = spec_of()
    with pytest.raises(UsageError) as error:
        list(ranks(spec, stored_as(spec.rows, "bf16"), parallel, "vllm"))
    assert error.value.what == text


def test_more_ranks_than_experts() -> None:
    spec = presets.spec("mixtral-8x7b")
    with pytest.raises(UsageError, match="--ep 16 is more than the 8 experts"):
        list(ranks(spec, stored_as(spec.rows, "bf16"), Parallel(ep=16), "vllm"))


def test_every_role_of_every_family_has_a_split() -> None:
    """A role that the table lacks would be replicated in silence."""
    seen = set()
    for family in FAMILIES.values():
        for role in family.names:
            seen.add(role.removesuffix(".bias").rpartition(".")[2])
    known_whole = {
        role for role in seen if "norm" in role or role.startswith(("embed", "head_", "token_"))
    }
    known_whole |= {"lm_head", "position_embeddings", "pooler", "e_score_correction_bias", "bias"}
    assert seen - known_whole - SPLITS.keys() == set()


@settings(deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4, 8, 16]),
    name=st.sampled_from(["llama-3-8b", "qwen3-0.6b", "deepseek-v3", "mixtral-8x7b"]),
)
def test_ranks_cover_the_model(tp: int, name: str) -> None:
    """tp ranks together hold every weight at least once, and one never more than fewer ranks'."""
    spec = presets.spec(name)
    stored = stored_as(spec.rows, "bf16")
    if faults(spec, stored, Parallel(tp=tp)):
        return
    (got,) = rank_bytes(spec, Parallel(tp=tp))
    assert got * tp >= 2 * spec.params
    (half,) = rank_bytes(spec, Parallel(tp=tp // 2 or 1))
    assert got <= half


def test_misfits_carry_the_numbers_of_their_sentences() -> None:
    spec = presets.spec("qwen2.5-72b")
    stored = mix.stored(spec, "awq:128")
    (found,) = misfits(spec, stored, Parallel(tp=2))
    assert (found.kind, found.value, found.degree, found.group) == ("width", 29568, 2, 128)
    assert found.nearest == 29696
    assert faults(spec, stored, Parallel(tp=2)) == [found.text]
    assert misfits(spec, stored, Parallel(tp=1)) == []
    kinds = [m.kind for m in misfits(spec, stored, Parallel(tp=3))]
    assert kinds == ["heads", "kv_heads"]
