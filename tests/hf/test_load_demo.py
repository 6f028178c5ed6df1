"""The real demo model loaded in place: the tokens of transformers, and the memory it takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from gateup.hf.load import load_gguf

# "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
PROMPT = torch.tensor(
    [[1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]]
)
STEPS = 8


@pytest.fixture(scope="module")
def theirs(smollm2_gguf: Path) -> Any:
    """Dequantised by transformers; once for all tests, it is the slowest step of them."""
    return AutoModelForCausalLM.from_pretrained(
        smollm2_gguf.parent, gguf_file=smollm2_gguf.name, dtype=torch.float32
    )


def greedy(model: Any) -> Tensor:
    tokens: Tensor = model.generate(PROMPT, max_new_tokens=STEPS, do_sample=False)
    return tokens


def test_tokens_and_logits_of_transformers(theirs: Any, smollm2_gguf: Path) -> None:
    """Blocks dequantised at use are the same weights: only the order of sums differs."""
    ours = load_gguf(smollm2_gguf, native=False)
    tokens = greedy(theirs)
    assert torch.equal(greedy(ours), tokens)
    with torch.no_grad():
        a, b = ours(tokens).logits, theirs(tokens).logits
    assert float((a - b).abs().max()) < 2e-3 * float(b.abs().max())


def test_kernels_give_the_same_answer(theirs: Any, smollm2_gguf: Path) -> None:
    """The C++ kernels round activations to 8 bits; the answer's tokens are well apart."""
    ours = load_gguf(smollm2_gguf)
    if not ours.lm_head.packed.native:
        pytest.skip("the C++ kernels were not built")
    assert torch.equal(greedy(ours), greedy(theirs))
    assert ours.model.layers[3].mlp.up_proj.packed.native


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
