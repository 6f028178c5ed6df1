"""KV cache: known figures, transformers' caches, formats, windows, llama.cpp's allocation."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
import transformers

from gateup.account.figure import Figure
from gateup.account.kv import (
    kv_nbytes,
    layer_kv_nbytes,
    llamacpp_kv_nbytes,
    token_nbytes,
)
from gateup.errors import UsageError
from gateup.model.families import build_spec
from gateup.model.spec import AttentionSpec, LayerSpec, ModelSpec


def known(models: dict[str, dict[str, Any]], name: str) -> ModelSpec:
    entry = models[name]
    return build_spec({**entry, "architectures": [entry["architecture"]]}, where=name, name=name)


def check_text(figure: Figure) -> None:
    value = eval(figure.numbers.replace("·", "*"))
    assert value == figure.value, figure
    assert figure.kind == "exact"
    assert figure.unit == "B"


def qwen3_4b() -> ModelSpec:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    }
    return build_spec(config, where="test", name="qwen3-4b")


def test_head_dim_is_read_not_computed() -> None:
    """Qwen3-4B: heads of 128, not 2560/32 = 80; 147,456 bytes a token, 5.625 GiB at 40,960."""
    spec = qwen3_4b()
    assert kv_nbytes(spec, 1).value == 147_456
    figure = kv_nbytes(spec, 40_960)
    assert figure.value == 5.625 * 2**30
    assert figure.formula == "L·2·n_kv·d·T·B·bytes(f16)"
    assert figure.numbers == "36·2·8·128·40960·1·2"
    check_text(figure)


def test_latent_cache(known_models: dict[str, dict[str, Any]]) -> None:
    """DeepSeek-V3 keeps the latent and the rope key: 61·(512 + 64)·2 bytes a token."""
    spec = known(known_models, "deepseek-ai/DeepSeek-V3")
    assert kv_nbytes(spec, 1).value == 61 * 576 * 2
    figure = kv_nbytes(spec, 1000, "q8_0", batch=3)
    assert figure.value == 61 * 576 * 1000 * 3 * 34 // 32
    assert figure.formula == "L·(r_kv + d_rope)·T·B·bytes(q8_0)"
    check_text(figure)


@pytest.mark.parametrize(
    ("kv_type", "per_element"),
    [
        ("f32", Fraction(4)),
        ("f16", Fraction(2)),
        ("bf16", Fraction(2)),
        ("f8_e4m3", Fraction(1)),
        ("q8_0", Fraction(34, 32)),
        ("q5_1", Fraction(24, 32)),
        ("q4_0", Fraction(18, 32)),
        ("iq4_nl", Fraction(18, 32)),
    ],
)
def test_formats(kv_type: str, per_element: Fraction) -> None:
    spec = qwen3_4b()
    figure = kv_nbytes(spec, 777, kv_type, batch=2)
    assert figure.value == 36 * 2 * 8 * 128 * 777 * 2 * per_element
    check_text(figure)
    assert sum(layer_kv_nbytes(spec, 777, kv_type, batch=2)) == figure.value


def test_blocks_must_divide_a_head() -> None:
    attn = AttentionSpec(4, 2, 80, 80)
    with pytest.raises(UsageError) as caught:
        token_nbytes(attn, "q8_0")
    assert str(caught.value) == (
        "a KV cache in q8_0 needs head_dim (=80) to be a multiple of 32\n"
        "  remedy: keep the cache in f16 or bf16"
    )
    with pytest.raises(UsageError, match="q9_9"):
        token_nbytes(attn, "q9_9")


def test_layers_with_windows_and_without_attention() -> None:
    full = AttentionSpec(4, 2, 16, 16)
    local = replace(full, window=100)
    spec = replace(
        qwen3_4b(),
        layers=tuple(LayerSpec(i, a, None) for i, a in enumerate((full, local, None, local))),
    )
    assert layer_kv_nbytes(spec, 250) == (2 * 2 * 16 * 250 * 2, 128 * 100, 0, 128 * 100)
    figure = kv_nbytes(spec, 250)
    assert figure.value == 128 * 450
    assert figure.formula == (
        "1 layers (0)·2·n_kv·d·T·B·bytes(f16) + 2 layers (1,3)·2·n_kv·d·min(T, 100)·B·bytes(f16)"
    )
    check_text(figure)
    assert kv_nbytes(spec, 50).value == 128 * 50 * 3


def test_keys_and_values_of_different_width() -> None:
    attn = AttentionSpec(4, 2, 24, 20)
    spec = replace(qwen3_4b(), layers=(LayerSpec(0, attn, None),))
    figure = kv_nbytes(spec, 10)
    assert figure.value == 2 * (24 + 20) * 10 * 2
    assert figure.formula == "L·n_kv·(d_qk + d_v)·T·B·bytes(f16)"
    check_text(figure)


SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "vocab_size": 100,
    "pad_token_id": 0,
}


@pytest.mark.parametrize(
    ("prefix", "changes", "tokens"),
    [
        ("Llama", {}, 37),
        ("Qwen3", {}, 37),
        ("Gemma2", {"sliding_window": 16}, 11),
        ("Gemma2", {"sliding_window": 16}, 37),
        ("Mistral", {"sliding_window": 16}, 37),
    ],
)
def test_transformers_cache_holds_as_much(
    prefix: str, changes: dict[str, Any], tokens: int
) -> None:
    """transformers' windowed layers keep window − 1 tokens between steps; the step adds its own."""
    config = getattr(transformers, prefix + "Config")(**{**SMALL, **changes})
    model = getattr(transformers, prefix + "ForCausalLM")(config).eval()
    architectures = [prefix + "ForCausalLM"]
    spec = build_spec({**config.to_dict(), "architectures": architectures}, where="", name="")
    with torch.no_grad():
        out = model(torch.ones(3, tokens, dtype=torch.long), use_cache=True)
    cache = out["cache"] if "cache" in out else out["past_key_values"]
    expected = layer_kv_nbytes(spec, tokens, "f32", batch=3)
    for layer, held, nbytes in zip(spec.layers, cache.layers, expected, strict=True):
        assert layer.attention is not None
        actual = held.keys.nbytes + held.values.nbytes
        window = layer.attention.window
        if window is not None and tokens >= window:
            actual += actual // (window - 1)
        assert actual == nbytes


def gemma2(**changes: Any) -> ModelSpec:
    values = {**SMALL, "head_dim": 32, "sliding_window": 1024, **changes}
    return build_spec({**values, "architectures": ["Gemma2ForCausalLM"]}, where="", name="")


def test_what_llamacpp_allocates() -> None:
    """Contexts in steps of 256; a windowed layer holds window + ubatch, in steps of 256."""
    per_token = 2 * 2 * 32 * 2
    assert llamacpp_kv_nbytes(qwen3_4b(), 1000).value == 147_456 * 1024
    assert llamacpp_kv_nbytes(qwen3_4b(), 1024, batch=2).value == 2 * 147_456 * 1024
    figure = llamacpp_kv_nbytes(gemma2(), 8192, ubatch=500)
    assert figure.value == per_token * 2 * (8192 + 1536)
    assert "pad256(min(T, 1024 + ubatch))" in figure.formula
    check_text(figure)
    assert llamacpp_kv_nbytes(gemma2(), 1200).value == per_token * 2 * (1280 + 1280)
    assert llamacpp_kv_nbytes(gemma2(), 8192, swa_full=True).value == per_token * 4 * 8192


def test_llamacpp_ignores_some_windows() -> None:
    values = {**SMALL, "sliding_window": 1024, "architectures": ["MistralForCausalLM"]}
    spec = build_spec(values, where="", name="")
    per_token = 4 * 2 * 2 * 24 * 2
    assert llamacpp_kv_nbytes(spec, 8192).value == per_token * 8192
    assert kv_nbytes(spec, 8192).value == per_token * 1024
