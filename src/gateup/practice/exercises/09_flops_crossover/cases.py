"""Real and held-out shapes; the oracle is gateup's own account of FLOPs."""

import numpy as np

from gateup.account.crossover import crossover
from gateup.account.flops import decode_flops
from gateup.model.families import build_spec
from gateup.practice.exercise import Case


def account(H, I, heads, head_dim, context):
    """gateup's figures for a model of one layer: MLP, scores, T*, T* of a prefill."""
    values = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": H,
        "intermediate_size": I,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": head_dim,
        "vocab_size": 32,
    }
    spec = build_spec(values, where="config", name="exercise")
    step, point = decode_flops(spec, context), crossover(spec).model
    return np.array(
        [step.gemm["mlp"], step.attention, float(point.token), float(point.prefill)],
        dtype=np.float64,
    )


def _case(name, H, I, heads, head_dim, context):
    right = account(H, I, heads, head_dim, context)
    mlp, scores, token, prefill = right
    by_hidden = H / (heads * head_dim)
    return Case(
        name,
        (H, I, heads, head_dim, context),
        right,
        mistakes={
            "macs": np.array([mlp / 2, scores / 2, token, prefill]),
            "hidden_for_heads": np.array(
                [mlp, scores * by_hidden, token / by_hidden, prefill / by_hidden]
            ),
            "no_pv": np.array([mlp, scores / 2, 2 * token, 2 * prefill]),
            "two_matrices": right * np.array([2, 3, 2, 2]) / 3,
            "prefill_halved": np.array([mlp, scores, token, token / 2]),
        },
    )


def cases(seed):
    rng = np.random.default_rng(seed)
    heads, wide, context = (int(n) for n in rng.integers((3, 10, 100), (20, 90, 9000)))
    return [
        _case("Llama-3-8B", 4096, 14336, 32, 128, 8192),
        _case("Qwen3-0.6B", 1024, 3072, 16, 128, 40960),
        _case("held out", 48 * heads, 16 * wide, heads, 64, context),
        _case("one key", 64, 256, 4, 16, 1),
    ]
