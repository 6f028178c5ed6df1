"""Products with dense weights by the C++ kernels, on every instruction set this machine has."""

import pytest
import torch
import torch.nn.functional as F

from gateup.ops import dense, native, native_matrix, reference
from gateup.ops.operands import Operands
from tests.numerics import assert_as_good, poisoned

TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 30}
DTYPES = tuple(TYPES)
# Rows and columns that end within a tile, a unit and a vector; T that ends within blocks.
SHAPES = ((1, 1), (33, 65), (100, 70), (160, 1101))
TOKENS = (1, 2, 3, 17, 70)


@pytest.fixture(scope="module")
def module():
    found, why = native.load()
    if found is None:
        pytest.skip(why)
    was = found.isa()
    yield found
    found.use_isa(was)


def isas():
    found, _ = native.load()
    return found.isas() if found is not None else ["generic"]


@pytest.fixture(params=isas())
def isa(request, module):
    module.use_isa(request.param)
    return request.param


def packed(weight, bias=None):
    n, k = weight.shape
    raw = weight.contiguous().view(torch.uint8).flatten()
    data = native_matrix.pack(TYPES[weight.dtype], raw, n, k)
    return native_matrix.Packed(TYPES[weight.dtype], data, n, k, bias)


def numbers(seed, *shapes, dtype):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(s, generator=generator) * s[-1] ** -0.5).to(dtype) for s in shapes]


def mlp(seed, dtype, tokens=17, hidden=70, width=100):
    """x, gate, up, down and their float32 biases."""
    shapes = ((width, hidden), (width, hidden), (hidden, width))
    weights = numbers(seed, *shapes, dtype=dtype)
    biases = numbers(seed + 100, *((s[0],) for s in shapes), dtype=torch.float32)
    x = (numbers(seed + 200, (tokens, hidden), dtype=torch.float32)[0] * hidden**0.5).to(dtype)
    return x, weights, biases


def ours(seed, dtype, act="silu", order=(0, 1, 2)):
    x, weights, biases = mlp(seed, dtype)
    parts = [packed(weights[i], biases[i]) for i in order]
    return native_matrix.gated_mlp(x, *parts, act)


def plain(seed, dtype, wide=None):
    x, weights, biases = mlp(seed, dtype)
    x, *rest = (t.to(wide or dtype) for t in (x, *weights, *biases))
    gate, up, down, b1, b2, b3 = rest
    return F.linear(F.silu(F.linear(x, gate, b1)) * F.linear(x, up, b2), down, b3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_unpacking_gives_the_weights_back(module, dtype):
    (weight,) = numbers(0, (33, 65), dtype=dtype)
    w = packed(weight)
    assert torch.equal(native_matrix.unpack(w, dtype=dtype), weight)
    assert torch.equal(native_matrix.unpack(w), weight.float())
    rows = torch.tensor([32, 0, 5])
    assert torch.equal(native_matrix.unpack(w, rows), weight[rows].float())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_linear_as_accurate_as_torch(isa, dtype):
    for n, k in SHAPES:
        for tokens in TOKENS:

            def run(seed, wide=dtype, n=n, k=k, tokens=tokens):
                weight, x = numbers(seed, (n, k), (tokens, k), dtype=dtype)
                if wide == "ours":
                    return native_matrix.linear(x, [packed(weight)])[0]
                return F.linear(x.to(wide), weight.to(wide))

            assert_as_good(
                lambda seed, run=run: run(seed, "ours"),
                run,
                lambda seed, run=run: run(seed, torch.float64),
                seeds=range(3),
            )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mlp_as_accurate_as_torch(isa, dtype):
    assert_as_good(
        lambda seed: ours(seed, dtype),
        lambda seed: plain(seed, dtype),
        lambda seed: plain(seed, dtype, torch.float64),
    )


def without_bias(seed, dtype):
    x, weights, _ = mlp(seed, dtype)
    return native_matrix.gated_mlp(x, *map(packed, weights))


def last_k_dropped(seed, dtype):
    x, weights, biases = mlp(seed, dtype)
    x = x.clone()
    x[:, -1] = 0
    return native_matrix.gated_mlp(x, *map(packed, weights, biases))


MUTANTS = {
    "relu": lambda seed, dtype: ours(seed, dtype, "relu"),
    "swapped": lambda seed, dtype: ours(seed, dtype, order=(1, 0, 2)),
    "zeros": lambda seed, dtype: torch.zeros_like(ours(seed, dtype)),
    "without bias": without_bias,
    "last k dropped": last_k_dropped,
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_rule_notices(module, mutant, dtype):
    with pytest.raises(AssertionError):
        assert_as_good(
            lambda seed: MUTANTS[mutant](seed, dtype),
            lambda seed: plain(seed, dtype),
            lambda seed: plain(seed, dtype, torch.float64),
        )


@pytest.mark.parametrize("act", native.ACTS)
def test_every_activation(isa, act):
    x, (gate, up, down), _ = mlp(3, torch.float32)
    got = native_matrix.gated_mlp(x, *map(packed, (gate, up, down)), act)
    g, u, d = (w.double() for w in (gate, up, down))
    h = reference.act_and_mul(x.double() @ g.t(), x.double() @ u.t(), act)
    torch.testing.assert_close(got.double(), h @ d.t(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_has_the_same_bits_in_any_batch(isa, dtype, monkeypatch):
    x, weights, biases = mlp(5, dtype, tokens=600, hidden=65, width=1101)
    parts = [packed(w, b) for w, b in zip(weights, biases, strict=True)]

    def both(rows):
        return native_matrix.gated_mlp(rows, *parts), native_matrix.linear(rows, parts[:2])[1]

    whole = both(x)
    for rows in (slice(0, 1), slice(599, 600), slice(3, 5), slice(7, 24), slice(40, 110)):
        assert all(torch.equal(p, w[rows]) for p, w in zip(both(x[rows]), whole, strict=True))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert all(map(torch.equal, both(x), whole))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert all(map(torch.equal, both(x), whole))


def test_no_tokens(isa):
    for dtype in DTYPES:
        x, weights, _ = mlp(6, dtype, tokens=0)
        assert native_matrix.gated_mlp(x, *map(packed, weights)).shape == (0, 70)
        assert native_matrix.linear(x, [packed(weights[0])])[0].shape == (0, 100)


def test_weights_of_several_types(isa):
    x, (gate, up, down), _ = mlp(7, torch.float32)
    mixed = gate.bfloat16(), up.half(), down
    got = native_matrix.gated_mlp(x, *map(packed, mixed))
    g, u, d = (w.double() for w in mixed)
    exact = (F.silu(x.double() @ g.t()) * (x.double() @ u.t())) @ d.t()
    # x may be rounded to bfloat16 for the gate: half a unit of its 8 bits.
    assert (got - exact).norm() < 2**-8 * exact.norm()


def test_neighbours_of_short_rows_do_not_count(isa):
    """Numbers behind a row's end belong to the next row; 0 times NaN must not get in."""
    for dtype in DTYPES:
        x, weight = numbers(8, (5, 37), (40, 37), dtype=dtype)
        weight[21] = torch.nan
        got = native_matrix.linear(x, [packed(weight)])[0]
        assert got.isnan().sum(0).nonzero().flatten().tolist() == [21]


# ---- weights where torch has them ---------------------------------------------------------------


@pytest.mark.parametrize("form", ["split", "concat", "concat_up_first", "interleaved"])
def test_strided_and_fused_weights(isa, form):
    if isa == "generic":
        assert not dense.serves(torch.ones(1, 1, dtype=torch.bfloat16))
    x, (gate, up, down), _ = mlp(9, torch.bfloat16, tokens=37)
    b1, b2, b3 = numbers(10, (100,), (100,), (70,), dtype=torch.bfloat16)
    split = Operands(gate, up, down, b1, b2, b3)
    with poisoned():
        y, kept = dense.gated_mlp(x, split, "split", "silu", 37, True, True)
        alone, nothing = dense.gated_mlp(x, split, "split", "silu", 5, False, False)
    assert torch.equal(alone, y)
    assert nothing == (None, None, None)
    g, u = (F.linear(x.float(), w.float(), b.float()) for w, b in ((gate, b1), (up, b2)))
    for got, exact in zip(kept, (g, u, F.silu(g) * u), strict=True):
        torch.testing.assert_close(got.float(), exact, rtol=2**-8, atol=1e-5)
    if form == "split":
        wide = torch.full((70, 300), torch.nan, dtype=torch.bfloat16)
        wide[:, 7:107] = down
        strided = split._replace(down=wide[:, 7:107])
    else:
        pair = (up, gate) if form.endswith("up_first") else (gate, up)
        bias = (b2, b1) if form.endswith("up_first") else (b1, b2)
        join = (lambda t: torch.stack(t, 1).flatten(0, 1)) if form == "interleaved" else torch.cat
        strided = Operands(join(pair), None, down, join(bias), None, b3)
    again, fused = dense.gated_mlp(x, strided, form, "silu", 37, True, True)
    assert torch.equal(again, y)
    assert torch.equal(fused.product, kept.product)
    if form == "concat":
        assert torch.equal(fused.pre1, torch.cat((kept.pre1, kept.pre2), 1))


def test_float32_results(isa):
    x, weight, bias = numbers(11, (19, 70), (33, 70), (33,), dtype=torch.bfloat16)
    frame = torch.full((19, 40), 7.0)
    dense.linear(x, weight, bias, frame[:, 3:36])
    exact = F.linear(x.double(), weight.double(), bias.double())
    torch.testing.assert_close(frame[:, 3:36].double(), exact, rtol=1e-5, atol=1e-6)
    assert (frame[:, :3] == 7).all()
    assert (frame[:, 36:] == 7).all()


def test_the_binding_refuses_what_does_not_fit(module):
    one, rows = (30, 1, 1, 64, 1), (0, 0, 0)
    for weights, said in (
        ([one], "not gate, up and down"),
        ([one, (30, 2, 1, 64, 1)], "do not fit together"),
        ([one, (2, 1, 1, 64, 1)], "unknown type"),
        ([one, (30, 1, 4, 64, 3)], "impossible sizes"),
    ):
        with pytest.raises(ValueError, match=said):
            module.dense_gated_mlp(weights, [0, 0, 0], 0, rows, 0, [rows] * 3, rows, 1)
