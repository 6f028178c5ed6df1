"""OpenELM and DeciLM/Nemotron: transformers has no class for them; each test names its source."""

from __future__ import annotations

import pytest

from gateup.errors import ConfigError, UnknownArchitectureError
from gateup.model.families import build_spec, gguf_tensors
from gateup.model.families.per_layer import deci_width, make_divisible
from gateup.model.layout import GateUpLayout
from gateup.model.spec import AttentionSpec

OPENELM_270M = {
    "architectures": ["OpenELMForCausalLM"],
    "model_type": "openelm",
    "model_dim": 1280,
    "num_transformer_layers": 16,
    "head_dim": 64,
    "num_gqa_groups": 4,
    "ffn_multipliers": [0.5, 4.0],
    "qkv_multipliers": [0.5, 1.0],
    "ffn_dim_divisor": 256,
    "ffn_with_glu": True,
    "activation_fn_name": "swish",
    "normalize_qk_projections": True,
    "share_input_output_layers": True,
    "max_context_length": 2048,
    "vocab_size": 32000,
}
# The lists that the published file of the 1.1B model carries beside its two-number multipliers.
OPENELM_1_1B = {
    **OPENELM_270M,
    "model_dim": 2048,
    "num_transformer_layers": 28,
}
OPENELM_1_1B_MULTIPLIERS = [
    *(0.5, 0.63, 0.76, 0.89, 1.02, 1.15, 1.28, 1.41, 1.54, 1.67, 1.8, 1.93, 2.06, 2.19),
    *(2.31, 2.44, 2.57, 2.7, 2.83, 2.96, 3.09, 3.22, 3.35, 3.48, 3.61, 3.74, 3.87, 4.0),
]
OPENELM_1_1B_HEADS = [*[16] * 3, *[20] * 7, *[24] * 8, *[28] * 6, *[32] * 4]

DECI = {
    "architectures": ["DeciLMForCausalLM"],
    "model_type": "nemotron-nas",
    "hidden_size": 48,
    "intermediate_size": None,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": None,
    "vocab_size": 97,
    "hidden_act": "silu",
}
FULL_ATTENTION = {"n_heads_in_group": 3, "no_op": False, "replace_with_linear": False}
FULL_FFN = {"ffn_mult": 2.625, "no_op": False, "replace_with_linear": False}


def build(config, **changes):
    return build_spec({**config, **changes}, where="config.json", name="model")


def deci(*blocks, **changes):
    block_configs = [{"attention": a, "ffn": f} for a, f in blocks]
    return build(DECI, num_hidden_layers=len(blocks), block_configs=block_configs, **changes)


def shapes(spec):
    return {n: r.shape for n, r in spec.tensors()}


def test_openelm_270m_widths_heads_and_total(known_models):
    facts = known_models["apple/OpenELM-270M"]
    spec = build(OPENELM_270M)
    assert [x.mlp.intermediate_size for x in spec.layers] == facts["per_layer_intermediate"]
    assert [x.attention.num_heads for x in spec.layers] == facts["num_attention_heads"]
    assert [x.attention.num_kv_heads for x in spec.layers] == facts["num_key_value_heads"]
    assert spec.params == facts["total_params_computed"] == 271_527_168


def test_openelm_multipliers_spread_as_the_published_file_has_them_spread():
    from_ends = build(OPENELM_1_1B)
    from_lists = build(
        OPENELM_1_1B,
        ffn_multipliers=OPENELM_1_1B_MULTIPLIERS,
        num_query_heads=OPENELM_1_1B_HEADS,
        num_kv_heads=[h // 4 for h in OPENELM_1_1B_HEADS],
    )
    assert from_ends.layers == from_lists.layers
    assert from_ends.rows == from_lists.rows


def test_openelm_total_by_hand():
    """H·V, then per layer H·(q + 2kv)·d + q·d·H + 3·H·I + 2·d + 2·H, then H (general_gpt.py)."""
    hidden, d = 2048, 64
    total = 32000 * hidden + hidden
    for heads, mult in zip(OPENELM_1_1B_HEADS, OPENELM_1_1B_MULTIPLIERS, strict=True):
        width = int(hidden * mult + 128) // 256 * 256
        total += hidden * (heads + 2 * (heads // 4)) * d + heads * d * hidden
        total += 3 * hidden * width + 2 * d + 2 * hidden
    assert build(OPENELM_1_1B).params == total == 1_079_891_456


@pytest.mark.parametrize(
    ("value", "divisor", "expected"),
    [
        (640, 256, 768),
        (100, 256, 256),
        (284, 256, 256),
        (285, 256, 512),
        (384, 256, 512),
        (8.9, 8, 16),
    ],
)
def test_make_divisible(value, divisor, expected):
    """Nearest multiple, at least one, and one more where that lost over a tenth (256 < 256.5)."""
    assert make_divisible(value, divisor) == expected


def test_openelm_tensors_by_name():
    there = shapes(build(OPENELM_270M))
    assert there["transformer.token_embeddings.weight"] == (32000, 1280)
    assert there["transformer.layers.0.attn.qkv_proj.weight"] == ((12 + 6) * 64, 1280)
    assert there["transformer.layers.0.attn.q_norm.weight"] == (64,)
    assert there["transformer.layers.15.attn.out_proj.weight"] == (1280, 1280)
    assert there["transformer.layers.15.ffn.proj_1.weight"] == (2 * 5120, 1280)
    assert there["transformer.layers.15.ffn.proj_2.weight"] == (1280, 5120)
    assert there["transformer.norm.weight"] == (1280,)
    assert "lm_head.weight" not in there
    assert len(there) == 2 + 16 * 8


def test_openelm_one_number_and_other_variants():
    spec = build(
        OPENELM_270M, ffn_multipliers=2.0, qkv_multipliers=1.0, normalize_qk_projections=False
    )
    assert {x.mlp.intermediate_size for x in spec.layers} == {2560}
    assert {x.attention.num_heads for x in spec.layers} == {20}
    assert "transformer.layers.0.attn.q_norm.weight" not in shapes(spec)
    assert spec.layers[0].mlp.layout == GateUpLayout("concat", "gate_up")
    untied = build(OPENELM_270M, share_input_output_layers=False)
    assert shapes(untied)["lm_head.weight"] == (32000, 1280)
    with pytest.raises(UnknownArchitectureError, match="no output head"):
        gguf_tensors(untied)


def test_openelm_gguf_splits_proj_1():
    spec = build(OPENELM_270M)
    tensors = {t.name: t for t in gguf_tensors(spec)}
    assert tensors["blk.0.ffn_gate.weight"].ne == (1280, 768)
    assert tensors["blk.0.ffn_up.weight"].ne == (1280, 768)
    assert sum(t.params for t in tensors.values()) == spec.params


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ffn_multipliers": [0.5, 1.0, 2.0]}, ["ffn_multipliers", "a list of 2 or of 16"]),
        ({"ffn_multipliers": [0.5, float("nan")]}, ["ffn_multipliers[1] is nan"]),
        ({"ffn_multipliers": None}, ["ffn_multipliers is missing"]),
        ({"ffn_multipliers": 1e200}, ["ffn_multipliers is 1.2", "a width of at most"]),
        ({"num_query_heads": [4] * 15}, ["num_query_heads", "16 whole numbers, not 15"]),
        ({"num_query_heads": [4] * 16, "num_kv_heads": [3] * 16}, ["layer 0 has 4 query heads"]),
        ({"ffn_with_glu": False}, ["ffn_with_glu is False"]),
        ({"normalize_qk_projections": None}, ["normalize_qk_projections is missing"]),
    ],
)
def test_openelm_faults_are_named(changes, words):
    with pytest.raises(ConfigError) as caught:
        build(OPENELM_270M, **changes)
    for word in words:
        assert word in str(caught.value)


# ---- DeciLM --------------------------------------------------------------------------------------


def test_nemotron_widths(known_models):
    """Expected widths of the published 253B file: H 16384, ten multipliers."""
    facts = known_models["nvidia/Llama-3_1-Nemotron-Ultra-253B-v1"]
    seen = facts["per_layer"]["ffn_mult_seen"]
    assert {m: deci_width(16384, float(m)) for m in seen} == seen


@pytest.mark.parametrize(
    ("ffn_mult", "width"),
    [(1.95, 21504), (4.875, 53248), (5.25, 57344), (31.40625, 343040), (39.0, 425984)],
)
def test_nemotron_widths_as_users_met_them(ffn_mult, width):
    """Of these the rounding moves only 1.95, from 21299."""
    assert deci_width(16384, ffn_mult) == width
    assert (int(2 * ffn_mult * 16384 / 3) != width) == (ffn_mult == 1.95)


def test_nemotron_block_forms(known_models):
    spec = deci(
        (FULL_ATTENTION, FULL_FFN),
        ({"no_op": True, "n_heads_in_group": None}, {"ffn_mult": None, "intermediate_size": 40}),
        ({**FULL_ATTENTION, "n_heads_in_group": 6}, {"no_op": True, "ffn_mult": None}),
        ({"no_op": True}, {"no_op": True}),
        ({"replace_with_linear": True, "n_heads_in_group": None}, {**FULL_FFN, "ffn_mult": 99.0}),
    )
    widths = [x.mlp and x.mlp.intermediate_size for x in spec.layers]
    assert widths == [256, 40, None, None, 3328]
    assert [x.attention for x in spec.layers] == [
        AttentionSpec(6, 2, 8, 8),
        None,
        AttentionSpec(6, 1, 8, 8),
        None,
        None,
    ]
    assert [len(spec.layer_rows(i)) for i in range(5)] == [9, 4, 5, 0, 6]
    assert shapes(spec)["model.layers.4.self_attn.linear_attn.weight"] == (48, 48)
    assert spec.part_params("attention", 4) == 48 * 48


def test_an_explicit_width_wins_over_the_multiplier():
    ffn = {**FULL_FFN, "intermediate_size": 300}
    assert deci((FULL_ATTENTION, ffn)).layers[0].mlp.intermediate_size == 300


def test_full_blocks_are_llama_layers(class_tensors):
    """The source's blocks use Llama's attention and MLP classes: equal blocks are a Llama."""
    spec = deci(*[(FULL_ATTENTION, FULL_FFN)] * 3, attention_bias=True)
    llama = {
        **DECI,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "intermediate_size": 256,
        "attention_bias": True,
    }
    assert shapes(spec) == class_tensors(llama)


def test_older_form_varies_only_the_kv_heads(class_tensors):
    """DeciLM-7B: one width for all layers, KV heads per layer."""
    spec = build(DECI, intermediate_size=100, num_key_value_heads_per_layer=[3, 1])
    assert [x.attention.num_kv_heads for x in spec.layers] == [3, 1]
    assert shapes(spec)["model.layers.1.self_attn.k_proj.weight"] == (8, 48)
    same = build(DECI, intermediate_size=100, num_key_value_heads_per_layer=[3, 3])
    llama = {
        **DECI,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_key_value_heads": 3,
        "intermediate_size": 100,
    }
    assert shapes(same) == class_tensors(llama)


def test_deci_gguf():
    """convert_hf_to_gguf: no tensors for what a layer lacks, the single matrix as attn_output."""
    spec = deci(
        ({"replace_with_linear": True}, {"no_op": True}),
        ({"no_op": True}, FULL_FFN),
        rope_scaling={"rope_type": "llama3", "factor": 8.0},
    )
    tensors = {t.name: t.ne for t in gguf_tensors(spec)}
    assert {n for n in tensors if n.startswith("blk.0.")} == {
        "blk.0.attn_norm.weight",
        "blk.0.attn_output.weight",
    }
    assert "blk.1.attn_norm.weight" not in tensors
    assert tensors["blk.1.ffn_down.weight"] == (256, 48)


def test_one_matrix_for_an_mlp_counts_but_has_no_gguf():
    spec = deci((FULL_ATTENTION, {"replace_with_linear": True}))
    assert spec.part_params("mlp") == 48 * 48
    assert spec.layers[0].mlp is None
    with pytest.raises(UnknownArchitectureError, match="one matrix for an MLP"):
        gguf_tensors(spec)


@pytest.mark.parametrize(
    ("attention", "ffn", "words"),
    [
        ({}, FULL_FFN, ["n_heads_in_group is missing", "block_configs[0]: attention"]),
        ({"n_heads_in_group": 4}, FULL_FFN, ["n_heads_in_group is 4", "a divisor of the 6 heads"]),
        (FULL_ATTENTION, {}, ["ffn_mult is missing", "block_configs[0]: ffn"]),
        (FULL_ATTENTION, {"ffn_mult": -1.0}, ["ffn_mult is -1.0"]),
        (FULL_ATTENTION, {"ffn_mult": float("inf")}, ["ffn_mult is inf"]),
        (FULL_ATTENTION, {"ffn_mult": 1e300}, ["ffn_mult is 1e+300", "a width of at most"]),
        (FULL_ATTENTION, {**FULL_FFN, "moe": {"num_local_experts": 8}}, ["moe is {"]),
        (FULL_ATTENTION, {**FULL_FFN, "gated": False}, ["gated is False"]),
        ({**FULL_ATTENTION, "mamba": {"state_dim": 8}}, FULL_FFN, ["mamba is {"]),
        ([], FULL_FFN, ["attention is []", "an object"]),
    ],
)
def test_deci_faults_are_named(attention, ffn, words):
    with pytest.raises(ConfigError) as caught:
        deci((attention, ffn))
    for word in words:
        assert word in str(caught.value)


def test_deci_needs_one_of_its_two_forms():
    with pytest.raises(ConfigError, match="block_configs or num_key_value_heads_per_layer"):
        build(DECI)
    with pytest.raises(ConfigError, match="a list of 2 blocks"):
        build(DECI, block_configs=[{}])
    with pytest.raises(ConfigError, match=r"block_configs\[1\] is 3"):
        build(DECI, block_configs=[{"attention": FULL_ATTENTION, "ffn": FULL_FFN}, 3])
