"""Against the gguf package, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize

from gateup.model.quant.formats import FORMATS
from gateup.ops import unpack

HERE = sorted(unpack._BLOCKS)
RARE = ["q2_k", "iq4_xs", "mxfp4"]


@pytest.mark.parametrize("type_", HERE + RARE)
def test_bits_of_gguf(type_: str) -> None:
    """Random bytes: every code, every scale, infinities and NaNs among them."""
    random = np.random.default_rng(0)
    raw = random.integers(0, 256, (37, FORMATS[type_].block_bytes * 3), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = dequantize(raw, gguf.GGMLQuantizationType[type_.upper()])
        found = unpack.unpack(type_, torch.from_numpy(raw)).numpy()
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    numbers = ~np.isnan(expected)
    assert np.array_equal(np.isnan(found), ~numbers)
    assert np.array_equal(found[numbers].view(np.uint32), expected[numbers].view(np.uint32))


def test_plain_types_are_views() -> None:
    values = torch.randn(3, 8).to(torch.bfloat16)
    raw = values.view(torch.uint8)
    view = unpack.dense("bf16", raw)
    assert view is not None
    assert view.data_ptr() == values.data_ptr()
    assert torch.equal(unpack.unpack("bf16", raw), values.float())
    assert unpack.dense("q8_0", raw) is None


def test_what_cannot_be_read() -> None:
    assert not unpack.known("q8_k")
    assert not unpack.known("i32")
    assert all(unpack.known(t) for t in HERE + RARE)
