"""The process between the fork server and one learner's process: it starts it, waits, ends it.

It holds one end of a socket to the judge. When the judge closes or speaks, or the time is over, or
the learner's process ends by itself, everything that was started below is killed, and the judge is
told how it ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from pathlib import Path
from typing import Any

from . import guards, learner

if guards.LINUX:
    from . import linux

_TICK = 0.02  # seconds between looks where the kernel has no descriptor for a process
_SWEEPS = 200  # looks for processes left behind


def keep(job: guards.Job, control: socket.socket, request: int, answer: int, output: int) -> None:
    """Runs one job to its end. `request`, `answer` and `output` are the learner's pipes."""
    os.setsid()
    if guards.LINUX:
        linux.die_with_parent(signal.SIGKILL)
        linux.adopt_orphans()
    report = guards.separate(job)
    child = os.fork()
    if child == 0:
        control.detach()  # its number is about to mean something else
        _enter(job, report, request, answer, output)
    for descriptor in (request, answer, output):
        os.close(descriptor)
    ended, usage = _wait(child, control, job["wall"])
    if report.get(guards.PROCESSES) != "":
        _sweep(child)
    message = {"status": ended, "cpu": usage.ru_utime + usage.ru_stime, "rss": usage.ru_maxrss}
    with contextlib.suppress(OSError):
        control.sendall(json.dumps(message).encode() + b"\n")


def _enter(job: guards.Job, report: guards.Report, request: int, answer: int, output: int) -> None:
    """The learner's process: only its pipes are open, then the guards, then the code."""
    status = 1
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDONLY)
        high = [os.dup2(fd, 200 + i) for i, fd in enumerate((nowhere, output, request, answer))]
        for target, fd in ((0, high[0]), (1, high[1]), (2, high[1]), (3, high[2]), (4, high[3])):
            os.dup2(fd, target)
        os.closerange(5, 1024)
        learner.serve(job, report, 3, 4)
        status = 0
    finally:
        os._exit(status)


def _wait(child: int, control: socket.socket, seconds: float) -> tuple[int, Any]:
    """Kills the child when the judge says so or the time is over; its wait status and usage."""
    end = time.monotonic() + seconds
    watched: list[Any] = [control]
    tick = _TICK
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            watched.append(os.pidfd_open(child))
            tick = seconds
    while True:
        left = max(0.0, end - time.monotonic())
        ready = select.select(watched, [], [], min(tick, left))[0]
        if control in ready or left == 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            _, status, usage = os.wait4(child, 0)
            return status, usage
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            return status, usage


def _sweep(child: int) -> None:
    """Ends what the learner's process left running; with a process namespace nothing is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    for _ in range(_SWEEPS):
        for pid in _children(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def _children(parent: int) -> list[int]:
    """All processes below this one."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir() if guards.LINUX else ():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = (folder / "stat").read_text()
                parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    found, frontier = [], {parent}
    while frontier:
        frontier = {pid for pid, above in parents.items() if above in frontier}
        found += sorted(frontier)
    return found
