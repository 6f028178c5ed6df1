"""Every number in the exercises' texts, computed: by the library, or by the exercise's solution."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gateup
from gateup.account.crossover import crossover
from gateup.account.flops import gemm_per_token
from gateup.account.lora import adapter_rows
from gateup.account.saved import saved_gated
from gateup.account.workload import LoRA
from gateup.model.layout import GateUpLayout, join
from gateup.model.quant.formats import format_of
from gateup.model.spec import GatedMLPSpec, ModelSpec
from gateup.practice.exercise import LANGUAGES, find
from gateup.practice.oracles import gelu, gelu_tanh, silu, silu_slope

ONE = np.ones((1, 1))


@cache
def solution(number: int) -> Any:
    """The exercise's own solution, as a module."""
    module = ModuleType(f"solution_{number}")
    exec(find(str(number)).solution(), module.__dict__)
    return SimpleNamespace(**module.__dict__)


@cache
def spec(name: str) -> ModelSpec:
    return gateup.open(name).spec


def _mlp_params(name: str) -> int:
    return sum(r.params for r in spec(name).rows if r.part == "mlp")


def _layer_share(name: str) -> float:
    first = [r for r in spec(name).rows if r.layer == 0]
    return sum(r.params for r in first if r.part == "mlp") / sum(r.params for r in first)


def silu_grad() -> list[str]:
    grid = np.linspace(0, 6, 60001)
    slope = silu_slope(grid)
    top = int(np.argmax(slope))
    at = [float(solution(2).silu_grad(np.array(x, dtype=np.float64))) for x in (0, 1, -1)]
    return [
        f"silu'(0) = {at[0]:g}",
        f"silu'(1) = {at[1]:.4f}",
        f"silu'(-1) = {at[2]:.4f}",
        f"{slope[top]:.4f}",
        f"x = {grid[top]:.4f}",
    ]


def classic_ffn() -> list[str]:
    values = gelu(np.array([1.0, -1.0, 3.0]))
    return [f"gelu({x}) = {v:.4f}" for x, v in zip((1, -1, 3), values, strict=True)]


def gate_zoo() -> list[str]:
    one, two = np.array([1.0]), np.array([2.0])
    kinds = ("swiglu", "geglu", "reglu", "glu", "gpt_oss")
    got = [float(solution(4).gated(kind, one, two)[0]) for kind in kinds]
    x = np.linspace(-6, 6, 12001)
    apart = np.abs(gelu(x) - gelu_tanh(x)).max()
    assert apart < 0.0005 < 1.1 * apart
    shown = (f"{v:.4f}" if v % 1 else f"{v:g}" for v in got)
    return [f"{kind} {v}" for kind, v in zip(kinds, shown, strict=True)] + ["0.0005"]


def swiglu() -> list[str]:
    return [f"silu(2) · 2 = {solution(5).swiglu(2 * ONE, ONE, ONE, ONE).item():.4f}"]


def norm_residual() -> list[str]:
    x = np.array([3.0, 4.0])
    n = solution(6).rms_norm(x, 1.0, 0.0)
    largest = float(np.finfo(np.float16).max)
    assert largest < 300**2
    return [f"mean(x²) = {(x * x).mean():g}", f"[{n[0]:.4f}, {n[1]:.4f}]", f"{largest:.0f}"]


def width_rule() -> list[str]:
    rows = (
        ("llama-2-7b", "Llama 2 7B", 256, 1.0),
        ("llama-2-13b", "Llama 2 13B", 256, 1.0),
        ("llama-2-70b", "Llama 2 70B", 4096, 1.3),
        ("llama-3-8b", "Llama 3 8B", 1024, 1.3),
    )
    out = [f"{int(8 * 4096 / 3)}"]
    for name, shown, multiple, factor in rows:
        H, mlp = spec(name).hidden_size, spec(name).layers[0].mlp
        assert isinstance(mlp, GatedMLPSpec)
        I = mlp.intermediate_size
        assert solution(7).ffn_width(H, multiple, factor) == I
        out += [f"| {shown} | {H} | {multiple} | {factor} | {I}", f"| {I / H:g} |"]
    return [*out, f"{3 * 14336 * 4096 / (8 * 4096**2) - 1:.0%}"]


def ledger() -> list[str]:
    config = {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
        "qk_norm": False,
    }
    total = sum(r.params for r in spec("llama-3-8b").rows)
    mlp = _mlp_params("llama-3-8b")
    mine = solution(8).ledger(config)
    assert (mine[5], mine[2]) == (total, mlp)
    return [f"{total:,}", f"{mlp:,}", f"{mlp / total:.1%}", f"{_layer_share('llama-3-8b'):.1%}"]


def flops_crossover() -> list[str]:
    out = []
    for name, shape in (
        ("llama-3-8b", (4096, 14336, 32, 128)),
        ("qwen3-0.6b", (1024, 3072, 16, 128)),
    ):
        point = crossover(spec(name)).model
        assert point.token is not None
        assert point.prefill is not None
        _, _, token, prefill = solution(9).flops(*shape, 1)
        assert (token, prefill) == (point.token, point.prefill)
        out += [f"{int(token):,}", f"{int(prefill):,}", ", ".join(map(str, shape))]
    return [*out, f"{gemm_per_token(spec('llama-3-8b'))['mlp'] // 32:,}"]


def activation_memory() -> list[str]:
    H, mlp = 4096, GatedMLPSpec(14336)
    modes = (("eager", "hf"), ("fused", "all"), ("gate_up", "gate_up"), ("input", "input"))
    out = []
    for mode, save in modes:
        kept = 2 * H + saved_gated(mlp, save, True, 2).value  # type: ignore[arg-type]
        assert solution(10).saved_bytes(mode, 1, H, 14336, 1, 2) == kept
        out.append(f"{mode} {kept:,}")
    gate = 2048 * 14336 * 2
    return [*out, f"{gate / 1e6:.1f} MB", f"{gate:,}", f"{2 * gate / 1e6:.1f} MB"]


def merge_gate_up() -> list[str]:
    fused, g, y = solution(11).merged(ONE, 2 * ONE, 3 * ONE, ONE)
    assert (fused.tolist(), g.tolist()) == ([[2], [3]], [[2, 3]])
    return ["w_gate_up = [[2], [3]]", "g = [[2, 3]]", f"3·silu(2) = {y.item():.4f}"]


def layouts() -> list[str]:
    gate, up = np.array([1, 2]), np.array([10, 20])
    bias = join(gate, up, GateUpLayout("interleaved"), "bias")
    weight = np.zeros((4, 1))
    parts = solution(12).gate_and_up(weight, bias, "interleaved")[2:]
    assert [p.tolist() for p in parts] == [gate.tolist(), up.tolist()]
    for name, form, orientation in (
        ("phi-3-mini", "concat", "out_in"),
        ("gpt-oss-20b", "interleaved", "in_out"),
    ):
        mlp: Any = spec(name).layers[0].mlp
        found = (mlp.expert if hasattr(mlp, "expert") else mlp).layout
        assert (found.form, found.order, found.orientation) == (form, "gate_up", orientation)
    return [f"`{bias.tolist()}`", f"`gate_bias = {gate.tolist()}`", f"`up_bias = {up.tolist()}`"]


def tiling() -> list[str]:
    each = 3 * 14336 * 2
    return [f"{each:,}", f"{each * 8192 / 1e6:.1f} MB", f"{each * 256 / 1e6:.1f} MB"]


def backward() -> list[str]:
    dx, gate, up, down = (v.item() for v in solution(14).backward(ONE, 2 * ONE, ONE, ONE, ONE))
    named = {"dw_down": down, "dw_gate": gate, "dw_up": up, "dx": dx}
    return [f"`{name} = {v:.4f}`" for name, v in named.items()]


def recompute() -> list[str]:
    mlp = GatedMLPSpec(14336)
    saves = ("gate_up", "hf")
    return [
        f"{2 * 4096 + saved_gated(mlp, save, True, 2).value:,}"  # type: ignore[arg-type]
        for save in saves
    ]


def act_and_mul() -> list[str]:
    fused, two = 3 * 14336, 5 * 14336
    assert two / fused == pytest.approx(1 + 2 / 3)
    return [f"{fused:,}", f"{two:,}"]


def roofline() -> list[str]:
    args = (4096, 14336, 2, 100e12, 1e12)
    flops, nbytes, seconds, ridge = solution(17).roofline(1, *args)
    assert flops == gemm_per_token(spec("llama-3-8b"))["mlp"] / 32
    assert seconds == nbytes / 1e12
    assert flops / 100e12 / seconds == pytest.approx(0.01, rel=1e-3)  # "a hundredth"
    return [f"{flops:,.0f}", f"{nbytes:,.0f}", f"{seconds * 1e6:.1f} µs", f"{ridge:.0f}"]


def tp_split() -> list[str]:
    gate, up, down = np.array([[1.0], [2.0]]), np.ones((2, 1)), np.ones((1, 2))
    parts: list[np.ndarray] = []

    def all_reduce(given: list[np.ndarray]) -> list[np.ndarray]:
        parts.extend(given)
        return [sum(given, np.zeros((1, 1)))] * 2

    y = solution(18).tp_swiglu(ONE, gate, up, down, 2, all_reduce)
    shown = [f"silu({i + 1}) = {part.item():.4f}" for i, part in enumerate(parts)]
    return [*shown, f"{y[0].item():.4f}"]


def reshard() -> list[str]:
    rows = np.array([[1, 2, 10, 20], [3, 4, 30, 40]])[:, :, None]
    down = np.zeros((2, 1, 2))
    four, one = (solution(19).reshard(rows, down, tp)[0][..., 0].tolist() for tp in (4, 1))
    return [f"`{' '.join(map(str, row))}`" for row in (*four, *one, *rows[..., 0].tolist())]


def moe_topk() -> list[str]:
    logits = np.array([[1.0, 2.0, 3.0, 2.0]])
    indices, weights = solution(20).route(logits, 2, False)
    _, normed = solution(20).route(logits, 2, True)
    shown = [f"`[{w[0, 0]:.4f}, {w[0, 1]:.4f}]`" for w in (weights, normed)]
    return [f"`{indices[0].tolist()}`", *shown]


def moe_dispatch() -> list[str]:
    indices = np.array([[2, 0], [2, 1]])
    x = np.zeros((2, 1))
    _, counts, order = solution(21).moe(x, indices, np.ones((2, 2)), 4, lambda e, rows: rows)
    return [f"`{counts.tolist()}`", f"`{order.tolist()}`", f"`indices = {indices.tolist()}`"]


def lora() -> list[str]:
    rows = [a for a in adapter_rows(spec("llama-3-8b"), LoRA(rank=1)) if a.layer == 0]
    every = sum(a.params for a in rows)
    mlp = sum(a.params for a in rows if a.role in ("gate_proj", "up_proj", "down_proj"))
    scale = solution(22).lora(ONE, 0 * ONE, np.ones((8, 1)), np.ones((1, 8)), 16.0, False)[1] / 8
    root = solution(22).lora(ONE, 0 * ONE, np.ones((8, 1)), np.ones((1, 8)), 16.0, True)[1] / 8
    assert scale.item() == 2
    return [f"{root.item():.3f}", f"{mlp:,}·r", f"{every:,}·r", f"{mlp / every:.1%}"]


def group_quant() -> list[str]:
    sizes = [format_of(name).block_bytes for name in ("q8_0", "q4_0")]
    return [*map(str, sizes), *(f"{8 * n / 32:g}" for n in sizes)]


def ablation() -> list[str]:
    h, gate, up = np.ones(1), np.array([[1.0], [2.0]]), np.ones((2, 1))
    down, unembed = np.array([[1.0, -1.0]]), np.array([[1.0], [2.0]])
    p = silu(gate @ h) * (up @ h)
    after = (h + down @ p).item()
    change, _, _ = solution(24).ablation(h, gate, up, down, unembed, 1)
    assert np.argmax(unembed @ (h + down @ p)) == 0
    return [
        f"p = [{p[0]:.4f}, {p[1]:.4f}]",
        f"{after:.4f}",
        f"change = [{change[0]:.4f}, {change[1]:.4f}]",
    ]


FACTS: dict[int, Callable[[], list[str]]] = {
    2: silu_grad,
    3: classic_ffn,
    4: gate_zoo,
    5: swiglu,
    6: norm_residual,
    7: width_rule,
    8: ledger,
    9: flops_crossover,
    10: activation_memory,
    11: merge_gate_up,
    12: layouts,
    13: tiling,
    14: backward,
    15: recompute,
    16: act_and_mul,
    17: roofline,
    18: tp_split,
    19: reshard,
    20: moe_topk,
    21: moe_dispatch,
    22: lora,
    23: group_quant,
    24: ablation,
}


@pytest.mark.parametrize(
    ("number", "facts"), FACTS.items(), ids=lambda v: getattr(v, "__name__", v)
)
def test_numbers_in_the_text_are_computed(number: int, facts: Callable[[], list[str]]) -> None:
    for text in (find(str(number)).problem(lang) for lang in LANGUAGES):
        missing = [fact for fact in facts() if fact not in text]
        assert not missing


def test_quantised_blocks_are_llama_cpps() -> None:
    """Scales and integers as libgguf writes them, byte for byte; values as it reads them."""
    libgguf = pytest.importorskip("libgguf")
    rng = np.random.default_rng(5)
    x = (rng.normal(size=(64, 32)) * rng.uniform(0.001, 3, size=(64, 1))).astype(np.float32)
    x[7] = 0
    for bits, name in ((8, "Q8_0"), (4, "Q4_0")):
        kind = libgguf.GGMLQuantizationType[name]
        scales, stored, back = solution(23).quantise(x, bits)
        mine = np.concatenate([scales[:, None].view(np.uint8), stored.view(np.uint8)], axis=1)
        written = np.asarray(libgguf.quantize_rows(x, kind)).reshape(64, -1)
        assert mine.tobytes() == written.tobytes()
        assert np.array_equal(back, np.asarray(libgguf.dequantize_rows(written, kind)))


def test_the_peak_of_a_block_keeps_its_sign() -> None:
    """Q4_0's claim: the element of the largest magnitude comes back as -8 · d."""
    x = np.linspace(-1, 0.5, 32, dtype=np.float32)[None]
    for values in (x, -x):
        scales, stored, back = solution(23).quantise(values, 4)
        assert stored[0, 0] & 15 == 0
        assert back[0, 0] == -8 * np.float32(scales[0])
        assert math.copysign(1, back[0, 0]) == math.copysign(1, values[0, 0])
