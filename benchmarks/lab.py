"""The lab in a real browser: seconds to the first page, milliseconds to a slider's answer; or the
README's screenshot.

    python benchmarks/lab.py
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

RUNS, MOVES = 5, 24
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


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    words.add_argument("--screenshot", type=Path, help="write this PNG and measure nothing")
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
