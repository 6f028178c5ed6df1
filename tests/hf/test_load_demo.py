"""The real demo model loaded in place: the tokens of transformers, and the memory it takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gateup.hf.load import load_gguf

FACTS = Path(__file__).parent.parent / "facts" / "smollm2.json"


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    """What transformers makes of the dequantised model: benchmarks/golden_smollm2.py."""
    found: dict[str, Any] = json.loads(FACTS.read_text())
    return found


def test_logits_of_transformers(theirs: dict[str, Any], smollm2_gguf: Path) -> None:
    """Blocks dequantised at use are the same weights: only the order of sums differs. Greedy
    tokens follow, because each is the largest logit after those before it."""
    model = load_gguf(smollm2_gguf, native=False)
    prompt, answer = theirs["prompt"], theirs["answer"]
    with torch.no_grad():
        logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == answer
    for step, found in zip(theirs["steps"], logits, strict=True):
        expected = torch.tensor(step["logits"])
        torch.testing.assert_close(found[step["ids"]], expected, rtol=0, atol=2e-3)


def test_kernels_give_the_same_answer(theirs: dict[str, Any], smollm2_gguf: Path) -> None:
    """The C++ kernels round activations to 8 bits; the answer's tokens are well apart."""
    model = load_gguf(smollm2_gguf)
    if not model.lm_head.packed.native:
        pytest.skip("the C++ kernels were not built")
    assert model.model.layers[3].mlp.up_proj.packed.native
    prompt = torch.tensor([theirs["prompt"]])
    tokens = model.generate(prompt, max_new_tokens=12, do_sample=False)
    assert tokens[0, prompt.shape[1] :].tolist() == theirs["answer"]


MEASURE = """
import gc, re, sys, torch, transformers
from transformers import LlamaForCausalLM
from gateup.hf.load import load_gguf
def high_water_mark():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) << 10
torch.ones(8, 8) @ torch.ones(8, 8)
for native in (None, False):
    gc.collect()
    open("/proc/self/clear_refs", "w").write("5")  # the mark starts again from here
    before = high_water_mark()
    model = load_gguf(sys.argv[1], native=native)
    with torch.no_grad():
        model(torch.tensor([[1, 2, 3]]))
    print(high_water_mark() - before)
    del model
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_memory_is_the_files(smollm2_gguf: Path) -> None:
    """Peak of resident memory over that after the imports, with a forward pass, packed and raw.

    Weights in float32 alone would be 5.5 times the file.
    """
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(smollm2_gguf)],
        capture_output=True,
        text=True,
        check=True,
    )
    size = smollm2_gguf.stat().st_size
    ratios = [int(peak) / size for peak in done.stdout.split()]
    assert len(ratios) == 2
    assert all(0.8 < ratio < 1.6 for ratio in ratios), ratios
