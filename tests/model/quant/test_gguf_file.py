"""Sizes of files before they are made, against a real file and llama.cpp's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateup.errors import UsageError
from gateup.model import presets
from gateup.model.quant.gguf_file import (
    file_estimate,
    info_nbytes,
    padded,
    tensor_data_nbytes,
    tensors_of,
)


def test_the_real_file_has_exactly_this_data_and_these_infos(smollm2_gguf: Path) -> None:
    gguf = pytest.importorskip("gguf")
    estimate = file_estimate(presets.spec("smollm2-135m"), "q4_1")
    reader = gguf.GGUFReader(smollm2_gguf)
    assert smollm2_gguf.stat().st_size == 98_362_432 == reader.data_offset + estimate.data
    # Infos lie between the metadata and the data, which starts at a multiple of 32.
    last = max(reader.fields.values(), key=lambda f: f.offset)
    start = last.offset + sum(p.nbytes for p in last.parts)
    infos = estimate.infos - 24
    assert padded(start + infos) == reader.data_offset


def test_padding_counts_where_a_tensor_is_no_multiple_of_32() -> None:
    assert [padded(n) for n in (0, 1, 32, 33)] == [0, 32, 32, 64]
    assert padded(5, 4) == 8
    spec = presets.spec("qwen2.5-0.5b")
    tensors = tensors_of(spec, "q5_1")
    assert tensor_data_nbytes(spec, "q5_1") == sum(padded(t.nbytes) for t in tensors)
    odd = [t for t in tensors if t.nbytes % 32]
    assert tensor_data_nbytes(spec, "q5_1") - sum(t.nbytes for t in tensors) == sum(
        32 - t.nbytes % 32 for t in odd
    )


def test_data_and_infos_add_up() -> None:
    spec = presets.spec("llama-3-8b")
    estimate = file_estimate(spec, "Q4_K_M")
    assert estimate.data == 4_912_898_048
    assert estimate.total == estimate.data + estimate.infos
    assert estimate.infos == 24 + sum(info_nbytes(t) for t in tensors_of(spec, "q4_k_m"))


def test_plain_file_types_mean_the_gguf() -> None:
    spec = presets.spec("smollm2-135m")
    norms = 61 * 576  # F32 in a GGUF whatever the file type
    assert tensor_data_nbytes(spec, "bf16") == 2 * spec.params + 2 * norms
    with pytest.raises(UsageError, match="file type 'nf4' is not known"):
        tensor_data_nbytes(spec, "nf4")
