"""gateup.check: what deep=True needs."""

from __future__ import annotations

import pytest

import gateup
from gateup.deep import check
from gateup.errors import UsageError


def test_without_torch_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as e:
        gateup.check("smollm2", deep=True)
    assert str(e.value) == (
        "checks that read weights need torch and tokenizers: not installed\n"
        '  remedy: pip install "gateup[torch]"'
    )
