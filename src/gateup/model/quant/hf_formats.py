"""Quantisations of Hugging Face checkpoints: bitsandbytes, AWQ, GPTQ, FP8.

All of them replace linear layers and leave embeddings, the output head, norms, biases and routers
as they are (bf16; f16 for AWQ and GPTQ, whose scales are f16). Experts count as linear layers when
the checkpoint stores them one by one. bitsandbytes converts nn.Linear only: stacked experts stay,
and transformers 5 stacks in memory also those that the file keeps apart, so for MoE models "nf4"
and "int8" describe programs that hold experts as layers (transformers 4).

Layouts [source]: bitsandbytes 0.50.2's quantize_4bit and int8_vectorwise_quant (measured on real
tensors), AutoAWQ's WQLinear_GEMM, AutoGPTQ's QuantLinear, transformers' FP8Linear and Mxfp4GptOss
experts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from gateup.errors import UsageError
from gateup.model.quant.formats import FORMATS, StoredTensor
from gateup.model.spec import ModelSpec, TensorSpec


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _nf4(out: int, inp: int, _: int) -> int:
    """Two weights a byte; an fp32 absmax per 64 weights of the flattened matrix; 16 fp32 levels."""
    n = out * inp
    return _ceil(n, 2) + 4 * _ceil(n, 64) + 4 * 16


def _nf4_double(out: int, inp: int, _: int) -> int:
    """The absmax in one byte each, with an fp32 absmax per 256 of them, 256 fp32 levels and an
    fp32 offset."""
    n = out * inp
    blocks = _ceil(n, 64)
    return _ceil(n, 2) + blocks + 4 * _ceil(blocks, 256) + 4 * 256 + 4 + 4 * 16


def _int8(out: int, inp: int, _: int) -> int:
    """A byte a weight, an fp32 scale a row."""
    return out * inp + 4 * out


def _awq(out: int, inp: int, group: int) -> int:
    """qweight int32 [in, out/8]; qzeros int32 [in/G, out/8]; scales f16 [in/G, out]."""
    groups = inp // group
    return 4 * inp * (out // 8) + 4 * groups * (out // 8) + 2 * groups * out


def _gptq(out: int, inp: int, group: int) -> int:
    """AWQ's three in another order, and g_idx int32 [in]."""
    return _awq(out, inp, group) + 4 * inp


def _fp8(out: int, inp: int, _: int) -> int:
    """f8_e4m3 weights and one fp32 weight_scale."""
    return out * inp + 4


def _fp8_block(out: int, inp: int, block: int) -> int:
    """f8_e4m3 weights and an fp32 weight_scale_inv per block of `block`×`block`, edges included."""
    return out * inp + 4 * _ceil(out, block) * _ceil(inp, block)


def _mxfp4(out: int, inp: int, _: int) -> int:
    """Blocks uint8 [out, in/32, 16] and scales uint8 [out, in/32]: 17 bytes per 32 weights."""
    return out * (inp // 32) * 17


@dataclass(frozen=True, slots=True)
class Scheme:
    """One quantisation of linear layers.

    matrix_nbytes  (out, in, group) -> bytes of one matrix with everything that belongs to it
    multiples      (of out, of in), 0 standing for the group, 1 for no demand
    stacked        whether experts stacked in one tensor are converted, each as a matrix
    rest           dtype of what is not converted, where the model does not say f16
    keeps          roles of linear layers that stay as they are
    experts        whether only routed experts are converted
    """

    matrix_nbytes: Callable[[int, int, int], int]
    multiples: tuple[int, int] = (1, 1)
    stacked: bool = True
    rest: str = "bf16"
    keeps: frozenset[str] = frozenset({"router", "shared_expert_gate"})
    experts: bool = False


_ROUTER = frozenset({"router"})

# Name, "name:*" standing for a group size.
SCHEMES: Mapping[str, Scheme] = {
    "nf4": Scheme(_nf4, stacked=False, keeps=_ROUTER),
    "nf4:double": Scheme(_nf4_double, stacked=False, keeps=_ROUTER),
    "int8": Scheme(_int8, stacked=False, keeps=_ROUTER),
    "awq:*": Scheme(_awq, multiples=(8, 0), rest="f16"),
    "gptq:*": Scheme(_gptq, multiples=(32, 0), rest="f16"),
    "fp8": Scheme(_fp8),
    "fp8:*": Scheme(_fp8_block),
    "mxfp4": Scheme(_mxfp4, multiples=(1, 32), experts=True),  # gpt-oss
}

# For lists of known formats.
SPELLINGS = (
    "nf4",
    "nf4:double",
    "int8",
    "awq:32",
    "awq:64",
    "awq:128",
    "gptq:32",
    "gptq:64",
    "gptq:128",
    "fp8",
    "fp8:128",
    "mxfp4",
)

_GROUPED = re.compile(r"(awq|gptq|fp8):([1-9][0-9]{0,4})")


def is_known(fmt: str) -> bool:
    """Whether `fmt` (lower case) names one of these quantisations."""
    return fmt in SCHEMES or _GROUPED.fullmatch(fmt) is not None


def declared(config: Mapping[str, Any]) -> str | None:
    """The format that a config.json's quantization_config stands for; "" where it declares one that
    is none of these, None where it declares none.
    """
    quant = config.get("quantization_config")
    if not isinstance(quant, Mapping) or not quant:
        return None
    method, bits = quant.get("quant_method"), quant.get("bits", quant.get("w_bit", 4))
    name = method if isinstance(method, str) else ""
    if name in ("awq", "gptq"):
        group = quant.get("group_size", quant.get("q_group_size", 128))
        name = f"{name}:{group}" if bits == 4 else ""
    elif name == "fp8":
        block = quant.get("weight_block_size")
        name = f"fp8:{block[0]}" if isinstance(block, list) and block else "fp8"
    elif name == "bitsandbytes":
        name = _bitsandbytes(quant)
    return name if is_known(name) else ""


def _bitsandbytes(quant: Mapping[str, Any]) -> str:
    if quant.get("load_in_8bit") is True:
        return "int8"
    if quant.get("load_in_4bit") is not True or quant.get("bnb_4bit_quant_type") not in (
        "nf4",
        "fp4",  # other levels, the same bytes
    ):
        return ""
    return "nf4:double" if quant.get("bnb_4bit_use_double_quant") is True else "nf4"


def _parse(fmt: str) -> tuple[Scheme, int]:
    match = _GROUPED.fullmatch(fmt)
    if match is None:
        return SCHEMES[fmt], 0
    group = int(match[2])
    if match[1] != "fp8" and group % 8:
        raise UsageError(f"{fmt}: the group is {group}", expected="a multiple of 8, mostly 128")
    return SCHEMES[match[1] + ":*"], group


def matrix_of(row: TensorSpec) -> tuple[int, int, int] | None:
    """(how many matrices, out, in) of a linear layer's row; None for anything else.

    Stacked experts [E, in, out] are E matrices.
    """
    if not row.matmul or row.part not in ("attention", "mlp"):
        return None
    if len(row.shape) == 3:
        return row.shape[0], row.shape[2], row.shape[1]
    if len(row.shape) == 2:
        return row.copies, row.shape[0], row.shape[1]
    return None


def converted(row: TensorSpec, fmt: str) -> bool:
    """Whether `fmt` quantises this row."""
    scheme, _ = _parse(fmt)
    if matrix_of(row) is None or row.role in scheme.keeps:
        return False
    if scheme.experts and not row.experts:
        return False
    return scheme.stacked or len(row.shape) == 2


def stored(spec: ModelSpec, fmt: str) -> tuple[StoredTensor, ...]:
    """Every row of `spec` under its canonical name, scales and zeros counted with their weight.

    Raises UsageError, naming the tensor and the numbers, where a row is no whole number of groups.
    """
    scheme, group = _parse(fmt)
    rest = FORMATS["f16" if spec.dtype == "f16" else scheme.rest]
    out = []
    for row in spec.rows:
        matrix = matrix_of(row)
        if matrix is None or not converted(row, fmt):
            size = prod(row.shape) * row.copies * rest.block_bytes
            out.append(StoredTensor(row.name, row.shape, rest.name, size, row.params, row))
            continue
        count, width, inp = matrix
        _check(scheme, fmt, group, row, width, inp)
        size = count * scheme.matrix_nbytes(width, inp, group)
        out.append(StoredTensor(row.name, row.shape, fmt, size, row.params, row))
    return tuple(out)


def _check(scheme: Scheme, fmt: str, group: int, row: TensorSpec, out: int, inp: int) -> None:
    for side, size, demand in zip(("out", "in"), (out, inp), scheme.multiples, strict=True):
        multiple = demand or group
        if size % multiple:
            what = "groups" if demand == 0 else "packed words"
            raise UsageError(
                f"{row.name}: {side}_features {size} is not a multiple of {multiple} ({fmt})",
                where=f"shape {list(row.shape)}",
                expected=f"whole {what} of {multiple}",
                remedy=_remedy(fmt, inp, demand),
            )


def _remedy(fmt: str, inp: int, demand: int) -> str:
    name = fmt.split(":", 1)[0]
    smaller = [g for g in (128, 64, 32, 16) if inp % g == 0]
    if demand == 0 and smaller:
        return f"use {name}:{smaller[0]}"
    return "use nf4 or fp8, which take any shape"
