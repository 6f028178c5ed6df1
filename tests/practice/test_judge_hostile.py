"""Submissions that attack the judge: none passes, none reaches out, nothing is left of them."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from gateup.practice.exercise import Exercise
from gateup.practice.judge import Judge
from gateup.practice.sandbox import guards
from gateup.practice.server import OUTPUT_LIMIT, PACKAGE

pytestmark = pytest.mark.skipif(not guards.LINUX, reason="the guards are Linux's")

ANSWER = "def silu(x):\n    return x\n"


def _need(judge: Judge, exercise: Exercise, *wanted: str) -> None:
    """Skips where this machine lacks a guard (containers, old kernels)."""
    states = {g.name: g.in_force for g in judge.judge(exercise, ANSWER, seed=1).guards}
    missing = [name for name in wanted if not states[name]]
    if missing:
        pytest.skip(f"not in force here: {', '.join(missing)}")


def _statuses(judge: Judge, exercise: Exercise, source: str) -> list[str]:
    verdict = judge.judge(exercise, source, seed=1)
    assert not verdict.passed
    return [case.status for case in verdict.cases]


def _said(judge: Judge, exercise: Exercise, source: str) -> str:
    """What the submission printed; it must not pass."""
    verdict = judge.judge(exercise, source + ANSWER, seed=1)
    assert not verdict.passed
    return verdict.output


FAKES = {
    "prints a verdict": "print('passed'); print('{\"passed\": true}')",
    "patches the comparison": (
        "import numpy as np, numpy.testing\n"
        "np.allclose = np.isclose = np.array_equal = lambda *a, **k: True\n"
        "np.testing.assert_allclose = lambda *a, **k: None\n"
        "np.isnan = lambda x: False\n"
    ),
    "patches the runner": (
        "import sys\n"
        "wire = sys.modules['sandbox.wire']\n"
        "pack = wire.pack\n"
        "wire.pack = lambda *a: pack({'status': 'passed', 'passed': True})\n"
    ),
    "equal to everything": (
        "import numpy as np\n"
        "class Always(np.ndarray):\n"
        "    def __eq__(self, other): return True\n"
        "    def __sub__(self, other): return 0\n"
        "def silu(x): return np.zeros_like(x).view(Always)\n"
    ),
}


@pytest.mark.parametrize("fake", FAKES)
def test_a_fake_does_not_pass(fake: str, practice_judge: Judge, silu: Exercise) -> None:
    source = FAKES[fake] if "def silu" in FAKES[fake] else FAKES[fake] + "\n" + ANSWER
    statuses = _statuses(practice_judge, silu, source)
    assert "passed" not in statuses


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("import os; os._exit(0)", "no answer"),
        ("def silu(x): import os; os._exit(0)", "no answer"),
        ("import sys; sys.exit(0)", "error"),
        ("def silu(x): raise SystemExit(0)", "error"),
        ("def silu(x): return silu(x)", "error"),
        ("def silu(x): import ctypes; ctypes.string_at(0)", "crashed"),
        ("def silu(x): import os; os.write(4, b'passed' * 100); return x", "no answer"),
        ("def silu(x): import os; os.close(4); return x", "no answer"),
        ("def silu(x): return object()", "wrong structure"),
        ("def silu(x): return 10 ** 4000", "wrong structure"),
        ("def silu(x): import numpy; return numpy.zeros(1 << 40)", "memory"),
        ("def silu(x): import numpy; return numpy.array([x, None], object)", "wrong structure"),
        ("def silu(x): return [bytearray(1 << 26) for _ in range(64)]", "memory"),
        ("def silu(x): import numpy; return numpy.zeros(9 << 20)", "wrong structure"),
        ("def silu(", "error"),
        ("def other(x): return x", "error"),
        ("x" * (1 << 19), "error"),
    ],
)
def test_an_early_end_is_no_answer(
    source: str, status: str, practice_judge: Judge, silu: Exercise
) -> None:
    assert _statuses(practice_judge, silu, source)[0] == status


def test_endless_loop_and_sleep_end_in_time(practice_judge: Judge, silu: Exercise) -> None:
    for body in ("while True: pass", "import time; time.sleep(60)"):
        begun = time.monotonic()
        statuses = _statuses(practice_judge, silu, f"def silu(x):\n    {body}\n")
        assert statuses == ["timeout", *["not run"] * 4]
        assert (
            time.monotonic() - begun < 30
        )  # the limit is 1.6 s of waiting; the rest is the machine


def test_a_handler_for_the_time_limit_does_not_help(practice_judge: Judge, silu: Exercise) -> None:
    source = (
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
        "def silu(x):\n    while True:\n        pass\n"
    )
    assert _statuses(practice_judge, silu, source)[0] == "timeout"


def test_solutions_cannot_be_read(practice_judge: Judge, silu: Exercise) -> None:
    _need(practice_judge, silu, guards.FILES)
    source = f"""
import gc, os, sys
for path in ({str(silu.folder / "solution.py")!r}, {str(silu.folder / "cases.py")!r},
             {str(PACKAGE / "practice" / "judge.py")!r}, "/etc/passwd"):
    try:
        print("read", path, open(path).read())
    except OSError as error:
        print(type(error).__name__)
held = [o for o in gc.get_objects() if isinstance(o, str) and "np.exp(-np.abs" in o]
held += [m for m in sys.modules if m.startswith("gateup")]
print("held", held)
print("environment", sorted(os.environ))
print("folder", os.listdir("."))
"""
    said = _said(practice_judge, silu, source)
    assert "read /" not in said
    assert said.count("Error") == 4
    assert "held []" in said
    assert "folder []" in said
    environment = said.partition("environment ")[2].splitlines()[0]
    assert "TOKEN" not in environment
    assert len(environment) < 200


def test_nothing_is_written_outside(practice_judge: Judge, silu: Exercise, tmp_path: Path) -> None:
    _need(practice_judge, silu, guards.FILES)
    tmp_path.chmod(0o777)
    target = tmp_path / "out"
    source = f"""
import os
for path in ({str(target)!r}, "/tmp/gateup-was-here", {str(silu.folder / "solution.py")!r}):
    try:
        open(path, "w").write("x"); print("wrote", path)
    except OSError as error:
        print("refused")
open("mine", "w").write("x" * 100); print("own", os.path.getsize("mine"))
try:
    with open("large", "wb") as file:
        for _ in range(100): file.write(bytes(1 << 20))
    print("large")
except OSError: print("too large")
"""
    said = _said(practice_judge, silu, source)
    assert "wrote" not in said
    assert said.count("refused") == 3
    assert "own 100" in said
    assert "too large" in said
    assert not target.exists()
    assert silu.solution().startswith("import numpy")


def test_no_network(practice_judge: Judge, silu: Exercise) -> None:
    _need(practice_judge, silu, guards.CALLS)
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = f"""
import socket
try:
    socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), 1); print("connected")
except OSError as error:
    print("refused", error)
"""
        said = _said(practice_judge, silu, source)
    assert "connected" not in said
    assert "refused" in said


KILLER = """
import os, signal
for pid in [os.getppid(), *range(2, 100_000)]:
    if pid > 1 and pid != os.getpid():
        try:
            os.kill(pid, signal.SIGKILL); print("killed", pid)
        except OSError: pass
for call in ("fork", "setsid"):
    try:
        getattr(os, call)(); print(call)
    except OSError: pass
try:
    os.posix_spawn("/bin/true", ["true"], {}); print("ran")
except OSError: pass
"""


def test_no_processes_and_no_signals(practice_judge: Judge, silu: Exercise) -> None:
    _need(practice_judge, silu, guards.CALLS)
    server = practice_judge.warm("numpy").pid
    said = _said(practice_judge, silu, KILLER)
    assert "killed" not in said
    assert "fork" not in said
    assert "ran" not in said
    assert practice_judge.warm("numpy").pid == server


def test_output_is_cut(practice_judge: Judge, silu: Exercise) -> None:
    source = "import sys\nfor _ in range(3000): sys.stdout.write('y' * 10_000)\n" + ANSWER
    verdict = practice_judge.judge(silu, source, seed=1)
    assert len(verdict.output) == OUTPUT_LIMIT
    assert verdict.output_cut
    assert verdict.cases[0].status == "wrong value"


BOMB = """
import os, time
def silu(x):
    for _ in range(8):
        try:
            if os.fork() == 0:
                os.setsid()
                while True:
                    try: os.fork()
                    except OSError: time.sleep(0.01)
        except OSError: pass
    return x
"""


@pytest.mark.parametrize(
    "without",
    [
        [guards.CALLS],  # the process namespace ends all
        [guards.CALLS, guards.PROCESSES, guards.MOUNTS],  # they are found and killed one by one
    ],
)
def test_a_fork_bomb_leaves_nothing(without: list[str], silu: Exercise) -> None:
    with Judge(without=without) as judge:
        verdict = judge.judge(silu, BOMB, seed=1)
        assert not verdict.passed
        assert not any(g.in_force for g in verdict.guards if g.name in without)
        assert _descendants(judge.warm("numpy").pid) == []


def _descendants(parent: int) -> list[int]:
    """Processes below the fork server, after it had a moment to reap."""
    for _ in range(100):
        parents = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    stat = (folder / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                parents[int(folder.name)] = int(stat[1])
        below, frontier = [], {parent}
        while frontier:
            frontier = {pid for pid, above in parents.items() if above in frontier}
            below += sorted(frontier)
        if not below:
            return []
        time.sleep(0.05)
    return below


@pytest.mark.parametrize("guard", [guards.FILES, guards.MOUNTS])
def test_each_file_guard_hides_the_solutions_alone(
    guard: str, practice_judge: Judge, silu: Exercise
) -> None:
    _need(practice_judge, silu, guard)
    source = f"""
try:
    print("read", open({str(silu.folder / "solution.py")!r}).read())
except OSError: print("hidden")
"""
    other = {guards.FILES: guards.MOUNTS, guards.MOUNTS: guards.FILES}[guard]
    with Judge(without=[other]) as judge:
        assert _said(judge, silu, source).strip() == "hidden"


@pytest.mark.parametrize("guard", [guards.CALLS, guards.NETWORK, guards.FILES])
def test_each_network_guard_refuses_alone(
    guard: str, practice_judge: Judge, silu: Exercise
) -> None:
    _need(practice_judge, silu, guard)
    others = {guards.CALLS, guards.NETWORK, guards.FILES} - {guard}
    with socket.create_server(("127.0.0.1", 0)) as server, Judge(without=others) as judge:
        source = f"""
import socket
try:
    socket.socket().connect(("127.0.0.1", {server.getsockname()[1]})); print("connected")
except OSError: print("refused")
"""
        assert _said(judge, silu, source).strip() == "refused"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_root_is_given_up(practice_judge: Judge, silu: Exercise) -> None:
    source = """
import os
print(os.getuid() != 0, os.getgid() != 0, os.getgroups())
try: os.setuid(0); print("root again")
except OSError: print("stays")
print(open("/proc/self/status").read())
"""
    said = _said(practice_judge, silu, source)
    assert said.startswith("True True []\nstays")
    assert "NoNewPrivs:\t1" in said
    kept = int(said.partition("CapEff:\t")[2].split()[0], 16)
    assert kept & ~(1 << 2) == 0  # reading past file modes, at most, and under Landlock alone
