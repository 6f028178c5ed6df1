"""The learner's process: takes code and inputs, calls, sends back what came out.

Everything here may be patched, ended or lied to by the code it runs; nothing here decides
anything. Expected values never come near it.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from . import guards, wire

FILE = "solution.py"  # as tracebacks name the learner's code
HARNESS = "harness.py"
_TEXT = 2000  # characters of an error's text
_LINES = 8  # of a traceback


def serve(job: guards.Job, report: guards.Report, request: int, answer: int) -> None:
    """Puts up the guards; then answers frames to the last: the code, then one frame per call."""
    try:
        guards.confine(job, report)
    except (OSError, ValueError) as error:
        _send(answer, wire.pack({"failed": f"{type(error).__name__}: {error}"}))
        return
    _send(answer, wire.pack({"guards": report}))
    first = _receive(request)
    if first is None:
        return
    torch = first[0]["needs"] == "torch"
    try:
        call = _loaded(first[0])
    except BaseException as error:
        _flush()
        _send(answer, wire.pack({"status": "error", **_told(error)}))
        return
    _flush()
    _send(answer, wire.pack({"status": "loaded"}))
    while (frame := _receive(request)) is not None:
        reply = _answered(call, *frame, torch)
        _flush()
        _send(answer, reply)


def _receive(request: int) -> tuple[dict[str, Any], Any] | None:
    head = _exactly(request, wire.LENGTH.size)
    if not head:
        return None
    header, size = wire.unpack_header(_exactly(request, *wire.LENGTH.unpack(head)))
    return header, wire.unpack_value(header["value"], _exactly(request, size))


def _exactly(descriptor: int, size: int) -> bytes:
    parts = []
    while size and (part := os.read(descriptor, min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _send(answer: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(answer, view) :]


def _loaded(message: dict[str, Any]) -> Callable[..., Any]:
    """`call(function, *args)` over the learner's module, through the harness if there is one."""
    if message["floating_errors"]:
        np.seterr(over="raise", invalid="raise", divide="raise")
    warnings.simplefilter("ignore")
    solution = _module("solution", FILE, message["source"])
    if not message["harness"]:
        return lambda function, *args: _function(solution, function)(*args)
    harness = _module("harness", HARNESS, message["harness"])
    through: Callable[..., Any] = harness.call
    return lambda function, *args: through(solution, function, *args)


def _module(name: str, file: str, source: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), module.__dict__)
    return module


def _function(solution: types.ModuleType, name: str) -> Callable[..., Any]:
    found = getattr(solution, name, None)
    if not callable(found):
        raise NameError(f"there is no function {name}")
    return found  # type: ignore[no-any-return]


def _answered(call: Callable[..., Any], message: dict[str, Any], args: Any, torch: bool) -> bytes:
    try:
        value = call(message["function"], *(_given(arg, torch) for arg in args))
    except BaseException as error:
        return wire.pack({"status": "error", **_told(error)})
    try:
        return wire.pack({"status": "answered"}, _returned(value, torch))
    except wire.WireError as error:
        return wire.pack({"status": "unusable", "error": str(error)})
    except BaseException as error:
        return wire.pack({"status": "error", **_told(error)})


def _flush() -> None:
    with contextlib.suppress(Exception):  # the learner's own streams
        sys.stdout.flush()
        sys.stderr.flush()


def _given(value: Any, torch: bool) -> Any:
    """Arrays as the learner gets them: writable, the learner's own."""
    if isinstance(value, wire.Array):
        if torch:
            from . import tensors

            return tensors.given(value)
        return np.array(value.values)
    if isinstance(value, (tuple, list)):
        return type(value)(_given(v, torch) for v in value)
    if isinstance(value, dict):
        return {key: _given(v, torch) for key, v in value.items()}
    return value


def _returned(value: Any, torch: bool) -> Any:
    if torch:
        from . import tensors

        return tensors.returned(value)
    return value


def _told(error: BaseException) -> dict[str, Any]:
    """The error's class, text, and the lines of the learner's own code on the way to it."""
    name = type(error).__name__
    try:
        text = str(error)[:_TEXT]
    except BaseException:
        text = ""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [[f.lineno, f.name, f.line] for f in frames if f.filename == FILE]
    if isinstance(error, SyntaxError) and error.filename == FILE:
        lines.append([error.lineno, "", (error.text or "").strip()])
    memory = isinstance(error, MemoryError) or "allocate memory" in text
    return {"error": f"{name}: {text}", "lines": lines[-_LINES:], "memory": memory}
