"""What holds for every family: the registry, GGUF names against llama.cpp's tables, bad configs."""

from __future__ import annotations

import copy
import re
import tracemalloc
from math import prod

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateup.errors import ConfigError, GateupError, UnknownArchitectureError
from gateup.model.families import FAMILIES, build_spec, family_of, gguf_tensors
from gateup.model.families.gguf_config import config_from_gguf

DENSE = [
    "llama",
    "granite",
    "mistral",
    "smollm3",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma3",
    "phi3",
    "olmo2",
    "openelm",
    "nemotron-nas",
    "gpt2",
    "bert",
]


def build(config):
    return build_spec(config, where="config.json", name="model")


def test_every_dense_family_has_a_config_here(dense_configs):
    assert list(dense_configs) == DENSE
    assert set(DENSE) <= set(FAMILIES)


@pytest.mark.parametrize("family", DENSE)
def test_specs_hold_together(dense_configs, family):
    spec = build(dense_configs[family])
    assert spec.family == family
    assert family_of(spec).model_type == family
    names = [n for n, _ in spec.tensors()]
    assert len(names) == len(set(names))
    assert [x.index for x in spec.layers] == list(range(spec.num_layers))
    assert all(r.layer is None or 0 <= r.layer < spec.num_layers for r in spec.rows)
    for row in spec.rows:
        # A GEMM weight has two axes; norms, biases and lookups are none.
        assert row.matmul == (len(row.shape) == 2 and row.part not in ("embedding", "norm")) or (
            row.role == "pooler"
        )
        # The row's name is the table's for its role.
        template = family_of(spec).names[row.role].hf
        assert row.name in (
            template.replace("{i}", str(row.layer)),
            template.replace("{i}", str(row.layer)).removeprefix("bert."),
        )


@pytest.mark.parametrize("family", DENSE)
def test_gguf_names_are_llama_cpp_s(dense_configs, family):
    """Every name is one the gguf package allows for the architecture, with weight or bias."""
    import gguf

    spec = build(dense_configs[family])
    arch = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[family_of(spec).gguf_arch]
    allowed = {gguf.TENSOR_NAMES[kind] for kind in gguf.MODEL_TENSORS[arch]}
    seen = set()
    for tensor in gguf_tensors(spec):
        stem, ending = tensor.name.rsplit(".", 1)
        assert ending in ("weight", "bias")
        seen.add(re.sub(r"^blk\.\d+\.", "blk.{bid}.", stem))
    assert seen <= allowed
    # What the architecture's table has and this family does not write.
    optional = {
        *("output", "rope_freqs", "blk.{bid}.attn_rot_embd", "blk.{bid}.ffn_gate_inp"),
        *(f"blk.{{bid}}.ffn_{x}_exps" for x in ("gate", "up", "down")),
        *("rope_factors_long", "rope_factors_short", "cls", "cls.output"),
    }
    if family == "bert":
        optional |= {"output_norm", "blk.{bid}.attn_qkv"}
    if family == "phi3":
        optional |= {f"blk.{{bid}}.attn_{x}" for x in "qkv"}
    assert allowed - seen <= optional


@pytest.mark.parametrize("family", DENSE)
def test_gguf_holds_every_parameter_once(dense_configs, family):
    spec = build(dense_configs[family])
    tensors = gguf_tensors(spec)
    assert len({t.name for t in tensors}) == len(tensors)
    assert all(t.params == (prod(t.ne) if t.rows else 0) for t in tensors)
    dropped = {"bert": ["pooler", "pooler.bias"]}.get(family, [])
    there = {r.role for t in tensors for r in t.rows}
    assert {r.role for r in spec.rows} - there == set(dropped)
    assert sum(t.params for t in tensors) == sum(
        r.params for r in spec.rows if r.role not in dropped
    )


def _metadata(spec):
    """What llama.cpp's converter writes of the sizes: arrays where layers may differ."""
    arch = family_of(spec).gguf_arch
    attention = [x.attention for x in spec.layers]
    # 0 heads: no attention; heads without KV heads: one matrix in its place.
    linear = {r.layer for r in spec.rows if r.role == "linear_attn"}
    heads = [a.num_heads if a else 6 * (i in linear) for i, a in enumerate(attention)]
    kv = [a.num_kv_heads if a else 0 for a in attention]
    widths = [x.mlp.intermediate_size if x.mlp else 0 for x in spec.layers]
    same = len(set(heads)) == len(set(kv)) == len(set(widths)) == 1
    values = {
        "block_count": spec.num_layers,
        "embedding_length": spec.hidden_size,
        "context_length": spec.max_position_embeddings or 512,
        "attention.head_count": heads[0] if same else heads,
        "attention.head_count_kv": kv[0] if same else kv,
        "feed_forward_length": widths[0] if same else widths,
        "attention.key_length": attention[0].head_dim,
    }
    windows = {a.window for a in attention if a and a.window}
    if windows and arch in ("gemma2", "gemma3"):
        values["attention.sliding_window"] = windows.pop()
    if arch == "phi3":
        values["attention.sliding_window"] = 0
    return {"general.architecture": arch, **{f"{arch}.{k}": v for k, v in values.items()}}


@pytest.mark.parametrize("family", DENSE)
def test_a_gguf_leads_back_to_its_own_tensors(dense_configs, family):
    """The config made from a GGUF's metadata and shapes describes that GGUF again."""
    spec = build(dense_configs[family])
    there = {t.name: t.ne for t in gguf_tensors(spec)}
    config = config_from_gguf(_metadata(spec), there, "model.gguf")
    back = build(config)
    assert {t.name: t.ne for t in gguf_tensors(back)} == there
    assert [x.attention is None for x in back.layers] == [x.attention is None for x in spec.layers]
    assert [x.mlp is None for x in back.layers] == [x.mlp is None for x in spec.layers]


@pytest.mark.parametrize("family", DENSE)
def test_a_family_is_found_by_its_model_type_alone(dense_configs, family):
    config = {k: v for k, v in dense_configs[family].items() if k != "architectures"}
    if family == "bert":
        config["architectures"] = None
    assert build(config).rows == build(dense_configs[family]).rows


def test_unknown_architectures_are_refused_by_name_with_the_list_of_known_ones():
    with pytest.raises(UnknownArchitectureError) as caught:
        build({"architectures": ["MambaForCausalLM"], "model_type": "llama"})
    text = str(caught.value)
    assert "'MambaForCausalLM'" in text
    assert "LlamaForCausalLM" in text
    assert "Gemma3ForCausalLM" in text
    with pytest.raises(ConfigError, match="architectures is missing"):
        build({"hidden_size": 3})
    with pytest.raises(ConfigError, match="architectures is 'LlamaForCausalLM'"):
        build({"architectures": "LlamaForCausalLM"})
    with pytest.raises(ConfigError, match="the config is a list, not an object"):
        build([1, 2])


# ---- bad configs: only a GateupError may escape --------------------------------------------------

BAD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-3, max_value=5),
    st.integers(),
    st.sampled_from([1 << 24, (1 << 24) + 1, 1 << 62, 10**400, 4096, 4097]),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.one_of(st.integers(), st.floats(), st.text(max_size=3)), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
EXTRA_KEYS = [
    "sliding_window",
    "layer_types",
    "use_sliding_window",
    "max_window_layers",
    "head_dim",
    "hidden_act",
    "hidden_activation",
    "attention_bias",
    "mlp_bias",
    "tie_word_embeddings",
    "torch_dtype",
    "rope_scaling",
    "rope_parameters",
    "num_kv_heads",
    "num_query_heads",
    "no_rope_layers",
    "max_position_embeddings",
    "num_key_value_heads_per_layer",
    "type_vocab_size",
    "sliding_window_pattern",
    "dtype",
]


def _paths(value, path=()):
    """Every place in a nested config where something may stand."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in items:
        if isinstance(child, dict | list):
            yield from _paths(child, (*path, key))
        else:
            yield (*path, key)


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_mutated_configs_give_a_spec_or_one_of_our_errors(dense_configs, data):
    config = copy.deepcopy(dense_configs[data.draw(st.sampled_from(DENSE))])
    for _ in range(data.draw(st.integers(1, 3))):
        if data.draw(st.booleans()):
            config[data.draw(st.sampled_from(EXTRA_KEYS))] = data.draw(BAD)
            continue
        *inner, last = data.draw(st.sampled_from(sorted(_paths(config), key=str)))
        target = config
        for key in inner:
            target = target[key]
        if data.draw(st.booleans()) and isinstance(target, dict):
            del target[last]
        else:
            target[last] = data.draw(BAD)
    try:
        spec = build(config)
        tensors = gguf_tensors(spec)
    except GateupError:
        return
    assert spec.params > 0
    assert all(isinstance(d, int) and d > 0 for r in spec.rows for d in r.shape)
    assert all(isinstance(d, int) and d > 0 for t in tensors for d in t.ne)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "olmo2"])
def test_the_deepest_model_allowed_stays_small(dense_configs, family):
    """4096 layers: at most 50 MB of rows, and no deeper one is built."""
    config = {**dense_configs[family], "num_hidden_layers": 4096}
    tracemalloc.start()
    spec = build(config)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert spec.num_layers == 4096
    assert peak < 50_000_000
    with pytest.raises(ConfigError, match="num_hidden_layers is 4097"):
        build({**config, "num_hidden_layers": 4097})
