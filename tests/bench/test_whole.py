"""Whole models, each measurement a process; what cannot take part is named."""

from pathlib import Path

import pytest

from gateup.bench import whole
from gateup.bench.peers.whole import prompt_ids
from gateup.errors import UsageError


def test_our_engine_is_measured_and_a_missing_peer_named(
    monkeypatch: pytest.MonkeyPatch, smollm2_gguf: Path
) -> None:
    monkeypatch.setattr(whole, "PROMPT", 3)
    monkeypatch.setattr(whole, "NEW", 2)
    monkeypatch.setattr(
        whole, "ENGINES", {"ours": (whole.OURS, "int8"), "theirs": ("no_such_module", "plain")}
    )
    notes: list[str] = []
    (ours,) = whole.run(
        str(smollm2_gguf), smollm2_gguf, threads=1, turns=1, peers_python=None, note=notes.append
    )
    assert ours.name == "ours"
    assert ours.prefill > 0 < ours.decode
    assert ours.peak_rss > 9e7  # the file alone has so many bytes
    assert len(notes) == 1
    assert "without theirs" in notes[0]
    assert "no_such_module" in notes[0]


def test_a_model_that_does_not_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the engine does not run it"):
        whole.run(str(tmp_path / "none.gguf"), None, threads=1, turns=1, peers_python=None,
                  note=print)  # fmt: skip


def test_every_process_gets_the_same_prompt() -> None:
    assert prompt_ids(3) == [111, 118, 125]
    assert max(prompt_ids(2048)) < 1100
