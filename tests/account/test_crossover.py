"""Where attention scores overtake the MLP: known contexts, windows, and the definition itself."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateup.account.crossover import Crossover, crossover
from gateup.account.flops import decode_flops, gemm_per_token, visible_sum
from gateup.model.families import build_spec
from gateup.model.spec import (
    AttentionSpec,
    ClassicFFNSpec,
    GatedMLPSpec,
    LayerSpec,
    ModelSpec,
    MoESpec,
)


def known(models: dict[str, dict[str, Any]], name: str) -> ModelSpec:
    entry = models[name]
    return build_spec({**entry, "architectures": [entry["architecture"]]}, where=name, name=name)


def spec_of(*layers: tuple[AttentionSpec | None, Any], hidden: int = 64) -> ModelSpec:
    return ModelSpec(
        family="llama",
        architecture="LlamaForCausalLM",
        name="small",
        hidden_size=hidden,
        vocab_size=100,
        tie_word_embeddings=False,
        layers=tuple(LayerSpec(i, a, m) for i, (a, m) in enumerate(layers)),
        rows=(),
    )


@pytest.mark.parametrize(
    ("name", "token", "prefill"),
    [
        ("meta-llama/Llama-2-7b-hf", 16_512, 33_024),
        ("meta-llama/Llama-3.1-8B", 21_504, 43_008),
        ("Qwen/Qwen3-0.6B", 2_304, 4_608),
    ],
)
def test_known_contexts(
    known_models: dict[str, dict[str, Any]], name: str, token: int, prefill: int
) -> None:
    result = crossover(known(known_models, name))
    for point in (result.model, *result.layers):
        assert point.token == token
        assert point.prefill == prefill
        figures = point.figures()
        assert figures["token"].value == token
        assert figures["prefill"].value == prefill
        assert figures["token"].kind == "exact"
    assert len(result.layers) == 1


def test_latent_attention_and_shared_experts(known_models: dict[str, dict[str, Any]]) -> None:
    """DeepSeek-V3: 6·7168·(8·2048 + 2048) / (2·128·(192 + 128)) = 9676.8, shown as 9,677.

    Its three dense layers have the same active width, 18432 = 9·2048.
    """
    result = crossover(known(known_models, "deepseek-ai/DeepSeek-V3"))
    dense, moe = result.layers
    assert (dense.label, moe.label) == ("0-2", "3-60")
    assert dense.token == moe.token == result.model.token
    assert moe.token == Fraction(48_384, 5)
    assert moe.prefill == Fraction(96_768, 5)
    assert moe.figures()["token"].value == 9_677
    assert moe.figures()["prefill"].value == 19_354
    figures = moe.figures()
    assert figures["token"].formula == "6·H·(k·I_e + I_s) / (2·n_h·(d_qk + d_v))"
    assert figures["token"].numbers == "6·7168·(8·2048 + 2048) / (2·128·(192 + 128))"
    assert figures["prefill"].numbers == "2·6·7168·(8·2048 + 2048) / (2·128·(192 + 128))"
    assert result.model.formula == "Σ 2·m·H·ΣI / Σ 2·n_h·(d_qk + d_v)"


def test_crossover_is_where_the_counted_flops_meet(
    known_models: dict[str, dict[str, Any]],
) -> None:
    spec = known(known_models, "meta-llama/Llama-2-7b-hf")
    assert decode_flops(spec, 16_512).attention == gemm_per_token(spec)["mlp"]
    assert decode_flops(spec, 16_511).attention < gemm_per_token(spec)["mlp"]


ATTENTION = AttentionSpec(4, 2, 16, 16)
MLP = GatedMLPSpec(160)


def test_kinds_of_layers() -> None:
    """Dense and sparse layers; the classic FFN has two matrices, a layer without an MLP none."""
    moe = MoESpec(8, 2, GatedMLPSpec(48), shared=GatedMLPSpec(32))
    result = crossover(
        spec_of((ATTENTION, MLP), (ATTENTION, moe), (ATTENTION, ClassicFFNSpec(160)), (None, MLP))
    )
    slope = 2 * 4 * (16 + 16)
    assert [p.label for p in result.layers] == ["0", "1", "2"]
    assert result.layers[0].token == Fraction(6 * 64 * 160, slope)
    assert result.layers[1].token == Fraction(6 * 64 * (2 * 48 + 32), slope)
    assert result.layers[2].token == Fraction(4 * 64 * 160, slope)
    # the model's MLPs include the one of the layer without attention
    every = 6 * 64 * (160 + 128 + 160) + 4 * 64 * 160
    assert result.model.token == Fraction(every, 3 * slope)


def test_never_below_the_window() -> None:
    result = crossover(spec_of((replace(ATTENTION, window=100), MLP)))
    assert result.model.token is None
    assert result.model.prefill is None
    assert result.model.figures() == {}
    assert result.model.why == (
        "no token sees more than 100 keys, which cost 25600 FLOPs; the MLP costs 61440"
    )
    assert crossover(spec_of((None, MLP))).model.why == "no attention in these layers"
    assert crossover(spec_of((ATTENTION, None))).model.why == "no MLP in these layers"
    assert crossover(spec_of((None, MLP))).layers == ()


def test_window_reached_by_the_token_but_never_by_the_average_at_the_cap() -> None:
    """Window exactly T*: the last token pays as much as the MLP, the prefill's average never."""
    result = crossover(spec_of((replace(ATTENTION, window=240), MLP)))
    assert result.model.token == 240
    assert result.model.prefill is None
    assert set(result.model.figures()) == {"token"}
    assert "average stays below" in result.model.why


def test_full_layers_carry_on_where_windows_cap() -> None:
    """Five windowed layers and a full one (Gemma 3): 5·s·w + s·T = 6·M."""
    local, full = replace(ATTENTION, window=100), ATTENTION
    result = crossover(spec_of(*[(local, MLP)] * 5, (full, MLP)))
    assert result.model.token == 6 * 240 - 5 * 100
    assert result.model.numbers == "1280·min(T, 100) + 256·T = 368640"
    assert [p.token for p in result.layers] == [None, 240]
    figures = result.model.figures()
    assert figures["token"].numbers == "1280·min(T, 100) + 256·T = 368640"
    assert figures["prefill"].numbers == "1280·mean(100) + 256·T/2 = 368640"


def test_chunks_are_full_at_their_end() -> None:
    """Llama 4: three chunked layers to one full: 3·w/2 + T/2 = 4·T* over whole chunks."""
    chunked = replace(ATTENTION, window=64, chunked=True)
    result = crossover(spec_of(*[(chunked, MLP)] * 3, (ATTENTION, MLP)))
    assert result.model.token == 4 * 240 - 3 * 64
    assert result.model.prefill == 8 * 240 - 3 * 64


layers = st.lists(
    st.tuples(
        st.one_of(
            st.none(),
            st.builds(
                AttentionSpec,
                num_heads=st.sampled_from([2, 4]),
                num_kv_heads=st.just(2),
                head_dim=st.sampled_from([8, 16]),
                v_head_dim=st.sampled_from([8, 16]),
                window=st.one_of(st.none(), st.integers(1, 500)),
            ),
        ),
        st.one_of(st.none(), st.builds(GatedMLPSpec, st.integers(1, 300))),
    ),
    min_size=1,
    max_size=5,
)


@given(layers=layers)
def test_solutions_satisfy_their_definition(layers: list[tuple[Any, Any]]) -> None:
    spec = spec_of(*layers)
    result: Crossover = crossover(spec)
    mlp = sum(6 * 64 * m.intermediate_size for _, m in layers if m)
    attentions = [a for a, _ in layers if a]

    def token(t: Fraction) -> Fraction:
        zero = Fraction(0)
        return sum((2 * a.score_width * min(t, a.window or t) for a in attentions), zero)

    def average(t: Fraction) -> Fraction:
        total = Fraction(0)
        for a in attentions:
            w = Fraction(min(t, a.window or t))
            total += 2 * a.score_width * (w * w / 2 + (t - w) * w) / t
        return total

    point = result.model
    if point.token is None:
        assert point.why
        assert point.prefill is None or not attentions
        assert not mlp or token(Fraction(10**9)) < mlp
        return
    assert token(point.token) == mlp
    if point.prefill is None:
        assert average(Fraction(10**12)) < mlp
    else:
        assert average(point.prefill) >= mlp
        # exact, or the first whole context past it
        if average(point.prefill) != mlp:
            assert point.prefill.denominator == 1
            assert average(point.prefill - 1) < mlp


def test_average_of_the_counted_pairs_approaches_half_the_context() -> None:
    """The convention's T/2 leaves out the diagonal's half key: T(T+1)/2 pairs over T tokens."""
    assert Fraction(visible_sum(ATTENTION, 1000), 1000) == Fraction(1001, 2)
