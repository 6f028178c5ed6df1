"""The lab in a real browser: seconds to the first page, milliseconds to a slider's answer; or the
README's screenshot.

    python benchmarks/lab.py
    python benchmarks/lab.py --neurons               the Neurons page alone, on the demo model
    python benchmarks/lab.py --screenshot docs/lab.png

Needs a Chromium on PATH (Debian: apt-get install chromium) and the packages of .[lab,test].
The first page is timed from the command's start until the page is drawn in a browser that runs
already. A slider is moved by a key; its answer is the first change of what the server computed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RUNS, MOVES, TEXTS = 5, 24, 12
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--no-sandbox",  # as root there is none to be had
    "--disable-gpu",
    "--enable-unsafe-swiftshader",  # WebGL without a graphics card
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Page, the slider's label, and which of the elements has the text that answers it.
SLIDERS = (
    ("/gate?show=silu,relu,bilinear,ungated", "a (gate)", "main table", 0),
    ("/model", "intermediate_size I", "main table", 2),
    ("/context", "Context", "main h2", 2),
    ("/memory", "Context", "main .figures", 0),
    ("/split", "Tokens T", "main .figures", 0),
)
_ANSWER = """
([selector, place]) => {
  const text = () => document.querySelectorAll(selector)[place].innerText;
  const begun = performance.now(), before = text();
  window.answer = new Promise((done) => {
    const look = () => {
      const now = performance.now();
      if (text() !== before) done(now - begun);
      else if (now - begun > 5000) done(null);
      else requestAnimationFrame(look);
    };
    look();
  });
}
"""


@contextmanager
def running_lab(home: Path, *words: str) -> Iterator[str]:
    """`gateup lab` as a person starts it; gives the URL it prints, and ends it by Ctrl-C.

    RuntimeError where it does not begin, or does not end cleanly.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "gateup", "lab", "--port", "0", "--no-browser", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=home,
        env={**os.environ, "XDG_DATA_HOME": str(home), "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    url = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", process.stdout.readline())
    if url is None:
        raise RuntimeError(process.communicate(timeout=20)[0])
    try:
        yield url[0]
    finally:
        process.send_signal(signal.SIGINT)
        try:
            printed, _ = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            raise RuntimeError("the lab does not end by Ctrl-C") from None
    if process.returncode or "Traceback" in printed:
        raise RuntimeError(f"exit code {process.returncode}: {printed}")


@contextmanager
def browser(profile: Path, width: int = 1100, height: int = 800) -> Iterator[Any]:
    """A headless Chromium with a profile of its own: playwright's BrowserContext."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            str(profile),
            executable_path=CHROMIUM,
            args=list(FLAGS),
            headless=True,
            locale="en-US",
            viewport={"width": width, "height": height},
        )
        context.set_default_timeout(60_000)  # a busy machine draws slowly
        yield context
        context.close()


def first_pages(page: Any, home: Path) -> list[float]:
    """Seconds from the command to the first page drawn."""
    taken = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        with running_lab(home) as url:
            page.goto(url)
            page.wait_for_selector("main footer")
            taken.append(time.perf_counter() - begun)
    return taken


def answers(page: Any, base: str) -> dict[str, list[float]]:
    """Page -> milliseconds from a key on its slider to the changed text."""
    taken: dict[str, list[float]] = {}
    for path, label, selector, number in SLIDERS:
        page.goto(base + path)
        page.wait_for_selector("main footer")
        page.wait_for_timeout(3000)  # surfaces are drawn, the verdict is there
        page.locator(f'[role=slider][aria-label="{label}"] [tabindex="0"]').focus()
        each = []
        for i in range(MOVES):
            page.wait_for_timeout(400)
            page.evaluate(_ANSWER, [selector, number])
            page.keyboard.press("ArrowRight" if i % 2 == 0 else "ArrowLeft")
            found = page.evaluate("window.answer")
            if found is None:
                raise RuntimeError(f"{path}: nothing answered")
            each.append(found)
        taken[path.partition("?")[0]] = each[2:]
    return taken


def neurons(page: Any, home: Path) -> dict[str, list[float]]:
    """Seconds until the Neurons page has its numbers, torch and the demo model read for them; then
    milliseconds from another text, of 5 or of 64 tokens, to its numbers, and from another layer."""
    taken: dict[str, list[float]] = {"first": [], "5 tokens": [], "64 tokens": [], "layer": []}
    for _ in range(RUNS):
        with running_lab(home) as url:
            page.goto(url)
            page.wait_for_selector("main footer")
            begun = time.perf_counter()
            page.goto(url.partition("/?")[0] + "/neurons?text=0+1")
            page.wait_for_function("document.querySelectorAll('main h2').length >= 5")
            taken["first"].append(time.perf_counter() - begun)
            for i in range(TEXTS // RUNS + 1):
                text = page.locator("input[aria-label=Text]")
                for name, words in (("5 tokens", f"a b c d {i}"), ("64 tokens", f"{i}" * 64)):
                    text.fill(words)
                    taken[name].append(_answered(page, "main .figures", 0, "Tab"))
                    text.focus()
            # From the last layer's numbers to the first's: a click on a chart's first cell.
            page.evaluate("window.scrollTo(0, 300)")
            x, y = page.evaluate(_FIRST_CELL)
            taken["layer"].append(_answered(page, "main h2", 1, (x, y)))
    return taken


_FIRST_CELL = """() => {
  const plot = document.querySelectorAll('.js-plotly-plot')[0], box = plot.getBoundingClientRect();
  const {xaxis, yaxis} = plot._fullLayout;
  return [box.left + xaxis._offset + xaxis.d2p(0), box.top + yaxis._offset + yaxis.d2p(0)];
}"""


def _answered(page: Any, selector: str, place: int, action: str | tuple[float, float]) -> float:
    """Milliseconds from a key or a click until the text at `selector` is another."""
    page.wait_for_timeout(300)
    page.evaluate(_ANSWER, [selector, place])
    if isinstance(action, str):
        page.keyboard.press(action)
    else:
        page.mouse.click(*action)
    found = page.evaluate("window.answer")
    if found is None:
        raise RuntimeError(f"{selector}: nothing answered")
    milliseconds: float = found
    return milliseconds


def screenshot(path: Path, profile: Path, home: Path) -> None:
    """The Gate page, as the README shows it."""
    with running_lab(home) as url, browser(profile, 1180, 1020) as context:
        page = context.pages[0]
        page.goto(url)
        page.wait_for_selector("main footer")
        page.goto(url.partition("/?")[0] + "/gate?show=silu,relu,bilinear,ungated&a=1.5&b=2.5")
        page.wait_for_function("document.querySelectorAll('.plot3d canvas').length >= 4")
        page.wait_for_timeout(4000)  # the last frame of each surface
        page.screenshot(path=str(path))


def show_neurons(taken: dict[str, list[float]]) -> None:
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores; median (least to most)")
    for name, each in taken.items():
        unit = "s" if name == "first" else "ms"
        digits = 2 if name == "first" else 0
        low, middle, high = (f"{f(each):.{digits}f}" for f in (min, statistics.median, max))
        print(f"neurons, {name:10} {middle:>6} {unit} ({low} to {high})")
    print(json.dumps({name: statistics.median(each) for name, each in taken.items()}))


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    words.add_argument("--screenshot", type=Path, help="write this PNG and measure nothing")
    words.add_argument("--neurons", action="store_true", help="measure the Neurons page alone")
    asked = words.parse_args()
    if CHROMIUM is None:
        raise SystemExit("there is no chromium on PATH")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home, profile = Path(folder, "home"), Path(folder, "profile")
        home.mkdir()
        if asked.screenshot is not None:
            screenshot(asked.screenshot, profile, home)
            return
        with browser(profile) as context:
            page = context.pages[0]
            if asked.neurons:
                show_neurons(neurons(page, home))
                return
            starts = first_pages(page, home)
            with running_lab(home) as url:
                page.goto(url)
                page.wait_for_selector("main footer")
                sliders = answers(page, url.partition("/?")[0])
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores; median (least to most)")
    middle = statistics.median(starts)
    print(f"command to first page   {middle:6.2f} s  ({min(starts):.2f} to {max(starts):.2f})")
    for path, each in sliders.items():
        middle = statistics.median(each)
        print(f"slider on {path:13} {middle:6.0f} ms ({min(each):.0f} to {max(each):.0f})")
    result = {
        "first_page_s": statistics.median(starts),
        "slider_ms": {path: statistics.median(each) for path, each in sliders.items()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
