"""Quantised weights for tests, and ggml's way of quantising activations."""

from __future__ import annotations

import gguf
import numpy as np
import torch

from gateup.ops import native_matrix

TYPES = {
    name: gguf.GGMLQuantizationType[name]
    for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "Q4_K", "Q5_K", "Q6_K")
}
# Where the float16 factors of a block lie, in bytes.
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def raw_blocks(name, n, k, seed=0):
    """Random codes as a file stores them; factors of either sign, as large as a model's."""
    block, nbytes = gguf.GGML_QUANT_SIZES[TYPES[name]]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (n * k // block, nbytes), dtype=np.uint8)
    for at in HALVES.get(name, (0,)):
        factors = rng.uniform(0.5, 1.5, (len(blocks), 1)) * rng.choice((-1, 1), (len(blocks), 1))
        blocks[:, at : at + 2] = (factors / 100).astype(np.float16).view(np.uint8)
    return torch.from_numpy(blocks.reshape(n, -1).copy())


def packed(name, n, k, seed=0, bias=None):
    """(packed matrix, its float32 weights by gguf's own dequantisation)."""
    raw = raw_blocks(name, n, k, seed)
    data = native_matrix.pack(TYPES[name], raw, n, k)
    exact = gguf.quants.dequantize(raw.numpy(), TYPES[name]).reshape(n, k)
    return native_matrix.Packed(int(TYPES[name]), data, n, k, bias), torch.from_numpy(exact)


def block_k(name):
    return 256 if name.endswith("_K") else 32


def quantised(x, block):
    """x by our rule: int8 to the largest magnitude of a block, the scale kept; as float64."""
    blocks = x.float().reshape(len(x), -1, block)
    largest = blocks.abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > 0, 127 / largest, 0)
    codes = torch.round(blocks * inverse)
    return (codes.double() * (largest / 127).double()).reshape(x.shape)


def ggml_linear(x, name, weights, raw):
    """y as ggml computes it, with q8_0, q8_1 or q8_K activations; all else exact (float64)."""
    t, k = x.shape
    if block_k(name) == 256:
        blocks = x.float().reshape(t, -1, 256)
        at = blocks.abs().argmax(-1, keepdim=True)
        inverse = -127 / blocks.gather(-1, at)
        codes = torch.round(blocks * inverse).clamp(max=127)
        return (codes.double() / inverse.double()).reshape(t, k) @ weights.double().T
    blocks = x.float().reshape(t, -1, 32)
    d = blocks.abs().amax(-1, keepdim=True) / 127
    codes = torch.round(blocks / d).double()
    rounded = d.half().double()
    if not name.endswith("_1"):
        return (codes * rounded).reshape(t, k) @ weights.double().T
    # q8_1 keeps the block's sum, rounded to float16 as well, for the minimums.
    sums = (d * codes.sum(-1, keepdim=True).float()).half().double().reshape(t, -1)
    mins = raw.reshape(len(raw), -1, gguf.GGML_QUANT_SIZES[TYPES[name]][1])[:, :, 2:4]
    mins = mins.contiguous().view(torch.float16).double().reshape(len(raw), -1)
    without = weights.double() - mins.repeat_interleave(32, dim=1)
    return (codes * rounded).reshape(t, k) @ without.T + sums @ mins.T
