"""The Triton kernels: in the interpreter on any machine, compiled for CUDA, and on a GPU if any."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
import torch

from gateup.errors import UsageError
from gateup.ops import dispatch, reference
from gateup.ops import triton as ours
from gateup.ops.layouts import FUSED, halves
from tests.numerics import assert_as_good

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BACKEND = ours.TritonBackend()
SENTINEL = -77.0

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    """Where the kernels run: interpreted on the CPU, compiled on a GPU."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.setenv("TRITON_INTERPRET", "1" if request.param == "cpu" else "0")
    return request.param


def inputs(seed, shape=(3, 157), dtype=torch.float32, device="cpu"):
    """grad, gate, up; the width is neither a block nor a power of two."""
    generator = torch.Generator().manual_seed(seed)
    # 4: gpt-oss's clamp at 7 is met on both sides.
    return [(torch.randn(shape, generator=generator) * 4).to(device, dtype) for _ in range(3)]


def backward(grad, gate, up, act, dtype=None):
    outs = [torch.empty(gate.shape, dtype=dtype or gate.dtype, device=gate.device) for _ in "123"]
    BACKEND.backward(grad, gate, up, act, *outs)
    return outs


def plain(grad, gate, up, act, dtype=None):
    """d_gate, d_up and the product by torch and autograd in the inputs' dtype."""
    gate, up = (t.detach().clone().requires_grad_() for t in (gate, up))
    product = reference.act_and_mul(gate, up, act)
    grads = torch.autograd.grad(product, (gate, up), grad)
    return [t.detach().to(dtype or gate.dtype) for t in (*grads, product)]


def hold(device, act, dtype, out=None, run=backward):
    """The rule of accuracy for d_gate, d_up and the product."""

    def double(seed):
        return [t.double() for t in inputs(seed, dtype=dtype, device=device)]

    assert_as_good(
        lambda seed: run(*inputs(seed, dtype=dtype, device=device), act, out),
        lambda seed: plain(*inputs(seed, dtype=dtype, device=device), act, out),
        lambda seed: plain(*double(seed), act),
    )


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("act", ours.ACTS)
def test_as_accurate_as_torch(device, act, dtype):
    hold(device, act, dtype)


@needs_triton
@pytest.mark.parametrize("out", DTYPES[1:], ids=str)
def test_float32_in_low_precision_out(device, out):
    hold(device, "silu", torch.float32, out)


def wrong_activation(grad, gate, up, act, out):
    return backward(grad, gate, up, "relu", out)


def swapped(grad, gate, up, act, out):
    d_up, d_gate, product = backward(grad, up, gate, act, out)
    return d_gate, d_up, product


def zeros(grad, gate, up, act, out):
    return [torch.zeros_like(gate) for _ in range(3)]


def last_column_unwritten(grad, gate, up, act, out):
    outs = [torch.empty_like(gate) for _ in range(3)]
    BACKEND.backward(grad[:, :-1], gate[:, :-1], up[:, :-1], act, *(t[:, :-1] for t in outs))
    return outs


@needs_triton
@pytest.mark.parametrize("mutant", [wrong_activation, swapped, zeros, last_column_unwritten])
def test_the_rule_notices(device, mutant):
    with pytest.raises(AssertionError):
        hold(device, "silu", torch.bfloat16, run=mutant)


@needs_triton
@pytest.mark.parametrize("act", ours.ACTS)
def test_forward_is_backwards_product(device, act):
    grad, gate, up = inputs(3, dtype=torch.bfloat16, device=device)
    out = torch.empty_like(gate)
    BACKEND.forward(gate, up, act, out)
    assert torch.equal(out, backward(grad, gate, up, act)[2])


@needs_triton
@pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")
@pytest.mark.parametrize("act", ours.ACTS)
def test_special_values(device, act):
    values = torch.tensor([0.0, -0.0, 1e-30, 7.0, -7.0, 88.0, -88.0, 120.0, -120.0, 1e18, -1e18])
    gate, up = (t.reshape(1, -1) for t in torch.meshgrid(values, values, indexing="ij"))
    grad = torch.ones_like(gate)
    exact = plain(grad.double(), gate.double(), up.double(), act)
    got = backward(*(t.to(device) for t in (grad, gate, up)), act)
    for mine, truth in zip(got, exact, strict=True):
        # In GELU's negative tail 1 + erf cancels, in float64 too; up scales what is left.
        allowed = 1e-4 * truth.abs() + 1e-6 * up.double().abs().clamp(min=1)
        held = truth.abs() < 1e37  # by float32
        assert ((mine.cpu().double() - truth).abs() <= allowed)[held].all()
    nan, one = torch.full((1, 3), torch.nan, device=device), torch.ones(1, 3, device=device)
    for pair in ((nan, one), (one, nan)):
        out = torch.empty_like(one)
        BACKEND.forward(*pair, act, out)
        assert out.isnan().all()


@needs_triton
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 1), (3, 2), (2, 1024), (2, 1025)], ids=str)
def test_every_size_writes_its_own_elements_only(device, shape):
    rows, width = shape
    grad, gate, up = inputs(0, shape, device=device)
    frames = [torch.full((rows + 2, width + 4), SENTINEL, device=device) for _ in range(3)]
    inner = [f[1 : rows + 1, 2 : width + 2] for f in frames]
    BACKEND.backward(grad, gate, up, "silu", *inner)
    for frame, view, exact in zip(frames, inner, plain(grad, gate, up, "silu"), strict=True):
        torch.testing.assert_close(view, exact)
        view.fill_(SENTINEL)
        assert (frame == SENTINEL).all(), "an element outside was written"


@needs_triton
@pytest.mark.parametrize("layout", FUSED)
def test_fused_layouts_and_outputs_over_inputs(device, layout):
    grad, gate, up = inputs(1, device=device)
    expected = backward(grad, gate, up, "gelu")
    fused = torch.empty(3, 314, device=device)
    views = halves(fused, layout)
    views[0].copy_(gate)
    views[1].copy_(up)
    BACKEND.backward(grad, *views, "gelu", *views, grad)
    assert all(map(torch.equal, (*views, grad), expected))


@needs_triton
def test_without_product(device):
    grad, gate, up = inputs(5, device=device)
    outs = [torch.empty_like(gate) for _ in range(2)]
    BACKEND.backward(grad, gate, up, "silu", *outs, None)
    assert all(map(torch.equal, outs, backward(grad, gate, up, "silu")[:2]))


@needs_triton
def test_a_row_does_not_depend_on_its_batch(device):
    grad, gate, up = inputs(6, (5, 1100), torch.bfloat16, device)
    whole = backward(grad, gate, up, "silu")
    for rows in (slice(0, 1), slice(2, 5)):
        part = backward(grad[rows], gate[rows], up[rows], "silu")
        assert all(torch.equal(p, w[rows]) for p, w in zip(part, whole, strict=True))


# The interpreter accepts more than the compiler does. Compiling for CUDA needs no GPU.
COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from gateup.ops import triton as ours, triton_kernels as kernels

def compiles(kernel, act, dtype):
    known = {"ACT": act, "BLOCK": 1024, "PRODUCT": True}
    constants = {n: known[n] for n in kernel.arg_names if n in known}
    number = lambda n: n == "columns" or n.endswith(("_row", "_column"))
    types = {n: "constexpr" if n in known else "i32" if number(n) else dtype
             for n in kernel.arg_names}
    source = ASTSource(kernel, types, constants)
    built = triton.compile(source, target=GPUTarget("cuda", 80, 32), options=ours.OPTIONS)
    assert ".entry " + kernel.__name__ in built.asm["ptx"], built.asm.keys()

for act in ours.ACTS:
    compiles(kernels.backward, act, "*bf16")
for dtype in ("*fp32", "*bf16", "*fp16"):
    compiles(kernels.forward, "silu", dtype)
print("compiled")
"""


@needs_triton
def test_compiles_for_cuda(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", COMPILE], capture_output=True, text=True
    )
    assert run.stdout == "compiled\n", run.stderr[-2000:]


# ---- choice and absence -----------------------------------------------------------------------


@needs_triton
def test_dispatch(device):
    gate, up = inputs(2, dtype=torch.bfloat16, device=device)[1:]
    out = torch.empty_like(gate)
    # In the interpreter only when asked for: it is slow.
    assert (dispatch.choose("silu", gate, out).name == "triton") == (device == "cuda")
    with dispatch.using("triton"):
        dispatch.choose("silu", gate, out).forward(gate, up, "silu", out)
        with pytest.raises(UsageError, match=r"not torch\.float64"):
            dispatch.choose("silu", gate.double(), out.double())
    torch.testing.assert_close(out, reference.act_and_mul(gate, up))


def test_on_the_cpu_it_takes_the_interpreter(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    tensor = torch.empty(1, 1)
    why = BACKEND.why_not("silu", tensor, tensor)
    assert why == "the Triton kernels run on CUDA, the tensors are on cpu"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("No module named 'triton'"), "triton is not installed"),
        (ImportError("libtriton.so: bad"), "triton does not load: libtriton.so: bad"),
    ],
)
def test_absent(monkeypatch, error, said):
    class Spec:
        class loader:  # noqa: N801
            @staticmethod
            def exec_module(module):
                raise error

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(ours.importlib.util, "find_spec", lambda name: Spec)
    monkeypatch.setattr(ours.importlib.util, "module_from_spec", lambda spec: None)
    ours._load.cache_clear()
    try:
        tensor = torch.empty(1, 1)
        assert said in BACKEND.why_not("silu", tensor, tensor)
        assert dispatch.choose("silu", tensor, tensor).name in ("native", "torch")
    finally:
        ours._load.cache_clear()
