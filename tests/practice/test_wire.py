"""Values survive the wire; bytes that are no value are refused before anything is allocated."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateup.practice.sandbox import wire


def _sent(value: Any) -> Any:
    data = wire.pack({"status": "x"}, value)
    (length,) = wire.LENGTH.unpack(data[:4])
    header, size = wire.unpack_header(data[4 : 4 + length])
    body = data[4 + length :]
    assert len(body) == size
    return wire.unpack_value(header["value"], body)


SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**90), 2**90) | st.floats() | st.text(max_size=20)
)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(TREES)
def test_plain_values_arrive_as_they_were(value: Any) -> None:
    assert repr(_sent(value)) == repr(value)  # NaN too, and -0.0


@pytest.mark.parametrize("dtype", [d for d in wire.DTYPES if d != "bfloat16"])
def test_arrays_arrive_bit_for_bit(dtype: str) -> None:
    for shape in ((), (0, 3), (2, 3)):
        array = (np.arange(6) % 2 * 7).astype(dtype)[: int(np.prod(shape))].reshape(shape)
        back = _sent({"a": (array, [array.T])})["a"]
        assert back[0].dtype == dtype
        assert back[0].values.dtype == array.dtype
        assert np.array_equal(back[0].values, array)
        assert np.array_equal(back[1][0].values, array.T)


def test_bfloat16_rounds_to_nearest_even() -> None:
    one = 1 + 2.0**-8  # half way between two bfloat16 numbers: to the even one
    bits = wire.bfloat16_bits(np.array([1.0, one, 1 + 3 * 2.0**-8, -2.5, np.nan, np.inf]))
    back = wire.Array(bits, "bfloat16").numpy()
    np.testing.assert_array_equal(back, [1.0, 1.0, 1 + 2.0**-6, -2.5, np.nan, np.inf])
    assert wire.bfloat16_bits(np.float32(1.5)).shape == ()


@pytest.mark.parametrize(
    "value",
    [
        np.array([None]),
        np.array(["x"]),
        np.zeros(1, "datetime64[s]"),
        np.zeros(1, [("a", "f4")]),
        np.zeros(1, "complex64"),
        object(),
        {(1, 2): 3},
        1 << 4000,
        np.zeros(wire.FRAME_LIMIT + 1, np.uint8),
        ["x" * 9000] * 200,
    ],
)
def test_what_is_no_value_is_not_sent(value: Any) -> None:
    with pytest.raises(wire.WireError):
        wire.pack({}, value)


def test_depth_is_limited() -> None:
    deep: Any = []
    deep.append(deep)
    with pytest.raises(wire.WireError, match="deep"):
        wire.pack({}, deep)


HUGE = {"kind": "array", "dtype": "float64", "shape": [1 << 20, 1 << 20]}


@pytest.mark.parametrize(
    "node",
    [
        HUGE,
        {**HUGE, "shape": [-1]},
        {**HUGE, "shape": [2.0]},
        {**HUGE, "shape": [True]},
        {**HUGE, "shape": None},
        {**HUGE, "dtype": "object"},
        {**HUGE, "dtype": ["f4"]},
        {"kind": "int", "value": "9" * 1001},
        {"kind": "int", "value": 3},
        {"kind": "tuple"},
        {"kind": "dict", "items": [[["k"], None]]},
        {"kind": "pickle", "items": []},
        [[]],
        1.5,
    ],
)
def test_unsound_headers_are_refused(node: Any) -> None:
    with pytest.raises(wire.WireError):
        wire.unpack_header(json.dumps({"value": node}).encode())


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda t: json.dumps(t).encode()))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.unpack_header(data)


def test_deeply_nested_garbage_is_refused() -> None:
    with pytest.raises(wire.WireError):
        wire.unpack_header(b'{"value":' + b"[" * 200_000)
    with pytest.raises(wire.WireError, match="no number"):
        wire.unpack_value({"kind": "int", "value": "1e5"}, b"")
    with pytest.raises(wire.WireError, match="left over"):
        wire.unpack_value(None, b"x")
