"""`gateup bench`: what it prints, and what it refuses before anything is measured."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from gateup.cli import app
from gateup.ops import native

BUILT = native.status().available


def run(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["bench", *args], env={"COLUMNS": "160"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


@pytest.mark.skipif(not BUILT, reason="the C++ kernels are not built")
def test_a_shape_as_json() -> None:
    result = run("--shape", "64x96", "--formats", "q8_0", "--tokens", "1,3", "--turns", "2",
                 "--no-peers", "--threads", "1", "--json")  # fmt: skip
    document = json.loads(result.stdout)
    assert document["schema"] == "gateup.bench/1"
    assert document["peaks"]["bandwidth"] > 1e8
    assert document["peaks"]["fp32"] > 1e8
    assert document["ffn"]["hidden_size"] == 64
    cells = document["ffn"]["cells"]
    assert [c["tokens"] for c in cells] == [1, 3]
    assert all(c["limit"] > 0 and c["timings"][0]["seconds"] > 0 for c in cells)
    assert "FFN of 64 × 96" in result.stderr


@pytest.mark.skipif(BUILT, reason="the C++ kernels are built")
def test_without_kernels_it_says_so() -> None:
    assert "this machine cannot be measured" in run("--shape", "64x96", code=2).stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--shape", "4096"), "--shape '4096'"),
        (("--shape", "0x5"), "--shape '0x5'"),
        (("--formats", "q9"), "--formats: 'q9' cannot be measured"),
        (("--tokens", "1,two"), "--tokens: 'two'"),
        (("--tokens", "0"), "--tokens: '0'"),
        (("--peers-python", "/nowhere/python"), "--peers-python: no such file"),
        (("llama-3-8b",), "llama-3-8b is a description without weights"),
        (("/nowhere.gguf",), "/nowhere.gguf"),
    ],
)
def test_refused_before_it_starts(args: tuple[str, ...], said: str) -> None:
    assert said in run(*args, code=2).stderr
