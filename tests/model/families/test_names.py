"""From a file's tensor name to its row, in each dialect."""

from __future__ import annotations

import pytest

from gateup.errors import UnknownArchitectureError, UsageError
from gateup.model.families import FAMILIES, build_spec
from gateup.model.families.names import NameIndex, translate

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 24,
    "intermediate_size": 52,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 97,
}
MIXTRAL = {**LLAMA, "architectures": ["MixtralForCausalLM"], "num_local_experts": 12}
MIXTRAL |= {"num_experts_per_tok": 2}


@pytest.fixture(scope="module")
def llama():
    return build_spec(LLAMA, where="config.json", name="llama")


@pytest.fixture(scope="module")
def mixtral():
    return build_spec(MIXTRAL, where="config.json", name="mixtral")


def test_every_canonical_name_is_found(llama, mixtral):
    for spec in (llama, mixtral):
        index = NameIndex(spec, "hf")
        for name, row in spec.tensors():
            found = index.find(name)
            assert found is not None
            assert found[0] is row
            assert index.canonical(name) == name


def test_experts_carry_their_number(mixtral):
    index = NameIndex(mixtral, "hf")
    row, expert = index.find("model.layers.1.block_sparse_moe.experts.11.w2.weight")
    assert (row.role, row.layer, expert) == ("experts.down_proj", 1, 11)
    for name in (
        "model.layers.1.block_sparse_moe.experts.12.w2.weight",  # there are 12: 0 to 11
        "model.layers.1.block_sparse_moe.experts.-1.w2.weight",
        "model.layers.1.block_sparse_moe.experts.01.w2.weight",
        "model.layers.1.block_sparse_moe.experts.²2.w2.weight",
        "model.layers.1.block_sparse_moe.experts.9999999999999.w2.weight",
        "model.layers.1.block_sparse_moe.experts..w2.weight",
        "model.layers.1.block_sparse_moe.experts.w2.weight",
        "model.layers.2.block_sparse_moe.experts.0.w2.weight",
    ):
        assert index.find(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "language_model.model.layers.0.mlp.up_proj.weight",
        "model.language_model.layers.0.mlp.up_proj.weight",
        "base_model.model.model.layers.0.mlp.up_proj.weight",
        "base_model.model.model.language_model.layers.0.mlp.up_proj.weight",
        "_orig_mod.model.layers.0.mlp.up_proj.weight",
        "module._orig_mod.model.layers.0.mlp.up_proj.weight",
        "layers.0.mlp.up_proj.weight",
    ],
)
def test_wrappers_are_seen_through(llama, name):
    assert NameIndex(llama, "hf").canonical(name) == "model.layers.0.mlp.up_proj.weight"


def test_unknown_names_stay_unknown(llama):
    index = NameIndex(llama, "hf")
    for name in ("", ".", "model", "vision_tower.layers.0.mlp.up_proj.weight", "x" * 100_000):
        assert index.find(name) is None
        assert index.rows(name) == ()
        assert index.canonical(name) is None


def test_gguf_names_lead_to_rows(llama, mixtral):
    index = NameIndex(llama, "gguf")
    assert index.canonical("blk.1.ffn_gate.weight") == "model.layers.1.mlp.gate_proj.weight"
    assert index.canonical("token_embd.weight") == "model.embed_tokens.weight"
    assert index.find("model.embed_tokens.weight") is None
    row, expert = NameIndex(mixtral, "gguf").find("blk.0.ffn_up_exps.weight")
    assert (row.role, row.copies, expert) == ("experts.up_proj", 12, None)


def test_tables_that_are_no_row_have_no_canonical_name(llama):
    config = {**LLAMA, "rope_scaling": {"rope_type": "llama3"}}
    spec = build_spec(config, where="config.json", name="llama")
    assert NameIndex(spec, "gguf").find("rope_freqs.weight") is None


def test_meta_names(llama):
    index = NameIndex(llama, "meta")
    assert (
        index.canonical("layers.0.feed_forward.w1.weight") == "model.layers.0.mlp.gate_proj.weight"
    )
    assert index.canonical("layers.0.feed_forward.w3.weight") == "model.layers.0.mlp.up_proj.weight"
    assert index.canonical("layers.1.attention.wv.weight") == (
        "model.layers.1.self_attn.v_proj.weight"
    )
    assert index.canonical("tok_embeddings.weight") == "model.embed_tokens.weight"
    assert set(translate(llama, "meta")) == {
        *("tok_embeddings.weight", "norm.weight", "output.weight"),
        *(
            f"layers.{i}.{part}.weight"
            for i in range(2)
            for part in (
                *("attention_norm", "ffn_norm"),
                *(f"attention.w{x}" for x in "qkvo"),
                *(f"feed_forward.w{x}" for x in "123"),
            )
        ),
    }


def test_megatron_fuses_what_the_hub_keeps_apart(llama):
    index = NameIndex(llama, "megatron")
    qkv = index.rows("decoder.layers.0.self_attention.linear_qkv.weight")
    assert [r.role for r in qkv] == ["q_proj", "k_proj", "v_proj"]
    fc1 = index.rows("decoder.layers.0.mlp.linear_fc1.weight")
    assert [r.role for r in fc1] == ["gate_proj", "up_proj"]
    norm = index.rows("decoder.layers.0.mlp.linear_fc1.layer_norm_weight")
    assert [r.role for r in norm] == ["post_attention_layernorm"]
    held = [r for rows in translate(llama, "megatron").values() for r in rows]
    assert sorted(r.name for r in held) == sorted(r.name for r in llama.rows)


def test_translate_lists_experts_one_by_one(mixtral):
    names = translate(mixtral, "hf")
    assert list(names) == [n for n, _ in mixtral.tensors()]
    assert all(len(rows) == 1 for rows in names.values())


def test_dialects_that_do_not_exist():
    gemma = build_spec(
        {**LLAMA, "architectures": ["GemmaForCausalLM"]}, where="config.json", name="gemma"
    )
    with pytest.raises(UnknownArchitectureError, match="GemmaForCausalLM has no meta names"):
        NameIndex(gemma, "meta")
    with pytest.raises(UsageError, match="'keras' is not a dialect"):
        translate(gemma, "keras")


def test_no_two_roles_of_a_family_share_a_canonical_name():
    for family in FAMILIES.values():
        assert len({n.hf for n in family.names.values()}) == len(family.names), family.model_type
