"""One judge for all tests of this folder, and exercises of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gateup.practice.exercise import Exercise, Limits, find
from gateup.practice.judge import Judge


@pytest.fixture(scope="session")
def practice_judge() -> Iterator[Judge]:
    with Judge() as made:
        yield made


@pytest.fixture(scope="session")
def silu() -> Exercise:
    """The first exercise with little time."""
    return replace(find("silu"), limits=Limits(seconds=0.3, memory_mb=256))
