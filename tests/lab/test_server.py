"""Starting the lab: ports, the missing extra, the pages there are."""

from __future__ import annotations

import socket
from importlib import import_module
from importlib.util import find_spec

import pytest
from typer.testing import CliRunner

from gateup import cli, cli_lab
from gateup.errors import UsageError
from gateup.lab.models import Models
from gateup.lab.registry import PAGES, Page, available
from gateup.lab.state import State

pytest.importorskip("nicegui", reason="the lab's packages are not installed")

from gateup.lab.server import HOST, PORT, listen


def test_a_port_in_use_is_one_message() -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {taken} cannot be had: ") as caught:
            listen(taken)
    assert caught.value.remedy == "gateup lab --port 0 takes any free one"
    with pytest.raises(UsageError, match="--port is 65536"):
        listen(65536)


def test_the_usual_port_gives_way_to_a_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        taken = other.getsockname()[1]
        monkeypatch.setattr("gateup.lab.server.PORT", taken)
        with listen(None) as found:
            host, number = found.getsockname()
            assert host == "127.0.0.1"
            assert number not in (0, taken, PORT)


def test_without_the_extra_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        cli_lab, "find_spec", lambda name: None if name == "nicegui" else find_spec(name)
    )
    ran = CliRunner().invoke(cli.app, ["lab", "--no-browser"])
    assert ran.exit_code == 2
    assert "the lab needs nicegui, which is not installed" in ran.output
    assert 'remedy: pip install "gateup[lab]"' in ran.output


def test_a_model_that_cannot_be_opened_is_said_before_anything_is_served() -> None:
    ran = CliRunner().invoke(cli.app, ["lab", "no-such-model", "--no-browser"])
    assert ran.exit_code == 2
    assert "neither a file or folder here nor a preset" in ran.output
    assert "http://" not in ran.output


def test_every_page_has_its_module_and_parameters() -> None:
    models = Models()
    for page in available():
        module = import_module(page.module)
        state = State.of(module.params(models), {})
        assert state.query() == ""
        assert callable(module.build)


def test_a_page_whose_package_is_missing_is_not_there() -> None:
    assert not Page("neurons", needs="gateup.no_such_package.inside").available
    assert Page("gate") in PAGES
