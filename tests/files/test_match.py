from __future__ import annotations

from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

import pytest

from gateup.files.header import TensorHeader
from gateup.files.match import Matched, base_name, match_gguf, match_hf
from gateup.model import presets
from gateup.model.families import build_spec, family_of, gguf_tensors
from gateup.model.quant import hf_formats, mix
from gateup.model.quant.formats import FORMATS, stored_as
from gateup.model.spec import ModelSpec

FILE = Path("x.safetensors")
MOE = {
    "architectures": ["MixtralForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 100,
    "tie_word_embeddings": False,
}


def header(name: str, shape: Iterable[int], type_: str = "bf16", **_: Any) -> TensorHeader:
    dims = tuple(shape)
    fmt = FORMATS[type_]
    return TensorHeader(
        name, None, type_, dims, 0, prod(dims) // fmt.block_size * fmt.block_bytes, FILE
    )


def headers_of(spec: ModelSpec, type_: str = "bf16") -> list[TensorHeader]:
    return [header(name, row.shape, type_) for name, row in spec.tensors()]


def spec_of(config: dict[str, Any], **changes: Any) -> ModelSpec:
    return build_spec(config | changes, where="test", name="test")


def totals(matched: Matched) -> tuple[int, int]:
    return sum(s.params for s in matched.stored), sum(s.nbytes for s in matched.stored)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_every_preset_matches_its_own_names(name: str) -> None:
    spec = presets.spec(name)
    matched = match_hf(spec, headers_of(spec))
    assert matched.problems == ()
    assert matched.stored == stored_as(spec.rows, "bf16")
    assert all(t.canonical == t.name for t in matched.headers)


@pytest.mark.parametrize(
    "name", [n for n in presets.PRESETS if family_of(presets.spec(n)).gguf_arch is not None]
)
def test_every_preset_matches_its_gguf(name: str) -> None:
    spec = presets.spec(name)
    tensors = [header(t.name, t.ne[::-1], type_) for t, type_ in mix.gguf_types(spec, "q4_k_m")]
    matched = match_gguf(spec, tensors)
    assert matched.problems == ()
    assert matched.stored == mix.stored(spec, "q4_k_m")
    # Less than the spec's where the converter leaves something out (BERT's masked-LM head).
    assert totals(matched)[0] == sum(t.params for t in gguf_tensors(spec))


def test_experts_are_gathered(tiny_config: dict[str, Any]) -> None:
    spec = spec_of(MOE)
    matched = match_hf(spec, headers_of(spec))
    row = next(s for s in matched.stored if s.row is not None and s.row.copies > 1)
    assert row.nbytes == 4 * 64 * 96 * 2
    assert row.params == 4 * 64 * 96
    experts = [t for t in matched.headers if ".experts." in t.name]
    assert len(experts) == 2 * 3 * 4


def test_mixed_types_in_one_group() -> None:
    spec = spec_of(MOE)
    tensors = [
        header(t.name, t.shape, "f32" if ".experts.0." in t.name else "bf16")
        for t in headers_of(spec)
    ]
    group = [s for s in match_hf(spec, tensors).stored if s.row is not None and s.row.copies > 1]
    assert {(s.type, s.params, s.nbytes) for s in group} == {
        ("f32", 64 * 96, 64 * 96 * 4),
        ("bf16", 3 * 64 * 96, 3 * 64 * 96 * 2),
    }


@pytest.mark.parametrize("number", ["4", "007", "٣", "999999999", "-1", ""])
def test_experts_that_are_not_there(number: str) -> None:
    spec = spec_of(MOE)
    name = f"model.layers.0.block_sparse_moe.experts.{number}.w1.weight"
    matched = match_hf(spec, [*headers_of(spec), header(name, (96, 64))])
    if number == "007":
        assert "not in" in str(matched.problems) or "does not have" in str(matched.problems)
    assert len(matched.problems) == 1
    assert totals(matched)[0] == spec.params


def test_wrappers_and_backbones(tiny_config: dict[str, Any]) -> None:
    spec = spec_of(tiny_config)
    wrapped = [t._replace(name="module." + t.name) for t in headers_of(spec)]
    matched = match_hf(spec, wrapped)
    assert matched.problems == ()
    assert [t.canonical for t in matched.headers] == [t.name for t in headers_of(spec)]


# Differences


def test_a_tied_head_that_is_stored(tiny_config: dict[str, Any]) -> None:
    spec = spec_of(tiny_config, tie_word_embeddings=True)
    matched = match_hf(spec, [*headers_of(spec), header("lm_head.weight", (100, 64))])
    assert matched.problems == (
        "1 tensor (12,800 bytes) of an output head that the config ties to the embeddings: "
        "lm_head.weight; the bytes are counted, parameters are not",
    )
    assert totals(matched) == (spec.params, 2 * spec.params + 12_800)
    assert matched.headers[-1].canonical is None


def test_missing_tensors(tiny_config: dict[str, Any]) -> None:
    spec = spec_of(tiny_config)
    tensors = [t for t in headers_of(spec) if "down_proj" not in t.name]
    assert match_hf(spec, tensors).problems == (
        "2 rows of the description (12,288 parameters) in no file: "
        "model.layers.0.mlp.down_proj.weight, model.layers.1.mlp.down_proj.weight",
    )


def test_missing_experts() -> None:
    spec = spec_of(MOE)
    tensors = [
        t for t in headers_of(spec) if "layers.1.block_sparse_moe.experts.3.w2" not in t.name
    ]
    assert match_hf(spec, tensors).problems == (
        "experts missing from 1 row: model.layers.1.block_sparse_moe.experts.{e}.w2.weight "
        "(3 of 4)",
    )


def test_wrong_shapes_give_both_counts(tiny_config: dict[str, Any]) -> None:
    spec = spec_of(tiny_config)
    tensors = [
        t._replace(shape=(128, 64)) if "gate_proj" in t.name else t for t in headers_of(spec)
    ]
    assert match_hf(spec, tensors).problems == (
        "2 tensors of another shape than described (16,384 elements in the files, 12,288 by the "
        "config, which the figures follow): 'model.layers.0.mlp.gate_proj.weight' is [128, 64], "
        "described as [96, 64]",
    )


def test_strays_are_told_apart_and_summed(tiny_config: dict[str, Any]) -> None:
    spec = spec_of(tiny_config)
    extra = [
        *(header(f"model.layers.2.mtp{i}.weight", (8,)) for i in range(300)),
        *(header(f"vision_tower.{i}.weight", (8,)) for i in range(500)),
        header("model.layers.0.self_attn.rotary_emb.inv_freq", (8,), "f32"),
        header("model.what.weight", (8,)),
    ]
    matched = match_hf(spec, [*headers_of(spec), *extra])
    kinds = [p.split(":")[0] for p in matched.problems]
    assert kinds == [
        "300 tensors (4,800 bytes) of layers beyond the config's 2 (multi-token prediction)",
        "500 tensors (8,000 bytes) of vision or audio parts, which are not described",
        "1 tensor (32 bytes) of tables that are recomputed at load",
        "1 tensor (16 bytes) that the description does not have",
    ]
    strays = [s for s in matched.stored if s.row is None]
    assert len(strays) == 4
    assert sum(s.nbytes for s in strays) == 4_800 + 8_000 + 32 + 16
    assert totals(matched)[0] == spec.params


def test_a_row_stored_twice(tiny_config: dict[str, Any]) -> None:
    spec = spec_of(tiny_config)
    tensors = headers_of(spec)
    again = header("module." + tensors[0].name, tensors[0].shape)
    matched = match_hf(spec, [*tensors, again])
    assert matched.problems == (f"1 row stored more than once: {tensors[0].name}",)
    assert totals(matched)[0] == spec.params


# Quantised checkpoints: our own description of each format gives the bytes to expect


def quantised(spec: ModelSpec, fmt: str) -> list[TensorHeader]:
    """Headers as the format's own writer lays them out."""
    out = []
    for name, row in spec.tensors():
        if not hf_formats.converted(row, fmt):
            out.append(header(name, row.shape, "f16" if fmt[0] in "ag" else "bf16"))
            continue
        o, i = row.shape
        module = name.removesuffix(".weight")
        if fmt.startswith(("awq", "gptq")):
            group = int(fmt.partition(":")[2])
            awq = fmt.startswith("awq")
            packed = (i, o // 8) if awq else (i // 8, o)
            out.append(header(f"{module}.qweight", packed, "i32"))
            out.append(header(f"{module}.qzeros", (i // group, o // 8), "i32"))
            out.append(header(f"{module}.scales", (i // group, o), "f16"))
            if not awq:
                out.append(header(f"{module}.g_idx", (i,), "i32"))
        elif fmt.startswith("fp8"):
            block = int(fmt.partition(":")[2])
            out.append(header(name, row.shape, "f8_e4m3"))
            out.append(header(f"{name}_scale_inv", (-(-o // block), -(-i // block)), "f32"))
        elif fmt == "int8":
            out.append(header(name, row.shape, "i8"))
            out.append(header(f"{module}.SCB", (o,), "f32"))
        else:
            n = o * i
            out.append(header(name, (-(-n // 2), 1), "u8"))
            out.append(header(f"{name}.absmax", (-(-n // 64),), "f32"))
            out.append(header(f"{name}.quant_map", (16,), "f32"))
            out.append(header(f"{name}.quant_state.bitsandbytes__nf4", (0,), "u8"))
    return out


QUANT_CONFIGS: dict[str, dict[str, Any]] = {
    "awq:32": {"quant_method": "awq", "bits": 4, "group_size": 32},
    "gptq:32": {"quant_method": "gptq", "bits": 4, "group_size": 32},
    "fp8:128": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "int8": {"quant_method": "bitsandbytes"},
    "nf4": {"quant_method": "bitsandbytes"},
}


@pytest.mark.parametrize("config", ["dense", "moe"])
@pytest.mark.parametrize("fmt", QUANT_CONFIGS)
def test_companions_count_with_their_weight(
    tiny_config: dict[str, Any], fmt: str, config: str
) -> None:
    spec = spec_of(
        tiny_config if config == "dense" else MOE,
        quantization_config=QUANT_CONFIGS[fmt],
        torch_dtype="float16" if fmt[0] in "ag" else "bfloat16",
    )
    tensors = quantised(spec, fmt)
    matched = match_hf(spec, tensors)
    assert matched.problems == ()
    assert matched.stored == mix.stored(spec, fmt)
    assert totals(matched) == (spec.params, sum(t.nbytes for t in tensors))
    assert None not in {t.canonical for t in matched.headers}


def test_gpt_oss_blocks_and_scales() -> None:
    spec = presets.spec("gpt-oss-20b")
    tensors = []
    for name, row in spec.tensors():
        if row.role in ("experts.gate_up_proj", "experts.down_proj"):
            experts, inp, out = row.shape
            tensors.append(header(f"{name}_blocks", (experts, out, inp // 32, 16), "u8"))
            tensors.append(header(f"{name}_scales", (experts, out, inp // 32), "u8"))
        else:
            tensors.append(header(name, row.shape))
    matched = match_hf(spec, tensors)
    assert matched.problems == ()
    assert totals(matched) == (spec.params, sum(t.nbytes for t in tensors))
    packed = [s for s in matched.stored if s.type == "mxfp4"]
    assert len(packed) == 2 * spec.num_layers
    for s in packed:
        assert s.nbytes == s.params // 32 * 17


def test_scales_of_stacked_experts() -> None:
    """Their weight is a parameter without ".weight"."""
    spec = presets.spec("gpt-oss-20b")
    name = "model.layers.0.mlp.experts.down_proj"
    for ending in (".weight_scale", "_scale_inv"):
        matched = match_hf(spec, [*headers_of(spec), header(name + ending, (32, 1), "f32")])
        assert matched.problems == ()
        assert totals(matched) == (spec.params, 2 * spec.params + 128)


def test_unknown_schemes_keep_the_declared_type(tiny_config: dict[str, Any]) -> None:
    for quant in ({"quant_method": "new", "group_size": 32}, {"bits": 8}, {"group_size": [1]}, 3):
        spec = spec_of(tiny_config, quantization_config=quant)
        matched = match_hf(spec, quantised(spec, "awq:32"))
        assert {s.type for s in matched.stored} == {"i32", "f16"}
        assert totals(matched)[0] == spec.params


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("a.q_proj.qweight", "a.q_proj.weight"),
        ("a.q_proj.weight_scale_inv", "a.q_proj.weight"),
        ("a.q_proj.weight.absmax", "a.q_proj.weight"),
        ("a.q_proj.weight.quant_state.bitsandbytes__nf4", "a.q_proj.weight"),
        ("a.experts.down_proj_blocks", "a.experts.down_proj"),
        ("a.experts.gate_up_proj_scales", "a.experts.gate_up_proj"),
        ("a.q_proj.weight", None),
        ("a.q_proj.bias", None),
        ("scales", ".weight"),
        ("", None),
    ],
)
def test_base_names(name: str, weight: str | None) -> None:
    found = base_name(name)
    assert (found[0] if found else None) == weight


# GGUF


def gguf_headers(spec: ModelSpec) -> list[TensorHeader]:
    return [header(t.name, t.ne[::-1], "f16") for t in gguf_tensors(spec)]


def test_gguf_differences(tiny_config: dict[str, Any]) -> None:
    spec = spec_of(tiny_config)
    tensors = gguf_headers(spec)
    changed = [
        t._replace(shape=(128, 64)) if t.name == "blk.0.ffn_gate.weight" else t
        for t in tensors
        if t.name != "blk.1.ffn_up.weight"
    ]
    matched = match_gguf(spec, [*changed, header("blk.0.extra.weight", (4,))])
    assert matched.problems == (
        "1 tensor of the description (6,144 parameters) not in the file: blk.1.ffn_up.weight",
        "1 tensor of another shape than described (8,192 elements in the files, 6,144 by the "
        "config, which the figures follow): 'blk.0.ffn_gate.weight' is [128, 64], described as "
        "[96, 64]",
        "1 tensor (8 bytes) that the description does not have: blk.0.extra.weight; "
        "the bytes are counted, parameters are not",
    )


def test_gguf_of_one_tensor_per_expert() -> None:
    """As written before experts were stacked."""
    spec = spec_of(MOE)
    tensors = []
    for t in gguf_headers(spec):
        if "_exps" not in t.name:
            tensors.append(t)
            continue
        stem = t.name.removesuffix("_exps.weight")
        tensors += [header(f"{stem}.{e}.weight", t.shape[1:], "f16") for e in range(t.shape[0])]
    matched = match_gguf(spec, tensors)
    assert matched.problems == ()
    assert totals(matched) == (spec.params, 2 * spec.params)
    assert {s.name for s in matched.stored if "{e}" in s.name} == {
        f"blk.{i}.ffn_{k}.{{e}}.weight" for i in (0, 1) for k in ("gate", "up", "down")
    }
