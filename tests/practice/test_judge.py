"""Verdicts: what they say, that they can be made again, and that many can be asked for at once."""

from __future__ import annotations

import importlib.util
import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gateup.practice import judge as judge_module
from gateup.practice.exercise import STATUSES, Exercise, find, load
from gateup.practice.judge import BusyError, Judge
from gateup.practice.messages import STATUS
from gateup.practice.server import JudgeError, Server, grants
from gateup.practice.verdict import TracebackLine


def test_a_verdict_tells_all(practice_judge: Judge, silu: Exercise) -> None:
    source = "import numpy as np\n\ndef silu(x):\n    print('here')\n    return np.maximum(x, 0)\n"
    verdict = practice_judge.judge(silu, source, "zh", seed=11, hints_seen=1)
    assert (verdict.passed, verdict.seed, verdict.mistake) == (False, 11, "relu")
    assert verdict.message == silu.mistakes["relu"].zh
    assert (verdict.hint, verdict.hint_number) == (silu.hints[1].zh, 2)
    assert verdict.output == "here\n" * 5
    first = verdict.cases[0].compared
    assert first is not None
    assert first.shape_got == first.shape_expected
    assert first.max_abs is not None
    assert first.max_abs > 0.01
    assert verdict.peak_mib > 5
    assert {guard.name for guard in verdict.guards if guard.in_force} >= {"isolated", "limits"}
    assert json.loads(json.dumps(verdict.to_dict(), allow_nan=False))["mistake"] == "relu"


def test_a_seed_makes_the_same_cases_again(practice_judge: Judge, silu: Exercise) -> None:
    wrong = (silu.folder / "mutants" / "relu.py").read_text()
    drawn = practice_judge.judge(silu, wrong)
    again = practice_judge.judge(silu, wrong, seed=drawn.seed)
    assert [c.compared for c in again.cases] == [c.compared for c in drawn.cases]
    assert practice_judge.judge(silu, wrong).seed != drawn.seed


def test_an_error_shows_the_learner_s_lines_alone(practice_judge: Judge, silu: Exercise) -> None:
    source = "def inner(x):\n    return x.nothing\n\ndef silu(x):\n    return inner(x)\n"
    case = practice_judge.judge(silu, source, seed=1).cases[0]
    assert case.status == "error"
    assert case.error == "AttributeError: 'numpy.ndarray' object has no attribute 'nothing'"
    assert case.lines == (
        TracebackLine(5, "silu", "return inner(x)"),
        TracebackLine(2, "inner", "return x.nothing"),
    )
    syntax = practice_judge.judge(silu, "def silu(x):\n  return (x\n", seed=1).cases[0]
    assert syntax.error.startswith("SyntaxError")
    assert syntax.lines[-1].number == 2


def test_one_answer_may_change_its_input_and_no_other(
    practice_judge: Judge, silu: Exercise
) -> None:
    source = (
        silu.solution()
        + "\n_right = silu\ndef silu(x):\n    y = _right(x)\n    x[...] = 7\n    return y\n"
    )
    assert practice_judge.judge(silu, source, seed=1).passed


def test_a_harness_counts_beside_the_code(practice_judge: Judge, tmp_path: Path) -> None:
    folder = tmp_path / "01_counted"
    (folder / "mutants").mkdir(parents=True)
    for name, text in {
        "exercise.yaml": (
            "title: {en: t, zh: t}\nlevel: 1\nneeds: numpy\nfunctions: [total]\n"
            "hints: [{en: h, zh: h}]\nmistakes: {twice: {en: m, zh: m}}\n"
        ),
        "problem.en.md": "# t",
        "problem.zh.md": "# t",
        "starter.py": "def total(read, n): ...",
        "solution.py": "def total(read, n): return sum(read(i) for i in range(n))",
        "mutants/twice.py": "def total(read, n): return sum(read(i) | read(i) for i in range(n))",
        "harness.py": (
            "def call(solution, function, values):\n"
            "    reads = [0]\n"
            "    def read(i):\n        reads[0] += 1\n        return int(values[i])\n"
            "    total = solution.total(read, len(values))\n"
            "    return {'total': total, 'reads': reads[0]}\n"
        ),
        "cases.py": (
            "import numpy as np\nfrom gateup.practice.exercise import AtMost, Case\n"
            "def cases(seed):\n    x = np.arange(seed + 3)\n"
            "    return [Case('n', (x,), {'total': int(x.sum()), 'reads': AtMost(len(x))})]\n"
            "def recognise(case, outcome):\n"
            "    return 'twice' if outcome.status == 'over budget' else None\n"
        ),
    }.items():
        (folder / name).write_text(text)
    counted = load(folder)
    good = practice_judge.judge(counted, counted.solution(), seed=4)
    assert good.passed
    assert good.cases[0].compared is not None
    assert good.cases[0].compared.self_reported
    wrong = practice_judge.judge(counted, counted.mutants()[0].read_text(), seed=4)
    assert wrong.mistake == "twice"
    assert wrong.cases[0].compared is not None
    assert (wrong.cases[0].compared.got, wrong.cases[0].compared.expected) == ("14", "≤ 7")


TORCH = """
import torch

def pair(x, w):
    (x.float() * w.float()).sum().backward()
    return (x * 2, x.grad, str(x.dtype), torch.get_num_threads())
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_tensors_go_in_and_come_out(practice_judge: Judge, tmp_path: Path) -> None:
    folder = tmp_path / "02_pair"
    shutil.copytree(find("silu").folder, folder)
    text = (folder / "exercise.yaml").read_text().replace("needs: numpy", "needs: torch")
    (folder / "exercise.yaml").write_text(text.replace("[silu]", "[pair]"))
    (folder / "cases.py").write_text(
        "import numpy as np\nfrom gateup.practice.exercise import Case, Expected, Tensor\n"
        "def cases(seed):\n"
        "    x = np.array([1.0, 2.5])\n    w = np.array([3.0, -4.0], np.float32)\n"
        "    args = (Tensor(x, 'bfloat16', requires_grad=True), w)\n"
        "    return [Case('n', args, (2 * x, w.astype(float), 'torch.bfloat16', 1))]\n"
    )
    verdict = practice_judge.judge(load(folder), TORCH, seed=1)
    assert verdict.passed, verdict.cases
    narrow = practice_judge.judge(load(folder), TORCH.replace("x * 2", "x.float() * 2"), seed=1)
    assert [case.status for case in narrow.cases] == ["wrong dtype"]


def test_many_at_once(practice_judge: Judge, silu: Exercise) -> None:
    passed: list[bool] = []

    def ask() -> None:
        passed.append(practice_judge.judge(silu, silu.solution()).passed)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert passed == [True] * 6


def test_one_too_many_is_told(silu: Exercise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "_QUEUE", 0.01)
    with Judge(concurrency=1) as judge:
        judge.warm("numpy")
        begun = threading.Event()
        slow = replace(silu, limits=replace(silu.limits, seconds=1.0))

        def ask() -> None:
            begun.set()
            judge.judge(slow, "import time\ntime.sleep(9)", seed=1)

        thread = threading.Thread(target=ask)
        thread.start()
        begun.wait()
        threading.Event().wait(0.2)
        with pytest.raises(BusyError, match="too many submissions"):
            judge.judge(silu, silu.solution())
        thread.join()


def test_a_server_that_is_gone_is_started_again(silu: Exercise) -> None:
    with Judge() as judge:
        first = judge.warm("numpy")
        first.close()
        assert judge.judge(silu, silu.solution()).passed
        assert judge.warm("numpy") is not first


def test_a_missing_library_is_one_message() -> None:
    with pytest.raises(JudgeError, match="No module named 'no_such_library'"):
        Server(("no_such_library",))


def test_guards_that_cannot_be_put_up_are_the_judge_s_fault(
    practice_judge: Judge, silu: Exercise
) -> None:
    broken = replace(silu, limits=replace(silu.limits, memory_mb=1 << 60))
    with pytest.raises(JudgeError, match="did not get as far as your code"):
        practice_judge.judge(broken, silu.solution())


def test_the_hidden_folder_is_granted_by_no_path(tmp_path: Path) -> None:
    for name in ("site/gateup/practice", "site/numpy", "lib"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "site" / "link").symlink_to(tmp_path / "site" / "gateup" / "practice")
    hidden = tmp_path / "site" / "gateup"
    readable, listable = grants([str(tmp_path / "site"), str(tmp_path / "lib")], hidden)
    assert readable == [str(tmp_path / "site" / "numpy"), str(tmp_path / "lib")]
    assert listable == [str(tmp_path / "site")]
    assert grants([str(hidden / "practice")], hidden) == ([], [])


def test_every_status_has_words() -> None:
    assert set(STATUS) == set(STATUSES)
    assert find("silu").floating_errors
