"""The C++ kernels on each instruction set: accuracy, special values, memory, invariance, choice."""

from __future__ import annotations

import importlib
import shutil
from types import SimpleNamespace

import pytest
import torch

from gateup.errors import UsageError
from gateup.ops import dispatch, native, reference
from gateup.ops.layouts import FUSED, halves
from tests.numerics import assert_as_good, poisoned

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BACKEND = native.NativeBackend()
SENTINEL = -77.0


@pytest.fixture(scope="module")
def module():
    """gateup._native. Only a machine that cannot build it may do without."""
    found = native.status()
    if not found.available:
        if any(map(shutil.which, ("c++", "g++", "clang++"))):
            pytest.fail(f"there is a C++ compiler, but: {found}")
        pytest.skip(str(found))
    loaded = importlib.import_module("gateup._native")
    was = loaded.isa()
    yield loaded
    loaded.use_isa(was)


@pytest.fixture(params=("generic", "avx2", "avx512vnni"))
def isa(request, module):
    """Each instruction set this processor has."""
    if request.param not in module.isas():
        pytest.skip(f"not on this processor or in this build: {request.param}")
    was = module.isa()
    module.use_isa(request.param)
    yield request.param
    module.use_isa(was)


def inputs(seed, shape=(37, 301), dtype=torch.float32):
    """grad, gate, up; the width is neither a multiple of a block nor of a vector."""
    generator = torch.Generator().manual_seed(seed)
    # 4: gpt-oss's clamp at 7 is met on both sides.
    return [(torch.randn(shape, generator=generator) * 4).to(dtype) for _ in range(3)]


def forward(gate, up, act, dtype=None):
    out = torch.empty(gate.shape, dtype=dtype or gate.dtype)
    BACKEND.forward(gate, up, act, out)
    return out


def backward(grad, gate, up, act, dtype=None):
    dtype = dtype or gate.dtype
    outs = [torch.empty(gate.shape, dtype=dtype) for _ in range(3)]
    BACKEND.backward(grad, gate, up, act, *outs)
    return outs


def plain(grad, gate, up, act, dtype=None):
    """d_gate, d_up and the product by torch and autograd in the inputs' dtype."""
    gate, up = (t.detach().clone().requires_grad_() for t in (gate, up))
    product = reference.act_and_mul(gate, up, act)
    grads = torch.autograd.grad(product, (gate, up), grad)
    return [t.detach().to(dtype or gate.dtype) for t in (*grads, product)]


def truth(grad, gate, up, act):
    return plain(grad.double(), gate.double(), up.double(), act)


def hold(act, dtype, out=None, ours=backward):
    """The rule of accuracy for d_gate, d_up and the product."""
    assert_as_good(
        lambda seed: ours(*inputs(seed, dtype=dtype), act, out),
        lambda seed: plain(*inputs(seed, dtype=dtype), act, out),
        lambda seed: truth(*inputs(seed, dtype=dtype), act),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("act", native.ACTS)
def test_as_accurate_as_torch(isa, act, dtype):
    hold(act, dtype)


@pytest.mark.parametrize("out", DTYPES[1:], ids=str)
@pytest.mark.parametrize("act", native.ACTS)
def test_float32_in_low_precision_out(isa, act, out):
    hold(act, torch.float32, out)


@pytest.mark.parametrize("act", native.ACTS)
def test_forward_is_backwards_product(isa, act):
    for dtype in DTYPES:
        grad, gate, up = inputs(3, dtype=dtype)
        assert torch.equal(forward(gate, up, act), backward(grad, gate, up, act)[2])


def wrong_activation(grad, gate, up, act, out):
    return backward(grad, gate, up, "relu" if act == "silu" else "silu", out)


def swapped(grad, gate, up, act, out):
    d_up, d_gate, product = backward(grad, up, gate, act, out)
    return d_gate, d_up, product


def zeros(grad, gate, up, act, out):
    return [torch.zeros(gate.shape, dtype=out or gate.dtype) for _ in range(3)]


def without_gradient_of_act(grad, gate, up, act, out):
    d_gate, d_up, product = backward(grad, gate, up, act, out)
    return (grad * up).to(d_gate.dtype), d_up, product


def last_column_unwritten(grad, gate, up, act, out):
    """What a kernel that forgets a remainder leaves."""
    outs = [torch.empty(gate.shape, dtype=out or gate.dtype) for _ in range(3)]
    BACKEND.backward(grad[:, :-1], gate[:, :-1], up[:, :-1], act, *(t[:, :-1] for t in outs))
    return outs


MUTANTS = (wrong_activation, swapped, zeros, without_gradient_of_act, last_column_unwritten)


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_rule_notices(module, mutant, dtype):
    with pytest.raises(AssertionError):
        hold("silu", dtype, ours=mutant)


# ---- elementary functions ---------------------------------------------------------------------


def ulps(got, exact):
    """Error in units in the last place of float32, subnormal results included."""
    exponent = torch.floor(torch.log2(exact.abs().clamp(min=2.0**-126)))
    return ((got.double() - exact).abs() / torch.exp2(exponent - 23)).max().item()


def test_exp_is_within_one_ulp(isa):
    x = -torch.cat(
        [
            torch.logspace(-30, 2.02, 200_001, dtype=torch.float64).float(),
            torch.linspace(0, 104, 1_000_003, dtype=torch.float64).float(),
        ]
    )
    assert ulps(native.exp(x), torch.exp(x.double())) <= 1.0


def test_exp_at_the_ends(isa):
    x = torch.tensor([0.0, -0.0, -1e-45, -104.5, -1e38, -torch.inf, torch.nan])
    got = native.exp(x)
    assert got[:6].tolist() == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert got[6].isnan()


# The worst over 1,000,003 gates in [-30, 30], rounded up; gelu's tanh argument is a cubic that
# is rounded before it is exponentiated, which costs its tail digits.
@pytest.mark.parametrize(
    ("act", "bound"),
    [("silu", 4.0), ("sigmoid", 3.0), ("gelu", 10.0), ("gelu_tanh", 160.0), ("gpt_oss", 48.0)],
)
def test_activation_in_ulps(isa, act, bound):
    gate = torch.linspace(-30, 30, 1_000_003, dtype=torch.float64).float().view(1, -1)
    gate = gate.clamp(min=-9) if act == "gelu_tanh" else gate
    up = torch.zeros_like(gate) if act == "gpt_oss" else torch.ones_like(gate)
    exact = gate.double()
    if act == "gelu":
        # torch's own 1 + erf cancels even in float64.
        exact = exact * 0.5 * torch.special.erfc(-exact / 2**0.5)
    elif act == "gelu_tanh":
        inner = (2 / torch.pi) ** 0.5 * (exact + 0.044715 * exact**3)
        exact = exact * torch.sigmoid(2 * inner)
    else:
        exact = reference.act_and_mul(exact, up.double(), act)
    assert ulps(forward(gate, up, act), exact) <= bound


# Of 65,536 gates torch rounds 17 wrongly in bf16. One in half precision lies too near a tie.
@pytest.mark.parametrize(("dtype", "wrong"), [(torch.bfloat16, 0), (torch.float16, 1)], ids=str)
def test_silu_over_every_low_precision_gate(isa, dtype, wrong):
    gate = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype).view(1, -1)
    got = forward(gate, torch.ones_like(gate), "silu")
    exact = torch.nn.functional.silu(gate.double()).to(dtype)
    same = (got == exact) | (got.isnan() & exact.isnan())
    assert (~same).sum() <= wrong


SPECIAL = [0.0, -0.0, 1e-45, -1e-45, 1e-39, -1e-39, 1e-20, 7.0, -7.0, 88.0, -88.0, 104.0, -104.0]
HUGE = [1e4, -1e4, 1e18, -1e18, torch.inf, -torch.inf, torch.nan]


@pytest.mark.parametrize("act", native.ACTS)
def test_special_values_are_float64s(isa, act):
    values = torch.tensor(SPECIAL + HUGE)
    # At -7 the 1 + tanh of torch's GELU has lost 14 of float64's 16 digits.
    rtol = 1e-2 if act == "gelu_tanh" else 1e-5
    gate, up = (t.reshape(1, -1) for t in torch.meshgrid(values, values, indexing="ij"))
    grad = torch.ones_like(gate)
    product_ours = forward(gate, up, act)
    for name, ours, exact in zip(
        ("d_gate", "d_up", "product", "forward"),
        (*backward(grad, gate, up, act), product_ours),
        (*(t := truth(grad, gate, up, act)), t[2]),
        strict=True,
    ):
        wide = exact.float()
        # float32 can overflow, and 0·inf can be NaN, on the way to what float64 still holds.
        judged = torch.isfinite(exact) & (exact.abs() < 1e37)
        assert torch.isfinite(ours[judged]).all(), name
        # Where it is that small, a factor was subnormal, with few digits of its own.
        torch.testing.assert_close(ours[judged], wide[judged], rtol=rtol, atol=1e-7, msg=name)
        assert not torch.isfinite(ours[exact.isnan()]).any(), name
    nan = torch.full((1, 5), torch.nan)
    ones = torch.ones(1, 5)
    assert forward(nan, ones, act).isnan().all()
    assert forward(ones, nan, act).isnan().all()


# ---- memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [0, 1, 2, 15, 16, 17, 255, 256, 257, 511, 513])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_every_size_writes_its_own_elements_only(isa, rows, width):
    for dtype in DTYPES:
        grad, gate, up = inputs(0, (rows, width), dtype)
        frames = [torch.full((rows + 2, width + 4), SENTINEL, dtype=dtype) for _ in range(3)]
        inner = [f[1 : rows + 1, 2 : width + 2] for f in frames]
        BACKEND.backward(grad, gate, up, "silu", *inner)
        for frame, view, exact in zip(frames, inner, plain(grad, gate, up, "silu"), strict=True):
            torch.testing.assert_close(view, exact)
            view.fill_(SENTINEL)
            assert (frame == SENTINEL).all(), "an element outside was written"


@pytest.mark.parametrize("layout", FUSED)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fused_layouts(isa, layout, dtype):
    grad, gate, up = inputs(1, dtype=dtype)
    fused, d_fused = (torch.full((37, 602), SENTINEL, dtype=dtype) for _ in range(2))
    for half, values in zip(halves(fused, layout), (gate, up), strict=True):
        half.copy_(values)
    d_gate, d_up = halves(d_fused, layout)
    product = torch.empty_like(gate)
    BACKEND.backward(grad, *halves(fused, layout), "gelu", d_gate, d_up, product)
    for ours, split in zip((d_gate, d_up, product), backward(grad, gate, up, "gelu"), strict=True):
        assert torch.equal(ours, split)
    assert torch.equal(forward(*halves(fused, layout), "gelu"), product)


def test_any_strides(isa):
    grad, gate, up = (t.repeat_interleave(3, dim=1)[:, ::3] for t in inputs(2))
    assert gate.stride(1) == 3
    outs = [torch.empty(37, 903)[:, ::3] for _ in range(3)]
    BACKEND.backward(grad, gate, up, "silu", *outs)
    dense = backward(*inputs(2), "silu")
    assert all(map(torch.equal, outs, dense))
    row = up[:1].expand_as(gate)
    assert torch.equal(forward(gate, row, "silu"), forward(gate, row.contiguous(), "silu"))
    assert torch.equal(
        forward(gate.contiguous().t(), up.contiguous().t(), "silu"), dense[2].t().contiguous()
    )


@pytest.mark.parametrize("layout", [None, *FUSED])
def test_outputs_over_inputs(isa, layout):
    for dtype in DTYPES:
        grad, gate, up = inputs(4, dtype=dtype)
        expected = backward(grad, gate, up, "silu")
        if layout is not None:
            fused = torch.empty(37, 602, dtype=dtype)
            views = halves(fused, layout)
            views[0].copy_(gate)
            views[1].copy_(up)
            gate, up = views
        BACKEND.backward(grad, gate, up, "silu", gate, up, grad)
        assert all(map(torch.equal, (gate, up, grad), expected))


def test_without_product(isa):
    grad, gate, up = inputs(5)
    outs = [torch.empty_like(gate) for _ in range(2)]
    BACKEND.backward(grad, gate, up, "silu", *outs, None)
    assert all(map(torch.equal, outs, backward(grad, gate, up, "silu")[:2]))


# ---- invariance: only the geometry changes, so not a bit may ------------------------------------


@pytest.mark.parametrize("act", native.ACTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_does_not_depend_on_its_batch(isa, act, dtype):
    grad, gate, up = inputs(6, (23, 777), dtype)
    whole = backward(grad, gate, up, act)
    for rows in (slice(0, 1), slice(5, 6), slice(3, 20)):
        part = backward(grad[rows], gate[rows], up[rows], act)
        assert all(torch.equal(p, w[rows]) for p, w in zip(part, whole, strict=True))
    for columns in (slice(1, 2), slice(13, 300), slice(100, 777)):
        part = backward(grad[:, columns], gate[:, columns], up[:, columns], act)
        assert all(torch.equal(p, w[:, columns]) for p, w in zip(part, whole, strict=True))


def test_threads_change_nothing(isa, module, monkeypatch):
    grad, gate, up = inputs(7, (64, 2049))
    one = backward(grad, gate, up, "silu")
    address = native._torch_openmp()
    try:
        for openmp in (address, 0):
            module.use_openmp(openmp)
            assert module.team() == ("openmp" if openmp else "std::thread")
            for threads in (2, 3, 7):
                monkeypatch.setattr(native, "_threads", lambda tensor, n=threads: n)
                many = backward(grad, gate, up, "silu")
                assert all(map(torch.equal, many, one))
    finally:
        module.use_openmp(address)


def test_threads_are_torchs_and_only_where_they_pay(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    sizes = (0, 1, native.GRAIN, native.GRAIN + 1, 100 * native.GRAIN)
    assert [native._threads(torch.empty(1, n)) for n in sizes] == [1, 1, 1, 2, 4]


# ---- choice and absence -----------------------------------------------------------------------


def test_dispatch_prefers_it_on_the_cpu(module):
    for dtype in DTYPES:
        tensor = torch.empty(1, 1, dtype=dtype)
        assert dispatch.choose("silu", tensor, tensor).name == "native"
    double = torch.empty(1, 1, dtype=torch.float64)
    assert dispatch.choose("silu", double, double).name == "torch"
    with dispatch.using("native"), pytest.raises(UsageError, match=r"not torch\.float64"):
        dispatch.choose("silu", double, double)


def test_agrees_with_the_torch_backend_to_one_rounding(module):
    grad, gate, up = inputs(8, dtype=torch.bfloat16)
    with poisoned():
        outs = [torch.empty_like(gate) for _ in range(3)]
        dispatch.TorchBackend().backward(grad, gate, up, "silu", *outs)
    torch.testing.assert_close(backward(grad, gate, up, "silu"), outs)


def test_status_says_what_runs(module):
    found = native.status()
    assert found.isa in module.isas()
    assert str(found) == found.text
    assert found.text.startswith(f"C++ kernels for {found.isa} on ")


@pytest.fixture
def reloaded():
    """Forget what was loaded, before and after."""
    native.load.cache_clear()
    yield
    native.load.cache_clear()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("No module named 'gateup._native'"), "were not built"),
        (ImportError("libstdc++.so.6: version too old"), "do not load: libstdc++.so.6"),
    ],
)
def test_absent(monkeypatch, reloaded, error, said):
    def fail(name):
        assert name == "gateup._native"
        raise error

    monkeypatch.setattr(native.importlib, "import_module", fail)
    found = native.status()
    assert not found.available
    assert said in found.text
    assert "runs on plain torch instead" in found.text
    assert "Remedy: install a C++17 compiler" in found.text
    gate, up = torch.randn(3, 5), torch.randn(3, 5)
    out = torch.empty(3, 5)
    chosen = dispatch.choose("silu", gate, out)
    assert chosen.name == "torch"
    chosen.forward(gate, up, "silu", out)
    torch.testing.assert_close(out, reference.act_and_mul(gate, up))
    with dispatch.using("native"), pytest.raises(UsageError, match="cannot compute 'silu' here"):
        dispatch.choose("silu", gate, out)


def test_another_builds_extension_is_refused(monkeypatch, reloaded):
    stale = SimpleNamespace(INTERFACE=native.INTERFACE + 1)
    monkeypatch.setattr(native.importlib, "import_module", lambda name: stale)
    assert "of another build (interface 3, not 2)" in native.status().text


def test_an_instruction_set_that_is_not_there(monkeypatch, reloaded, module):
    def isa():
        module.use_isa("nonsense")  # raises what GATEUP_ISA=nonsense does

    fake = SimpleNamespace(INTERFACE=native.INTERFACE, isa=isa)
    monkeypatch.setattr(native.importlib, "import_module", lambda name: fake)
    with pytest.raises(UsageError) as raised:
        native.load()
    assert "no instruction set nonsense; it has " in str(raised.value)
    assert "where: environment variable GATEUP_ISA" in str(raised.value)


def test_the_binding_refuses_what_it_cannot_address(module):
    one = (0, 0, 1, 0)
    for call, said in (
        (lambda: module.forward(99, 0, 0, one, one, one, 1), "unknown activation"),
        (lambda: module.forward(0, -1, 0, one, one, one, 1), "negative size"),
        (lambda: module.forward(0, 0, 0, (0, 0, 1, 9), one, one, 1), "unknown dtype"),
        (lambda: module.forward(0, 0, 0, (0, 0, 3, 0), one, one, 1), "step"),
        (lambda: module.forward(0, 0, 0, (0, 0, 2, 0), one, one, 1), "differ"),
        (lambda: module.forward(0, 0, 0, (0, 0, 2, 0), (8, 0, 2, 0), one, 1), "neighbours"),
        (lambda: module.use_isa("mmx"), "mmx"),
    ):
        with pytest.raises(ValueError, match=said):
            call()
