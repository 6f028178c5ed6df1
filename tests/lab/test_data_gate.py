"""The Gate page's numbers against the operations that models run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gateup.lab.data_gate import GATES, GRID, probe, scale, slice_ranges, slices, surface
from gateup.ops.activations import ACTIVATIONS

# Both of gpt-oss's clamps lie inside; 0, where ReLU's derivative jumps, is among them.
POINTS = np.linspace(-9, 9, 37)


def _grid() -> tuple[torch.Tensor, torch.Tensor]:
    a, b = np.meshgrid(POINTS, POINTS, indexing="ij")
    return torch.from_numpy(a.ravel().copy()), torch.from_numpy(b.ravel().copy())


@pytest.mark.parametrize("name", [n for n, g in GATES.items() if g.ops])
def test_gates_are_the_operations(name: str) -> None:
    gate, act = GATES[name], ACTIVATIONS[GATES[name].ops]
    a, b = _grid()
    one = torch.ones_like(a)
    by_a, by_b = act.gated_backward(one, a, b)
    np.testing.assert_allclose(gate.value(a.numpy(), b.numpy()), act.gated(a, b), atol=1e-12)
    np.testing.assert_allclose(gate.by_a(a.numpy(), b.numpy()), by_a, atol=1e-12)
    np.testing.assert_allclose(gate.by_b(a.numpy(), b.numpy()), by_b, atol=1e-12)


def test_every_operation_but_relu_squared_is_a_gate_here() -> None:
    assert {g.ops for g in GATES.values() if g.ops} == set(ACTIVATIONS) - {"relu2"}


def test_the_ungated_one_is_the_classic_networks_activation() -> None:
    a, b = _grid()
    gelu = torch.nn.functional.gelu(a)
    np.testing.assert_allclose(GATES["ungated"].value(a.numpy(), b.numpy()), gelu, atol=1e-12)
    assert not GATES["ungated"].by_b(a.numpy(), b.numpy()).any()


def test_a_surface_has_a_along_x_and_b_along_y() -> None:
    line, z = surface("relu", 4.0)
    assert len(line) == len(z) == len(z[0]) == GRID
    assert z[-1][0] == 0  # a = -4, b = 4: the gate is shut
    assert z[0][-1] == -16  # a = 4, b = -4


def test_all_surfaces_share_one_scale_that_holds_each() -> None:
    low, high = scale(4.0)
    for name in GATES:
        _, z = surface(name, 4.0)
        assert low - 1e-4 <= min(map(min, z)) <= max(map(max, z)) <= high + 1e-4
    assert (low, high) == pytest.approx((-16, 4 * 5 / (1 + np.exp(-1.702 * 4))), abs=1e-9)


def test_slices_run_through_the_probe() -> None:
    (point,) = probe(["silu"], 1.5, -2.0)
    (along_a,) = slices(["silu"], "a", 1.5, -2.0, 4.0)
    (along_b,) = slices(["silu"], "b", 1.5, -2.0, 4.0)
    assert along_a.z[along_a.x.index(1.5)] == pytest.approx(point.z, abs=1e-5)
    assert along_a.by_a[along_a.x.index(1.5)] == pytest.approx(point.by_a, abs=1e-5)
    assert along_b.z[along_b.x.index(-2.0)] == pytest.approx(point.z, abs=1e-5)
    assert along_b.by_b[along_b.x.index(-2.0)] == pytest.approx(point.by_b, abs=1e-5)


def test_slices_stay_within_their_axes() -> None:
    ranges = slice_ranges(4.0)
    for b in (-4.0, 4.0):
        for s in slices(list(GATES), "a", 0.0, b, 4.0):
            for key in ("z", "by_a", "by_b"):
                low, high = ranges[key]
                slack = 0.02 * (high - low)  # a slice is finer than the grid
                assert low - slack <= min(getattr(s, key))
                assert max(getattr(s, key)) <= high + slack
