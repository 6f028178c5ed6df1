"""The notebook runs from top to bottom, and shows what the text says it shows."""

from __future__ import annotations

import json
import re
from typing import Any

import nbformat
import pytest

from gateup.lab.handbook import LANGUAGES, chapter
from gateup.lab.handbook.notebook import notebook

nbclient = pytest.importorskip("nbclient")


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    """Every cell's output as text, from one run of the English notebook; the code is shared."""
    document = nbformat.reads(notebook("en"), as_version=4)
    nbclient.NotebookClient(document, timeout=240, kernel_name="python3").execute()
    return {
        cell.metadata.tags[0]: "".join(_text(output) for output in cell.outputs)
        for cell in document.cells
        if cell.cell_type == "code"
    }


def _text(output: Any) -> str:
    if output.output_type == "stream":
        assert output.name == "stdout", output.text  # warnings go to stderr
        return str(output.text)
    data = output.data
    return str(data.get("text/html", data.get("text/plain", "")))


@pytest.mark.parametrize("language", LANGUAGES)
def test_it_is_a_notebook(language: str) -> None:
    text = notebook(language)
    document = nbformat.reads(text, as_version=4)
    nbformat.validate(document)
    assert document.nbformat_minor == 5
    assert len({c.id for c in document.cells}) == len(document.cells)
    markdown = "".join(c.source for c in document.cells if c.cell_type == "markdown")
    assert all(f"## {s.title}" in markdown for s in chapter(language))
    assert markdown.count("<details>") == 10
    assert not re.search(r"https?://", text)


def test_both_languages_run_the_same_code() -> None:
    code = [
        [c["source"] for c in json.loads(notebook(language))["cells"] if c["cell_type"] == "code"]
        for language in LANGUAGES
    ]
    assert code[0] == code[1]
    assert len(code[0]) == 20


def test_relu_dies_and_silu_does_not(printed: dict[str, str]) -> None:
    found = re.findall(r"(\w+) η=([\d.]+): dead (\d+) → (\d+) → (\d+)", printed["dead_relu"])
    dead = {(name, rate): (int(a), int(b), int(c)) for name, rate, a, b, c in found}
    first, after_five, last = dead["ReLU", "0.2"]
    assert first == 0
    assert 32 < after_five <= last  # most of 64, and none comes back
    assert dead["ReLU", "0.05"][2] <= 3
    assert dead["SiLU", "0.2"] == (0, 0, 0)
    assert "<svg" in printed["dead_relu"]


def test_gating_wins_on_products_and_loses_on_bends(printed: dict[str, str]) -> None:
    lines = printed["gating"].splitlines()
    assert re.fullmatch(r"parameters: (\d+) = \1", lines[0])
    product, bends = (
        dict(zip(("ReLU", "SwiGLU"), map(float, re.findall(r"LU ([\d.]+)", line)), strict=True))
        for line in lines[1:]
    )
    assert product["SwiGLU"] < 0.75 * product["ReLU"]  # 0.13 against 0.25 here
    assert bends["ReLU"] < 0.5 * bends["SwiGLU"]  # 0.02 against 0.14


def test_what_the_other_experiments_say(printed: dict[str, str]) -> None:
    assert printed["tokens"].startswith("FFN: True   attention: False\n")
    assert printed["tokens"].rstrip().endswith("True")
    assert "2.9960" in printed["activations"]
    assert "2.6875" in printed["widths"]
    assert "layer 80.8%  T* = 21,504" in printed["share"]
    assert printed["fused"].split() == ["merged:", "True", "True", "False", "split:", "True"]
    assert printed["tensor_parallel"].split("\n")[0] == "one part: False   sum: True"
    assert printed["tensor_parallel"].rstrip().endswith("gate_up cut in two: False")
    assert printed["experts"].startswith("equal: True")
    assert "B = 0: True\nmerged: True" in printed["lora"]
    truth = [line.rsplit(None, 1)[1] for line in printed["changing"].splitlines()]
    assert truth == ["True", "True", "True", "False", "False"]
    assert "pad to 29696" in printed["faults"]
    assert printed["templates"].endswith("rows: True\n")
    bits = re.findall(r"(Q\d_\d): ([\d.]+) bits", printed["quantisation"])
    assert bits == [("Q8_0", "8.5"), ("Q5_0", "5.5"), ("Q4_0", "4.5")]


def test_without_the_norm_the_stack_vanishes_or_explodes(printed: dict[str, str]) -> None:
    alone = [float(x) for x in re.findall(r"FFN\(x\): ([\d.e+-]+)", printed["norm"])]
    beside = [float(x) for x in re.findall(r"norm\(x\)\): ([\d.]+)", printed["norm"])]
    assert alone[0] < 1e-6
    assert alone[1] > 1e6
    assert all(0.1 < x < 100 for x in beside)
