"""The page: self-contained, escaped, whole or not there at all."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import threading
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gateup.account.plan import Plan, plan
from gateup.account.report.html import to_html, write_html
from gateup.errors import UsageError

VOID = {"meta", "br", "link", "img", "hr", "input"}


class Balance(HTMLParser):
    """Collects tags and text; `open` is empty at the end of well-formed HTML."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.shown = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.shown += data


def parsed(page: str) -> Balance:
    parser = Balance()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


@pytest.fixture(scope="module")
def misfit() -> Plan:
    return plan("llama-3-8b", quant="q4_k_m", ctx=32768, device="8GB")


def test_the_page_has_the_figures_and_the_plots(misfit: Plan) -> None:
    page = parsed(to_html([misfit]))
    for text in ("= 8,030,261,248", "70.2 %", "Does not fit 8 GB", "21,504", "43,008", "4.00 GiB"):
        assert text in page.shown, text
    headings = re.findall(r"<h3>([^<]+)</h3>", to_html([misfit]))
    assert headings == [
        "By part",
        "Memory over the run",
        "Attention against MLP",
        "KV cache against weights",
    ]


def test_widths_are_plotted_where_they_differ() -> None:
    assert "<h3>MLP width by layer</h3>" in to_html([plan("openelm-270m")])
    # DeepSeek-V3's dense layers are as wide as its nine active experts: 18,432.
    assert "<h3>MLP width by layer</h3>" not in to_html([plan("deepseek-v3")])
    assert "<h3>MLP width by layer</h3>" not in to_html([plan("llama-3-8b")])


def test_training_plots_no_cache() -> None:
    page = to_html([plan("qwen3-0.6b", train="lora", ctx=512)])
    assert "KV cache against weights" not in page
    assert "backward" in parsed(page).shown


def test_nothing_is_fetched_and_nothing_runs(misfit: Plan) -> None:
    page = parsed(to_html([misfit]))
    assert not page.tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    names = {name for name, _ in page.attributes}
    assert not names & {"src", "href", "action", "data", "srcset"}
    assert not [n for n in names if n.startswith("on")]
    assert "url(" not in to_html([misfit])
    assert "@import" not in to_html([misfit])
    policy = [v for n, v in page.attributes if n == "content" and v and "default-src" in v]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_it_fits_a_phone_and_both_schemes(misfit: Plan) -> None:
    text = to_html([misfit])
    assert "width=device-width" in text
    assert "prefers-color-scheme:dark" in text
    assert ".wide{overflow-x:auto}" in text


def test_several_models_are_compared_first() -> None:
    page = parsed(to_html([plan("llama-3-8b", ctx=64), plan("qwen3-0.6b", ctx=64)]))
    assert page.shown.index("Side by side") < page.shown.index("Where it goes")
    assert "44.3 %" in page.shown


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=1>\x1b[31m"


def hostile(p: Plan) -> Plan:
    spec = dataclasses.replace(p.spec, name=HOSTILE, architecture=HOSTILE)
    scenario = p.scenario.with_(spec=spec)
    return dataclasses.replace(p, scenario=scenario, label=HOSTILE, notes=(HOSTILE,))


def test_names_from_files_are_only_text() -> None:
    text = to_html([hostile(plan("qwen3-0.6b", device="24GB", ctx=64))])
    page = parsed(text)
    assert not page.tags & {"script", "img"}
    assert "\x1b" not in text
    assert "<script>alert(1)</script>" in page.shown


def test_written_whole_with_ordinary_permissions(tmp_path: Path, misfit: Plan) -> None:
    path = tmp_path / "plan.html"
    path.write_text("<!doctype html>old")
    write_html([misfit], path)
    assert path.read_text(encoding="utf-8") == to_html([misfit])
    assert [p.name for p in tmp_path.iterdir()] == ["plan.html"]
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_failure_leaves_what_was_there(
    tmp_path: Path, misfit: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.html"
    path.write_text("<!doctype html>old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="cannot be written: No space left on device"):
        write_html([misfit], path)
    assert path.read_text() == "<!doctype html>old"
    assert [p.name for p in tmp_path.iterdir()] == ["plan.html"]


def test_a_missing_folder_is_named(tmp_path: Path, misfit: Plan) -> None:
    with pytest.raises(UsageError, match=r"no such does not exist\n  remedy: create it: mkdir"):
        write_html([misfit], tmp_path / "no such" / "p.html")
    with pytest.raises(UsageError, match="is a folder"):
        write_html([misfit], tmp_path)


def test_a_model_typed_in_the_wrong_place_is_not_overwritten(tmp_path: Path, misfit: Plan) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF weights")
    with pytest.raises(UsageError, match=r"is no HTML page\n  expected: a new name"):
        write_html([misfit], model)
    assert model.read_bytes() == b"GGUF weights"
    (tmp_path / "empty").touch()
    write_html([misfit], tmp_path / "empty")
    assert (tmp_path / "empty").read_text(encoding="utf-8") == to_html([misfit])


def test_a_link_stays_a_link(tmp_path: Path, misfit: Plan) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "link.html"
    link.symlink_to(tmp_path / "there" / "page.html")
    write_html([misfit], link)
    assert link.is_symlink()
    assert (tmp_path / "there" / "page.html").read_text(encoding="utf-8") == to_html([misfit])
    loop = tmp_path / "loop.html"
    loop.symlink_to(loop)
    with pytest.raises(UsageError, match="cannot be written"):
        write_html([misfit], loop)
    assert loop.is_symlink()


def test_a_pipe_is_written_into_and_stays_a_pipe(tmp_path: Path, misfit: Plan) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="cannot be written"):  # nobody reads: not to wait for
        write_html([misfit], pipe)
    reading = os.open(pipe, os.O_RDWR)  # holds both ends, so nothing waits for the other
    got: list[bytes] = []

    def read() -> None:
        while sum(map(len, got)) < len(page):
            got.append(os.read(reading, 1 << 16))

    page = to_html([misfit]).encode()
    reader = threading.Thread(target=read)
    reader.start()
    write_html([misfit], pipe)
    reader.join()
    os.close(reading)
    assert b"".join(got) == page
    assert stat.S_ISFIFO(pipe.stat().st_mode)
