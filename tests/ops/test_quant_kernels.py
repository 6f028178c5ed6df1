"""The quantised kernels on every instruction set: exact, as good as ggml, the same bits always."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from gateup.ops import native, native_matrix
from tests.numerics import errors
from tests.ops.quant_inputs import TYPES, block_k, ggml_linear, packed, quantised, raw_blocks


@pytest.fixture(params=("generic", "avx2", "avx512vnni", "amx"))
def isa(request):
    """Each instruction set this processor has."""
    module, why = native.load()
    if module is None:
        pytest.skip(why)
    if request.param not in module.isas():
        pytest.skip(f"not on this processor or in this build: {request.param}")
    was = module.isa()
    module.use_isa(request.param)
    yield request.param
    module.use_isa(was)


def inputs(t, k, seed=0):
    """Rows of very different size, as activations are."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(t, k, generator=generator)
    return x * torch.logspace(-3, 2, t).unsqueeze(1)


def width(name):
    """An odd number of blocks, more than are unpacked at a time."""
    return 768 if block_k(name) == 256 else 32 * 11


@pytest.mark.parametrize("name", TYPES)
def test_a_product_is_exact_on_the_quantised_activations(isa, name):
    w, weights = packed(name, 37, width(name))
    for t in (1, 2, 3, 5, 17, 70):
        x = inputs(t, w.k, t)
        truth = quantised(x, block_k(name)) @ weights.double().T
        # What rounding to float32 may do: a few units in the last place of the terms' sum.
        size = quantised(x, block_k(name)).abs() @ weights.double().abs().T
        (y,) = native_matrix.linear(x, [w])
        assert ((y.double() - truth).abs() <= 8 * 2.0**-24 * size).all()


@pytest.mark.parametrize("name", TYPES)
def test_error_is_no_larger_than_ggmls(isa, name):
    ours, theirs, truths = [], [], []
    for seed in range(8):
        k = width(name)
        w, weights = packed(name, 48, k, seed)
        x = torch.randn(9, k, generator=torch.Generator().manual_seed(seed))
        truths.append(x.double() @ weights.double().T)
        ours.append(native_matrix.linear(x, [w])[0])
        theirs.append(ggml_linear(x, name, weights, raw_blocks(name, 48, k, seed)))
    assert errors(ours, truths)[0] <= 1.05 * errors(theirs, truths)[0]
    for wrong in (torch.zeros_like, lambda y: -y, lambda y: y * 1.02):
        assert errors([wrong(y) for y in ours], truths)[0] > 1.05 * errors(theirs, truths)[0]


def mlp(x, gate, up, down, act=F.silu):
    return (act(x @ gate.double().T) * (x @ up.double().T)) @ down.double().T


def ggml_mlp(x, names, weights, raws):
    g, u = (ggml_linear(x, names[i], weights[i], raws[i]) for i in (0, 1))
    return ggml_linear(F.silu(g) * u, names[2], weights[2], raws[2])


@pytest.mark.parametrize(
    "names",
    [("Q4_0", "Q4_0", "Q4_1"), ("Q4_K", "Q4_K", "Q6_K"), ("Q8_0", "Q5_K", "IQ4_NL"),
     ("Q5_0", "Q5_1", "Q5_K")],
    ids="-".join,
)  # fmt: skip
def test_the_mlps_error_is_no_larger_than_ggmls(isa, names):
    hidden, inner, out = 256, 768, 37
    shapes = ((inner, hidden), (inner, hidden), (out, inner))
    ours, theirs, truths, relu, swapped = [], [], [], [], []
    for seed in range(4):
        made = [
            packed(name, *s, seed + i)
            for i, (name, s) in enumerate(zip(names, shapes, strict=True))
        ]
        raws = [
            raw_blocks(name, *s, seed + i)
            for i, (name, s) in enumerate(zip(names, shapes, strict=True))
        ]
        matrices, weights = zip(*made, strict=True)
        # Gates around 1, where activations differ most.
        x = torch.randn(17, hidden, generator=torch.Generator().manual_seed(seed)) / 8
        truths.append(mlp(x.double(), *weights))
        ours.append(native_matrix.gated_mlp(x, *matrices))
        theirs.append(ggml_mlp(x.double(), names, weights, raws))
        relu.append(native_matrix.gated_mlp(x, *matrices, act="relu"))
        swapped.append(native_matrix.gated_mlp(x, matrices[1], matrices[0], matrices[2]))
    bound = 1.05 * errors(theirs, truths)[0]
    assert errors(ours, truths)[0] <= bound
    for wrong in (relu, swapped, [torch.zeros_like(y) for y in ours]):
        assert errors(wrong, truths)[0] > bound


# ---- only the geometry changes, so not a bit may -------------------------------------------------


@pytest.mark.parametrize("name", TYPES)
def test_a_rows_bits_depend_on_nothing_else(isa, name):
    k = width(name)
    w, _ = packed(name, 37, k)
    gate, up = (packed(name, k, k, seed)[0] for seed in (1, 2))
    x = torch.randn(300, k)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        (whole,), whole_mlp = native_matrix.linear(x, [w]), native_matrix.gated_mlp(x, gate, up, w)
        for part in (slice(0, 1), slice(3, 5), slice(7, 10), slice(90, 97), slice(60, 130)):
            torch.set_num_threads(2)
            assert torch.equal(native_matrix.linear(x[part], [w])[0], whole[part])
            assert torch.equal(native_matrix.gated_mlp(x[part], gate, up, w), whole_mlp[part])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", TYPES)
def test_vnni_and_amx_give_the_same_bits(name):
    module, _ = native.load()
    if module is None or "amx" not in module.isas():
        pytest.skip("no AMX on this processor or in this build")
    w, _ = packed(name, 37, width(name))
    x, was = inputs(40, w.k), module.isa()
    try:
        for t in (1, 3, 7, 40):
            module.use_isa("avx512vnni")
            (vnni,) = native_matrix.linear(x[:t], [w])
            module.use_isa("amx")
            assert torch.equal(native_matrix.linear(x[:t], [w])[0], vnni)
    finally:
        module.use_isa(was)


# ---- values out of the ordinary ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Q8_0", "Q4_1", "Q4_K", "Q6_K"])
def test_an_infinity_or_nan_reaches_its_row_alone(isa, name):
    w, _ = packed(name, 37, width(name))
    x = inputs(20, w.k)
    (plain,) = native_matrix.linear(x, [w])
    for value in (float("inf"), float("-inf"), float("nan")):
        bad = x.clone()
        bad[3, 5] = value
        (y,) = native_matrix.linear(bad, [w])
        assert y[3].isnan().all()
        assert torch.equal(y[:3], plain[:3])
        assert torch.equal(y[4:], plain[4:])


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K"])
def test_extremes_of_activations(isa, name):
    w, weights = packed(name, 16, width(name))
    x = torch.zeros(4, w.k)
    x[1] = 1e-38  # its inverse would overflow: counts as zero
    x[2] = 1e30
    x[3, 0] = 1e36
    (y,) = native_matrix.linear(x, [w])
    assert (y[:2] == 0).all()
    truth, size = (quantised(x, block_k(name)) @ m.double().T for m in (weights, weights.abs()))
    assert ((y.double() - truth).abs() <= 8 * 2.0**-24 * size)[2:].all()


def test_a_nan_scale_reaches_its_column_alone(isa):
    raw = raw_blocks("Q8_0", 20, 64)
    raw[7, :2] = 255
    data = native_matrix.pack(TYPES["Q8_0"], raw, 20, 64)
    w = native_matrix.Packed(8, data, 20, 64)
    (y,) = native_matrix.linear(torch.randn(3, 64), [w])
    assert y[:, 7].isnan().all()
    assert y.isnan().sum() == 3


@pytest.mark.parametrize("name", TYPES)
def test_two_terms_are_exact_to_16_bits_and_the_same_whatever_the_batch(isa, name):
    """Error against the unquantised x: a 254th of one term's at most, beside float32's own."""
    w, weights = packed(name, 37, width(name))
    two = replace(w, terms=2)
    for t in (1, 2, 3, 9, 70, 300):
        x = inputs(t, w.k, t)
        truth = x.double() @ weights.double().T
        size = x.double().abs() @ weights.double().abs().T
        (one,), (y,) = native_matrix.linear(x, [w]), native_matrix.linear(x, [two])
        # A term's step is 1/127 of a block's largest; its half remains, of which the next term
        # takes all but half a step of a step: |x - x'| <= largest / (2·127)² elementwise.
        blocks = x.reshape(t, -1, block_k(name))
        largest = blocks.abs().amax(-1, keepdim=True).expand_as(blocks).reshape(x.shape).double()
        left = largest / (2 * 127) ** 2 @ weights.double().abs().T
        assert ((y.double() - truth).abs() <= 1.01 * left + 8 * 2.0**-24 * size).all()
        assert (one.double() - truth).norm() > 50 * (y.double() - truth).norm()
        assert torch.equal(native_matrix.linear(x[-1:], [two])[0], y[-1:])


def test_a_gated_mlp_of_two_terms(isa):
    matrices = [
        packed("Q4_K", n, k, s) for s, (n, k) in enumerate(((512, 256), (512, 256), (40, 512)))
    ]
    gate, up, down = (replace(w, terms=2) for w, _ in matrices)
    g, u, d = (exact.double() for _, exact in matrices)
    x = torch.randn(37, 256, generator=torch.Generator().manual_seed(1)) / 8
    truth = F.silu(x.double() @ g.T) * (x.double() @ u.T) @ d.T
    y = native_matrix.gated_mlp(x, gate, up, down)
    swapped = native_matrix.gated_mlp(x, up, gate, down)
    one = native_matrix.gated_mlp(x, *(replace(w, terms=1) for w in (gate, up, down)))
    error = (y.double() - truth).norm() / truth.norm()
    assert error < 1e-3 < (one.double() - truth).norm() / truth.norm()
    assert (swapped.double() - truth).norm() > 0.1 * truth.norm()
    assert torch.equal(native_matrix.gated_mlp(x[5:6], gate, up, down), y[5:6])
