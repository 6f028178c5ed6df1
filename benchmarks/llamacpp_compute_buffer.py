"""Measure llama.cpp's compute buffer on a grid of models and settings, for the tests.

    python -m venv /path/to/venv && /path/to/venv/bin/pip install llama-cpp-python==0.3.36
    PYTHONPATH=src /path/to/venv/bin/python benchmarks/llamacpp_compute_buffer.py \
        tests/facts/compute_buffer.json

Models have real widths and few layers (the buffer is reused from layer to layer), weights are the
hole of a sparse file, and nothing is computed: llama.cpp reserves its worst-case graph when a
context is made and logs "CPU compute buffer size". Every model is measured with a tiny vocabulary,
where a layer sets the size, and with its own, where mostly the logits do.

Output: {"build", "models": {name: config}, "points": [[model, n_ubatch, n_ctx, flash (0/1), KV
type, bytes], ...]}; the log's precision is 0.01 MiB.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import llama_cpp

from gateup.model.families import build_spec
from golden_type_mix import write_gguf

# llama.cpp loads these families only with an output matrix of their own.
_UNTIED = ("Olmo2ForCausalLM", "Qwen2MoeForCausalLM", "DeepseekV2ForCausalLM", "GptOssForCausalLM")


def _model(architecture: str, **values: Any) -> dict[str, Any]:
    tied = architecture not in _UNTIED
    base = {"rms_norm_eps": 1e-6, "tie_word_embeddings": tied, "num_hidden_layers": 2}
    return {**base, "architectures": [architecture], **values}


def _dense(H: int, I: int, heads: int, kv: int, V: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": H,
        "intermediate_size": I,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": V,
        **more,
    }


MODELS: dict[str, dict[str, Any]] = {
    "llama-2-7b": _model("LlamaForCausalLM", **_dense(4096, 11008, 32, 32, 32000)),
    "llama-3-8b": _model("LlamaForCausalLM", **_dense(4096, 14336, 32, 8, 128256)),
    "smollm2-135m": _model("LlamaForCausalLM", **_dense(576, 1536, 9, 3, 49152)),
    "four layers": _model(
        "LlamaForCausalLM", **{**_dense(576, 1536, 9, 3, 49152), "num_hidden_layers": 4}
    ),
    "narrow mlp": _model("LlamaForCausalLM", **_dense(2048, 1024, 32, 8, 32000)),
    "qwen3-0.6b": _model("Qwen3ForCausalLM", **_dense(1024, 3072, 16, 8, 151936, head_dim=128)),
    "qwen2.5-0.5b": _model("Qwen2ForCausalLM", **_dense(896, 4864, 14, 2, 151936)),
    "phi-3-mini": _model("Phi3ForCausalLM", **_dense(3072, 8192, 32, 32, 32064)),
    "olmo-2-1b": _model("Olmo2ForCausalLM", **_dense(2048, 8192, 16, 16, 100352)),
    "granite-3-2b": _model(
        "GraniteForCausalLM",
        **_dense(2048, 8192, 32, 8, 49155),
        logits_scaling=8.0,
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
        attention_multiplier=0.015625,
    ),
    "gemma-2-2b": _model(
        "Gemma2ForCausalLM",
        **_dense(2304, 9216, 8, 4, 256000, head_dim=256, sliding_window=4096),
        hidden_activation="gelu_pytorch_tanh",
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
    ),
    "gemma-3-1b": _model(
        "Gemma3ForCausalLM",
        **_dense(1152, 6912, 4, 1, 262144, head_dim=256, sliding_window=512),
        hidden_activation="gelu_pytorch_tanh",
        num_hidden_layers=6,
    ),
    "mixtral-like": _model(
        "MixtralForCausalLM",
        **_dense(1024, 3584, 16, 4, 32000),
        num_local_experts=8,
        num_experts_per_tok=2,
    ),
    "qwen3-moe-like": _model(
        "Qwen3MoeForCausalLM",
        **_dense(2048, 6144, 32, 4, 151936, head_dim=128),
        num_experts=64,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
    ),
    "qwen2-moe-like": _model(
        "Qwen2MoeForCausalLM",
        **_dense(1024, 2816, 8, 8, 32000),
        num_experts=60,
        num_experts_per_tok=4,
        moe_intermediate_size=704,
        shared_expert_intermediate_size=2816,
    ),
    "deepseek-v2-lite": _model(
        "DeepseekV2ForCausalLM",
        **_dense(2048, 10944, 16, 16, 102400),
        num_hidden_layers=27,
        n_routed_experts=8,
        n_shared_experts=2,
        num_experts_per_tok=6,
        moe_intermediate_size=1408,
        first_k_dense_replace=1,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    ),
    "gpt-oss-like": _model(
        "GptOssForCausalLM",
        **_dense(2880, 2880, 64, 8, 201088, head_dim=64, sliding_window=128),
        num_local_experts=8,
        num_experts_per_tok=4,
    ),
}

TINY_VOCAB = 1024
KV = {"f16": 1, "q8_0": 8}
# (n_ubatch, n_ctx, flash, KV type)
SETTINGS = [(u, c, f, "f16") for u in (64, 512, 2048) for c in (512, 4096, 16384) for f in (1, 0)]
SETTINGS += [(512, 4096, 1, "q8_0"), (512, 131072, 1, "f16")]

_LOG: list[str] = []


@llama_cpp.llama_log_callback
def _collect(level: int, text: bytes, user: Any) -> None:
    del level, user
    _LOG.append(text.decode(errors="replace"))


def measure(model: Any, ubatch: int, ctx: int, flash: int, kv: str) -> int:
    """Bytes of the CPU compute buffer of a context with these settings."""
    _LOG.clear()
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = ctx
    params.n_batch = max(ubatch, 2048)
    params.n_ubatch = ubatch
    params.flash_attn_type = flash
    params.type_k = params.type_v = KV[kv]
    context = llama_cpp.llama_init_from_model(model, params)
    text = "".join(_LOG)
    if not context:
        raise SystemExit(f"no context:\n{text[-2000:]}")
    llama_cpp.llama_free(context)
    found = re.findall(r"CPU compute buffer size += +([\d.]+) MiB", text)
    return round(float(found[-1]) * (1 << 20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", help="only models whose name contains this")
    args = parser.parse_args()
    llama_cpp.llama_log_set(_collect, ctypes.c_void_p(0))
    points = []
    models = {n: c for n, c in MODELS.items() if not args.only or args.only in n}
    with tempfile.TemporaryDirectory() as tmp:
        path = Path(tmp, "model.gguf")
        for name, config in models.items():
            for vocab in (TINY_VOCAB, config["vocab_size"]):
                spec = build_spec({**config, "vocab_size": vocab}, where=name, name=name)
                write_gguf(path, spec)
                mparams = llama_cpp.llama_model_default_params()
                # AMX's weight buffers refuse MLA's F16 attn_v_b; the sizes are the same without.
                mparams.use_extra_bufts = False
                model = llama_cpp.llama_load_model_from_file(str(path).encode(), mparams)
                if not model:
                    raise SystemExit(f"{name} does not load:\n{''.join(_LOG)[-2000:]}")
                for setting in SETTINGS:
                    points.append([name, vocab, *setting, measure(model, *setting)])
                llama_cpp.llama_free_model(model)
                _LOG.clear()
            print(name, file=sys.stderr)
    build = f"llama.cpp in llama-cpp-python {llama_cpp.__version__}, CPU backend"
    head = json.dumps({"build": build, "models": models})[:-1]
    rows = ",\n".join(json.dumps(p, separators=(",", ":")) for p in points)
    args.out.write_text(f'{head}, "points": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
