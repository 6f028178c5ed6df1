"""Frames that code may forge: each becomes a verdict, none an exception of the judge."""

from __future__ import annotations

import io
import json
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from gateup.lab.verdicts import verdict_html
from gateup.practice import messages
from gateup.practice.exercise import Exercise, find
from gateup.practice.judge import Judge, _Run
from gateup.practice.sandbox import guards, wire
from gateup.practice.server import End, Session, _Frame
from gateup.practice.show import render_verdict
from gateup.practice.verdict import Verdict


class _Forger:
    """A session whose process answers every question with these bytes."""

    def __init__(self, sent: bytes, at_load: bool) -> None:
        self.sent, self.output, self.end = sent, bytearray(), End(code=1)
        honest = [wire.pack({"guards": {}}), wire.pack({"status": "loaded"})]
        self._honest = honest[: 1 if at_load else 2]

    def ask(self, frame: bytes, deadline: float) -> tuple[dict[str, Any], Any]:
        left = self._honest.pop(0) if self._honest else self.sent
        answer = _Frame()
        while not answer.complete:
            part, left = left[: answer.wanted], left[answer.wanted :]
            answer.add(part)
        return answer.message, wire.unpack_value(answer.message["value"], bytes(answer.data))

    def stop(self) -> End:
        return self.end

    await_end = stop


EXERCISE = find("silu")


def _judged(sent: bytes, exercise: Exercise = EXERCISE, *, at_load: bool = False) -> Verdict:
    """The verdict on such a process, shown in every way there is."""
    session = cast(Session, _Forger(sent, at_load))
    run = _Run(exercise, "", "en", exercise.cases(1))
    run.drive(session)
    verdict = run.verdict(session, 1, 0.0, 0)
    assert not verdict.passed
    json.dumps(verdict.to_dict(), allow_nan=False).encode()
    verdict_html(verdict, "zh").encode()
    render_verdict(Console(file=io.StringIO()), verdict, 1, "en")
    return verdict


def _frame(header: bytes, body: bytes = b"") -> bytes:
    return wire.LENGTH.pack(len(header)) + header + body


def _error(fields: bytes) -> bytes:
    return _frame(b'{"value":null,"status":"error",' + fields + b"}")


ARRAY = '{"status":"answered","value":{"kind":"array","dtype":"%s","shape":%s}}'
GARBLED = {
    "more than numpy counts": (ARRAY % ("float32", [0, 1 << 26, 1 << 26, 1 << 26])).encode(),
    "a negative side": (ARRAY % ("float32", [-1, 4])).encode(),
    "a side beyond 64 bits": (ARRAY % ("float32", [1 << 80])).encode(),
    "a boolean as a side": (ARRAY % ("float32", "[true]")).encode(),
    "an infinite side": (ARRAY % ("float32", "[1e999]")).encode(),
    "objects": (ARRAY % ("object", [1])).encode(),
    "strings": (ARRAY % ("U4", [1])).encode(),
    "no UTF-8": b'{"status":"answered","value":"\xff\xfe"}',
    "a number too long to read": b'{"status":"answered","value":' + b"9" * 9000 + b"}",
    "brackets without end": b'{"value":' + b"[" * 300_000,
    "depth in a field beside": b'{"value":null,"lines":' + b"[" * 90_000 + b"]" * 90_000,
    "a list as a kind": b'{"value":{"kind":["array"],"items":[]}}',
    "a number as text": b'{"value":{"kind":"int","value":"1e5"}}',
    "too long a float": b'{"value":{"kind":"float","value":"0x1p99999"}}',
    "NaN": b'{"value":NaN}',
    "nothing": b"",
}


@pytest.mark.parametrize("name", GARBLED)
def test_what_is_no_answer_is_told_as_garbled(name: str) -> None:
    for at_load in (False, True):
        first = _judged(_frame(GARBLED[name]), at_load=at_load).cases[0]
        assert first.status == "no answer", first
        assert first.message.startswith(messages.GARBLED.en.partition("{}")[0])


@pytest.mark.parametrize(
    "lines",
    ["[[1e999,1,2]]", "[[NaN,1,2]]", "[[true,[],{}]]", "[1,[],[1],[1,2,3,4]]", "{}", "1e999"],
)
def test_a_forged_traceback_is_dropped(lines: str) -> None:
    first = _judged(_error(f'"error":"e","lines":{lines}'.encode())).cases[0]
    assert (first.status, first.error) == ("error", "e")
    assert all(isinstance(line.text, str) and line.number == 0 for line in first.lines)


def test_halves_of_characters_and_wrong_kinds_of_texts_are_dropped() -> None:
    assert _judged(_error(rb'"error":"a\ud800b"')).cases[0].error == "a?b"
    assert _judged(_error(b'"error":[[1e999]]')).cases[0].error == ""
    assert len(_judged(_error(b'"error":"%s"' % (b"x" * 50_000))).cases[0].error) == 10_000
    keys = _frame(rb'{"status":"answered","value":{"kind":"dict","items":[["\ud800",null]]}}')
    assert _judged(keys).cases[0].status == "wrong structure"


NUMBERS = st.sampled_from([0, 1, -1, True, 1 << 26, 1 << 63, 1 << 64, -(1 << 90), 10**400])
EDGES = st.sampled_from([float("inf"), float("nan"), -0.0, 1e308])
SIDES = st.lists(st.sampled_from([0, 1, 2, 3, 1 << 26]), max_size=5)
ODD = NUMBERS | EDGES | st.floats() | st.none() | st.text(st.characters(), max_size=4)
TREE = st.recursive(
    ODD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
NODE = st.recursive(
    ODD
    | st.fixed_dictionaries(
        {
            "kind": st.just("array"),
            "dtype": st.sampled_from(wire.DTYPES) | st.sampled_from(["object", "U4"]) | TREE,
            "shape": SIDES | st.lists(NUMBERS, max_size=5) | TREE,
        }
    )
    | st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["int", "float"]),
            "value": st.sampled_from(["1", "-9" * 400, "nan", "inf", "0x1p9", "1e5", "٣"]) | ODD,
        }
    ),
    lambda inner: st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["tuple", "list", "dict", "none"]),
            "items": st.lists(inner | st.tuples(ODD, inner), max_size=3),
        }
    ),
    max_leaves=5,
)
STATUS = st.sampled_from(["answered", "loaded", "error", "unusable", "passed"]) | TREE
FIELDS = st.fixed_dictionaries(
    {"value": st.none() | NODE, "status": STATUS},
    optional={
        "error": TREE,
        "memory": TREE,
        "lines": st.lists(st.tuples(ODD, ODD, ODD) | TREE, max_size=3) | TREE,
    },
)


@settings(max_examples=400, deadline=None)
@given(FIELDS, st.sampled_from(["silu", "swiglu", "act_and_mul"]), st.booleans(), st.data())
def test_no_frame_is_an_exception_of_the_judge(
    fields: dict[str, Any], name: str, at_load: bool, data: st.DataObject
) -> None:
    header = json.dumps(fields).encode()
    try:
        size = wire.unpack_header(header)[1]
    except wire.WireError:
        size = 0
    # Bytes of 0x7f make NaN of every float type, signalling ones in some.
    body = data.draw(st.binary(max_size=64)) if size > 512 else b"\x7f" * size
    _judged(_frame(header, body), find(name), at_load=at_load)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=80))
@example(b"")
@example(b"\xff" * 80)
def test_no_bytes_are_an_exception_of_the_judge(sent: bytes) -> None:
    _judged(sent)


@pytest.mark.skipif(not guards.LINUX, reason="the descriptors' numbers are Linux's")
def test_a_forged_frame_of_a_real_process(practice_judge: Judge, silu: Exercise) -> None:
    sent = _error(b'"error":"e","lines":[[1e999,1,2]]')
    source = f"import os\ndef silu(x):\n    os.write(4, {sent!r})\n"
    verdict = practice_judge.judge(silu, source, seed=1)
    assert verdict.cases[0].status == "error"
    assert not verdict.passed


@pytest.mark.parametrize("descriptor", [3, 4])
def test_a_closed_channel_is_told_as_that(
    descriptor: int, practice_judge: Judge, silu: Exercise
) -> None:
    source = f"import os, time\nos.close({descriptor})\ntime.sleep(60)\n"
    first = practice_judge.judge(silu, source, seed=1).cases[0]
    assert "SIGKILL" not in first.message
    if descriptor == 4:
        assert (first.status, first.message) == ("no answer", messages.CLOSED.en)
