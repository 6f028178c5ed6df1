"""The layout algebra: every conversion lossless, every tempting wrong way wrong."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from gateup.errors import UsageError
from gateup.model.families.gpt_oss import LAYOUT as GPT_OSS
from gateup.model.families.gpt_oss import PACKED_LAYOUT
from gateup.model.layout import SPLIT, GateUpLayout, convert, join, merge, shard, split

E, I, H = 3, 4, 5

LAYOUTS = [
    GateUpLayout(form, order, orientation, stacked)
    for form, order, orientation, stacked in product(
        ("split", "concat", "interleaved"),
        ("gate_up", "up_gate"),
        ("out_in", "in_out"),
        (False, True),
    )
]


def canonical_experts() -> dict[str, Any]:
    """gate e-i-h = 1eih, up = 2eih (decimal digits), so that a misplaced element shows."""
    e, i, h = np.indices((E, I, H))
    code = 100 * e + 10 * i + h
    bias = 100 * e[..., 0] + 10 * i[..., 0]
    return {
        "gate": list(1000 + code),
        "up": list(2000 + code),
        "gate_bias": list(3000 + bias),
        "up_bias": list(4000 + bias),
    }


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    if a.keys() != b.keys():
        return False
    return all(
        len(a[k]) == len(b[k])
        and all(np.array_equal(x, y) for x, y in zip(a[k], b[k], strict=True))
        for k in a
    )


@pytest.mark.parametrize("src", LAYOUTS, ids=str)
def test_convert_between_any_two_layouts_keeps_every_element(src: GateUpLayout) -> None:
    truth = canonical_experts()
    there = convert(truth, SPLIT, src)
    assert equal(convert(there, src, SPLIT), truth)
    for dst in LAYOUTS:
        assert equal(convert(convert(there, src, dst), dst, SPLIT), truth)


def test_each_form_puts_elements_where_it_says() -> None:
    gate = np.array([[11, 12], [13, 14]])
    up = np.array([[21, 22], [23, 24]])
    gate_first = join(gate, up, GateUpLayout("concat"))
    assert gate_first.tolist() == [[11, 12], [13, 14], [21, 22], [23, 24]]
    up_first = join(gate, up, GateUpLayout("concat", "up_gate"))
    assert up_first.tolist() == [[21, 22], [23, 24], [11, 12], [13, 14]]
    neighbours = join(gate, up, GateUpLayout("interleaved"))
    assert neighbours.tolist() == [[11, 12], [21, 22], [13, 14], [23, 24]]
    columns = join(gate, up, GateUpLayout("interleaved", orientation="in_out"))
    assert columns.tolist() == [[11, 21, 13, 23], [12, 22, 14, 24]]


def test_the_layouts_all_differ() -> None:
    """No two layouts put the same projections in the same place (orientation by transpose)."""
    gate, up = np.arange(I * H).reshape(I, H), 100 + np.arange(I * H).reshape(I, H)
    fused = [x for x in LAYOUTS if x.form != "split" and not x.stacked]
    seen = {join(gate, up, layout).tobytes() for layout in fused}
    assert len(seen) == len(fused)


def test_gpt_oss_file_must_be_cut_into_neighbours_not_halves() -> None:
    """Weight, bias and scales alike: even rows are gate, odd rows are up."""
    rng = np.random.default_rng(0)
    gate, up = rng.integers(0, 255, (2, E, I, H))
    fused = np.empty((E, H, 2 * I), dtype=gate.dtype)
    fused[..., ::2], fused[..., 1::2] = gate.swapaxes(1, 2), up.swapaxes(1, 2)
    right = split(fused, GPT_OSS)
    assert np.array_equal(right[0], gate)
    assert np.array_equal(right[1], up)
    halves = split(fused, replace(GPT_OSS, form="concat"))  # what chunk(2) would give
    assert not np.array_equal(halves[0], gate)
    assert not np.array_equal(halves[1], up)

    bias = np.arange(E * 2 * I).reshape(E, 2 * I)
    gate_bias, up_bias = split(bias, GPT_OSS, "bias")
    assert gate_bias.tolist() == bias[:, ::2].tolist()
    assert up_bias.tolist() == bias[:, 1::2].tolist()

    scales = rng.integers(0, 255, (E, 2 * I, 2))  # [E, 2I, H/32]
    packed = convert(
        {"gate_up": fused.swapaxes(1, 2), "gate_up_bias": bias, "gate_up_scales": scales},
        PACKED_LAYOUT,
        replace(PACKED_LAYOUT, form="concat"),
    )
    assert packed["gate_up"].tolist() == np.concatenate([gate, up], 1).tolist()
    assert packed["gate_up_bias"].tolist() == np.concatenate([gate_bias, up_bias], 1).tolist()
    assert np.array_equal(packed["gate_up_scales"][:, :I], scales[:, ::2])
    assert np.array_equal(packed["gate_up_scales"][:, I:], scales[:, 1::2])


def test_gpt_oss_declares_the_numbers_of_its_activation() -> None:
    assert (GPT_OSS.clamp, GPT_OSS.alpha, GPT_OSS.offset) == (7.0, 1.702, 1.0)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_shards_merge_back(layout: GateUpLayout, tp: int) -> None:
    whole = convert(canonical_experts(), SPLIT, layout)
    shards = [shard(whole, layout, tp, rank) for rank in range(tp)]
    assert equal(merge(shards, layout), whole)


def test_a_shard_takes_the_same_rows_of_gate_and_of_up() -> None:
    """fc1 [2I, H] of Llama-2-7B's width at tensor-parallel degree 2."""
    width, tp = 11008, 2
    layout = GateUpLayout("concat")
    gate = np.arange(width)[:, None] + np.array([[0.0]])
    up = gate + 1_000_000
    fc1 = join(gate, up, layout)
    part = width // tp
    for rank in range(tp):
        mine = shard({"gate_up": fc1}, layout, tp, rank)["gate_up"]
        assert mine.shape == (2 * part, 1)
        assert np.array_equal(mine[:part], gate[rank * part : (rank + 1) * part])
        assert np.array_equal(mine[part:], up[rank * part : (rank + 1) * part])

    naive = np.split(fc1, tp)
    assert np.array_equal(naive[0], gate)  # rank 0 would hold every gate row, and no up row
    shards = [shard({"gate_up": fc1}, layout, tp, r) for r in range(tp)]
    assert np.array_equal(merge(shards, layout)["gate_up"], fc1)
    assert not np.array_equal(np.concatenate([s["gate_up"] for s in shards]), fc1)


def test_tensor_parallel_mlp_sums_to_the_whole_only_with_matching_rows() -> None:
    rng = np.random.default_rng(1)
    layout = GateUpLayout("concat", "up_gate", "in_out")
    gate, up, x = rng.normal(size=(3, 8, 8))
    down = rng.normal(size=(8, 8))

    def mlp(fused: Any, down: Any) -> Any:
        g, u = split(fused, layout)
        z = x @ g.T
        return (z / (1 + np.exp(-z)) * (x @ u.T)) @ down.T

    fused = join(gate, up, layout)
    whole = mlp(fused, down)
    parts = [
        mlp(shard({"gate_up": fused}, layout, 4, r)["gate_up"], down[:, 2 * r : 2 * r + 2])
        for r in range(4)
    ]
    assert np.allclose(sum(parts), whole, rtol=1e-12, atol=1e-12)
    naive = [mlp(fused[:, 4 * r : 4 * r + 4], down[:, 2 * r : 2 * r + 2]) for r in range(4)]
    assert not np.allclose(sum(naive), whole, rtol=1e-3)


def test_one_scale_per_projection_follows_the_order() -> None:
    src = GateUpLayout("concat", "up_gate", stacked=True, scales="halves")
    tensors = {
        "gate_up": np.zeros((E, 2 * I, H)),
        "gate_up_scales": np.array([[20.0, 10.0], [21.0, 11.0], [22.0, 12.0]]),
    }
    apart = convert(tensors, src, replace(src, form="split"))
    assert apart["gate_scales"].tolist() == [10.0, 11.0, 12.0]
    assert apart["up_scales"].tolist() == [20.0, 21.0, 22.0]
    dst = replace(src, order="gate_up")
    assert convert(tensors, src, dst)["gate_up_scales"][0].tolist() == [10.0, 20.0]
    listed = convert(tensors, src, replace(dst, stacked=False))
    assert [s.tolist() for s in listed["gate_up_scales"]] == [[10, 20], [11, 21], [12, 22]]
    half = shard(tensors, src, 2, 1)
    assert half["gate_up"].shape == (E, I, H)
    assert half["gate_up_scales"].tolist() == tensors["gate_up_scales"].tolist()
    merged = merge([shard(tensors, src, 2, r) for r in (0, 1)], src)
    assert merged["gate_up_scales"].tolist() == tensors["gate_up_scales"].tolist()


def test_torch_tensors_convert_alike() -> None:
    torch = pytest.importorskip("torch")
    truth = {k: np.stack(v) for k, v in canonical_experts().items()}
    stacked = GateUpLayout(stacked=True)
    for dst in LAYOUTS:
        ours = convert({k: torch.from_numpy(v) for k, v in truth.items()}, stacked, dst)
        numpys = convert(truth, stacked, dst)
        assert ours.keys() == numpys.keys()
        for name in ours:
            for a, b in zip(ours[name], numpys[name], strict=True):
                assert np.array_equal(a.numpy(), b)


def test_dtypes_and_odd_bytes_survive() -> None:
    for dtype in ("uint8", "float16", "int64"):
        gate = np.arange(6, dtype=dtype).reshape(2, 3)
        fused = join(gate, gate, GateUpLayout("interleaved"))
        assert fused.dtype == gate.dtype


ERRORS = [
    (
        lambda: split(np.zeros((5, 3)), GateUpLayout("concat")),
        "gate_up has 5 output rows, an odd number: it cannot hold gate and up",
    ),
    (
        lambda: split(np.zeros((2, 4, 3)), GateUpLayout("concat")),
        "gate_up has 3 axes: [2, 4, 3]",
    ),
    (
        lambda: split(np.zeros((4, 3)), SPLIT),
        "gate and up are apart in this layout, there is nothing to split",
    ),
    (
        lambda: join(np.zeros((4, 3)), np.zeros((5, 3)), GateUpLayout("concat")),
        "gate is [4, 3] and up is [5, 3]",
    ),
    (
        lambda: join(np.zeros((4, 3)), np.zeros((4, 3)), SPLIT),
        "gate and up stay apart in this layout, there is nothing to join",
    ),
    (
        lambda: shard({"gate": np.zeros((10, 3)), "up": np.zeros((10, 3))}, SPLIT, 4, 0),
        "intermediate_size 10 is not a multiple of tensor-parallel degree 4",
    ),
    (lambda: shard({}, SPLIT, 4, 4), "rank 4 of 4"),
    (lambda: merge([], SPLIT), "no shards to merge"),
    (
        lambda: convert({"gate": np.zeros((2, 2))}, SPLIT, GateUpLayout("concat")),
        "tensors gate",
    ),
    (
        lambda: convert(
            {"gate": np.zeros((2, 2)), "up": np.zeros((2, 2))}, SPLIT, GateUpLayout(stacked=True)
        ),
        "a stacked layout holds experts, and these tensors are one dense MLP's",
    ),
    (
        lambda: convert(
            {"gate": [np.zeros((2, 2)), np.zeros((3, 2))], "up": [np.zeros((2, 2))] * 2},
            SPLIT,
            GateUpLayout(stacked=True),
        ),
        "experts differ in shape: [2, 2] and [3, 2]",
    ),
    (
        lambda: split([[1, 2], [3, 4]], GateUpLayout("concat")),
        "list is not an array that can be laid out",
    ),
]


@pytest.mark.parametrize(("call", "what"), ERRORS, ids=[what for _, what in ERRORS])
def test_errors_name_the_numbers(call: Any, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        call()
    assert caught.value.what == what
    assert caught.value.expected


def test_an_indivisible_width_says_what_would_fit() -> None:
    gate = np.zeros((29568, 1))
    with pytest.raises(UsageError) as caught:
        shard({"gate": gate, "up": gate}, SPLIT, 5, 0)
    assert caught.value.remedy == ("another degree, or pad with zeros: 29565 or 29570 would fit")


def test_importing_the_layouts_needs_neither_numpy_nor_torch() -> None:
    code = (
        "import sys, gateup.model.layout, gateup.model.presets\n"
        "assert not {'numpy', 'torch', 'gguf', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
