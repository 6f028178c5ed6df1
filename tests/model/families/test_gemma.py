"""Gemma 1, 2 and 3 against transformers' classes and published totals."""

from __future__ import annotations

import pytest

from gateup.errors import ConfigError
from gateup.model.families import build_spec, gguf_tensors
from gateup.model.families.names import NameIndex

GEMMA = {
    "architectures": ["GemmaForCausalLM"],
    "model_type": "gemma",
    "hidden_size": 24,
    "intermediate_size": 52,
    "num_hidden_layers": 7,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "vocab_size": 97,
}
GEMMA2 = {**GEMMA, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2"}
GEMMA3 = {**GEMMA, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}
# All that the published file of the 4B model says of its language model.
GEMMA3_4B_TEXT = {
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
    "sliding_window": 1024,
}
GEMMA3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "text_config": GEMMA3_4B_TEXT,
    "vision_config": {
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
    },
}


def spec_of(config, **changes):
    return build_spec({**config, **changes}, where="config.json", name="tiny")


def shapes(spec):
    return {n: r.shape for n, r in spec.tensors()}


def without_head_dim(config):
    return {k: v for k, v in config.items() if k != "head_dim"}


@pytest.mark.parametrize("family", [GEMMA, GEMMA2, GEMMA3], ids=["1", "2", "3"])
@pytest.mark.parametrize(
    "changes", [{}, {"attention_bias": True}, {"tie_word_embeddings": False}], ids=str
)
def test_tensors_are_those_of_the_class(class_tensors, family, changes):
    assert shapes(spec_of(family, **changes)) == class_tensors({**family, **changes})


@pytest.mark.parametrize("family", [GEMMA, GEMMA2, GEMMA3], ids=["1", "2", "3"])
def test_head_dim_is_256_where_absent_as_in_the_class(class_tensors, family):
    config = without_head_dim(family)
    assert shapes(spec_of(config)) == class_tensors(config)


@pytest.mark.parametrize(
    "hub_name", ["google/gemma-2b", "google/gemma-2-9b", "google/gemma-3-1b-it"]
)
def test_totals_of_known_models(known_models, class_tensors, hub_name):
    facts = known_models[hub_name]
    config = {k: v for k, v in facts.items() if k in GEMMA}  # without tie_word_embeddings
    config["architectures"] = [facts["architecture"]]
    spec = spec_of(config)
    assert spec.params == facts["total_params_computed"]
    assert spec.tie_word_embeddings
    assert shapes(spec) == class_tensors(config)


def test_gemma_3_4b_from_what_its_file_says(class_tensors):
    spec = spec_of(GEMMA3_4B)
    # In memory transformers 5 puts the language model under model.language_model; the files on
    # the Hub say language_model.model. Both are found, the vision tower is not.
    index = NameIndex(spec, "hf")
    theirs = class_tensors(GEMMA3_4B)
    text = {n: s for n, s in theirs.items() if "language_model" in n}
    assert {index.canonical(n): s for n, s in text.items()} == shapes(spec)
    hub = [n.replace("model.language_model.", "language_model.model.") for n in text]
    assert {index.canonical(n) for n in hub} == set(shapes(spec))
    assert all(index.find(n) is None for n in set(theirs) - set(text))
    assert spec.params == 3_880_263_168
    assert spec.dtype == "bf16"
    assert spec.vocab_size == 262_208
    assert "vision tower" in spec.notes[0]


def test_gelu_is_the_tanh_form_whatever_hidden_act_says():
    acts = [
        spec_of(GEMMA, **changes).layers[0].mlp.act
        for changes in (
            {},
            {"hidden_act": "gelu"},
            {"hidden_act": "gelu", "hidden_activation": None},
            {"hidden_act": "silu"},
            {"hidden_act": "gelu", "hidden_activation": "gelu"},
            {"hidden_activation": "gelu_pytorch_tanh"},
        )
    ]
    assert acts == ["gelu_tanh"] * 4 + ["gelu", "gelu_tanh"]
    with pytest.raises(ConfigError, match="hidden_activation is 'swoosh'"):
        spec_of(GEMMA, hidden_activation="swoosh")


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        (GEMMA2, {}),
        (GEMMA2, {"sliding_window": 16}),
        (GEMMA2, {"sliding_window": 16, "layer_types": ["full_attention"] * 7}),
        (GEMMA3, {}),
        (GEMMA3, {"sliding_window": 16, "sliding_window_pattern": 2}),
        (GEMMA3, {"sliding_window": 16, "sliding_window_pattern": 1}),
        (GEMMA3, {"sliding_window": 16, "use_bidirectional_attention": True}),
        (
            GEMMA3,
            {"sliding_window": 16, "layer_types": ["full_attention", *["sliding_attention"] * 6]},
        ),
    ],
)
def test_windows_are_the_class_s(family, changes):
    import transformers

    cls = getattr(transformers, family["architectures"][0]).config_class
    cfg = cls.from_dict({**family, **changes})
    expected = [cfg.sliding_window if t == "sliding_attention" else None for t in cfg.layer_types]
    assert [x.attention.window for x in spec_of(family, **changes).layers] == expected


def test_gemma_1_has_no_windows():
    assert all(x.attention.window is None for x in spec_of(GEMMA, sliding_window=16).layers)


def test_gguf_names_of_the_four_norms():
    tensors = {t.name: t for t in gguf_tensors(spec_of(GEMMA2))}
    roles = {n.split(".")[2]: t.rows[0].role for n, t in tensors.items() if n.startswith("blk.0.")}
    assert roles["attn_norm"] == "input_layernorm"
    assert roles["post_attention_norm"] == "post_attention_layernorm"
    assert roles["ffn_norm"] == "pre_feedforward_layernorm"
    assert roles["post_ffw_norm"] == "post_feedforward_layernorm"


def test_gguf_drops_a_head_of_its_own_before_gemma_3():
    names = [
        {t.name for t in gguf_tensors(spec_of(f, tie_word_embeddings=False))}
        for f in (GEMMA, GEMMA2, GEMMA3)
    ]
    assert ["output.weight" in n for n in names] == [False, False, True]


def test_faults_in_the_nested_config_are_located():
    with pytest.raises(ConfigError, match="text_config is None"):
        spec_of({k: v for k, v in GEMMA3_4B.items() if k != "text_config"})
    with pytest.raises(ConfigError, match=r"config\.json: text_config, field hidden_size"):
        spec_of(GEMMA3_4B, text_config={**GEMMA3_4B_TEXT, "hidden_size": "wide"})
