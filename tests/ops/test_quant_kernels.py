"""The quantised kernels: packing, integer products, accuracy beside ggml's, on every set."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from gateup.ops import native, native_matrix

TYPES = {
    name: gguf.GGMLQuantizationType[name]
    for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "Q4_K", "Q5_K", "Q6_K")
}


def raw_blocks(type_, n, k, seed=0):
    """Random bytes as rows of blocks, with scales of sane size."""
    block, nbytes = gguf.GGML_QUANT_SIZES[type_]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (n * k // block, nbytes), dtype=np.uint8)
    halves = {"Q4_K": 2, "Q5_K": 2, "Q4_1": 2, "Q5_1": 2}.get(type_.name, 1)
    at = nbytes - 2 if type_.name == "Q6_K" else 0
    scales = rng.uniform(0.5, 1.5, (len(blocks), halves)).astype(np.float16)
    scales *= np.where(rng.random(scales.shape) < 0.5, np.float16(-1), np.float16(1))
    blocks[:, at : at + 2 * halves] = scales.view(np.uint8)
    return torch.from_numpy(blocks.reshape(n, -1).copy())


def packed(name, n, k, seed=0):
    type_ = TYPES[name]
    raw = raw_blocks(type_, n, k, seed)
    w = native_matrix.Packed(int(type_), native_matrix.pack(int(type_), raw, n, k), n, k)
    exact = torch.from_numpy(gguf.quants.dequantize(raw.numpy(), type_)).reshape(n, k)
    return w, exact


@pytest.mark.parametrize("name", TYPES)
def test_unpacking_is_ggufs_dequantisation(name):
    k = 512 if name.endswith("_K") else 32 * 5
    w, exact = packed(name, 37, k)
    assert torch.equal(native_matrix.unpack(w), exact)


@pytest.fixture(params=("generic", "avx2", "avx512vnni", "amx"))
def isa(request):
    module, why = native.load()
    if module is None:
        pytest.skip(why)
    if request.param not in module.isas():
        pytest.skip(f"not on this processor or in this build: {request.param}")
    was = module.isa()
    module.use_isa(request.param)
    yield request.param
    module.use_isa(was)


@pytest.mark.parametrize("name", TYPES)
def test_linear(isa, name):
    k = 512 if name.endswith("_K") else 32 * 11
    w, exact = packed(name, 37, k)
    for t in (1, 2, 3, 5, 17, 70):
        x = torch.randn(t, k)
        (y,) = native_matrix.linear(x, [w])
        truth = x.double() @ exact.double().T
        error = (y.double() - truth).norm() / truth.norm()
        assert error < 0.04, (t, error)


@pytest.mark.parametrize("name", TYPES)
def test_gated_mlp(isa, name):
    i, h = 512, 256
    gate, g = packed(name, i, h, 1)
    up, u = packed(name, i, h, 2)
    down, d = packed(name, 37, i, 3)
    for t in (1, 3, 17):
        x = torch.randn(t, h) / 16
        y = native_matrix.gated_mlp(x, gate, up, down)
        mid = torch.nn.functional.silu(x.double() @ g.double().T) * (x.double() @ u.double().T)
        truth = mid @ d.double().T
        error = (y.double() - truth).norm() / truth.norm()
        assert error < 0.04, (t, error)
