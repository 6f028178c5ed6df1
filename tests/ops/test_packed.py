"""Products with packed weights against float64 on what the blocks dequantise to."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gguf.quants import quantize
from torch import Tensor

from gateup.errors import UsageError
from gateup.ops import packed
from gateup.ops.packed import PackedWeight, pack

TYPES = ("q4_1", "q8_0", "f16", "bf16", "f32")


def blocks(type_: str, n: int, k: int, seed: int = 0) -> np.ndarray:
    """The bytes of a random matrix [n, k]; k-quants, which gguf cannot make, from random bytes."""
    random = np.random.default_rng(seed)
    values = (random.standard_normal((n, k)) * k**-0.5).astype(np.float32)
    if type_ in ("q4_k", "q6_k"):
        return _random_k(type_, n, k, random)
    kind = gguf.GGMLQuantizationType[type_.upper()]
    return np.ascontiguousarray(quantize(values, kind)).view(np.uint8).reshape(n, -1)


def _random_k(type_: str, n: int, k: int, random: np.random.Generator) -> np.ndarray:
    size, scales = (144, (0, 2)) if type_ == "q4_k" else (210, (208,))
    raw = random.integers(0, 256, (n * k // 256, size), dtype=np.uint8)
    for at in scales:  # f16 scales near 0.001: numbers as a model has them
        raw[:, at : at + 2] = np.array([0.001], np.float16).view(np.uint8)
    return raw.reshape(n, -1)


def made(type_: str, n: int, k: int, seed: int = 0) -> tuple[PackedWeight, Tensor]:
    """(packed, the same in float64)"""
    w = pack(type_, blocks(type_, n, k, seed), n, k)
    return w, packed.dequantise(w).double()


def error(y: Tensor, expected: Tensor) -> float:
    return float((y.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("type_", [*TYPES, "q4_k", "q6_k"])
def test_linear(type_: str) -> None:
    """In bf16 the error is that of rounding the result once (2^-9 at worst)."""
    w, exact = made(type_, 48, 256)
    bias = torch.randn(48)
    for dtype, most in ((torch.float32, 1e-6), (torch.bfloat16, 2.5e-3), (torch.float64, 1e-12)):
        if w.native and dtype != torch.float64:
            most = 2e-2  # x is quantised to 8 bits
        x = torch.randn(3, 5, 256, dtype=dtype)
        y = packed.linear(x, w, bias)
        assert y.dtype == dtype
        assert y.shape == (3, 5, 48)
        assert error(y, F.linear(x.double(), exact, bias.double())) < most


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    w = pack("q4_1", blocks("q4_1", 50, 64), 50, 64, native=False)
    x, rows = torch.randn(4, 64), torch.tensor([49, 0, 7])
    whole = packed.linear(x, w), packed.dequantise(w), packed.dequantise(w, rows)
    monkeypatch.setattr("gateup.ops.packed_kernel.CHUNK", 7 * 64)
    cut = packed.linear(x, w), packed.dequantise(w), packed.dequantise(w, rows)
    torch.testing.assert_close(cut[0], whole[0], rtol=1e-6, atol=1e-6)
    assert torch.equal(cut[1], whole[1])
    assert torch.equal(cut[2], whole[2])
    assert torch.equal(whole[2], whole[1][rows])


def test_gradients_in_float64() -> None:
    """Of x and bias, first and second; and of several products of one x."""
    a, _ = made("q4_1", 5, 32)
    b, _ = made("f16", 3, 32, 1)
    x = torch.randn(2, 3, 32, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(5, dtype=torch.float64, requires_grad=True)

    def both(x: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        return tuple(packed.linears(x, (a, b), (bias, None)))

    assert torch.autograd.gradcheck(both, (x, bias))
    assert torch.autograd.gradgradcheck(both, (x, bias))


def test_a_gradient_nobody_sent() -> None:
    a, exact = made("q8_0", 5, 32)
    b, _ = made("f32", 3, 32, 1)
    x = torch.randn(2, 32, requires_grad=True)
    packed.linears(x, (a, b))[0].sum().backward()
    assert x.grad is not None
    assert error(x.grad, exact.sum(0).expand(2, 32)) < 1e-6


def test_gated_mlp() -> None:
    gate, g = made("q4_1", 96, 64)
    up, u = made("q8_0", 96, 64, 1)
    down, d = made("f16", 64, 96, 2)
    x = torch.randn(7, 64)
    for act, formula in (("silu", F.silu), ("gelu_tanh", lambda t: F.gelu(t, approximate="tanh"))):
        pre = F.linear(x.double(), g)
        expected = F.linear(formula(pre) * F.linear(x.double(), u), d)
        y = packed.gated_mlp(x, gate, up, down, act)
        assert error(y, expected) < (2e-2 if gate.native else 1e-5)
        assert error(packed.gated_mlp(x, up, gate, down, act), expected) > 0.1
    z = x.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda t: packed.gated_mlp(t, gate, up, down), z)


def test_autocast_as_torch() -> None:
    w, exact = made("q8_0", 8, 32)
    x = torch.randn(4, 32, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = packed.linear(x, w)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32
    assert error(x.grad, exact.sum(0).expand(4, 32)) < 5e-3


def test_custom_ops() -> None:
    w = pack("q4_1", blocks("q4_1", 6, 32), 6, 32)
    fields = (w.type, w.n, w.k, w.native)
    x, bias = torch.randn(2, 32, requires_grad=True), torch.randn(6, requires_grad=True)
    ops = torch.ops.gateup
    torch.library.opcheck(ops.packed_linear, (x, w.data, bias, *fields))
    torch.library.opcheck(ops.packed_rows, (w.data, torch.tensor([1, 5]), *fields, torch.float32))
    down = pack("q4_1", blocks("q4_1", 8, 32), 8, 32)
    gate = pack("q4_1", blocks("q4_1", 32, 32), 32, 32)
    data = (gate.data, gate.data, down.data)
    rest = ("q4_1 q4_1 q4_1", [32, 32, 8], [gate.native] * 2 + [down.native], "silu")
    torch.library.opcheck(ops.packed_gated_mlp, (x.detach(), *data, *rest))


def test_compiles_in_one_graph() -> None:
    w, _ = made("q8_0", 32, 32)

    def run(x: Tensor) -> Tensor:
        return packed.gated_mlp(packed.linear(x, w), w, w, w) + packed.dequantise(w).sum()

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    x = torch.randn(3, 32)
    assert torch.equal(compiled(x), run(x))
    z, again = (x.clone().requires_grad_() for _ in range(2))
    run(z).sum().backward()
    compiled(again).sum().backward()
    torch.testing.assert_close(again.grad, z.grad)


def test_native_holds_the_same_numbers() -> None:
    """Rows come out of the kernels' order with the bits of the file's; products differ by the
    rounding of x to 8 bits alone, whatever is multiplied beside it."""
    raw = blocks("q4_1", 48, 64)
    ours = pack("q4_1", raw, 48, 64)
    if not ours.native:
        pytest.skip("the C++ kernels were not built")
    plain = pack("q4_1", raw, 48, 64, native=False)
    assert (ours.held, plain.held) == ("native", "raw")
    assert torch.equal(packed.dequantise(ours), packed.dequantise(plain))
    rows = torch.tensor([[47, 0], [3, 3]])
    assert torch.equal(packed.dequantise(ours, rows), packed.dequantise(plain, rows))
    for w in (ours, plain):
        for wrong in (-1, 48):
            with pytest.raises(IndexError, match=f"row {wrong} of a matrix with 48 rows"):
                packed.dequantise(w, torch.tensor([0, wrong]))
    x = torch.randn(5, 64)
    mixed = packed.linears(x, (ours, plain))
    assert torch.equal(mixed[0], packed.linear(x, ours))
    assert 0 < error(mixed[0], mixed[1].double()) < 2e-2
    # Gradients have no rounding of their own.
    grads = []
    for w in (ours, plain):
        z = x.clone().requires_grad_()
        packed.linear(z, w).sum().backward()
        grads.append(z.grad)
    assert torch.equal(*grads)


def test_read_only_memory_is_shared() -> None:
    """A locked view of memory that may be written is used as it is, one of bytes is copied."""
    owner = np.zeros(34 * 4, np.uint8)
    locked = owner.view()
    locked.flags.writeable = False
    w = pack("q8_0", locked, 4, 32, native=False)
    assert w.data.data_ptr() == owner.ctypes.data
    assert w.held == "raw"
    assert packed.nbytes(w) == 136
    assert packed.nbytes(pack("q8_0", np.frombuffer(bytes(136), np.uint8), 4, 32)) >= 136


@pytest.mark.parametrize(
    ("type_", "size", "shape", "message"),
    [
        ("q9_9", 34, (1, 32), "storage format 'q9_9' is not known"),
        ("q8_k", 292, (1, 256), "weights of type q8_k cannot be read"),
        ("q8_0", 34, (1, 33), "a row of 33 is not whole blocks of q8_0"),
        ("q8_0", 33, (1, 32), "a q8_0 matrix of shape [1, 32] came with 33 bytes"),
        ("q8_0", 0, (0, 32), "a q8_0 matrix of shape [0, 32] came with 0 bytes"),
    ],
)
def test_bad_blocks(type_: str, size: int, shape: tuple[int, int], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        pack(type_, np.zeros(size, np.uint8), *shape)
    assert caught.value.what == message


def test_bad_arguments() -> None:
    w, _ = made("q8_0", 4, 32)
    with pytest.raises(UsageError, match=r"x has shape \(2, 31\)"):
        packed.linear(torch.randn(2, 31), w)
    with pytest.raises(UsageError, match=r"the bias of w has shape \(5,\)"):
        packed.linear(torch.randn(2, 32), w, torch.randn(5))
    with pytest.raises(UsageError, match="x is int64"):
        packed.linear(torch.ones(2, 32, dtype=torch.int64), w)
    with pytest.raises(UsageError, match="gate has 4 outputs, up 4, and down takes 32"):
        packed.gated_mlp(torch.randn(2, 32), w, w, w)
    with pytest.raises(UsageError, match="rows are"):
        packed.dequantise(w, torch.ones(2))
    with pytest.raises(UsageError, match=r"the bytes are of type float32"):
        pack("f32", np.zeros((4, 4), np.float32), 4, 4)
