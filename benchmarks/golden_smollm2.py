"""What transformers makes of the demo model's GGUF in float32, for tests/facts/smollm2.json.

Greedy tokens after a chat prompt, and at each of them the largest logits, rounded to 4 digits.
Written once, because dequantising the model is the slowest step of the tests that need it.

    python benchmarks/golden_smollm2.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from gateup.files.checkpoint import demo_model

OUT = Path(__file__).parent.parent / "tests" / "facts" / "smollm2.json"
# "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
PROMPT = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
MAX_STEPS, TOP = 12, 5


def main() -> None:
    path = demo_model()
    model: Any = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    prompt = torch.tensor([PROMPT])
    tokens = model.generate(prompt, max_new_tokens=MAX_STEPS, do_sample=False)
    with torch.no_grad():
        logits = model(tokens).logits[0, len(PROMPT) - 1 : -1]
    top = logits.topk(TOP)
    steps = [
        {"ids": ids.tolist(), "logits": [round(v, 4) for v in values.tolist()]}
        for ids, values in zip(top.indices, top.values, strict=True)
    ]
    answer = tokens[0, len(PROMPT) :].tolist()
    made = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "prompt": PROMPT,
        "answer": answer,
        "steps": steps,
    }
    OUT.write_text(json.dumps(made, indent=1) + "\n")
    print(json.dumps({"answer": answer, "file": OUT.name}))


if __name__ == "__main__":
    main()
