"""What keeps a learner's code in: each guard is tried, and said to be in force or not.

A `job` (a dict from the judge) says what to guard: `folder` to write in, `uid` to become (None
keeps ours), `seconds` of CPU, `memory` in bytes beyond what the interpreter holds, `file_size`,
paths that are `readable`, `listable` or `hidden`, whether Python itself is `private` (unreadable
for others), and the guards to leave out (`without`, for tests that take them one by one).

In the process above (`keeper.py`) `separate` makes the namespaces; in the learner's own process
`confine` does the rest, in an order in which each step still may do what it has to.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

LINUX = sys.platform.startswith("linux")
if sys.platform != "win32":  # the names below are needed there too
    import resource
if LINUX:
    from . import linux, seccomp

ISOLATED = "isolated"
LIMITS = "limits"
UID = "uid"
PRIVILEGES = "privileges"
CALLS = "calls"
FILES = "files"
NETWORK = "network"
PROCESSES = "processes"
MOUNTS = "mounts"

OPEN_FILES = 64
THREADS = 32  # processes and threads of the run's own user
FOLDER_OPTIONS = "size=64m,nr_inodes=1024,mode=0700"

Job = dict[str, Any]
Report = dict[str, str]  # guard: "" in force, else why not

_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_WRITE, _TRUNCATE = 1 << 1, 1 << 14
# Make and remove files and folders; no devices, sockets, links.
_CHANGE = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8
_ALL_RIGHTS = ((1 << 13) - 1, 1 << 13, 1 << 14, 0, 1 << 15)  # by ABI: 1, +2, +3, 4, +5
_TCP, _SCOPES = 0b11, 0b11


def _attempt(report: Report, job: Job, guard: str, action: Callable[[], None]) -> bool:
    """Whether the guard is in force now; the reason why not goes into the report."""
    if guard in job["without"]:
        report[guard] = "left out"
        return False
    if not LINUX:
        report[guard] = "Linux alone has it"
        return False
    try:
        action()
    except (OSError, KeyError) as error:
        report[guard] = getattr(error, "strerror", None) or "not on this processor"
        return False
    report[guard] = ""
    return True


def separate(job: Job) -> Report:
    """Namespaces for the process that is forked next: network, processes, mounts."""
    report: Report = {}
    if LINUX and os.geteuid() != 0 and {NETWORK, PROCESSES, MOUNTS} - set(job["without"]):
        # Where it is refused the three below say so.
        with contextlib.suppress(OSError):
            _own_user_namespace()
    _attempt(report, job, NETWORK, lambda: linux.unshare(linux.CLONE_NEWNET | linux.CLONE_NEWIPC))
    _attempt(report, job, MOUNTS, lambda: _own_mounts(job))
    _attempt(report, job, PROCESSES, lambda: linux.unshare(linux.CLONE_NEWPID))
    return report


def _own_user_namespace() -> None:
    """The same user in a namespace in which it may make the other namespaces."""
    uid, gid = os.getuid(), os.getgid()
    linux.unshare(linux.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _own_mounts(job: Job) -> None:
    """The hidden folders become empty, the run's folder a small file system of its own."""
    linux.unshare(linux.CLONE_NEWNS)
    linux.mounts_stay_here()
    for folder in job["hidden"]:
        linux.mount("none", folder, "tmpfs", linux.NO_SURPRISES | linux.READ_ONLY, "size=4k")
    uid, gid = (os.getuid(), os.getgid()) if job["uid"] is None else (job["uid"], job["uid"])
    options = f"{FOLDER_OPTIONS},uid={uid},gid={gid}"
    linux.mount("none", job["folder"], "tmpfs", linux.NO_SURPRISES, options)


def confine(job: Job, report: Report) -> None:
    """Every guard of the learner's own process, which this must be called in; told in `report`."""
    report[ISOLATED] = ""
    _set_up_environment(job["folder"])
    _limit(job, report)
    if report.get(PROCESSES) == "" and report.get(MOUNTS) == "":
        with contextlib.suppress(OSError):  # then /proc shows what it showed, read-only
            linux.mount("proc", "/proc", "proc", linux.NO_SURPRISES)
    _attempt(report, job, PRIVILEGES, lambda: linux.no_new_privileges())
    _attempt(report, job, FILES, lambda: _lock_files(job))
    _become(job, report)
    # The change of user above forgets this: only now.
    if LINUX:
        linux.die_with_parent(9)
    _attempt(report, job, CALLS, lambda: seccomp.forbid(os.getpid()))


def _set_up_environment(folder: str) -> None:
    os.chdir(folder)
    os.umask(0o077)
    os.environ.update(HOME=folder, TMPDIR=folder, USER="learner", LOGNAME="learner")
    tempfile.tempdir = folder


def _limit(job: Job, report: Report) -> None:
    if LIMITS in job["without"]:
        report[LIMITS] = "left out"
        return
    seconds = job["seconds"]
    wanted = [
        (resource.RLIMIT_CPU, seconds, seconds + 1),
        (resource.RLIMIT_FSIZE, job["file_size"], job["file_size"]),
        (resource.RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES),
        (resource.RLIMIT_CORE, 0, 0),
    ]
    if LINUX:
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        wanted.append((resource.RLIMIT_AS, held + job["memory"], held + job["memory"]))
        # A user's own processes count too where the user stays the same.
        others = 0 if job["uid"] is not None else _processes_of(os.getuid())
        wanted.append((resource.RLIMIT_NPROC, others + THREADS, others + THREADS))
    for limit, soft, hard in wanted:
        ceiling = resource.getrlimit(limit)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(limit, (soft, hard))
    report[LIMITS] = ""


def _processes_of(uid: int) -> int:
    """Threads that this user runs now, as far as /proc shows them."""
    count = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if folder.stat().st_uid == uid:
                    count += sum(1 for _ in (folder / "task").iterdir())
    return count


def _lock_files(job: Job) -> None:
    """Landlock: reads where Python lies, writes in the run's folder, nothing else; no TCP."""
    version = linux.landlock_version()
    handled = sum(_ALL_RIGHTS[:version])
    ruleset = linux.landlock_ruleset(handled, _TCP, _SCOPES, version)
    read = _READ_FILE | _READ_FOLDER
    change = (read | _WRITE | _TRUNCATE | _CHANGE) & handled
    allowed = [(path, read) for path in job["readable"]]
    allowed += [(path, _READ_FOLDER) for path in job["listable"]]
    allowed += [(f"/proc/{name}", read) for name in ("self", "cpuinfo", "meminfo", "stat")]
    allowed += [("/dev/null", _READ_FILE | _WRITE), (job["folder"], change)]
    allowed += [(path, read) for path in ("/dev/zero", "/dev/urandom", "/sys/devices/system/cpu")]
    for path, rights in allowed:
        if not os.path.isdir(path):  # noqa: PTH112  # hundreds of strings
            rights &= _READ_FILE | _WRITE | _TRUNCATE
        with contextlib.suppress(FileNotFoundError, PermissionError):
            linux.landlock_allow(ruleset, path, rights)
    linux.landlock_restrict(ruleset)
    os.close(ruleset)


def _become(job: Job, report: Report) -> None:
    """The run's own user, and no capabilities.

    One stays where Python lies in a folder that other users may not enter (a home): reading past
    file modes. It is kept only under Landlock, which then says alone what may be read.
    """
    uid = job["uid"]
    reads = LINUX and job["private"] and report.get(FILES) == ""
    if uid is None:
        report[UID] = "not started as root" if os.geteuid() else "no right to change users"
    else:
        if reads:
            linux.keep_capabilities()
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)  # of a process with root's rights: real, effective and saved
        report[UID] = ""
    if LINUX:  # without a change of user those of a user namespace, if any
        kept = [linux.CAP_DAC_READ_SEARCH] if reads and uid is not None else []
        linux.set_capabilities(*kept)
