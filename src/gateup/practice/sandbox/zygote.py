"""The fork server: an isolated Python with the libraries loaded, forked for every submission.

Loading torch takes two seconds, a fork some milliseconds. It reads no learner's code itself and
remembers no job. It ends when the judge closes its socket.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import struct
import sys
from typing import Any

from . import keeper

_DESCRIPTORS = 4  # control, request, answer, output
_LENGTH = struct.Struct(">I")


def main(descriptor: int) -> None:
    """Loads what the first message names, then forks for each that follows."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    judge = socket.socket(fileno=descriptor)
    first, _ = _message(judge)
    del sys.path[0]  # where this package lies
    try:
        for name in first["modules"]:
            importlib.import_module(name)
        if "torch" in first["modules"]:  # the forks cannot see this package's folder
            importlib.import_module(".tensors", __package__)
    except ImportError as error:
        judge.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
        return
    gc.collect()
    gc.freeze()  # the forks share these pages
    judge.sendall(b"{}\n")
    while True:
        try:
            job, descriptors = _message(judge)
        except EOFError:
            return
        if os.fork() == 0:
            _keep(judge, job, descriptors)
        for received in descriptors:
            os.close(received)


def _keep(judge: socket.socket, job: dict[str, Any], descriptors: list[int]) -> None:
    try:
        judge.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control, request, answer, output = descriptors
        keeper.keep(job, socket.socket(fileno=control), request, answer, output)
    finally:
        os._exit(0)


def _message(judge: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, descriptors, _, _ = socket.recv_fds(judge, _LENGTH.size, _DESCRIPTORS)
    while head and len(head) < _LENGTH.size:
        head += judge.recv(_LENGTH.size - len(head))
    if not head:
        raise EOFError
    size = _LENGTH.unpack(head)[0]
    body = b""
    while len(body) < size:
        body += judge.recv(size - len(body))
    return json.loads(body), list(descriptors)
