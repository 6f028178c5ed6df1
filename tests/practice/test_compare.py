"""What counts as equal, and what is said of what is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateup.practice.compare import compare, mistake
from gateup.practice.exercise import AtMost, Case, Expected, Tensor
from gateup.practice.sandbox.wire import Array, bfloat16_bits

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def _case(expected: Any, **more: Any) -> Case:
    return Case("case", (X,), expected, **more)


def _array(values: Any, dtype: str = "float32") -> Array:
    return Array(np.asarray(values, dtype=dtype), dtype)


def test_right_values_pass_and_the_error_is_told() -> None:
    right = X.astype(np.float64) * 1.1
    leaf = compare(_case(right), _array(right))
    assert leaf.status == "passed"
    assert 0 < leaf.ratio < 0.2  # one rounding of the sixteen permitted
    assert leaf.max_rel is not None
    assert leaf.max_rel < 1.2e-7


def test_the_largest_error_has_its_index() -> None:
    right = np.ones((3, 4))
    wrong = right.copy()
    wrong[1, 2] = 1.5
    wrong[2, 0] = 1.25
    leaf = compare(_case(right), _array(wrong))
    assert (leaf.status, leaf.index, leaf.max_abs, leaf.max_rel) == (
        "wrong value",
        (1, 2),
        0.5,
        0.5,
    )
    assert (leaf.got, leaf.expected) == ("1.5", "1")
    assert leaf.tolerance == pytest.approx(4 * 4 * 2.0**-23)


def test_the_tolerance_follows_dtype_terms_and_magnitude() -> None:
    sums = Expected(np.zeros(1), terms=100, magnitude=np.full(1, 10.0))
    bound = 4 * 100 * 2.0**-23 * 10
    assert compare(_case(sums), _array([bound * 0.99])).status == "passed"
    assert compare(_case(sums), _array([bound * 1.01])).status == "wrong value"
    narrow = Expected(np.ones(2), dtype="bfloat16")
    bits = Array(bfloat16_bits(np.array([1.0, 1.0625])), "bfloat16", torch=True)
    assert compare(_case(narrow), bits).status == "passed"


@pytest.mark.parametrize(
    ("expected", "got", "status"),
    [
        (np.ones((2, 3)), _array(np.ones((3, 2))), "wrong shape"),
        (np.ones(1), _array([1.0], "float64"), "wrong dtype"),
        (np.ones(1), 1.0, "wrong structure"),
        (np.ones(1), [1.0], "wrong structure"),
        (np.ones(2), _array([1, np.nan]), "nan"),
        (np.ones(2), _array([1, np.inf]), "wrong value"),
        (np.array([np.inf, np.nan]), _array([np.inf, np.nan]), "passed"),
        (np.array([1, 2]), _array([1, 2], "int32"), "passed"),
        (np.array([1, 2]), _array([1, 3], "int64"), "wrong value"),
        (np.array([1, 2]), _array([1, 2], "float32"), "wrong dtype"),
        (np.array([2**62]), _array([2**62 + 1], "int64"), "wrong value"),
        (np.array([True]), _array([True], "bool"), "passed"),
        (np.array([True]), _array([1], "int64"), "wrong dtype"),
        (11008, 11008, "passed"),
        (11008, _array(11008, "int64"), "passed"),
        (11008, 11008.0, "wrong structure"),
        (11008, True, "wrong structure"),
        (11008, 10**400, "wrong value"),
        (0.5, 0.5, "passed"),
        (2.0, 2, "passed"),
        (0.5, 10**400, "wrong value"),
        (0.5, float("nan"), "nan"),
        ("rows", "rows", "passed"),
        ("rows", "columns", "wrong value"),
        (True, True, "passed"),
        (None, None, "passed"),
        ((1, 2), [1, 2], "passed"),
        ((1, 2), (1, 2, 3), "wrong structure"),
        ({"a": 1}, {"b": 1}, "wrong structure"),
        ({"a": (1, AtMost(10))}, {"a": (1, 10)}, "passed"),
        ({"a": (1, AtMost(10))}, {"a": (1, 11)}, "over budget"),
        (AtMost(10), float("nan"), "over budget"),
        (AtMost(10), "few", "wrong structure"),
        (np.zeros((0, 3)), _array(np.zeros((0, 3))), "passed"),
    ],
)
def test_statuses(expected: Any, got: Any, status: str) -> None:
    assert compare(_case(expected), got).status == status


def test_a_wrong_leaf_is_named() -> None:
    case = _case({"y": (np.ones(1), 2), "reads": AtMost(3)})
    leaf = compare(case, {"y": (_array([1.0]), 3), "reads": 3})
    assert (leaf.where, leaf.got, leaf.expected) == ("['y'][1]", "3", "2")
    good = compare(case, {"y": (_array([1.0]), 2), "reads": 3})
    assert good.status == "passed"
    assert good.self_reported


def test_a_mistake_is_recognised_by_its_value_whatever_the_dtype() -> None:
    case = _case(np.ones(3), mistakes={"twice": np.full(3, 2.0), "minus": np.full(3, -1.0)})
    assert mistake(case, _array([-1, -1, -1])) == "minus"
    assert mistake(case, _array([2, 2, 2], "float64")) == "twice"
    assert mistake(case, _array([2, 2, 2.1])) is None
    assert mistake(case, None) is None


def test_a_tensor_s_dtype_is_the_answer_s() -> None:
    case = Case("case", ([Tensor(X, "float16")], 3), np.ones(1))
    assert compare(case, _array([1.0], "float16")).status == "passed"
    assert compare(case, _array([1.0], "float32")).status == "wrong dtype"
