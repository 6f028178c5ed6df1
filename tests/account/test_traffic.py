"""Bytes per step and FLOPs per byte."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gateup.account.flops import decode_flops, prefill_flops
from gateup.account.kv import kv_nbytes
from gateup.account.ledger import Ledger, make_ledger
from gateup.account.traffic import bytes_per_token, intensity, weights_read
from gateup.model.families import build_spec
from gateup.model.quant.formats import stored_as


def ledger(models: dict[str, dict[str, Any]], name: str, dtype: str = "bf16") -> Ledger:
    entry = models[name]
    spec = build_spec({**entry, "architectures": [entry["architecture"]]}, where=name, name=name)
    return make_ledger(spec, stored_as(spec.rows, dtype), dtype)


def evaluate(numbers: str) -> float:
    text = numbers.replace("·", "*").replace("−", "-").replace("^", "**")
    value: float = eval(text)
    return value


def test_dense_model_reads_all_but_the_embedding(known_models: dict[str, dict[str, Any]]) -> None:
    """Llama-3-8B in bf16: (8,030,261,248 − 128,256·4096 + 4096)·2 bytes a token."""
    book = ledger(known_models, "meta-llama/Llama-3.1-8B")
    figure = weights_read(book)
    assert figure.value == (8_030_261_248 - 128_256 * 4096 + 4096) * 2
    assert figure.kind == "exact"
    four = weights_read(book, 4)
    assert four.value == figure.value + 3 * 2 * 4096
    assert four.kind == "exact"
    assert weights_read(book, 10**9).value == book.total.nbytes


def test_tied_head_reads_the_embedding(known_models: dict[str, dict[str, Any]]) -> None:
    book = ledger(known_models, "HuggingFaceTB/SmolLM2-135M")
    assert weights_read(book).value == 2 * (book.spec.params + book.spec.hidden_size)


def test_experts_of_one_token_are_exact_and_of_several_expected(
    known_models: dict[str, dict[str, Any]],
) -> None:
    book = ledger(known_models, "Qwen/Qwen3-30B-A3B")
    one = weights_read(book)
    assert one.value == book.total.active_nbytes
    assert one.kind == "exact"
    several = weights_read(book, 16)
    assert several.kind == "estimate"
    assert "uniform" in several.source
    for figure in (one, several):
        assert evaluate(figure.numbers) == pytest.approx(figure.value, abs=0.5)
    assert one.value < several.value < book.total.nbytes
    assert weights_read(book, 4096).value == pytest.approx(book.total.nbytes, rel=0.02)


def test_expected_experts_are_what_a_uniform_router_touches(
    known_models: dict[str, dict[str, Any]],
) -> None:
    """A simulation: 16 tokens, 8 of 128 experts each."""
    book = ledger(known_models, "Qwen/Qwen3-30B-A3B")
    draw = random.Random(0)
    touched = [len({e for _ in range(16) for e in draw.sample(range(128), 8)}) for _ in range(2000)]
    mean = sum(touched) / len(touched) / 128
    expert_bytes = sum(t.nbytes for m, t in book.by_module().items() if m.startswith("experts."))
    plain = weights_read(book).value - expert_bytes * 8 // 128
    routed = weights_read(book, 16).value - plain - 15 * 2 * 2048
    assert routed / expert_bytes == pytest.approx(mean, rel=0.01)


@pytest.mark.parametrize("batch", [1, 8])
def test_a_decode_step(known_models: dict[str, dict[str, Any]], batch: int) -> None:
    book = ledger(known_models, "meta-llama/Llama-3.1-8B")
    figures = bytes_per_token(book, 8192, "q8_0", batch)
    assert figures["kv_read"].value == kv_nbytes(book.spec, 8192, "q8_0", batch).value
    assert figures["kv_written"].value == batch * 32 * 2 * 1024 * 34 // 32
    assert figures["weights"].value == weights_read(book, batch).value
    total = sum(figures[k].value for k in ("weights", "kv_read", "kv_written"))
    assert figures["total"].value == total
    assert figures["per_token"].value == total / batch
    for key, figure in figures.items():
        assert evaluate(figure.numbers) == pytest.approx(figure.value), key
        assert figure.kind == "exact"


def test_intensity(known_models: dict[str, dict[str, Any]]) -> None:
    """Decode of one sequence is near 1 FLOP per byte in bf16, a long prefill in the thousands."""
    book = ledger(known_models, "meta-llama/Llama-3.1-8B")
    figures = intensity(book, 8192)
    moved = bytes_per_token(book, 8192)["total"].value
    assert figures["decode"].value == decode_flops(book.spec, 8192).total / moved
    assert 1 < figures["decode"].value < 1.3
    once = book.total.nbytes + kv_nbytes(book.spec, 8192).value
    reads = once - book.by_part()["embedding"].nbytes + 8192 * 2 * 4096
    assert figures["prefill"].value == prefill_flops(book.spec, 8192).total / reads
    assert figures["prefill"].value > 1000
    assert intensity(book, 8192, batch=16)["decode"].value > 7 * figures["decode"].value
    for figure in figures.values():
        assert figure.kind == "bound"
        assert evaluate(figure.numbers) == pytest.approx(figure.value)
    mixture = intensity(ledger(known_models, "Qwen/Qwen3-30B-A3B"), 64, batch=4)
    assert mixture["decode"].kind == "estimate"
