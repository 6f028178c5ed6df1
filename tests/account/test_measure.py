"""What was run stands beside what was predicted; what cannot be run is said."""

from __future__ import annotations

import importlib.util
import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from gateup.account import measure as module
from gateup.account.figure import Figure
from gateup.account.machine import probe
from gateup.account.measure import (
    MIB,
    Measured,
    Measurements,
    UnmeasuredError,
    block_of,
    buffer_sizes,
    measure,
    tokens_to_run,
)
from gateup.account.scenario import Scenario, stored_in
from gateup.account.workload import Workload
from gateup.files.checkpoint import open_model
from gateup.model import presets

TORCH = all(importlib.util.find_spec(m) for m in ("torch", "transformers"))
needs_torch = pytest.mark.skipif(not TORCH, reason="torch and transformers are not installed")


def question(name: str = "qwen3-0.6b", **work: object) -> Scenario:
    spec = presets.spec(name)
    return Scenario(spec, "bf16", stored_in(spec, "bf16"), Workload(**work))  # type: ignore[arg-type]


@needs_torch
def test_the_mlp_of_a_real_model() -> None:
    """SmolLM2's MLP as transformers runs it: saved bytes to the byte, the peak within 15%."""
    found = measure(question("smollm2-135m", ctx=4096, compute_dtype="f32"), seconds=300)
    rows = {r.key: r for r in found.rows}
    saved = rows["mlp_saved"]
    assert saved.predicted is not None
    assert saved.observed == saved.predicted.value == 64 * (576 + 4 * 1536) * 4
    assert saved.predicted.kind == "exact"
    assert saved.error == 0
    peak = rows["mlp_peak"]
    assert peak.predicted is not None
    assert peak.predicted.value == 4096 * 3 * 1536 * 4
    assert peak.error == pytest.approx(0, abs=0.15)
    assert "H 576, I 1536, T 4,096, f32, CPU; torch" in peak.how


def test_one_expert_stands_for_its_layer() -> None:
    asked: list[dict[str, Any]] = []

    def run(script: str, argument: str) -> dict[str, Any]:
        asked.append(json.loads(argument))
        return {"peak": 1, "saved": 5, "saved_T": 64, "versions": "torch 2"}

    peak, saved = module._mlp(question("qwen3-30b-a3b", ctx=8192), None, run)
    assert (asked[0]["H"], asked[0]["I"], asked[0]["T"]) == (2048, 768, 8192)
    assert saved.what == "saved for backward by one expert's MLP, weights trained"
    assert saved.predicted is not None
    assert saved.predicted.value == 64 * (2048 + 4 * 768) * 2
    assert peak.predicted is not None  # the output is wider than two intermediates
    assert peak.predicted.value == 8192 * (768 + 2048) * 2


def test_reading_the_real_file(smollm2_gguf: Path) -> None:
    """Headers in a process of their own stay far under the bound."""

    def run(script: str, argument: str) -> dict[str, Any]:
        return module._child(sys.executable, script, argument, 300)

    (row,) = module._headers(question(), smollm2_gguf, run)
    assert row.predicted is not None
    assert 5 * MIB < row.observed < row.predicted.value
    assert module._headers(question(), None, run) == []


LOG = """
load_tensors:          AMX model buffer size =    95.34 MiB
load_tensors:   CPU_Mapped model buffer size =    92.10 MiB
load_tensors:   CPU_REPACK model buffer size =     1.50 MiB
llama_context:        CPU  output buffer size =     0.19 MiB
llama_kv_cache:        CPU KV buffer size =   180.00 MiB
llama_kv_cache_iswa:  CUDA0 KV buffer size =    20.00 MiB
sched_reserve:        CPU compute buffer size =    98.25 MiB
~llama_context:        CPU compute buffer size is 98.2500 MiB, matches expectation of 98.2500 MiB
CPU KV buffer size = much MiB
CPU KV buffer size = 7.00 GiB
"""


def test_buffer_sizes_from_the_log() -> None:
    assert buffer_sizes(LOG) == {
        "repacked": round(95.34 * MIB) + round(1.5 * MIB),
        "model": round(92.10 * MIB),
        "KV": 200 * MIB,
        "compute": round(98.25 * MIB),
    }
    assert buffer_sizes("") == {}


def fake_python(folder: Path, out: str, err: str = "", code: int = 0) -> str:
    """An interpreter that prints what it is told, whatever it is to run."""
    path = folder / "python"
    (folder / "out").write_text(out)
    (folder / "err").write_text(err)
    path.write_text(f"#!/bin/sh\ncat {folder}/out; cat {folder}/err >&2; exit {code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for python")
def test_llama_cpp_beside_its_prediction(smollm2_gguf: Path, tmp_path: Path) -> None:
    """With the log of llama-cpp-python 0.3.36 on the real file."""
    model = open_model(smollm2_gguf)
    assert model.stored is not None
    s = Scenario(model.spec, None, model.stored, Workload(ctx=8192, engine="llama.cpp"))
    result = {"version": "0.3.36", "rss": 1, "saved": 0, "saved_T": 64, "versions": "torch 0"}
    python = fake_python(tmp_path, json.dumps(result), LOG)
    rows = {r.key: r for r in measure(s, smollm2_gguf, python=python).rows}
    kv = rows["llamacpp_kv"]
    assert kv.predicted is not None
    assert kv.predicted.value == 180 * MIB
    weights = rows["llamacpp_weights"]
    assert weights.predicted is not None
    assert weights.error == pytest.approx(0, abs=1e-4)  # the log rounds to 0.01 MiB
    assert rows["llamacpp_buffers"].error == pytest.approx(0, abs=0.02)
    assert rows["llamacpp_repacked"].predicted is None
    assert rows["llamacpp_repacked"].error is None
    assert weights.how == "llama-cpp-python 0.3.36, CPU, n_ctx 8,192, n_ubatch 512"


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for python")
@pytest.mark.parametrize(
    ("out", "err", "code", "note"),
    [
        ('{"missing": ["torch", "transformers"]}', "", 0,
         "to measure more: pip install torch transformers"),
        ("", "Traceback\nMemoryError: no", 1, "a measurement failed: MemoryError: no"),
        ("", "", 3, "a measurement failed: exit code 3"),
        ("hello", "", 0, "a measurement printed no result: hello"),
        ("[1]", "", 0, "a measurement printed no result: [1]"),
    ],
)  # fmt: skip
def test_a_child_that_fails_is_said(
    tmp_path: Path, out: str, err: str, code: int, note: str
) -> None:
    found = measure(question(), python=fake_python(tmp_path, out, err, code))
    assert found == Measurements((), (note,))


def test_no_interpreter_and_no_time() -> None:
    found = measure(question(), python="/no/such/python")
    assert found.rows == ()
    assert found.notes[0].startswith("/no/such/python does not start: No such file")
    assert measure(question(), seconds=0).notes == ("no time left to measure more",)


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for python")
def test_a_child_that_hangs_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\nexec sleep 60\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    found = measure(question(), python=str(path), seconds=1.2)
    assert found.notes == ("a measurement took longer than 1 s and was stopped",)


def test_tokens_scale_to_time_and_memory() -> None:
    assert tokens_to_run(100, 576, 1536, 2, 1 << 34) == 100
    scaled = tokens_to_run(1 << 20, 4096, 14336, 2, 1 << 34)
    assert 6 * 4096 * 14336 * scaled <= module.MAX_FLOPS
    assert 6 * 4096 * 14336 * (scaled + 1) > module.MAX_FLOPS
    tight = tokens_to_run(1 << 20, 576, 1536, 2, 100 * MIB)
    assert tight * (3 * 1536 + 2 * 576) * 4 + 12 * 576 * 1536 <= 50 * MIB
    assert tokens_to_run(1, 576, 1536, 2, 1 << 34) == 16
    with pytest.raises(UnmeasuredError) as caught:
        tokens_to_run(4096, 8192, 28672, 2, 1 << 30)
    assert str(caught.value) == (
        "the MLP was not run: its weights take 1,409,286,144 bytes and 1,073,741,824 are free"
    )


def test_what_cannot_be_run_is_said() -> None:
    with pytest.raises(UnmeasuredError, match="only gated MLPs"):
        block_of(question("gpt2"))
    with pytest.raises(UnmeasuredError, match="no such activation"):
        block_of(question("gpt-oss-20b"))
    assert block_of(question("deepseek-v2-lite"))[1] == "the widest layer's MLP"
    assert block_of(question("mixtral-8x7b"))[1] == "one expert's MLP"


def test_another_format_than_the_files(smollm2_gguf: Path) -> None:
    model = open_model(smollm2_gguf)
    s = Scenario(model.spec, "q8_0", stored_in(model.spec, "q8_0"), Workload(engine="llama.cpp"))
    with pytest.raises(UnmeasuredError) as caught:
        module._llama(s, smollm2_gguf, lambda script, argument: {})
    assert str(caught.value) == "llama.cpp was not run: the file is not in the format asked for"


def test_llama_cpp_is_loaded_no_larger_than_what_is_free(
    smollm2_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_model(smollm2_gguf)
    assert model.stored is not None
    s = Scenario(model.spec, None, model.stored, Workload(ctx=1 << 20, engine="llama.cpp"))
    here = probe()
    small = type(here)(here.name, here.cores, here.ram, 2 << 30)
    monkeypatch.setattr(module, "probe", lambda: small)
    asked: list[dict[str, Any]] = []

    def run(script: str, argument: str) -> dict[str, Any]:
        asked.append(json.loads(argument))
        return {"version": "0", "log": LOG}

    rows = module._llama(s, smollm2_gguf, run)
    assert rows
    ctx = asked[0]["ctx"]
    assert s.with_(ctx=ctx).memory().peak <= 1 << 30 < s.with_(ctx=2 * ctx).memory().peak
    with pytest.raises(UnmeasuredError, match="names no buffer sizes"):
        module._llama(s, smollm2_gguf, lambda script, argument: {"version": "0", "log": ""})


def test_figures_for_the_report() -> None:
    predicted = Figure(10, "B", "exact", "a", "10")
    rows = (
        Measured("x", "something", predicted, 8, "B", "here"),
        Measured("y", "else", None, 0, "B", "there"),
    )
    found = Measurements(rows).figures()
    assert list(found) == ["x.observed", "x.predicted", "y.observed"]
    assert found["x.predicted"] is predicted
    assert found["x.observed"].source == "observed here: here"
    assert (rows[0].error, rows[1].error) == (0.25, None)
