"""System calls that Python has no function for, through ctypes. Linux alone."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_THREAD = 0x00010000

_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_SET_SECCOMP = 22
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REC, _MS_PRIVATE = 16384, 1 << 18
NO_SURPRISES = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
READ_ONLY = _MS_RDONLY

_CAPABILITY_VERSION = 0x20080522
CAP_DAC_READ_SEARCH = 2

# Numbers of the generic table, the same on x86-64 and on 64-bit Arm.
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_CAPSET = {"x86_64": 126}
_CAPSET_GENERIC = 91

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _prctl(option: int, *values: int) -> None:
    padded = (*values, 0, 0, 0, 0)[:4]
    _checked(_libc.prctl(option, *(ctypes.c_ulong(value) for value in padded)))


def die_with_parent(signal: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, signal)


def adopt_orphans() -> None:
    """Grandchildren whose parent ends become ours, so that they can be found and ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def no_new_privileges() -> None:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def keep_capabilities() -> None:
    """Capabilities outlive the change of uid that follows."""
    _prctl(_PR_SET_KEEPCAPS, 1)


def set_capabilities(*kept: int) -> None:
    """Effective and permitted are those in `kept` and no others."""
    mask = sum(1 << capability for capability in kept)
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    data = struct.pack("6I", mask, mask, 0, 0, 0, 0)
    number = _CAPSET.get(platform.machine(), _CAPSET_GENERIC)
    _checked(_libc.syscall(ctypes.c_long(number), header, data))


def unshare(flags: int) -> None:
    _checked(_libc.unshare(ctypes.c_int(flags)))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    _checked(
        _libc.mount(
            source.encode(),
            os.fsencode(target),
            kind.encode(),
            ctypes.c_ulong(flags),
            options.encode(),
        )
    )


def mounts_stay_here() -> None:
    """What is mounted from now on is seen in this mount namespace alone."""
    mount("none", "/", "", _MS_REC | _MS_PRIVATE)


def install_filter(program: bytes) -> None:
    """A seccomp filter of 8-byte BPF instructions; needs `no_new_privileges` before."""
    code = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    holder = ctypes.create_string_buffer(head, len(head))
    _prctl(_PR_SET_SECCOMP, 2, ctypes.addressof(holder))


def landlock_version() -> int:
    """The kernel's Landlock ABI. OSError where it has none."""
    return _checked(_libc.syscall(ctypes.c_long(_LANDLOCK_CREATE), None, 0, 1))


def landlock_ruleset(files: int, network: int, scopes: int, version: int) -> int:
    """A ruleset that handles these rights, as a file descriptor. Older kernels know fewer."""
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    data = struct.pack("QQQ", files, network, scopes)[:size]
    return _checked(_libc.syscall(ctypes.c_long(_LANDLOCK_CREATE), data, ctypes.c_size_t(size), 0))


def landlock_allow(ruleset: int, path: str, rights: int) -> None:
    """Grants rights beneath a path. OSError where there is no such path."""
    beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", rights, beneath)
        _checked(_libc.syscall(ctypes.c_long(_LANDLOCK_ADD), ruleset, 1, rule, 0))
    finally:
        os.close(beneath)


def landlock_restrict(ruleset: int) -> None:
    _checked(_libc.syscall(ctypes.c_long(_LANDLOCK_RESTRICT), ruleset, 0))
