"""Packed matrices from Python: shapes, dtypes, biases, and what is refused."""

from __future__ import annotations

import gguf
import pytest
import torch

from gateup.ops import native, native_matrix
from tests.numerics import poisoned
from tests.ops.quant_inputs import TYPES, block_k, packed, raw_blocks

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
pytestmark = pytest.mark.skipif(native.load()[0] is None, reason=native.load()[1])


@pytest.mark.parametrize("name", TYPES)
def test_unpacking_is_ggufs_dequantisation(name):
    w, exact = packed(name, 37, 5 * block_k(name))
    assert torch.equal(native_matrix.unpack(w), exact)
    rows = torch.tensor([36, 0, 17, 17])
    assert torch.equal(native_matrix.unpack(w, rows), exact[rows])
    for dtype in DTYPES:
        assert torch.equal(native_matrix.unpack(w, rows, dtype), exact[rows].to(dtype))


@pytest.mark.parametrize("name", TYPES)
def test_packed_is_hardly_larger_than_the_file(name):
    n, k = 64, 4096
    block, nbytes = gguf.GGML_QUANT_SIZES[TYPES[name]]
    assert native_matrix.packed_nbytes(TYPES[name], n, k) <= 1.03 * n * k // block * nbytes
    w, _ = packed(name, 16, 256)
    assert w.data.data_ptr() % 64 == 0


def test_why_not():
    assert all(native_matrix.why_not(t) is None for t in TYPES.values())
    reason = native_matrix.why_not(gguf.GGMLQuantizationType.Q2_K)
    assert reason == "the C++ kernels have no products for weights of GGUF type 10"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("out_dtype", DTYPES, ids=str)
def test_dtypes(dtype, out_dtype):
    w, _ = packed("Q4_0", 37, 96, bias=torch.randn(37))
    x = torch.randn(5, 96).to(dtype)
    with poisoned():
        (y,) = native_matrix.linear(x, [w], out_dtype)
    (wide,) = native_matrix.linear(x.float(), [w])
    assert torch.equal(y, wide.to(out_dtype))


@pytest.mark.parametrize("t", [0, 1, 2, 3, 5, 17, 70, 257])
def test_several_products_of_one_x(t):
    names = ("Q4_K", "Q6_K", "Q8_0", "Q4_1", "Q4_0")
    ws = [packed(name, n, 256)[0] for name, n in zip(names, (48, 5, 16, 33, 1), strict=True)]
    # Rows apart in memory, and what is between them may be anything.
    x = torch.full((t, 300), float("nan"))[:, :256]
    x[:] = torch.randn(t, 256)
    with poisoned():
        together = native_matrix.linear(x, ws)
    for w, y in zip(ws, together, strict=True):
        assert y.shape == (t, w.n)
        assert torch.equal(y, native_matrix.linear(x.contiguous(), [w])[0])
        assert y.isfinite().all()


def test_biases():
    gate, up, down = (
        packed("Q4_0", 64, 64, s, torch.randn(64, generator=torch.Generator().manual_seed(s)))[0]
        for s in range(3)
    )
    x = torch.randn(3, 64)
    (plain,) = native_matrix.linear(x, [packed("Q4_0", 64, 64, 0)[0]])
    assert torch.equal(native_matrix.linear(x, [gate])[0], plain + gate.bias)
    g, u = native_matrix.linear(x, [gate, up])
    h = torch.nn.functional.silu(g) * u
    (y,) = native_matrix.linear(h, [down])
    with poisoned():
        fused = native_matrix.gated_mlp(x, gate, up, down)
    torch.testing.assert_close(fused, y, rtol=0.02, atol=0.02 * y.abs().max().item())
    assert not torch.allclose(
        fused, native_matrix.gated_mlp(x, *(packed("Q4_0", 64, 64, s)[0] for s in range(3)))
    )


@pytest.mark.parametrize("act", native.ACTS)
def test_every_activation(act):
    gate, up = (packed("Q8_0", 64, 64, s)[0] for s in (0, 1))
    down, _ = packed("Q8_0", 16, 64, 2)
    x = torch.randn(9, 64)
    g, u = native_matrix.linear(x, [gate, up])
    h = torch.empty_like(g)
    native.NativeBackend().forward(g, u, act, h)
    (y,) = native_matrix.linear(h, [down])
    assert torch.equal(native_matrix.gated_mlp(x, gate, up, down, act), y)


def test_nothing_beside_the_result_is_written():
    w, _ = packed("Q8_0", 37, 64)
    x, frame = torch.randn(5, 64), torch.full((7, 45), -77.0)
    inner = frame[1:6, 4:41]
    view = (inner.data_ptr(), inner.stride(0), 0)
    matrix = (w.type, w.data.data_ptr(), w.n, w.k)
    native.extension().linear([(matrix, 0, view)], (x.data_ptr(), 64, 0), 5, 2)
    assert torch.equal(inner, native_matrix.linear(x, [w])[0])
    inner.fill_(-77.0)
    assert (frame == -77.0).all()


def test_what_is_refused():
    w, _ = packed("Q8_0", 32, 64)
    raw = raw_blocks("Q8_0", 32, 64)
    type_ = TYPES["Q8_0"]
    for call, said in (
        (lambda: native_matrix.pack(type_, raw, 32, 60), "no packed form"),
        (lambda: native_matrix.pack(type_, raw, 31, 64), "2108 contiguous bytes, got 2176"),
        (lambda: native_matrix.linear(torch.randn(2, 32), [w]), "does not fit a matrix"),
        (lambda: native_matrix.linear(torch.randn(64), [w]), "x must be"),
        (lambda: native_matrix.linear(torch.randn(2, 64).double(), [w]), "x must be"),
        (lambda: native_matrix.gated_mlp(torch.randn(2, 64), w, w, w), "do not fit together"),
        (lambda: native_matrix.unpack(w, torch.tensor([32])), "no such row"),
        (lambda: native_matrix.unpack(w, torch.tensor([-1])), "no such row"),
    ):
        with pytest.raises(ValueError, match=said):
            call()


def test_the_binding_refuses_what_it_cannot_address():
    module = native.extension()
    w, _ = packed("Q8_0", 16, 32)
    good, rows = (8, w.data.data_ptr(), 16, 32), (w.data.data_ptr(), 32, 0)
    for call, said in (
        (
            lambda: module.linear([((10, 64, 1, 256), 0, rows)], rows, 1, 1),
            "no kernels for type 10",
        ),
        (lambda: module.linear([((8, 65, 16, 32), 0, rows)], rows, 1, 1), "not aligned"),
        (lambda: module.linear([((8, 64, 16, 33), 0, rows)], rows, 1, 1), "cannot be packed"),
        (lambda: module.linear([(good, 0, rows)], (0, 0, 3), 1, 1), "unknown dtype"),
        (lambda: module.linear([(good, 0, rows)], rows, -1, 1), "negative number"),
        (lambda: module.linear([(good, 0, rows)], rows, 1, 0), "fewer than one thread"),
        (lambda: module.gated_mlp((good,) * 3, (0, 0, 0), 99, rows, 1, rows, 1), "activation"),
    ):
        with pytest.raises(ValueError, match=said):
            call()
