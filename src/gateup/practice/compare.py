"""An answer against what was expected: structure, shape, dtype, values, leaf by leaf.

The tolerance follows from the dtype and the computation (`Expected`), never from a constant:
|got - expected| ≤ 4 · terms · eps(dtype) · magnitude, and one smallest normal number for what
underflows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gateup.practice.exercise import AtMost, Case, Expected, floating
from gateup.practice.sandbox.wire import Array

SLACK = 4
_EPS = {"bfloat16": 2.0**-7}
_TINY = {"bfloat16": 2.0**-126}


@dataclass(frozen=True)
class Leaf:
    """One compared value. `where` is its place in the answer: "" is the answer itself, "[0]" an
    item, "['y']" a dict's.

    `index` is where the error is largest by the tolerance; `max_abs` and `max_rel` are the largest
    of all elements, `tolerance` the permitted absolute error at `index`.
    """

    status: str
    where: str = ""
    shape_got: tuple[int, ...] | None = None
    shape_expected: tuple[int, ...] | None = None
    dtype_got: str = ""
    dtype_expected: str = ""
    max_abs: float | None = None
    max_rel: float | None = None
    index: tuple[int, ...] | None = None
    got: str = ""
    expected: str = ""
    nan: int = 0
    tolerance: float | None = None
    self_reported: bool = False
    ratio: float = 0.0  # error over tolerance


def compare(case: Case, answer: Any) -> Leaf:
    """The first leaf that is wrong, or of right ones the one with the largest error."""
    leaves = list(_leaves(case.expected, answer, "", floating(case.args)))
    wrong = [leaf for leaf in leaves if leaf.status != "passed"]
    if wrong:
        return wrong[0]
    if not leaves:  # an empty tuple was expected, and came
        return Leaf("passed")
    worst = max(leaves, key=lambda leaf: leaf.ratio)
    return replace(worst, self_reported=any(leaf.self_reported for leaf in leaves))


def mistake(case: Case, answer: Any) -> str | None:
    """The first of the case's mistakes whose value this answer is, dtypes aside."""
    for name, value in case.mistakes.items():
        like = _as_expected(value, case.expected)
        leaves = list(_leaves(like, answer, "", floating(case.args)))
        if all(leaf.status in ("passed", "wrong dtype") and leaf.ratio <= 1 for leaf in leaves):
            return name
    return None


def _as_expected(value: Any, model: Any) -> Any:
    """A mistake's value, judged as the expected value at the same place is."""
    if isinstance(value, (Expected, AtMost)):
        return value
    if isinstance(value, (tuple, list)) and isinstance(model, (tuple, list)):
        if len(value) == len(model):
            return [_as_expected(v, m) for v, m in zip(value, model, strict=True)]
        return list(value)
    if isinstance(value, Mapping) and isinstance(model, Mapping):
        return {k: _as_expected(v, model.get(k)) for k, v in value.items()}
    if isinstance(model, Expected) and np.shape(value) == np.shape(model.value):
        if np.asarray(value).dtype.kind != "f" or np.asarray(model.value).dtype.kind != "f":
            return Expected(value, model.dtype, model.terms, model.magnitude)
        # Where the right value is small the mistake's need not be, nor its rounding.
        magnitude = model.value if model.magnitude is None else model.magnitude
        larger = np.maximum(np.abs(magnitude), np.abs(value))
        return Expected(value, model.dtype, model.terms, larger)
    return value


def _leaves(expected: Any, got: Any, where: str, default: str) -> Iterator[Leaf]:
    if isinstance(expected, (tuple, list)):
        if not isinstance(got, (tuple, list)) or len(got) != len(expected):
            yield _structure(where, f"{len(expected)} values", got)
            return
        for i, (e, g) in enumerate(zip(expected, got, strict=True)):
            yield from _leaves(e, g, f"{where}[{i}]", default)
    elif isinstance(expected, Mapping):
        if not isinstance(got, dict) or set(got) != set(expected):
            yield _structure(where, f"a dict of {', '.join(map(str, expected))}", got)
            return
        for key, value in expected.items():
            yield from _leaves(value, got[key], f"{where}[{key!r}]", default)
    elif isinstance(expected, AtMost):
        yield _at_most(expected, got, where)
    else:
        wanted = expected if isinstance(expected, Expected) else Expected(expected)
        yield _leaf(wanted, got, where, wanted.dtype or default)


def _structure(where: str, expected: str, got: Any) -> Leaf:
    return Leaf("wrong structure", where, got=described(got), expected=expected)


def described(value: Any) -> str:
    """What kind of answer this is, in a few words."""
    if isinstance(value, Array):
        kind = "tensor" if value.torch else "array"
        return f"{kind} of shape {list(value.values.shape)}, {value.dtype}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, dict):
        return f"dict of {', '.join(map(str, list(value)[:8])) or 'nothing'}"
    return f"{type(value).__name__} {str(value)[:60]}" if value is not None else "None"


def _scalar(value: Any) -> Any:
    """A number, from an array without dimensions as well. Anything else stays."""
    if isinstance(value, Array) and value.values.shape == ():
        return value.numpy().item()
    return value


def _at_most(expected: AtMost, got: Any, where: str) -> Leaf:
    number = _scalar(got)
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return _structure(where, f"a number of at most {expected.limit:g}", got)
    within = number <= expected.limit  # NaN is not
    return Leaf(
        "passed" if within else "over budget",
        where,
        got=f"{number:g}" if isinstance(number, float) else str(number),
        expected=f"≤ {expected.limit:g}",
        self_reported=expected.self_reported,
    )


def _leaf(expected: Expected, got: Any, where: str, dtype: str) -> Leaf:
    value = expected.value
    if isinstance(value, (np.ndarray, np.generic)):
        if not isinstance(got, Array):
            shape = f"an array of shape {list(np.shape(value))}"
            return _structure(where, shape, got)
        return _arrays(expected, got, where, dtype)
    return _scalars(expected, got, where, dtype)


def _scalars(expected: Expected, got: Any, where: str, dtype: str) -> Leaf:
    value, number = expected.value, _scalar(got)
    exact = not isinstance(value, float)
    alike = type(number) is type(value) or (
        not exact and isinstance(number, (int, float)) and not isinstance(number, bool)
    )
    if not alike:
        kind = type(value).__name__ if value is not None else "None"
        return _structure(where, kind, got)
    if exact:
        status = "passed" if number == value else "wrong value"
        error = abs(number - value) if type(value) is int else None
        return Leaf(
            status,
            where,
            got=str(number)[:60],
            expected=str(value)[:60],
            max_abs=_finite(error),
            max_rel=_finite(error, value) if error is not None and value else None,
            ratio=0.0 if number == value else np.inf,
            self_reported=expected.self_reported,
        )
    try:
        as_array = Array(np.float64(number), "float64")
    except OverflowError:
        as_array = Array(np.float64(np.inf), "float64")
    return _values(expected, as_array, where, dtype or "float64", "float")


def _finite(error: int | None, value: int = 1) -> float | None:
    """An integer's error as a float; inf where no float holds it."""
    if error is None:
        return None
    try:
        return error / abs(value)
    except OverflowError:
        return np.inf


def _arrays(expected: Expected, got: Array, where: str, dtype: str) -> Leaf:
    value = np.asarray(expected.value)
    if got.values.shape != value.shape:
        return Leaf("wrong shape", where, got.values.shape, value.shape, got.dtype)
    real = np.issubdtype(value.dtype, np.floating)
    kinds = {"f": "a float", "b": "bool", "i": "an integer", "u": "an integer"}
    wanted = expected.dtype or (dtype if real else kinds[value.dtype.kind])
    if real:
        if not wanted:
            wanted = got.dtype if got.dtype in ("float32", "float64") else "float32 or float64"
        right = got.dtype == wanted
    elif expected.dtype:
        right = got.dtype == expected.dtype
    else:
        right = kinds.get(got.values.dtype.kind) == wanted
    leaf = _values(expected, got, where, wanted if real and " " not in wanted else "", wanted)
    if right or leaf.status == "nan":
        return leaf
    return replace(leaf, status="wrong dtype")


def tolerance(expected: Expected, dtype: str) -> Any:
    """The permitted absolute error of each element."""
    value = np.abs(np.asarray(expected.value, dtype=np.float64))
    magnitude = value if expected.magnitude is None else np.abs(np.asarray(expected.magnitude))
    eps = _EPS[dtype] if dtype in _EPS else float(np.finfo(dtype).eps)
    tiny = _TINY[dtype] if dtype in _TINY else float(np.finfo(dtype).tiny)
    return SLACK * expected.terms * eps * np.broadcast_to(magnitude, value.shape) + tiny


def _values(expected: Expected, got: Array, where: str, dtype: str, wanted: str) -> Leaf:
    """Numbers of equal shapes: `dtype` sets the tolerance, "" asks for equality."""
    value = np.asarray(expected.value)
    given = np.asarray(got.numpy())
    shown: dict[str, Any] = {
        "where": where,
        "shape_got": given.shape,
        "shape_expected": value.shape,
        "dtype_got": got.dtype,
        "dtype_expected": wanted,
        "self_reported": expected.self_reported,
    }
    if value.size == 0:
        return Leaf("passed", **shown)
    if not dtype and value.dtype.kind != "f":
        bound = np.zeros(value.shape)
    else:
        bound = tolerance(expected, dtype or "float64")
    with np.errstate(all="ignore"):  # a signalling NaN complains when it is cast
        wide, right = given.astype(np.float64), value.astype(np.float64)
        nan = int(np.count_nonzero(np.isnan(wide) & ~np.isnan(right)))
        same = (given == value) | (np.isnan(wide) & np.isnan(right))
        error = np.where(same, 0.0, np.abs(wide - right))
        error = np.where(np.isnan(error), np.inf, error)
        # Integers beyond 2^53 that differ may be one float64.
        error = np.where(~same & (error == 0), 1.0, error)
        relative = np.where(error == 0, 0.0, error / np.abs(right))
        ratio = np.where(error == 0, 0.0, error / bound)
    at = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    worst = float(ratio[at])
    status = "passed" if worst <= 1 else "nan" if nan else "wrong value"
    return Leaf(
        status,
        max_abs=float(error.max()),
        max_rel=float(relative.max()),
        index=tuple(int(i) for i in at),
        got=f"{given[at]:.9g}" if given.dtype.kind == "f" else str(given[at]),
        expected=f"{value[at]:.9g}" if value.dtype.kind == "f" else str(value[at]),
        nan=nan,
        tolerance=float(bound[at]),
        ratio=worst,
        **shown,
    )
