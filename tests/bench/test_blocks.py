"""Random rows are rows of their format: the gguf package reads them, and no number overflows."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from gateup import cli_bench
from gateup.bench.blocks import known, random_rows, row_nbytes
from gateup.errors import UsageError


@pytest.mark.parametrize("kind", known())
def test_rows_are_ordinary_numbers(kind: str) -> None:
    rows = random_rows(kind, 3, 512, seed=1)
    assert rows.shape == (3, row_nbytes(kind, 512))
    values = dequantize(rows, GGMLQuantizationType[kind.upper().replace("_K", "_K")])
    assert values.shape == (3, 512)
    assert np.isfinite(values).all()
    assert 0 < np.abs(values).max() < 10
    assert not np.array_equal(values[0], values[1])
    assert np.array_equal(rows, random_rows(kind, 3, 512, seed=1))


def test_a_width_without_whole_blocks_is_refused() -> None:
    with pytest.raises(UsageError, match="rows of 576 do not divide into q4_k's blocks of 256"):
        random_rows("q4_k", 1, 576, seed=0)
    with pytest.raises(UsageError, match="'q3_k' cannot be measured"):
        random_rows("q3_k", 1, 256, seed=0)


def test_what_is_measured_is_known() -> None:
    assert set(cli_bench.DEFAULT_FORMATS.split(",")) <= set(known())
