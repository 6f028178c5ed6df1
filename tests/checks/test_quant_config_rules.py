"""quantization_config against itself and against the files; types that are none of weights."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest

from gateup.checks.quant_config_rules import METHODS
from gateup.checks.runner import check
from gateup.model.presets import PRESETS

Make = Callable[..., Any]
BYTES = {"F8_E4M3": 1, "I8": 1, "U8": 1, "BOOL": 1, "I64": 8, "I32": 4, "F32": 4, "F64": 8}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
FP8 = {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic"}
PACKED = {
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4}}},
}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}

Typed = dict[str, tuple[str, tuple[int, ...]]]


@pytest.fixture(name="make")
def _make(tmp_path: Path, tiny: dict[str, Any], tensors_of: Make) -> Make:
    """A folder with the tiny model, with settings and with tensors replaced by others."""

    def write(quant: Any, change: Callable[[str, tuple[int, ...]], Typed | None]) -> Path:
        header, at = {}, 0
        for name, shape in tensors_of(tiny).items():
            for n, (dtype, s) in (change(name, shape) or {name: ("BF16", shape)}).items():
                size = prod(s) * BYTES.get(dtype, 2)
                header[n] = {"dtype": dtype, "shape": s, "data_offsets": [at, at + size]}
                at += size
        text = json.dumps(header).encode()
        with (tmp_path / "model.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + at)
        config = tiny if quant is None else tiny | {"quantization_config": quant}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return write


def plain(name: str, shape: tuple[int, ...]) -> None:
    return None


def linear(parts: Callable[[str, int, int], Typed]) -> Callable[..., Typed | None]:
    """Replaces linear layers."""

    def change(name: str, shape: tuple[int, ...]) -> Typed | None:
        stem = name.removesuffix(".weight")
        return parts(stem, *shape) if stem.endswith("_proj") else None

    return change


def gptq(stem: str, out: int, inp: int) -> Typed:
    return {
        f"{stem}.qweight": ("I32", (inp // 8, out)),
        f"{stem}.qzeros": ("I32", (inp // 32, out // 8)),
        f"{stem}.scales": ("F16", (inp // 32, out)),
        f"{stem}.g_idx": ("I32", (inp,)),
    }


def fp8(stem: str, out: int, inp: int) -> Typed:
    return {
        f"{stem}.weight": ("F8_E4M3", (out, inp)),
        f"{stem}.weight_scale_inv": ("F32", (-(-out // 32), -(-inp // 32))),
    }


def packed(stem: str, out: int, inp: int) -> Typed:
    return {
        f"{stem}.weight_packed": ("I32", (out, inp // 8)),
        f"{stem}.weight_scale": ("BF16", (out, 1)),
        f"{stem}.weight_shape": ("I64", (2,)),
    }


def nf4(stem: str, out: int, inp: int) -> Typed:
    return {
        f"{stem}.weight": ("U8", (out * inp // 2, 1)),
        f"{stem}.weight.absmax": ("F32", (out * inp // 64,)),
        f"{stem}.weight.quant_map": ("F32", (16,)),
        f"{stem}.weight.quant_state.bitsandbytes__nf4": ("U8", (80,)),
    }


def int8(stem: str, out: int, inp: int) -> Typed:
    return {f"{stem}.weight": ("I8", (out, inp)), f"{stem}.SCB": ("F32", (out,))}


QUANTISED = [
    (GPTQ, gptq),
    (GPTQ | {"quant_method": "awq", "group_size": -1}, gptq),
    (FP8, fp8),
    (PACKED, packed),
    (NF4, nf4),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, int8),
]


@pytest.mark.parametrize(("quant", "parts"), QUANTISED)
def test_what_is_quantised_as_declared_is_sound(make: Make, quant: Any, parts: Any) -> None:
    report = check(make(quant, linear(parts)))
    assert [f.title for f in report.findings if f.severity != "note"] == []
    assert {"quant.config", "tensors.dtype"} <= {*report.ran}


@pytest.mark.parametrize(("quant", "parts"), QUANTISED)
def test_quantised_tensors_that_no_config_declares(
    make: Make, only: Make, quant: Any, parts: Any
) -> None:
    found = only(check(make(None, linear(parts))).findings, "quant.config")
    assert found.severity == "error"
    assert "config.json does not say so" in found.title


@pytest.mark.parametrize(
    ("quant", "words"),
    [(GPTQ, "no qweight"), (FP8, "weight_scale_inv or weight_scale"), (PACKED, "weight_packed")],
)
def test_plain_weights_under_a_method(make: Make, only: Make, quant: Any, words: str) -> None:
    found = only(check(make(quant, plain)).findings, "quant.config")
    assert found.severity == "error"
    assert words in found.title
    assert "remove quantization_config" in found.remedy


@pytest.mark.parametrize(
    "quant",
    [
        None,
        NF4,
        {"quant_method": "torchao", "quant_type": "int4"},
        {"quant_method": "hqq"},
        PACKED | {"quantization_status": "frozen"},
    ],
)
def test_plain_weights_that_may_be_so(make: Make, quant: Any) -> None:
    assert [f.rule for f in check(make(quant, plain)).findings if f.rule == "quant.config"] == []


def test_packed_weights_without_scales(make: Make, only: Make) -> None:
    def cut(stem: str, out: int, inp: int) -> Typed:
        return {
            k: v for k, v in gptq(stem, out, inp).items() if not k.endswith("1.mlp.up_proj.scales")
        }

    found = only(check(make(GPTQ, linear(cut))).findings, "quant.config")
    assert found.severity == "error"
    assert "model.layers.1.mlp.up_proj.scales" in found.title


@pytest.mark.parametrize(
    ("quant", "words"),
    [
        ("awq", "quantization_config is 'awq'"),
        ({}, "quant_method is absent"),
        ({"quant_method": "awq"}, "bits is absent and 1 more"),
        ({"quant_method": "gptq", "bits": "4", "group_size": 0}, "bits is '4' and 1 more"),
        (GPTQ | {"group_size": True}, "group_size is True"),
        ({"quant_method": "nonsense", "bits": 99}, "quant_method is 'nonsense'"),
        ({"quant_method": "fp8", "weight_block_size": [0, 0]}, "weight_block_size is [0, 0]"),
        ({"quant_method": "fp8", "activation_scheme": 3}, "activation_scheme is 3"),
        (NF4 | {"bnb_4bit_quant_type": "nf5"}, "bnb_4bit_quant_type is 'nf5'"),
        ({"quant_method": "compressed-tensors", "config_groups": []}, "config_groups is []"),
    ],
)
def test_settings_that_cannot_be(
    tmp_path: Path, tiny: dict[str, Any], only: Make, quant: Any, words: str
) -> None:
    """With no weights beside them, and a split asked for."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(tiny | {"quantization_config": quant}))
    found = only(check(path, tp=2).findings, "quant.config")
    assert found.severity == "error"
    assert words in found.title


def test_one_group_a_row_is_a_setting(tmp_path: Path, tiny: dict[str, Any]) -> None:
    path = tmp_path / "config.json"
    quant = {"quant_method": "gptq", "bits": 4, "group_size": -1}
    path.write_text(json.dumps(tiny | {"quantization_config": quant}))
    assert [f.title for f in check(path).findings] == []


def test_the_methods_are_those_of_transformers() -> None:
    auto = pytest.importorskip("transformers.quantizers.auto")
    theirs = {*auto.AUTO_QUANTIZATION_CONFIG_MAPPING}
    later = {"nvfp4", "mxfp8", "metal", "sinq", "gemma", "fouroversix"}  # of 5.x
    assert theirs - {*METHODS} == set()
    assert {*METHODS} - theirs - later <= {"bitsandbytes"}


@pytest.mark.parametrize("dtype", ["I8", "I64", "BOOL", "F8_E4M3"])
def test_types_that_hold_no_weights(make: Make, only: Make, dtype: str) -> None:
    def change(name: str, shape: tuple[int, ...]) -> Typed | None:
        return {name: (dtype, shape)} if "1.mlp.up_proj" in name else None

    found = only(check(make(None, change)).findings, "tensors.dtype")
    assert found.severity == "error"
    assert "1 tensor stored as" in found.title
    assert "model.layers.1.mlp.up_proj.weight" in found.title
    assert ("without scales" in found.title) is (dtype == "F8_E4M3")


def test_a_norm_of_integers_in_a_quantised_model(make: Make, only: Make) -> None:
    def change(name: str, shape: tuple[int, ...]) -> Typed | None:
        return {name: ("I8", shape)} if "norm" in name else linear(gptq)(name, shape)

    found = only(check(make(GPTQ, change)).findings, "tensors.dtype")
    assert found.numbers["tensors"] == 7


@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_one_tensor_of_another_float_is_a_note(make: Make, only: Make, dtype: str) -> None:
    def change(name: str, shape: tuple[int, ...]) -> Typed | None:
        return {name: (dtype, shape)} if "1.mlp.up_proj" in name else None

    found = only(check(make(None, change)).findings, "tensors.dtype")
    assert found.severity == "note"
    assert found.numbers["tensors"] == 1


def test_one_float_for_all_and_a_float_for_all_norms_are_sound(make: Make) -> None:
    def change(name: str, shape: tuple[int, ...]) -> Typed | None:
        return {name: ("F32", shape)} if "norm" in name else None

    assert check(make(None, change)).findings == check(make(None, plain)).findings == ()


def test_presets_are_sound() -> None:
    found = [(n, f.title) for n in PRESETS for f in check(n).findings if f.rule == "quant.config"]
    assert found == []
