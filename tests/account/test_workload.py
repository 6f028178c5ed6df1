"""Ranks that nest, counts of devices, options refused."""

from __future__ import annotations

import pytest

from gateup.account.workload import LoRA, Parallel, Workload
from gateup.errors import UsageError


@pytest.mark.parametrize(
    ("parallel", "world", "expert_tp"),
    [
        (Parallel(), 1, 1),
        (Parallel(tp=8), 8, 8),
        (Parallel(tp=8, ep=8), 8, 1),
        (Parallel(ep=8), 8, 1),
        (Parallel(tp=2, ep=8), 8, 1),
        (Parallel(tp=8, ep=2), 8, 4),
        (Parallel(tp=2, pp=3, fsdp=4), 24, 2),
    ],
)
def test_devices(parallel: Parallel, world: int, expert_tp: int) -> None:
    assert parallel.world == world
    assert parallel.expert_tp == expert_tp


def test_tensor_and_expert_ranks_must_nest() -> None:
    with pytest.raises(UsageError) as error:
        Parallel(tp=4, ep=6)
    assert str(error.value) == (
        "--tp 4 and --ep 6 do not nest\n  expected: one of the two to be a multiple of the other"
    )


@pytest.mark.parametrize("name", ["tp", "pp", "ep", "fsdp"])
def test_ranks_are_positive(name: str) -> None:
    with pytest.raises(UsageError, match=rf"--{name} is 0"):
        Parallel(**{name: 0})


@pytest.mark.parametrize("name", ["ctx", "batch", "ubatch", "tile"])
@pytest.mark.parametrize("value", [0, -1, (1 << 40) + 1])
def test_sizes_are_in_range(name: str, value: int) -> None:
    with pytest.raises(UsageError, match=rf"--{name} is {value}"):
        Workload(**{name: value})  # type: ignore[arg-type]


def test_rank_is_positive() -> None:
    with pytest.raises(UsageError, match="--rank is 0"):
        LoRA(rank=0)
