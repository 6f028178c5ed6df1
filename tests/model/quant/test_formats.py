"""Block sizes against the packages that carry them, and the arithmetic of rows."""

from __future__ import annotations

import pytest

from gateup.errors import UsageError
from gateup.model import presets
from gateup.model.quant.formats import FORMATS, format_of, nbytes, row_nbytes, stored_as


def test_block_sizes_are_those_of_the_gguf_package() -> None:
    gguf = pytest.importorskip("gguf")
    for type_, (size, width) in gguf.GGML_QUANT_SIZES.items():
        ours = FORMATS.get(type_.name.lower())
        # The package still has 40 for Q8_1, from before ggml kept its d and s in f16.
        if ours is not None and type_.name != "Q8_1":
            assert (ours.block_size, ours.block_bytes) == (size, width), type_.name
    assert FORMATS["q8_1"].block_bytes == 2 * 2 + 32
    named = {t.name.lower() for t in gguf.GGMLQuantizationType}
    assert {n for n in FORMATS if n.startswith(("q", "iq", "tq", "mxfp"))} <= named


def test_libgguf_writes_rows_of_these_sizes() -> None:
    """Real quantised rows, in every type that needs no importance matrix."""
    libgguf = pytest.importorskip("libgguf")
    np = pytest.importorskip("numpy")
    rows = np.random.default_rng(0).standard_normal((3, 512), dtype=np.float32)
    names = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
    for name in (*names, "iq4_nl", "iq4_xs", "iq3_s", "tq1_0", "tq2_0"):
        written = libgguf.quantize_rows(rows, libgguf.GGMLQuantizationType[name.upper()])
        assert written.nbytes == nbytes(FORMATS[name], 512, 3), name


def test_rows_are_whole_blocks() -> None:
    assert row_nbytes(FORMATS["q4_k"], 4096) == 16 * 144
    assert nbytes(FORMATS["q8_0"], 576, 10) == 18 * 34 * 10
    with pytest.raises(ValueError, match="a row of 896 is not a multiple of q4_k's 256"):
        row_nbytes(FORMATS["q4_k"], 896)


@pytest.mark.parametrize(
    ("name", "bits"), [("q4_k", 4.5), ("q6_k", 6.5625), ("q8_0", 8.5), ("bf16", 16)]
)
def test_bits_per_weight(name: str, bits: float) -> None:
    assert FORMATS[name].bits == bits


def test_names_in_any_case_and_unknown_ones_refused() -> None:
    assert format_of("Q4_K") is FORMATS["q4_k"]
    with pytest.raises(UsageError, match="storage format 'q9' is not known"):
        format_of("q9")


def test_a_plain_dtype_stores_every_row() -> None:
    spec = presets.spec("smollm2-135m")
    assert sum(t.nbytes for t in stored_as(spec.rows, "bf16")) == 2 * 134_515_008
    with pytest.raises(UsageError, match="q4_k is a block format"):
        stored_as(spec.rows, "q4_k")
