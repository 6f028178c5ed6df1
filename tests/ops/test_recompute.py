"""A body computed again, by several threads at once."""

from __future__ import annotations

import sys
import threading

import pytest
import torch
from torch import nn

from gateup.errors import UsageError
from gateup.ops.recompute import recomputed


def test_threads_leave_the_parameters_where_they_were():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    x = torch.randn(32, 8)
    owners, faults = [id(p) for p in body.parameters()], []

    def run():
        try:
            for _ in range(60):
                recomputed(body, x, tile=3, keep=False).sum().backward()
        except RuntimeError as error:
            faults.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not faults
    assert [id(p) for p in body.parameters()] == owners
    assert all(p.grad is not None for p in body.parameters())


@pytest.mark.parametrize("tile", [None, 3])
def test_weights_changed_before_backward_are_refused(tile):
    body = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    y = recomputed(body, torch.randn(7, 8), tile=tile, keep=False).sum()
    with torch.no_grad():
        body[1].weight.mul_(2)
    with pytest.raises(
        UsageError, match=r"1\.weight changed in place between forward and backward"
    ):
        y.backward()
