"""What is typed for the Neurons page, and what of it is said when it is not there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateup.lab.asked import Off, ask, number, read_off, settled, write_off
from gateup.lab.data_neurons import MAX_OFF, Ask
from gateup.lab.words import texts

URL = {"text": "a b", "layer": "last", "position": "last", "neuron": "", "off": "", "top": 8}


def _view(asked: Ask, absent: tuple[tuple[int, int], ...] = ()) -> Any:
    """Of a model with 30 layers of 1536 neurons, and a text of two tokens."""
    return SimpleNamespace(asked=asked, absent=absent, layers=30, width=1536, tokens=("a", "␣b"))


@pytest.mark.parametrize(
    "typed", ["3:120,5:7", "3：120，5：7", "5:7；3:120", " 3 : 120  5:7 ", "３：１２０、5:7;3:120,"]
)
def test_neurons_are_read_however_a_keyboard_writes_them(typed: str) -> None:
    assert read_off(typed) == Off(((3, 120), (5, 7)), (), ())


def test_what_is_no_neuron_and_what_is_too_many_is_kept_to_be_said() -> None:
    assert read_off("<script>,3:1,-1:2,1.5:2,1:2:3,1234567890:1") == Off(
        ((3, 1),), ("<script>", "-1:2", "1.5:2", "1:2:3", "1234567890:1"), ()
    )
    assert read_off("") == Off((), (), ())
    # The first typed stay, whatever their numbers.
    assert read_off("9:9,8:8,1:1", 2) == Off(((8, 8), (9, 9)), (), ((1, 1),))
    many = write_off((0, j) for j in range(MAX_OFF + 6))
    assert len(read_off(many).taken) == MAX_OFF
    assert len(read_off(many).over) == 6


def test_numbers() -> None:
    assert [number(x) for x in ("7", " ７ ", "", "-3", "abc", "1.0", "1" * 10)] == [7, 7] + [
        None
    ] * 5


def test_a_view_of_what_was_asked_says_nothing() -> None:
    values = URL | {"layer": "20", "position": "1", "neuron": " 5", "off": "3：1"}
    asked = ask(values)
    assert asked == Ask("a b", 20, 1, 5, ((3, 1),), 8)
    shown, said = settled(values, _view(asked))
    assert shown == {"layer": "20", "position": "1", "neuron": "5", "off": "3:1"}
    assert said == []
    shown, said = settled(URL, _view(Ask("a b", 29, 1, 77)))
    assert shown == {"layer": "last", "position": "last", "neuron": "", "off": ""}
    assert said == []


@pytest.mark.parametrize(
    ("name", "typed", "says"),
    [
        ("layer", "99", "There is no layer 99: this model has 0 to 29. The last is shown."),
        ("position", "50", "There is no token 50: this text has 0 to 1. The last is shown."),
        ("position", "x", "There is no token x: this text has 0 to 1. The last is shown."),
        ("neuron", "99999", "There is no neuron 99999: layer 29 has 0 to 1535. The strongest"),
        ("neuron", "-3", "There is no neuron -3: layer 29 has 0 to 1535. The strongest is shown."),
        ("off", "x;3:1", "Not layer:neuron and left out: x"),
    ],
)
def test_what_is_not_there_is_said_and_leaves_the_url(name: str, typed: str, says: str) -> None:
    off = ((3, 1),) if name == "off" else ()
    shown, said = settled(URL | {name: typed}, _view(Ask("a b", 29, 1, 77, off)))
    assert shown == {"layer": "last", "position": "last", "neuron": "", "off": write_off(off)}
    for language in ("en", "zh"):
        lines = [texts("neurons", language)[key].format(**values) for key, values in said]
        assert len(lines) == 1
        if language == "en":
            assert lines[0].startswith(says)


def test_long_lists_of_what_was_left_out_are_cut() -> None:
    many = ",".join(["x" * 400, *"abcdefgh", *(f"1:{j}" for j in range(70))])
    taken = tuple((1, j) for j in range(64))
    _, said = settled(URL | {"off": many}, _view(Ask("a b", 29, 1, 77, taken), ((40, 1),)))
    assert [key for key, _ in said] == ["off.unknown", "off.over", "off.absent"]
    assert said[0][1]["off"] == "x" * 23 + "…, a, b, c, d …"
    assert said[1][1]["off"] == "1:64, 1:65, 1:66, 1:67, 1:68 …"
    assert said[2][1]["off"] == "40:1"
