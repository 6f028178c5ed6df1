"""The handbook's numbers by name, each computed from the library.

GROUP/KEY: a group is a model's preset name, or a topic below. Within a topic a number has what it
was computed from written beside it; nothing here is a figure taken from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gateup.account.activations import logits_transient, mlp_transient
from gateup.account.kv import kv_nbytes
from gateup.account.lora import adapter_rows
from gateup.account.machine import parse_device
from gateup.account.workload import LoRA, Workload
from gateup.checks.runner import check
from gateup.lab.data_gate import GATES
from gateup.lab.handbook.model_numbers import of_model, opened
from gateup.lab.handbook.writers import Number
from gateup.model.families.llama import llama_width
from gateup.model.quant.formats import FORMATS
from gateup.model.spec import GatedMLPSpec, MoESpec

# Where activations are tabulated.
POINTS = (-3, -1, 0, 1, 3)

# The rule's inputs (preset, multiple_of, ffn_dim_multiplier), as Meta's params.json give them; the
# widths that follow are held against the presets in the tests.
RULES: Mapping[str, tuple[str, int, float]] = {
    "7b": ("llama-1-7b", 256, 1.0),
    "13b": ("llama-1-13b", 256, 1.0),
    "2_70b": ("llama-2-70b", 4096, 1.3),
    "3_8b": ("llama-3-8b", 1024, 1.3),
}


def number(name: str) -> Number:
    """The number called GROUP/KEY. Raises KeyError where there is none."""
    group, _, key = name.partition("/")
    topic = TOPICS.get(group)
    return topic()[key] if topic else of_model(group)[key]


@cache
def _activations() -> Mapping[str, Number]:
    """relu/-3 and the like; the lowest point of SiLU."""
    at = np.array(POINTS, dtype=float)
    table: dict[str, Number] = {
        f"{name}/{x}": float(y)
        for name in ("relu", "gelu", "gelu_tanh", "silu")
        for x, y in zip(POINTS, GATES[name].act(at), strict=True)
    }
    line = np.linspace(-4, 0, 40_001)
    low = GATES["silu"].act(line)
    table["silu/lowest"] = float(low.min())
    table["silu/lowest_at"] = float(line[low.argmin()])
    return table


@cache
def _widths() -> Mapping[str, Number]:
    """What the width rule gives; multiple_of is m and ffn_dim_multiplier f."""
    out: dict[str, Number] = {"exact_7b": 8 * opened("llama-1-7b").hidden_size / 3}
    for key, (name, multiple, stretch) in RULES.items():
        spec = opened(name)
        H, width = spec.hidden_size, _dense(spec.layers[0].mlp)
        out[f"m_{key}"], out[f"f_{key}"] = multiple, stretch
        out[f"rule_{key}"] = llama_width(H, multiple_of=multiple, ffn_dim_multiplier=stretch)
        out[f"ratio_{key}"] = width / H
        out[f"more_{key}"] = 3 * width / (8 * H) - 1
    return out


@cache
def _memory() -> Mapping[str, Number]:
    """Llama-3-8B in bf16, 2048 tokens in one pass where nothing else is said."""
    spec, b, T = opened("llama-3-8b"), 2, 2048
    H, width, L = spec.hidden_size, _dense(spec.layers[0].mlp), spec.num_layers
    work = Workload(ctx=T)
    tiled = Workload(ctx=T, execution="tiled", tile=256)
    peak = int(mlp_transient(spec, work, T).value)
    weights = sum(r.params for r in spec.rows if r.part == "mlp") * b
    return {
        "T": T,
        "one_output": T * width * b,
        "gate_and_up": 2 * T * width * b,
        "peak": peak,
        "peak_tiled": int(mlp_transient(spec, tiled, T).value),
        "tile": tiled.tile,
        "output": T * H * b,
        "weights": weights,
        "logits_last": int(logits_transient(spec, work, T).value),
        "logits_rows": T * spec.vocab_size * b,
        "kv": int(kv_nbytes(spec, T, "bf16").value),
        "kv_8k": int(kv_nbytes(spec, 8192, "bf16").value),
        "kv_32k": int(kv_nbytes(spec, 32768, "bf16").value),
        "ubatch": work.ubatch,
        "saved_all_layers": T * L * int(of_model("llama-3-8b")["saved_hf"]),  # type: ignore[arg-type]
        "adamw": 8 * int(of_model("llama-3-8b")["params"]),  # type: ignore[arg-type]
    }


@cache
def _phases() -> Mapping[str, Number]:
    """One MLP of Llama-3-8B in bf16 against a card's data sheet: FLOPs for each byte moved."""
    spec = opened("llama-3-8b")
    H, width, b = spec.hidden_size, _dense(spec.layers[0].mlp), 2
    weights = 3 * H * width * b
    card = parse_device("h100")
    peak, bandwidth = card.peak_flops("bf16") or 0.0, card.bandwidth or 1.0

    def intensity(tokens: int) -> float:
        # x in, y out; the fused middle stays on the chip at best.
        return 6 * H * width * tokens / (weights + 2 * tokens * H * b)

    T = next(t for t in range(1, 1 << 16) if intensity(t) >= peak / bandwidth)
    return {
        "weights": weights,
        "one": intensity(1),
        "many": intensity(2048),
        "card": card.name,
        "ridge": peak / bandwidth,
        "ridge_tokens": T,
        "act_moved": 3 * width,
        "act_moved_eager": 5 * width,
    }


@cache
def _tensor_parallel() -> Mapping[str, Number]:
    """Llama-3-8B and Qwen2-72B over ranks; sizes in bf16."""
    spec = opened("llama-3-8b")
    width = _dense(spec.layers[0].mlp)
    odd = _dense(opened("qwen2-72b").layers[0].mlp)
    finding = next(
        f for f in check("qwen2-72b", tp=8, quant="awq:128").findings if f.rule == "split.width"
    )
    tokens = 2048
    return {
        "tp": 8,
        "local": width // 8,
        "tokens": tokens,
        "reduced": tokens * spec.hidden_size * 2,
        "avoided": tokens * width * 2,
        "odd": odd,
        "odd_local": odd // 8,
        "group": 128,
        "odd_groups": odd / 8 / 128,
        "padded": int(finding.numbers["padded"]),
    }


@cache
def _lora() -> Mapping[str, Number]:
    """Rank 16 on every linear layer of Llama-3-8B."""
    spec, rank = opened("llama-3-8b"), 16
    rows = adapter_rows(spec, LoRA(rank=rank))
    total = sum(r.params for r in rows)
    mlp = sum(r.params for r in rows if r.row.part == "mlp")
    width = _dense(spec.layers[0].mlp)
    return {
        "rank": rank,
        "total": total,
        "per_layer_rank": total // (spec.num_layers * rank),
        "mlp_share": mlp / total,
        "of_model": total / spec.params,
        "matrix": spec.hidden_size * width,
        "matrix_lora": rank * (spec.hidden_size + width),
        "fewer": spec.hidden_size * width / (rank * (spec.hidden_size + width)),
        "saved_inputs": 2 * 4 * spec.hidden_size + 4 * width,
        "frozen": 6 * width,
    }


@cache
def _quantisation() -> Mapping[str, Number]:
    """Blocks of GGUF types, and how many bits a weight they make."""
    out: dict[str, Number] = {}
    for name in ("q8_0", "q4_0", "q4_1", "q4_k", "q5_k", "q6_k", "q2_k", "q3_k", "f16"):
        fmt = FORMATS[name]
        out[f"{name}/bytes"] = fmt.block_bytes
        out[f"{name}/block"] = fmt.block_size
        out[f"{name}/bits"] = 8 * fmt.block_bytes / fmt.block_size
    rng = np.random.default_rng(0)
    size = (1 << 16, FORMATS["q4_0"].block_size)
    for name, values in (
        ("uniform", rng.uniform(-1, 1, size)),
        ("normal", rng.normal(size=size)),
        ("laplace", rng.laplace(size=size)),
        ("t3", rng.standard_t(3, size)),
    ):
        out[f"error/{name}"] = _q4_0_error(values)
    return out


def _q4_0_error(blocks: NDArray[np.float64]) -> float:
    """‖stored - right‖ / ‖right‖ of rows that are one block each, rounded as ggml rounds Q4_0.

    The largest magnitude of a block becomes -8: scale d = largest / -8, kept in fp16; each weight
    is d·(q - 8) with q = ⌊w/d + 8.5⌋, at most 15.
    """
    w = blocks.astype(np.float32)
    largest = np.take_along_axis(w, np.abs(w).argmax(axis=1, keepdims=True), axis=1)
    d = largest / -8
    q = np.minimum(np.floor(w / d + 8.5), 15)
    stored = d.astype(np.float16).astype(np.float32) * (q - 8)
    return float(np.linalg.norm(stored - w) / np.linalg.norm(w))


@cache
def _experts() -> Mapping[str, Number]:
    """What gpt-oss does to the gate, and the sizes of one expert."""
    mlp = opened("gpt-oss-20b").layers[0].mlp
    assert isinstance(mlp, MoESpec)
    layout = mlp.expert.layout
    return {
        "alpha": layout.alpha or 1.0,
        "clamp": layout.clamp or 0.0,
        "offset": layout.offset,
        "gpt_oss_width": mlp.expert.intermediate_size,
    }


@cache
def _openelm() -> Mapping[str, Number]:
    widths = [_dense(x.mlp) for x in opened("openelm-270m").layers]
    return {"first": widths[0], "last": widths[-1], "layers": len(widths)}


def _dense(mlp: object) -> int:
    assert isinstance(mlp, GatedMLPSpec)
    return mlp.intermediate_size


TOPICS: Mapping[str, Callable[[], Mapping[str, Number]]] = {
    "act": _activations,
    "widths": _widths,
    "memory": _memory,
    "phases": _phases,
    "tp": _tensor_parallel,
    "lora": _lora,
    "quant": _quantisation,
    "experts": _experts,
    "openelm": _openelm,
}
