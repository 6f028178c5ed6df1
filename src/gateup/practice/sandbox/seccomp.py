"""The system calls a learner's code may not make: they fail as not permitted.

Threads are allowed, processes are not; no sockets, no signals to others, no tracing, no mounts, no
kernel interfaces that go around the other guards (io_uring, bpf, handles). Numbers are those of
x86-64 and 64-bit Arm; elsewhere there is no filter.
"""

from __future__ import annotations

import errno
import platform
import struct

from . import linux

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000  # x86-64's second table: any number from here on

# name: (x86-64, aarch64); None where the architecture has no such call.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "personality": (135, 92),
}
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_TGKILL = (234, 131)
_PRLIMIT64 = (302, 261)

# BPF: load a word of the call's data; jump if equal, at least, or any bit; return.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARG0 = 0, 4, 16
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_ERROR = 0x00050000


def forbid(pid: int) -> None:
    """Installs the filter for this process and its threads. OSError where the kernel cannot.

    `pid` is our own: a process may still end itself by a signal (as abort does).
    """
    machine = platform.machine()
    if machine not in _AUDIT:
        raise OSError(errno.ENOSYS, f"no filter for {machine}")
    linux.install_filter(_program(machine, pid))


def _program(machine: str, pid: int) -> bytes:
    column = 0 if machine == "x86_64" else 1
    denied = _ERROR | errno.EPERM
    lines = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        lines += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, denied)]
    for numbers in _DENIED.values():
        if numbers[column] is not None:
            lines += [(_EQUAL, 0, 1, numbers[column] or 0), (_RETURN, 0, 0, denied)]
    # The C library then falls back to clone, whose flags can be seen.
    lines += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    for number, test, value in (
        (_CLONE[column], _ANY_BIT, linux.CLONE_THREAD),
        (_TGKILL[column], _EQUAL, pid),
        (_PRLIMIT64[column], _EQUAL, 0),
    ):
        lines += [
            (_EQUAL, 0, 4, number),
            (_LOAD, 0, 0, _ARG0),
            (test, 0, 1, value),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, denied),
        ]
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in lines)
