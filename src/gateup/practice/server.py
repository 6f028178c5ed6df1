"""The judge's side of the fork server: starting it, and one session per submission.

What the learner's process may read is decided here: where Python, its libraries and the system's
lie, without gateup's own folder, which holds the solutions.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import secrets
import selectors
import shutil
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from gateup.errors import GateupError
from gateup.practice.exercise import Limits
from gateup.practice.sandbox import wire

PACKAGE = Path(__file__).resolve().parents[1]
OUTPUT_LIMIT = 64 << 10  # bytes of what the learner's code prints that are kept
FILE_SIZE = 16 << 20  # bytes of one file it writes
NOBODY = 65534  # where a namespace does not map the run's own user
_USERS = range(1_900_000_000, 2_000_000_000)  # no system hands these out
_START = 60.0  # seconds for the libraries to load; two are usual
_STOP = 5.0  # seconds for the keeper to end a session
_LENGTH = struct.Struct(">I")
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
_BOOT = "import sys; sys.path[:] = {!r}; from sandbox import zygote; zygote.main({})"


class JudgeError(GateupError):
    """The judge itself cannot run: a missing library, an operating system without fork."""


class EndedError(Exception):
    """The learner's process ended or was ended before it answered."""


@dataclass(frozen=True)
class End:
    """How a session's process ended: its signal (0: none), exit code, CPU seconds, peak MiB.

    stopped  it ran on without its channel to the judge, which ended it
    """

    signal: int = 0
    code: int = 0
    cpu: float = 0.0
    peak_mib: float = 0.0
    stopped: bool = False


def python_folders() -> list[str]:
    """Where the standard library, numpy, torch and what they need lie: sys.path of the fork."""
    paths = sysconfig.get_paths()
    wanted = [paths["stdlib"], paths["platstdlib"]]
    wanted += [path for path in sys.path if Path(path).name == "lib-dynload"]
    for module in ("numpy", "torch"):
        found = importlib.util.find_spec(module)
        if found is not None and found.origin is not None:
            wanted.append(str(Path(found.origin).parents[1]))
    wanted += [paths["purelib"], paths["platlib"]]
    return [path for path in dict.fromkeys(wanted) if Path(path).is_dir()]


def grants(roots: Iterable[str], hidden: Path) -> tuple[list[str], list[str]]:
    """What of `roots` may be read, and which folders only listed, so that `hidden` stays closed."""
    readable: list[str] = []
    listable: list[str] = []
    for root in roots:
        real = Path(os.path.realpath(root))
        if hidden == real or hidden in real.parents:
            continue
        if real in hidden.parents:
            listable.append(str(real))
            children = [str(child) for child in real.iterdir()]
            below = grants(children, hidden)
            readable += below[0]
            listable += below[1]
        else:
            readable.append(str(real))
    return readable, listable


def is_private(folders: Iterable[str]) -> bool:
    """Whether another user could not read one of these folders."""
    for folder in folders:
        path = Path(os.path.realpath(folder))
        if not path.stat().st_mode & 0o004:
            return True
        if not all(above.stat().st_mode & 0o001 for above in (path, *path.parents)):
            return True
    return False


@cache
def _surroundings() -> dict[str, Any]:
    """The part of a job that is the same for all."""
    folders = python_folders()
    libraries = [path for path in _LIBRARIES if Path(path).exists()]
    libraries.append(str(Path(sys.base_prefix) / "lib"))
    readable, listable = grants(dict.fromkeys(folders + libraries), PACKAGE)
    return {
        "readable": readable,
        "listable": listable,
        "hidden": [str(PACKAGE)],
        "private": is_private(folders),
        "file_size": FILE_SIZE,
    }


class Server:
    """A fork server with these modules loaded. JudgeError where it cannot be had."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        if not hasattr(os, "fork"):
            raise JudgeError("the judge needs an operating system with fork: Linux, macOS or WSL")
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        self._socket = ours
        path = [str(Path(__file__).parent), *python_folders()]
        code = _BOOT.format(path, theirs.fileno())
        environment = {
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            # One thread: the same bits on every machine, and no pool to lose in the fork.
            **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")},
            **{k: os.environ[k] for k in ("LD_LIBRARY_PATH",) if k in os.environ},
        }
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", code],
            pass_fds=[theirs.fileno()],
            env=environment,
            cwd="/",
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        self._send({"modules": list(modules)})
        self._await_start(modules)

    def _await_start(self, modules: tuple[str, ...]) -> None:
        self._socket.settimeout(_START)
        line = b""
        with contextlib.suppress(OSError):
            while not line.endswith(b"\n") and (part := self._socket.recv(4096)):
                line += part
        reason = json.loads(line).get("error", "") if line else "its Python did not start"
        if not line or reason:
            self.close()
            raise JudgeError(
                f"the judge cannot start with {', '.join(modules)}: {reason}",
                remedy="pip install gateup[torch]" if "torch" in modules else None,
            )

    def _send(self, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        body = json.dumps(message).encode()
        with self._lock:
            socket.send_fds(self._socket, [_LENGTH.pack(len(body))], list(descriptors))
            self._socket.sendall(body)

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def start(self, job: dict[str, Any], descriptors: tuple[int, int, int, int]) -> None:
        """Forks for one job. JudgeError where the server is gone."""
        try:
            self._send(job, descriptors)
        except OSError as error:
            raise JudgeError(f"the judge's fork server is gone: {error.strerror}") from None

    def close(self) -> None:
        """Ends the server; sessions that still run are ended with it."""
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Session:
    """One submission's process. A context manager: when it is left nothing of it runs any more."""

    def __init__(self, server: Server, limits: Limits, without: Iterable[str] = ()) -> None:
        self.output = bytearray()
        self.end = End()
        self._folder = tempfile.mkdtemp(prefix="gateup-practice-")
        job = {
            **_surroundings(),
            "folder": os.path.realpath(self._folder),
            "uid": _own_user(self._folder),
            "seconds": math.ceil(limits.seconds),
            "wall": 3 * limits.seconds + _STOP,
            "memory": limits.memory_mb << 20,
            "without": sorted(without),
        }
        self._control, control = socket.socketpair()
        request, self._request = os.pipe()
        self._answer, answer = os.pipe()
        self._printed, output = os.pipe()
        theirs = (control.fileno(), request, answer, output)
        try:
            server.start(job, theirs)
        finally:
            control.close()
            for descriptor in theirs[1:]:
                os.close(descriptor)
        os.set_blocking(self._request, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._answer, selectors.EVENT_READ)
        self._selector.register(self._printed, selectors.EVENT_READ)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def ask(self, frame: bytes, deadline: float) -> tuple[dict[str, Any], Any]:
        """Sends a frame (or nothing), waits for one: its message and value.

        EndedError where the process ends first, TimeoutError past the deadline (of
        time.monotonic), WireError where what comes back is no frame.
        """
        answer = _Frame()
        unsent = memoryview(frame)
        if unsent:
            self._selector.register(self._request, selectors.EVENT_WRITE)
        try:
            while not answer.complete:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                for key, _ in self._selector.select(left):
                    if key.fd == self._request:
                        unsent = unsent[self._write(unsent) :]
                        if not unsent:
                            self._selector.unregister(self._request)
                    elif key.fd == self._printed:
                        self._keep_output()
                    else:
                        answer.add(os.read(self._answer, answer.wanted))
        finally:
            if self._request in self._selector.get_map():
                self._selector.unregister(self._request)
        return answer.message, wire.unpack_value(answer.message["value"], bytes(answer.data))

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._request, data[: 1 << 16])
        except BrokenPipeError:
            raise EndedError from None

    def _keep_output(self) -> bool:
        part = os.read(self._printed, 1 << 16)
        self.output += part[: max(0, OUTPUT_LIMIT - len(self.output))]
        if not part:
            self._selector.unregister(self._printed)
        return bool(part)

    def stop(self) -> End:
        """Ends the process and all it started, if it has not ended, and tells how it ended."""
        if self._control.fileno() < 0:
            return self.end
        # A process that ended by itself has told how already; it needs the moment to be seen.
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        self._control.settimeout(_STOP)
        told = b""
        with contextlib.suppress(OSError):
            while not told.endswith(b"\n") and (part := self._control.recv(4096)):
                told += part
        if told:
            self.end = _end(json.loads(told))
        self._control.close()
        self._drain()
        self._selector.close()
        for descriptor in (self._request, self._answer, self._printed):
            os.close(descriptor)
        _remove(self._folder)
        return self.end

    def _drain(self) -> None:
        """What was printed before the end and not read yet: a pipe's worth at most."""
        os.set_blocking(self._printed, False)
        with contextlib.suppress(BlockingIOError, KeyError):
            for _ in range(64):
                if not self._keep_output():
                    return

    def await_end(self) -> End:
        """How a process ended whose answers ended: it is given a moment to be gone by itself."""
        self._control.settimeout(1.0)
        stopped = False
        try:
            self._control.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            stopped = True
        except OSError:
            pass  # the keeper is gone: nothing is told
        self.end = replace(self.stop(), stopped=stopped)
        return self.end


class _Frame:
    """A frame that is being received: how much is wanted next, never more than the limits."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.message: dict[str, Any] = {}
        self.complete = False
        self._part = "length"
        self._need = wire.LENGTH.size

    @property
    def wanted(self) -> int:
        return min(1 << 20, self._need - len(self.data))

    def add(self, part: bytes) -> None:
        """EndedError at the end of the stream, WireError where a limit is passed."""
        if not part:
            raise EndedError
        self.data += part
        while len(self.data) == self._need and not self.complete:
            self._advance()

    def _advance(self) -> None:
        if self._part == "length":
            self._part, self._need = "header", wire.LENGTH.unpack(self.data)[0]
            if not 0 < self._need <= wire.HEADER_LIMIT:
                raise wire.WireError("a header of a wrong size")
        elif self._part == "header":
            self.message, self._need = wire.unpack_header(bytes(self.data))
            self._part, self.complete = "arrays", self._need == 0
        else:
            self.complete = True
            return
        self.data.clear()


def _own_user(folder: str) -> int | None:
    """The user the run becomes, who owns its folder: None where we may not choose one."""
    if os.geteuid() == 0:
        for uid in (_USERS[secrets.randbelow(len(_USERS))], NOBODY):
            with contextlib.suppress(OSError):
                os.chown(folder, uid, uid)
                return uid
    return None


def _end(told: dict[str, Any]) -> End:
    status = told["status"]
    return End(
        signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
        code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0,
        cpu=told["cpu"],
        peak_mib=told["rss"] / (1 << 10 if sys.platform.startswith("linux") else 1 << 20),
    )


def _remove(folder: str) -> None:
    """The run's folder; modes it may have set are put right first, links are not followed."""
    for root, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            Path(root).chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
