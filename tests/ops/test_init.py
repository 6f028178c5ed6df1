"""gateup.ops gives functions under the names that its modules have too."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gateup.ops

CALLED = ("gated_mlp", "act_and_mul", "moe")


@pytest.mark.parametrize("first", ["gateup.ops.gated_mlp", "gateup.ops.options", "gateup.nn"])
def test_a_function_stays_one_whatever_was_imported_first(first):
    code = (
        f"import {first}; import gateup.ops.moe; from gateup.ops.gated_mlp import Weights;"
        f"import gateup.ops as ops; assert all(type(getattr(ops, n)) is type(lambda: 0)"
        f" for n in {CALLED}); assert ops.Weights is Weights"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_all_is_there():
    assert all(getattr(gateup.ops, name) is not None for name in gateup.ops.__all__)
