"""A page's state in its URL."""

from __future__ import annotations

from urllib.parse import parse_qsl

from gateup.lab.state import Choice, Flag, Number, Several, State, Text

PARAMS = (
    Number("a", 1.0, -4.0, 4.0, 0.1),
    Number("tp", 2, 1, 64),
    Choice("along", "a", ("a", "b")),
    Several("show", ("silu",), ("silu", "relu", "gelu")),
    Flag("how", False),
    Choice("model", "llama-3-8b", free=True),
)


def _read(text: str) -> State:
    return State.of(PARAMS, dict(parse_qsl(text.lstrip("?"))))


def test_the_default_has_no_query() -> None:
    assert State.of(PARAMS, {}).query() == ""


def test_every_value_survives_the_url() -> None:
    state = State.of(PARAMS, {})
    for name, value in (
        ("a", -0.3),
        ("tp", 8),
        ("along", "b"),
        ("show", ("gelu", "silu")),
        ("how", True),
        ("model", "qwen2.5-7b"),
    ):
        assert state.put(name, value)
        assert not state.put(name, value)
    assert state.query() == "?a=-0.3&tp=8&along=b&show=silu,gelu&how=1&model=qwen2.5-7b"
    again = _read(state.query())
    assert again.values == state.values
    assert isinstance(again["tp"], int)


def test_values_that_cannot_be_become_bounds_or_defaults() -> None:
    state = _read("a=1e9&tp=x&along=c&show=nothing&how=yes&model=%00&other=1")
    assert state["a"] == 4.0
    assert state.query() == "?a=4"
    assert _read("a=nan")["a"] == 1.0
    assert _read("a=-inf")["a"] == 1.0
    assert _read("model=" + "m" * 201)["model"] == "llama-3-8b"


def test_what_is_added_to_the_query() -> None:
    state = _read("a=2")
    assert state.query({"lang": "zh"}) == "?a=2&lang=zh"


def test_lines_of_text() -> None:
    params = (Text("text", "hello", room=8),)
    assert State.of(params, {"text": "a b & c"}).query() == "?text=a+b+%26+c"
    assert State.of(params, {"text": "much too long"})["text"] == "much too"


def test_a_text_is_kept_as_typed() -> None:
    """Full-width and no-break spaces, joined emoji, joiners, ends of lines, outer spaces."""
    for typed in ("天\u3000气", "a\xa0b", "👩\u200d💻", "می\u200cخواهم", "a\nb", "\x00", " Paris "):
        state = State.of((Text("text", "hello"),), {})
        assert state.put("text", typed)
        assert state["text"] == typed
        query = dict(parse_qsl(state.query().lstrip("?")))
        assert State.of(state.params, query)["text"] == typed
    state.put("text", "a\ud800")
    assert state.query() == "?text=a%3F"
