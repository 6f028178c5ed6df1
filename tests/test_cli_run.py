"""`gateup run` from the shell: what it prints, its exit codes, its one message when it cannot."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateup import cli_run
from gateup.cli import app
from gateup.errors import UsageError
from tests.engine.models import random_model, saved
from tests.engine.test_generate import TEMPLATE
from tests.engine.test_tokenizer import write_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = saved(random_model("llama"), tmp_path_factory.mktemp("hub"))
    write_tokenizer(folder, chat_template=TEMPLATE)
    return folder


def run(*args: object, text: str | None = None) -> Any:
    result = CliRunner().invoke(app, ["run", *map(str, args)], input=text)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_an_answer_and_its_figures(folder: Path) -> None:
    plain = run(folder, "hi", "--max-tokens", 5)
    assert (plain.exit_code, plain.stderr) == (0, "")
    shown = run(folder, "hi", "--max-tokens", 5, "--stats")
    assert shown.stdout == plain.stdout
    for said in ("prompt 5 tokens", "answer 5 tokens", "peak memory", "plan: a token moves"):
        assert said in shown.stderr


def test_options_reach_the_engine(folder: Path) -> None:
    def answer(*options: object) -> str:
        out = run(folder, "hi", "--max-tokens", 8, *options).stdout
        assert isinstance(out, str)
        return out

    drawn = ("--temperature", 2, "--seed", 4)
    whole = answer(*drawn)
    assert len(whole) == 9
    assert whole == answer(*drawn) != answer()
    stop = whole[3:5]
    assert answer(*drawn, f"--stop={stop}") == whole[: whole.index(stop)] + "\n"
    assert answer("--no-chat") != answer() != answer("--system", "Be brief.")
    assert answer(*drawn, "--top-k", 1) == answer()


def test_a_prompt_from_stdin(folder: Path) -> None:
    options = ("--max-tokens", 5, "--no-chat")
    assert run(folder, "-", *options, text="hi").stdout == run(folder, "hi", *options).stdout


def test_a_conversation_remembers_and_forgets(folder: Path) -> None:
    out = run(folder, "--max-tokens", 4, text="hi\n\nhi\n/reset\nhi\n/quit\nnever\n").stdout
    first, second, third = out.splitlines()
    assert first == third != second


def test_a_fault_ends_the_turn_only(folder: Path) -> None:
    result = run(folder, "--max-tokens", 4, text=f"{'x' * 70}\nhi\n")
    assert "the prompt has 73 tokens and 4 for the answer" in result.stderr
    assert len(result.stdout.splitlines()) == 1
    assert result.exit_code == 0


def test_tools_come_from_a_file(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([{"type": "function", "function": {"name": "f"}}]))
    with_tools = run(folder, "hi", "--tools", file, "--max-tokens", 5)
    assert with_tools.exit_code == 0
    assert with_tools.stdout != run(folder, "hi", "--max-tokens", 5).stdout
    file.write_text("{}")
    assert "expected: a JSON list of objects" in run(folder, "hi", "--tools", file).stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("x" * 80,), "the prompt has 83 tokens; the context is 64"),
        (("x", "--ctx", "8k"), "a context of 8,192 tokens"),
        (("x", "--temperature", -1), "temperature is -1"),
        (("x", "--threads", 0), "threads is 0"),
        (("x", "--no-chat", "--system", "s"), "--system and --tools are about chat"),
        (("x", "--tools", "/nowhere.json"), "nowhere.json cannot be read"),
    ],
)
def test_one_message_and_exit_code_2(folder: Path, args: tuple[object, ...], says: str) -> None:
    result = run(folder, *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("x" * 80,), "the prompt has 83 tokens; the context is 64"),
        (("x", "--max-tokens", 0), "max_tokens is 0"),
        (("--max-tokens", 62), "and 62 for the answer; the context is 64"),
        (("", "--no-chat"), "the prompt has no tokens"),
        (("\ud800",), "the prompt is not UTF-8"),
        (("x", "--system", "caf\udce9"), "--system is not UTF-8"),
        (("x", "--no-chat", "--system", "s"), "--system and --tools are about chat"),
    ],
)
def test_what_is_wrong_is_said_before_weights_are_read(
    folder: Path, args: tuple[object, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateup.engine.generate.load_parts", None)
    result = run(folder, *args, text="")
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr


def test_without_a_template_there_is_no_chat_whatever_the_weights(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateup.engine.generate.load_parts", None)
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"type": "function"}]))
    plain = tmp_path / "plain"
    shutil.copytree(folder, plain)
    (plain / "chat_template.jinja").unlink()
    assert "the model has no chat template" in run(plain, "hi", "--chat").stderr
    (plain / "chat_template.jinja").write_text("{{ messages }}")
    assert "has no place for tools" in run(plain, "hi", "--tools", tools).stderr


def test_a_prompt_that_is_not_utf8(folder: Path) -> None:
    result = CliRunner().invoke(app, ["run", str(folder), "-"], input=b"caf\xe9")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the prompt on stdin is not UTF-8" in result.stderr
    talked = CliRunner().invoke(
        app, ["run", str(folder), "--max-tokens", "4"], input=b"caf\xe9\nhi\n"
    )
    assert talked.exit_code == 0
    assert "the line is not UTF-8" in talked.stderr
    assert len(talked.stdout.splitlines()) == 1


@pytest.mark.skipif(sys.getfilesystemencoding() != "utf-8", reason="arguments are bytes of UTF-8")
def test_arguments_that_the_locale_could_not_take() -> None:
    assert cli_run.utf8("caf\udcc3\udca9", "it") == "café"
    with pytest.raises(UsageError, match="it is not UTF-8"):
        cli_run.utf8("caf\udce9", "it")


def test_stdin_that_is_closed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    for prompt in ("-", None):
        with pytest.raises(UsageError, match="stdin is closed"):
            cli_run.run(str(folder), prompt)


def test_an_output_that_has_not_every_character(monkeypatch: pytest.MonkeyPatch) -> None:
    data = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(data, "ascii"))
    stream: Any = iter(["a é", "漢\n"])
    assert cli_run.Talk.show(object.__new__(cli_run.Talk), stream) == "a é漢\n"
    assert data.getvalue() == rb"a \xe9\u6f22" + b"\n"


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cli_run, "find_spec", lambda name: None if name == "torch" else find_spec(name)
    )
    result = run("smollm2", "hi")
    assert result.exit_code == 2
    assert "running a model needs torch, which is not installed" in result.stderr
    assert 'pip install "gateup[torch]"' in result.stderr


def test_a_terminal_is_steered_by_nobody() -> None:
    assert cli_run._harmless("a\x1b[2Jb\r\n\tc\x07ü") == "a[2Jb\n\tcü"


def test_ctrl_c_stops_an_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversation goes on; a single answer ends with a shell's code for it."""
    from gateup.engine.generate import Stream

    pieces = iter(["one", KeyboardInterrupt(), KeyboardInterrupt()])

    def interrupted(self: Stream) -> str:
        piece = next(pieces)
        if isinstance(piece, KeyboardInterrupt):
            raise piece
        return piece

    monkeypatch.setattr(Stream, "__next__", interrupted)
    talked = run(folder, text="hi\n/quit\n")
    assert (talked.exit_code, talked.stdout) == (0, "one\n")
    assert "(stopped)" in talked.stderr
    assert run(folder, "hi").exit_code == 130


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are POSIX's")
def test_ctrl_c_at_the_prompt_leaves_the_terminal_whole(folder: Path) -> None:
    import termios

    main, side = pty.openpty()
    before = termios.tcgetattr(side)
    process = subprocess.Popen(
        [sys.executable, "-m", "gateup", "run", str(folder), "--max-tokens", "50"],
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb"},
    )
    seen = b""

    def until(mark: bytes, press: bool = False, seconds: float = 90) -> None:
        """Read up to `mark`; Ctrl-C every two seconds: one that falls between the prompt and the
        wait for a key is seen with the next."""
        nonlocal seen
        end = time.monotonic() + seconds
        while mark not in seen and time.monotonic() < end:
            if press:
                process.send_signal(signal.SIGINT)
            if select.select([main], [], [], 2)[0]:
                seen += os.read(main, 4096)
        if mark not in seen:
            process.kill()
        assert mark in seen, seen

    until(b"> ")
    seen = b""
    until(b"Ctrl-D ends)", press=True)
    os.write(main, b"/quit\n")
    assert process.wait(30) == 0
    assert termios.tcgetattr(side) == before
