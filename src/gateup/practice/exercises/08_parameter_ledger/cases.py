"""Real and held-out configs; the oracle is gateup's own list of a model's tensors."""

import numpy as np

from gateup.model.families import build_spec
from gateup.practice.exercise import Case

PARTS = ("embedding", "attention", "mlp", "norm", "head")


def config(H, I, L, heads, kv, head_dim, V, tied, qk_norm):
    return {
        "hidden_size": H,
        "intermediate_size": I,
        "num_hidden_layers": L,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": head_dim,
        "vocab_size": V,
        "tie_word_embeddings": tied,
        "qk_norm": qk_norm,
    }


LLAMA_2_7B = config(4096, 11008, 32, 32, 32, 128, 32000, False, False)
LLAMA_3_8B = config(4096, 14336, 32, 32, 8, 128, 128256, False, False)
QWEN3_06B = config(1024, 3072, 28, 16, 8, 128, 151936, True, True)


def parts(values):
    """Parameters by part, as gateup counts them."""
    kind = "qwen3" if values["qk_norm"] else "llama"
    architecture = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}[kind]
    known = {k: v for k, v in values.items() if k != "qk_norm"}
    known |= {"model_type": kind, "architectures": [architecture]}
    spec = build_spec(known, where="config", name="exercise")
    return {part: sum(r.params for r in spec.rows if r.part == part) for part in PARTS}


def _answer(found, **changed):
    found = found | changed
    return np.array([*found.values(), sum(found.values())], dtype=np.int64)


def _case(name, values):
    found = parts(values)
    H = values["hidden_size"]
    no_gqa = parts(values | {"num_key_value_heads": values["num_attention_heads"]})
    guessed = H // values["num_attention_heads"]
    by_guess = parts(values | {"head_dim": guessed})
    mistakes = {
        "tied_head_twice": _answer(found, head=H * values["vocab_size"]),
        "no_gqa": _answer(found, attention=no_gqa["attention"]),
        "head_dim_guessed": _answer(by_guess),
        "two_matrices": _answer(found, mlp=found["mlp"] // 3 * 2),
        "no_final_norm": _answer(found, norm=found["norm"] - H),
    }
    return Case(name, (values,), _answer(found), mistakes)


def cases(seed):
    rng = np.random.default_rng(seed)
    kv, groups, L, wide = (int(n) for n in rng.integers((2, 2, 2, 5), (5, 5, 9, 40)))
    heads = kv * groups
    made = config(64 * heads, 32 * wide, L, heads, kv, 96, 1000 + wide, True, False)
    return [
        _case("Llama-2-7B", LLAMA_2_7B),
        _case("Llama-3-8B", LLAMA_3_8B),
        _case("Qwen3-0.6B", QWEN3_06B),
        _case("held out", made),
    ]
