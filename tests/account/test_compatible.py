"""Options that do not go together are refused, each with what would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateup.account.plan import plan
from gateup.errors import UsageError

GGUF: dict[str, Any] = {"quant": "q4_k_m"}
LORA: dict[str, Any] = {"train": "lora"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"engine": "llama.cpp", "quant": "awq:128"}, "a GGUF: llama.cpp runs nothing else"),
        ({"engine": "llama.cpp", "quant": "nf4"}, "a GGUF: llama.cpp runs nothing else"),
        ({"engine": "transformers", **GGUF}, "dequantises a GGUF while it loads"),
        ({"kv": "q8_0"}, "--kv 'q8_0' is not known to transformers"),
        ({"kv": "i32"}, "--kv 'i32' is not known to transformers"),
        ({"kv": ""}, "--kv '' is not known to transformers"),
        ({"kv": "q8_0", "engine": "vllm"}, "--kv 'q8_0' is not known to vllm"),
        ({"kv": "f8_e4m3", **GGUF}, "--kv 'f8_e4m3' is not known to llama.cpp"),
        ({"kv": "q4_k", **GGUF}, "--kv 'q4_k' is not known to llama.cpp"),
        ({"kv": "q8_0", "flash": False, **GGUF}, "quantises V only with flash attention"),
        ({"flash": False, "engine": "vllm"}, "--no-flash with --engine vllm"),
        ({"execution": "tiled", **GGUF}, "--exec tiled has no effect with --engine llama.cpp"),
        ({"execution": "fused", "engine": "vllm"}, "--exec fused has no effect with --engine vllm"),
        ({"tile": 64}, "--tile without --exec tiled"),
        ({"ubatch": 64}, "--ubatch has no effect with --engine transformers"),
        ({"tp": 2, **GGUF}, "llama.cpp splits by layers"),
        ({"fsdp": 2, **GGUF}, "llama.cpp splits by layers"),
        ({"fsdp": 2, "engine": "vllm"}, "--fsdp 2 with --engine vllm"),
        ({"kv": "f16", **LORA}, "--kv is about inference"),
        ({"all_logits": True, **LORA}, "--all-logits is about inference"),
        ({"ubatch": 64, **LORA}, "--ubatch is about inference"),
        ({"train": "qlora", "quant": "bf16"}, "--train qlora with bf16 weights"),
        ({"targets": "", **LORA}, "--targets is ''"),
    ],
)
def test_what_does_not_go_together(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan("llama-3-8b", **asked)
    assert said in str(caught.value)
    assert "expected: " in str(caught.value) or "remedy: " in str(caught.value)


@pytest.mark.parametrize(
    "asked",
    [
        {"engine": "vllm", "kv": "f8_e4m3"},
        {"engine": "vllm", "dtype": "f32"},
        {"engine": "vllm", **GGUF},
        {"engine": "gateup", "tp": 2, "kv": "q8_0", "execution": "tiled", "tile": 64, **GGUF},
        {"kv": "Q8_0", "pp": 2, "ubatch": 64, **GGUF},
        {"execution": "fused", "flash": False},
        {"quant": "int8", "train": "qlora"},
    ],
)
def test_what_does(asked: dict[str, Any]) -> None:
    assert plan("llama-3-8b", ctx=512, **asked).memory.peak > 0


def test_a_base_belongs_to_an_adapter() -> None:
    with pytest.raises(UsageError, match="llama-3-8b is a model of its own"):
        plan("llama-3-8b", base="qwen3-0.6b")


def test_llama_cpp_runs_the_gguf_its_converter_writes(smollm2_gguf: Path) -> None:
    """Norms and biases are F32 there: 2·(2·32 + 1)·4096 bytes more than in safetensors."""
    there = plan("llama-3-8b", engine="llama.cpp")
    assert there.label == "gguf:bf16"
    assert any("its converter writes this one" in n for n in there.notes)
    as_hf = plan("llama-3-8b").figures["bytes.total"].value
    assert there.figures["bytes.total"].value - as_hf == 2 * 65 * 4096
    assert plan("deepseek-v3", engine="llama.cpp").label == "gguf:bf16"
    assert plan(smollm2_gguf, engine="llama.cpp").label == "Q4_1 GGUF"
    assert plan(smollm2_gguf, quant="f16", engine="llama.cpp").label == "gguf:f16"
    with pytest.raises(UsageError, match=r"--engine llama\.cpp with mxfp4 weights"):
        plan("gpt-oss-20b", engine="llama.cpp")
