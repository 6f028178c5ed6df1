"""Every fault of a config names its file and field, and costs nothing to report."""

from __future__ import annotations

import pytest

from gateup.errors import ConfigError
from gateup.model.config import MAX_DIM, Config


def config(**values):
    return Config(values, "config.json")


def text_of(call):
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


def test_a_fault_says_what_where_and_what_would_be_right():
    assert text_of(lambda: config(h=-3).integer("h")) == (
        f"h is -3\n  where: config.json, field h\n  expected: a whole number from 1 to {MAX_DIM}"
    )
    assert text_of(lambda: config().integer("h", "n_embd")) == (
        "h is missing\n"
        "  where: config.json\n"
        "  expected: h or n_embd\n"
        "  remedy: use the config.json that belongs to the checkpoint"
    )


@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True, [8], {}, float("nan"), float("inf")])
def test_what_is_no_dimension(value):
    assert "field h" in text_of(lambda: config(h=value).integer("h"))


def test_what_is_one():
    assert config(h=8).integer("h") == 8
    assert config(h=8.0).integer("h") == 8
    assert config(a=None, b=3).integer("a", "b") == 3
    assert config(h=None).integer("h", default=5) == 5


@pytest.mark.parametrize("value", ["1", True, float("nan"), float("inf"), -0.5, 10**400, [1.0]])
def test_what_is_no_number(value):
    assert "field x" in text_of(lambda: config(x=value).number("x"))


def test_numbers_flags_texts_and_lists():
    assert config(x=2).number("x") == 2.0
    assert config(x=False).flag("x") is False
    assert "true or false" in text_of(lambda: config(x=1).flag("x"))
    assert "a string" in text_of(lambda: config(x=1).text("x"))
    assert config(x=[1, 2.0]).integers("x") == [1, 2]
    assert "x[1] is 'a'" in text_of(lambda: config(x=[1, "a"]).integers("x"))
    assert "3 whole numbers, not 2" in text_of(lambda: config(x=[1, 2]).integers("x", length=3))


def test_large_values_are_reported_briefly():
    for value in ("x" * 10**6, [0] * 10**6, 10**5000, {str(i): i for i in range(1000)}):
        assert len(text_of(lambda v=value: config(h=v).integer("h"))) < 200


def test_nested_places_are_named():
    sub = config(text_config={"h": 0}).sub("text_config")
    assert "config.json: text_config, field h" in text_of(lambda: sub.integer("h"))
    assert "an object" in text_of(lambda: config(text_config=[]).sub("text_config"))


def test_defaults_fill_absent_keys_and_leave_null_alone():
    cfg = config(a=1, b=None).with_defaults({"a": 9, "b": 9, "c": 9})
    assert dict(cfg.values) == {"a": 1, "b": None, "c": 9}
