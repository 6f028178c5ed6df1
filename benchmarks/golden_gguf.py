"""Ask llama.cpp's own converter what it makes of a small model of each family, for the tests.

    PYTHONPATH=src python benchmarks/golden_gguf.py LLAMA_CPP tests/facts/gguf.json

LLAMA_CPP is a checkout of llama.cpp; the answers kept in the repository are those of the one that
llama-cpp-python 0.3.36 carries. Needs torch and transformers beside gateup. For every config below
a checkpoint of zeros is written whose tensor names and shapes are gateup's, the converter's class
for the architecture prepares it, and the metadata and tensor dimensions it would write are kept.
The vocabulary is left out. A name the converter does not know stops the script.

Output: {"build", "models": {name: {"config", "metadata", "tensors": {name: ne}}}}.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from gateup.model.families import build_spec

BUILD = "llama.cpp as in llama-cpp-python 0.3.36"


def _dense(architecture: str, model_type: str, **more: Any) -> dict[str, Any]:
    """A small decoder whose every width is another number."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 160,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        **more,
    }


_LLAMA3_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
    "rope_type": "llama3",
}
_GEMMA = {
    "head_dim": 24,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
_MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_shared_experts": 2,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
    "n_group": 2,
    "topk_group": 1,
}
_LLAMA4 = {
    "head_dim": 24,
    "intermediate_size_mlp": 80,
    "num_local_experts": 5,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 8192,
    "no_rope_layers": [],
    "num_hidden_layers": 4,
}


def _block(group: int | None, ffn_mult: float, **attention: bool) -> dict[str, Any]:
    """One block of a DeciLM config."""
    switches = {"no_op": False, "replace_with_linear": False}
    return {
        "attention": {"n_heads_in_group": group, **switches, **attention},
        "ffn": {"ffn_mult": ffn_mult, **switches},
    }


CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _dense("LlamaForCausalLM", "llama", rope_scaling=_LLAMA3_ROPE),
    "llama-biased": _dense("LlamaForCausalLM", "llama", attention_bias=True, mlp_bias=True),
    "mistral": _dense("MistralForCausalLM", "mistral", head_dim=24, sliding_window=None),
    "smollm3": _dense("SmolLM3ForCausalLM", "smollm3", tie_word_embeddings=True),
    "granite": _dense(
        "GraniteForCausalLM",
        "granite",
        attention_multiplier=0.5,
        embedding_multiplier=2.0,
        logits_scaling=4.0,
        residual_multiplier=0.2,
    ),
    "qwen2": _dense("Qwen2ForCausalLM", "qwen2", tie_word_embeddings=True),
    "qwen3": _dense("Qwen3ForCausalLM", "qwen3", head_dim=24),
    "gemma": _dense("GemmaForCausalLM", "gemma", **_GEMMA),
    "gemma2": _dense(
        "Gemma2ForCausalLM",
        "gemma2",
        sliding_window=128,
        query_pre_attn_scalar=24,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        **_GEMMA,
    ),
    "gemma3": _dense(
        "Gemma3ForCausalLM",
        "gemma3_text",
        sliding_window=128,
        sliding_window_pattern=6,
        query_pre_attn_scalar=24,
        rope_local_base_freq=10000.0,
        **{**_GEMMA, "num_hidden_layers": 7},
    ),
    "phi3": _dense("Phi3ForCausalLM", "phi3", sliding_window=128),
    "olmo2": _dense("Olmo2ForCausalLM", "olmo2"),
    "openelm": {
        "architectures": ["OpenELMForCausalLM"],
        "model_type": "openelm",
        "model_dim": 96,
        "num_transformer_layers": 3,
        "head_dim": 16,
        "num_query_heads": [4, 4, 8],
        "num_kv_heads": [1, 1, 2],
        "num_gqa_groups": 4,
        "ffn_multipliers": [0.5, 1.0, 2.0],
        "ffn_dim_divisor": 16,
        "ffn_with_glu": True,
        "normalize_qk_projections": True,
        "share_input_output_layers": True,
        "activation_fn_name": "swish",
        "max_context_length": 512,
        "rope_freq_constant": 10000,
        "vocab_size": 160,
    },
    "deci": _dense(
        "DeciLMForCausalLM",
        "nemotron-nas",
        num_hidden_layers=4,
        intermediate_size=None,
        num_key_value_heads=None,
        block_configs=[
            _block(2, 3.0),
            _block(None, 6.0, no_op=True),
            _block(None, 3.0, replace_with_linear=True),
            _block(4, 12.0),
        ],
    ),
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_ctx": 128,
        "n_positions": 128,
        "vocab_size": 160,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
    },
    "bert": {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "type_vocab_size": 2,
        "vocab_size": 160,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
    },
    "mixtral": _dense("MixtralForCausalLM", "mixtral", num_local_experts=6, num_experts_per_tok=2),
    "mixtral-one-expert": _dense(
        "MixtralForCausalLM", "mixtral", num_local_experts=1, num_experts_per_tok=1
    ),
    "qwen2_moe": _dense(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=40,
        shared_expert_intermediate_size=48,
    ),
    "qwen3_moe": _dense(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        head_dim=24,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=40,
    ),
    "deepseek_v2": _dense("DeepseekV2ForCausalLM", "deepseek_v2", **_MLA, q_lora_rank=None),
    "deepseek_v3": _dense(
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        **_MLA,
        q_lora_rank=28,
        scoring_func="sigmoid",
        norm_topk_prob=True,
        num_nextn_predict_layers=1,
    ),
    "gpt_oss": _dense(
        "GptOssForCausalLM",
        "gpt_oss",
        head_dim=24,
        num_hidden_layers=4,
        sliding_window=128,
        num_local_experts=5,
        num_experts_per_tok=2,
    ),
    "llama4_text": _dense("Llama4ForCausalLM", "llama4_text", **_LLAMA4, rope_scaling=_LLAMA3_ROPE),
    "llama4": {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4",
        "text_config": _dense("Llama4ForCausalLM", "llama4_text", **_LLAMA4),
    },
    "olmoe": _dense("OlmoeForCausalLM", "olmoe", num_experts=6, num_experts_per_tok=2),
}


def _plain(value: Any) -> Any:
    """Metadata values as JSON has them."""
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if isinstance(value, bool | int | float | str) else int(value)


def convert(conversion: Any, gguf: Any, config: dict[str, Any]) -> dict[str, Any]:
    """The converter's metadata and tensor dimensions for a model of zeros."""
    spec = build_spec(config, where="golden_gguf", name="golden")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "config.json").write_text(json.dumps(config))
        # Gemma 3's converter drops embedding rows that the tokenizer does not know.
        words = {str(i): i for i in range(spec.vocab_size)}
        tokenizer = {"model": {"vocab": words}, "added_tokens": []}
        (path / "tokenizer.json").write_text(json.dumps(tokenizer))
        tensors = {name: torch.zeros(row.shape) for name, row in spec.tensors()}
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        kind = conversion.ModelType.TEXT
        hparams = conversion.ModelBase.load_hparams(path, False)
        architecture = conversion.get_model_architecture(hparams, kind)
        model = conversion.get_model_class(architecture)(
            path, gguf.LlamaFileType.MOSTLY_F16, path / "out.gguf"
        )
        model.prepare_tensors()  # in this order: DeepSeek's metadata step changes head counts
        model.set_gguf_parameters()
        writer = model.gguf_writer
        metadata = {
            key: _plain(value.value) for part in writer.kv_data for key, value in part.items()
        }
        metadata["general.architecture"] = writer.arch
        names = {
            name: [int(n) for n in reversed(info.shape)]
            for part in writer.tensors
            for name, info in part.items()
        }
    return {"config": config, "metadata": metadata, "tensors": names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("llama_cpp", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    sys.path[:0] = [str(arguments.llama_cpp / "gguf-py"), str(arguments.llama_cpp)]
    import conversion
    import gguf

    models = {name: convert(conversion, gguf, config) for name, config in CONFIGS.items()}
    lines = [f" {json.dumps(n)}: {json.dumps(m, sort_keys=True)}" for n, m in models.items()]
    text = f'{{"build": {json.dumps(BUILD)}, "models": {{\n' + ",\n".join(lines) + "\n}}\n"
    arguments.output.write_text(text)


if __name__ == "__main__":
    main()
