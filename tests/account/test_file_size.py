"""The file's size: as it lies there, or as the GGUF to be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateup.account.file_size import file_text
from gateup.account.plan import plan
from gateup.account.show import ShowOptions, show
from gateup.model import presets
from gateup.model.quant.gguf_file import file_estimate


def test_an_opened_file_has_its_real_size(smollm2_gguf: Path) -> None:
    for figures in (plan(smollm2_gguf).figures, show(smollm2_gguf).file):
        assert figures["file.bytes"].value == smollm2_gguf.stat().st_size == 98_362_432
        assert file_text(figures) == "= 98,362,432 bytes (98.362 MB) on disk"
    assert "file.bytes" not in plan(smollm2_gguf, quant="q8_0").figures


@pytest.mark.parametrize("name", ["llama-3-8b", "qwen3-30b-a3b"])
def test_a_gguf_before_it_is_made(name: str) -> None:
    known = file_estimate(presets.spec(name), "q4_k_m")
    for figures in (
        plan(name, quant="q4_k_m").figures,
        show(name, ShowOptions(quant="q4_k_m")).file,
    ):
        assert figures["file.data"].value == known.data
        assert figures["file.infos"].value == known.infos
        assert f"= {known.data:,} bytes ({known.data / 1e9:,.3f} GB) of tensor data" in str(
            file_text(figures)
        )


def test_no_file_no_line() -> None:
    assert file_text(plan("llama-3-8b").figures) is None
    assert file_text(plan("llama-3-8b", quant="nf4").figures) is None
