"""Hugging Face quantisations: bytes as bitsandbytes writes them, layouts as published, and which
layers are converted as transformers has them."""

from __future__ import annotations

from math import prod

import pytest

from gateup.errors import UsageError
from gateup.model import presets
from gateup.model.families import build_spec
from gateup.model.quant import hf_formats
from gateup.model.quant.hf_formats import SCHEMES, SPELLINGS, converted, matrix_of, stored
from gateup.model.spec import ModelSpec

# Bytes of the tensors that bitsandbytes 0.50.2's quantize_4bit(blocksize=64, quant_type="nf4")
# returned for random bf16 matrices [out, in]: packed weights + absmax + quant_map, and with
# compress_statistics packed + absmax + nested_absmax + nested_quant_map + offset + quant_map.
MEASURED_NF4 = {
    (896, 896): (401_408 + 50_176 + 64, 401_408 + 12_544 + 196 + 1024 + 4 + 64),
    (896, 4864): (2_179_072 + 272_384 + 64, 2_179_072 + 68_096 + 1064 + 1024 + 4 + 64),
    (130, 70): (4550 + 572 + 64, 4550 + 143 + 4 + 1024 + 4 + 64),
    (3, 5): (8 + 4 + 64, 8 + 1 + 4 + 1024 + 4 + 64),
    (512, 4096): (1_048_576 + 131_072 + 64, 1_048_576 + 32_768 + 512 + 1024 + 4 + 64),
}


def matrix(fmt: str, out: int, inp: int, group: int = 0) -> int:
    return SCHEMES[fmt].matrix_nbytes(out, inp, group)


def small(**changes: object) -> ModelSpec:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
    }
    return build_spec({**config, **changes}, where="small", name="small")


@pytest.mark.parametrize("shape", list(MEASURED_NF4))
def test_nf4_as_bitsandbytes_writes_it(shape: tuple[int, int]) -> None:
    assert (matrix("nf4", *shape), matrix("nf4:double", *shape)) == MEASURED_NF4[shape]


def test_int8_is_a_byte_a_weight_and_a_float_a_row() -> None:
    # int8_vectorwise_quant of a [130, 70] matrix: int8 [130, 70] and float32 [130].
    assert matrix("int8", 130, 70) == 130 * 70 + 130 * 4


def test_awq_and_gptq_layouts() -> None:
    out, inp, group = 11008, 4096, 128
    qweight, qzeros = 4 * prod((inp, out // 8)), 4 * prod((inp // group, out // 8))
    scales = 2 * prod((inp // group, out))
    assert matrix("awq:*", out, inp, group) == qweight + qzeros + scales
    assert matrix("gptq:*", out, inp, group) == qweight + qzeros + scales + 4 * inp
    bits = 8 * matrix("awq:*", out, inp, group) / (out * inp)
    assert bits == 4 + (4 + 16) / 128


def test_fp8_scales() -> None:
    assert matrix("fp8", 100, 60) == 6000 + 4
    assert matrix("fp8:*", 576, 7168, 128) == 576 * 7168 + 4 * 5 * 56  # the edge has a scale too


def test_only_linear_layers_are_converted() -> None:
    tensors = {t.name: t for t in stored(small(), "nf4")}
    assert tensors["model.embed_tokens.weight"].type == "bf16"
    assert tensors["lm_head.weight"].type == "bf16"
    assert tensors["model.norm.weight"].nbytes == 512
    assert tensors["model.layers.0.mlp.down_proj.weight"].type == "nf4"
    assert {t.type for t in stored(small(torch_dtype="float16"), "nf4")} == {"f16", "nf4"}
    assert {t.type for t in stored(small(), "awq:128")} == {"f16", "awq:128"}


@pytest.mark.parametrize(
    "name", ["llama-3-8b", "qwen3-0.6b", "gemma-2-2b", "phi-3-mini", "qwen1.5-moe-a2.7b"]
)
def test_the_layers_are_those_that_bitsandbytes_finds(name: str) -> None:
    """Every nn.Linear but the output head, on the meta device. transformers stacks experts in
    memory, so those are compared as they lie in the file."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    spec = presets.spec(name)
    config = {k: v for k, v in spec.config.items() if k not in ("architectures", "torch_dtype")}
    loaded = transformers.AutoConfig.for_model(**config)
    loaded.num_hidden_layers = 2
    if getattr(loaded, "layer_types", None):
        loaded.layer_types = loaded.layer_types[:2]
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(loaded)
    head = model.get_output_embeddings()
    linear = {
        f"{n}.weight"
        for n, m in model.named_modules()
        if type(m) is torch.nn.Linear and m is not head
    }
    ours = {
        n
        for n, row in spec.tensors()
        if converted(row, "nf4") and row.layer is not None and row.layer < 2
    }
    assert {n for n in ours if ".experts." not in n} == linear


def test_experts_one_by_one_are_converted_and_routers_are_not() -> None:
    tensors = {t.name: t for t in stored(presets.spec("mixtral-8x7b"), "awq:128")}
    experts = [t for n, t in tensors.items() if ".experts." in n]
    assert {t.type for t in experts} == {"awq:128"}
    router = next(t for n, t in tensors.items() if n.endswith("block_sparse_moe.gate.weight"))
    assert router.type == "f16"
    per_expert = matrix("awq:*", 14336, 4096, 128)
    w1 = next(t for t in experts if t.shape == (14336, 4096))
    assert w1.nbytes == 8 * per_expert


def test_stacked_experts_are_matrices_to_fp8_and_nothing_to_bitsandbytes() -> None:
    spec = presets.spec("gpt-oss-20b")
    row = next(r for r in spec.rows if r.role == "experts.gate_up_proj")
    assert matrix_of(row) == (32, 5760, 2880)
    assert not converted(row, "nf4")
    tensor = next(t for t in stored(spec, "fp8") if t.row is row)
    assert tensor.nbytes == 32 * (5760 * 2880 + 4)


def test_a_row_that_is_no_whole_number_of_groups_is_refused_by_name() -> None:
    spec = presets.spec("qwen1.5-moe-a2.7b")  # I = 1408 = 11·128
    assert stored(spec, "awq:128")
    with pytest.raises(UsageError) as error:
        stored(presets.spec("qwen2.5-0.5b"), "gptq:256")
    text = str(error.value)
    assert "model.layers.0.self_attn.q_proj.weight: in_features 896 is not a multiple" in text
    assert "256 (gptq:256)" in text
    assert "remedy: use gptq:128" in text
    with pytest.raises(UsageError, match="out_features 4 is not a multiple of 8"):
        stored(small(hidden_size=128, num_attention_heads=32, num_key_value_heads=1), "awq:32")
    with pytest.raises(UsageError) as odd:
        stored(small(intermediate_size=200), "awq:128")
    assert "down_proj.weight: in_features 200" in str(odd.value)
    assert "remedy: use nf4 or fp8, which take any shape" in str(odd.value)


def test_names() -> None:
    assert all(hf_formats.is_known(s) for s in SPELLINGS)
    assert not any(hf_formats.is_known(s) for s in ("awq", "awq:0", "nf4:3", "gptq:-1", "fp8:x"))
    with pytest.raises(UsageError, match="awq:12: the group is 12"):
        stored(small(), "awq:12")


def test_every_parameter_is_counted_once() -> None:
    for name in ("llama-3-8b", "deepseek-v2-lite", "gpt-oss-20b"):
        spec = presets.spec(name)
        for fmt in ("nf4", "int8", "fp8:128"):
            assert sum(t.params for t in stored(spec, fmt)) == spec.params
