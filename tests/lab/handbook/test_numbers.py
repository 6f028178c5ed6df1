"""The handbook's numbers against figures known from elsewhere, and that nothing is made up."""

from __future__ import annotations

import numpy as np
import pytest

from gateup.account.figure import Figure
from gateup.lab.handbook.numbers import RULES, TOPICS, number
from gateup.lab.handbook.writers import WRITERS, write

EXACT = {
    "llama-2-7b/params": 6_738_415_616,
    "llama-2-70b/params": 68_976_648_192,
    "llama-2-70b/mlp": 56_371_445_760,  # 56.4 billion; 5.6 is often read
    "llama-3-8b/params": 8_030_261_248,
    "llama-3-8b/mlp": 5_637_144_576,
    "qwen3-0.6b/params": 596_049_920,
    "mixtral-8x7b/params": 46_702_792_704,
    "qwen3-30b-a3b/params": 30_532_122_624,
    "deepseek-v3/params": 671_026_419_200,
    "widths/rule_7b": 11_008,
    "widths/rule_13b": 13_824,
    "widths/rule_2_70b": 28_672,
    "widths/rule_3_8b": 14_336,
    "llama-2-7b/crossover": 16_512,
    "llama-2-7b/crossover_prefill": 33_024,
    "llama-3-8b/crossover": 21_504,
    "llama-3-8b/crossover_prefill": 43_008,
    "qwen3-0.6b/crossover": 2_304,
    "deepseek-v3/crossover": 9_677,
    "llama-3-8b/saved_hf": 122_880,
    "llama-3-8b/saved_all": 94_208,
    "llama-3-8b/saved_gate_up": 65_536,
    "llama-3-8b/saved_input": 8_192,
    "llama-2-7b/q4_k_m_bytes": 4_080_263_168,
    "llama-3-8b/q4_k_m_bytes": 4_912_898_048,
    "qwen3-0.6b/q4_k_m_bytes": 390_753_280,
    "mixtral-8x7b/q4_k_m_bytes": 28_447_727_616,
    "lora/per_layer_rank": 81_920,
    "memory/one_output": 2048 * 14336 * 2,
    "memory/logits_rows": 2048 * 128_256 * 2,
    "quant/q4_k/bytes": 144,
    "quant/q6_k/bytes": 210,
    "quant/q8_0/bytes": 34,
    "experts/gpt_oss_width": 2880,
    "tp/padded": 29_696,
}
# As they are written in the text.
WRITTEN = {
    ("llama-3-8b/mlp_share", "percent"): "70.2%",
    ("llama-3-8b/layer_share", "percent"): "80.8%",
    ("llama-2-7b/mlp_share", "percent"): "64.2%",
    ("llama-1-7b/layer_share", "percent"): "66.8%",
    ("llama-2-70b/mlp_share", "percent"): "81.7%",
    ("qwen3-0.6b/mlp_share", "percent"): "44.3%",
    ("qwen3-0.6b/layer_share", "percent"): "60.0%",
    ("qwen3-0.6b/share_without_gqa", "percent"): "52.9%",
    ("qwen3-0.6b/attention_width", "x1"): "2.0",
    ("mixtral-8x7b/active", "many"): "12.88 billion",
    ("deepseek-v3/active", "many"): "37.55 billion",
    ("memory/one_output", "MB"): "58.7 MB",
    ("memory/gate_and_up", "MB"): "117.4 MB",
    ("llama-3-8b/q4_k_m_of_f16", "percent"): "30.6%",
    ("widths/exact_7b", "x2"): "10,922.67",
    ("widths/ratio_7b", "x4"): "2.6875",
    ("widths/more_3_8b", "percent0"): "31%",
    ("llama-3-8b/ratio", None): "3.5",
    ("lora/mlp_share", "percent"): "67.5%",
    ("experts/alpha", "x3"): "1.702",
    ("experts/clamp", None): "7",
    ("memory/logits_rows", "MB"): "525.3 MB",
    ("quant/error/uniform", "percent"): "6.5%",
    ("quant/error/normal", "percent"): "8.6%",
    ("quant/error/laplace", "percent"): "10.7%",
    ("quant/error/t3", "percent"): "12.7%",
    ("act/gelu/-3", "x4"): "−0.0040",
    ("act/gelu/-1", "x4"): "−0.1587",
    ("act/gelu/1", "x4"): "0.8413",
    ("act/silu/-3", "x4"): "−0.1423",
    ("act/silu/-1", "x4"): "−0.2689",
    ("act/silu/1", "x4"): "0.7311",
    ("act/silu/3", "x4"): "2.8577",
}


@pytest.mark.parametrize(("name", "value"), EXACT.items())
def test_numbers_that_are_known(name: str, value: int) -> None:
    assert number(name) == value


@pytest.mark.parametrize(("which", "text"), WRITTEN.items())
def test_as_the_text_writes_them(which: tuple[str, str | None], text: str) -> None:
    assert write(number(which[0]), which[1], "en") == text


def test_the_width_rule_gives_the_presets_own_widths() -> None:
    for key, (model, _, _) in RULES.items():
        assert number(f"widths/rule_{key}") == number(f"{model}/I")


def test_gqa_raises_the_share() -> None:
    for model in ("llama-3-8b", "llama-2-70b", "qwen3-0.6b"):
        assert number(f"{model}/layer_share") > number(f"{model}/share_without_gqa")  # type: ignore[operator]


def test_heavier_tails_lose_more_as_the_reference_rounds() -> None:
    quants = pytest.importorskip("gguf.quants")
    rng = np.random.default_rng(0)
    blocks = {
        "uniform": rng.uniform(-1, 1, (1 << 16, 32)),
        "normal": rng.normal(size=(1 << 16, 32)),
    }
    for name, values in blocks.items():
        w = values.astype(np.float32)
        kind = quants.GGMLQuantizationType.Q4_0
        stored = quants.dequantize(quants.quantize(w, kind), kind)
        error = np.linalg.norm(stored - w) / np.linalg.norm(w)
        assert number(f"quant/error/{name}") == pytest.approx(error, rel=1e-6)
    errors = [str(number(f"quant/error/{name}")) for name in ("uniform", "normal", "laplace", "t3")]
    assert [float(e) for e in errors] == sorted(map(float, errors))


def test_a_name_that_is_not_there() -> None:
    for name in ("no-such-model/params", "llama-3-8b/no_such_key", "widths/none"):
        with pytest.raises(KeyError):
            number(name)


def test_every_topic_is_a_table_of_numbers() -> None:
    for topic in TOPICS.values():
        assert all(isinstance(v, int | float | str) for v in topic().values())


@pytest.mark.parametrize(
    ("value", "writer", "language", "text"),
    [
        (56_371_445_760, "many", "en", "56.37 billion"),
        (56_371_445_760, "many", "zh", "563.7 亿"),
        (1_250_000, "many", "zh", "125 万"),
        (512, "many", "en", "512"),
        (14336, None, "en", "14,336"),
        (14336, "plain", "en", "14336"),
        (2.6875, None, "zh", "2.688"),
        (3 << 30, "GiB", "en", "3.0 GiB"),
        (Figure(0.5, "share", "exact"), None, "en", "50.0%"),
        (-0.27846, "x4", "en", "−0.2785"),
        ("H100", None, "en", "H100"),
    ],
)
def test_writers(value: int | float | str, writer: str | None, language: str, text: str) -> None:
    assert write(value, writer, language) == text


def test_an_unknown_writer() -> None:
    with pytest.raises(KeyError):
        write(1, "roman", "en")
    assert "int" in WRITERS
