"""FLOPs against torch's own counter on transformers' models, and against brute-force sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from gateup.account.flops import (
    decode_flops,
    gemm_per_token,
    prefill_flops,
    score_flops,
    train_flops,
    visible_keys,
    visible_sum,
)
from gateup.account.workload import LoRA, Training, Workload
from gateup.model.families import build_spec
from gateup.model.spec import AttentionSpec, LayerSpec, MLASpec, ModelSpec

B, T = 2, 24

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "head_dim": 16,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}

# transformers' class prefix -> changes to SMALL. Widths are odd on purpose: no two products agree.
DENSE: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen3": {"head_dim": 24},
    "Gemma2": {"sliding_window": 8, "tie_word_embeddings": True},
    "Gemma3": {"sliding_window": 8, "tie_word_embeddings": True},
    "Phi3": {"head_dim": None},
    "Mistral": {"sliding_window": 8},
}
SPARSE: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "Qwen3Moe": {**EXPERTS, "decoder_sparse_step": 1, "mlp_only_layers": []},
    "DeepseekV3": {
        "num_key_value_heads": 4,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 24,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 20,
        "head_dim": 8,
    },
}


def pair(prefix: str, attention: str, **changes: Any) -> tuple[Any, ModelSpec]:
    """transformers' model with random weights, and our spec of the same config."""
    family = {**DENSE, **SPARSE}[prefix]
    values = {k: v for k, v in {**SMALL, **family, **changes}.items() if v is not None}
    named = prefix + ("TextConfig" if prefix == "Gemma3" else "Config")
    config = getattr(transformers, named)(**values, attn_implementation=attention)
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, prefix + "ForCausalLM")(config).eval()
    given_config = {**config.to_dict(), "architectures": [prefix + "ForCausalLM"]}
    return model, build_spec(given_config, where="test", name=prefix)


def counted(step: Callable[[], Any]) -> int:
    """What FlopCounterMode counts; CPU's fused attention by torch's own rule for the GPU's."""

    def sdpa(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
        count: int = sdpa_flop_count(query, key, value)
        return count

    rules = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: sdpa}
    with FlopCounterMode(display=False, custom_mapping=rules) as counter:
        step()
    total: int = counter.get_total_flops()
    return total


def ids() -> torch.Tensor:
    return torch.randint(1, 300, (B, T), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("prefix", "attention"),
    [
        (prefix, attention)
        for prefix in (*DENSE, *SPARSE)
        for attention in ("eager", "sdpa")
        if (prefix, attention) != ("Gemma2", "sdpa")  # capped scores: transformers has no SDPA
    ],
)
def test_prefill_is_what_torch_counts(prefix: str, attention: str) -> None:
    model, spec = pair(prefix, attention)
    with torch.no_grad():
        every = counted(lambda: model(ids()))
        last = counted(lambda: model(ids(), logits_to_keep=1))
    ours = prefill_flops(spec, T, batch=B, causal=False, last_logits=False)
    assert ours.total == every
    assert prefill_flops(spec, T, batch=B, causal=False).total == last
    assert every - last == 2 * 300 * 64 * B * (T - 1)


def test_a_dropped_gate_is_noticed() -> None:
    model, spec = pair("Llama", "eager")
    without = replace(spec, rows=tuple(r for r in spec.rows if r.role != "gate_proj"))
    with torch.no_grad():
        every = counted(lambda: model(ids()))
    ours = prefill_flops(without, T, batch=B, causal=False, last_logits=False)
    assert every - ours.total == 3 * 2 * 64 * 176 * B * T


@pytest.mark.parametrize("prefix", ["Llama", "Qwen3", "Mixtral"])
def test_decode_is_what_torch_counts(prefix: str) -> None:
    model, spec = pair(prefix, "eager")
    with torch.no_grad():
        before = model(ids(), use_cache=True)
        name = "cache" if "cache" in before else "past_key_values"  # transformers renames it
        step = counted(lambda: model(ids()[:, :1], **{name: before[name]}))
    assert step == B * decode_flops(spec, T + 1).total


def test_tied_head_costs_what_an_untied_one_costs() -> None:
    _, tied = pair("Llama", "eager", tie_word_embeddings=True)
    _, untied = pair("Llama", "eager")
    assert gemm_per_token(tied) == gemm_per_token(untied)
    assert gemm_per_token(tied)["head"] == 2 * 300 * 64
    assert gemm_per_token(tied)["embedding"] == 0


def workload(flash: bool = False, **training: Any) -> Workload:
    return Workload(ctx=T, batch=B, flash=flash, training=Training(**training))


@pytest.mark.parametrize("prefix", ["Llama", "Qwen3", "Mixtral"])
def test_training_is_what_torch_counts(prefix: str) -> None:
    model, spec = pair(prefix, "eager")
    model.train()
    step = counted(lambda: model(ids()).logits.sum().backward())
    ours = train_flops(spec, workload(method="full"), causal=False)
    assert ours.total == step
    assert ours.kind == "exact"


def test_flash_attention_recomputes_the_scores() -> None:
    """Against torch's rule for the fused backward: five products where forward has two."""
    _, spec = pair("DeepseekV3", "eager")
    full = train_flops(spec, workload(flash=True, method="full"), causal=False)
    heads, qk, v = 4, 24, 20
    forward = sdpa_flop_count((B, heads, T, qk), (B, heads, T, qk), (B, heads, T, v))
    backward = 2 * B * heads * T * T * (3 * qk + 2 * v)
    assert full.attention == spec.num_layers * (forward + backward)


def test_checkpointing_is_bounded_and_the_gap_is_down_proj() -> None:
    """torch stops recomputing at down_proj: its output is not kept. Reentrant does all of it."""
    model, spec = pair("Llama", "eager")
    model.train()
    model.config.use_cache = False
    bound = train_flops(spec, workload(method="full", checkpointing="layer"), causal=False)
    assert bound.kind == "bound"

    def checkpointed(reentrant: bool) -> int:
        enable = getattr(
            model, "activation_checkpointing_enable", model.gradient_checkpointing_enable
        )
        enable({"use_reentrant": reentrant})
        if reentrant:
            model.enable_input_require_grads()
        return counted(lambda: model(ids()).logits.sum().backward())

    down = 3 * 2 * 64 * 176 * B * T
    assert checkpointed(reentrant=False) == bound.total - down
    assert checkpointed(reentrant=True) == bound.total


# PEFT 0.21 asks for a property that transformers 5.24 has renamed.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_lora_is_bounded_and_the_gap_is_the_first_projections() -> None:
    peft = pytest.importorskip("peft")
    roles = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model, spec = pair("Llama", "eager")
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=roles))
    adapted.train()
    step = counted(lambda: adapted(ids()).logits.sum().backward())
    rows = [r for r in spec.rows if r.role in roles]
    adapter_params = sum(4 * sum(r.shape) for r in rows)
    bound = train_flops(
        spec,
        workload(method="lora", lora=LoRA(rank=4)),
        causal=False,
        adapter_params=adapter_params,
    )
    first = [r for r in rows if r.layer == 0 and r.role in ("q_proj", "k_proj", "v_proj")]
    gap = sum(2 * B * T * (r.params + 4 * r.shape[1]) for r in first)
    assert step == bound.total - gap
    assert bound.kind == "bound"
    assert bound.adapter == 6 * adapter_params * B * T


@given(
    tokens=st.integers(0, 70),
    window=st.one_of(st.none(), st.integers(1, 40)),
    chunked=st.booleans(),
)
def test_visible_pairs_are_the_sum_over_positions(
    tokens: int, window: int | None, chunked: bool
) -> None:
    attn = AttentionSpec(4, 2, 16, 16, window=window, chunked=chunked and window is not None)
    seen = 0
    for p in range(tokens):
        start = 0
        if window is not None:
            start = p // window * window if attn.chunked else max(0, p - window + 1)
        assert visible_keys(attn, p + 1) == p + 1 - start
        seen += p + 1 - start
    assert visible_sum(attn, tokens) == seen
    assert visible_sum(attn, tokens, causal=False) == tokens * tokens


def with_attention(spec: ModelSpec, *attentions: AttentionSpec) -> ModelSpec:
    layers = tuple(LayerSpec(i, a, spec.layers[0].mlp) for i, a in enumerate(attentions))
    return replace(spec, layers=layers)


ATTENTIONS = (
    AttentionSpec(4, 2, 16, 16),
    AttentionSpec(4, 2, 16, 16, window=8),
    AttentionSpec(4, 2, 16, 24, window=7, chunked=True),
    AttentionSpec(4, 4, 24, 20, mla=MLASpec(32, 16, 8, 24)),
)


def evaluate(numbers: str) -> float:
    value: float = eval(numbers.replace("·", "*").replace("−", "-"))
    return value


@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 50])
def test_formulas_evaluate_to_their_values(tokens: int) -> None:
    _, base = pair("Llama", "eager")
    spec = with_attention(base, *ATTENTIONS)
    training = workload(flash=True, method="lora", checkpointing="layer")
    for flops in (
        decode_flops(spec, tokens),
        decode_flops(spec, tokens, mla="expanded"),
        prefill_flops(spec, tokens, batch=3),
        prefill_flops(spec, tokens, batch=3, causal=False, last_logits=False),
        train_flops(spec, replace(training, ctx=tokens), adapter_params=1000),
    ):
        figures = flops.figures()
        assert figures["total"].value == flops.total
        assert sum(f.value for k, f in figures.items() if k not in ("total", "mlp_share")) == (
            flops.total
        )
        for key, figure in figures.items():
            assert evaluate(figure.numbers) == pytest.approx(figure.value, rel=1e-12), (key, figure)
            assert figure.formula


def test_formula_texts() -> None:
    _, spec = pair("Llama", "eager")
    figures = decode_flops(spec, 100).figures()
    assert figures["gemm.mlp"].formula == "2·(3·H·I·L)"
    assert figures["gemm.mlp"].numbers == "2·(3·64·176·3)"
    assert figures["attention_scores"].formula == "L·2·n_h·(d_qk + d_v)·T"
    assert figures["attention_scores"].numbers == "3·2·4·(16 + 16)·100"
    figures = prefill_flops(spec, 100, batch=2).figures()
    assert figures["gemm.mlp"].numbers == "2·(3·64·176·3)·2·100"
    assert figures["gemm.head"].formula == "2·(V·H)·B"
    assert figures["attention_scores"].formula == "L·2·n_h·(d_qk + d_v)·B·T·(T+1)/2"
    figures = decode_flops(with_attention(spec, *ATTENTIONS), 100).figures()
    assert figures["attention_scores"].formula == (
        "1 layers (0)·2·n_h·(d_qk + d_v)·T + 1 layers (1)·2·n_h·(d_qk + d_v)·min(T, 8) + "
        "1 layers (2)·2·n_h·(d_qk + d_v)·((T−1) mod 7 + 1) + "
        "1 layers (3)·2·n_h·(2·r_kv + d_rope)·T"
    )


def test_decode_on_a_latent_cache() -> None:
    """Absorbed: scores over r_kv + d_rope, values over r_kv; GEMMs as for expanding one token."""
    attn = ATTENTIONS[3]
    assert score_flops(attn, "absorbed") == 2 * 4 * (32 + 8 + 32)
    assert score_flops(attn) == 2 * 4 * (24 + 20)
    kv_b = 32 * 4 * (16 + 20)
    absorbed = 4 * 16 * 32 + 4 * 32 * 20
    assert kv_b == absorbed


def test_known_flops(known_models: dict[str, dict[str, Any]]) -> None:
    """6·H·I per token and layer: Llama-3-8B's MLPs take 11.27 GFLOP a token."""
    entry = known_models["meta-llama/Llama-3.1-8B"]
    spec = build_spec({**entry, "architectures": [entry["architecture"]]}, where="", name="")
    assert gemm_per_token(spec)["mlp"] == 6 * 4096 * 14336 * 32
    assert decode_flops(spec, 21_504).attention == gemm_per_token(spec)["mlp"]
