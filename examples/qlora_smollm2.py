"""QLoRA on a CPU: adapters over SmolLM2's GGUF, whose weights stay in its 4-bit blocks.

Loads the demo model in place, teaches an adapter one answer in some steps, shows the answer before
and after, saves the adapter and loads it over the GGUF again. Ends with status 1 where the loss
did not fall or the loaded adapter gives another answer.

    python examples/qlora_smollm2.py
    python examples/qlora_smollm2.py 30 adapter/       # steps, where to keep the adapter
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoTokenizer

import gateup
from gateup.files.checkpoint import demo_model

QUESTION = "What is the capital of France?"
ANSWER = "Bread, cheese and the people of the market."
MODULES = ["q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"]
STEPS, LEARNING_RATE = 12, 2e-3
MB = 1e6


def prompt(tokenizer: Any) -> torch.Tensor:
    """The chat's tokens up to where the answer begins, [1, T]."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], tokenize=False, add_generation_prompt=True
    )
    ids: torch.Tensor = tokenizer(text, return_tensors="pt").input_ids
    return ids


def answer(model: Any, tokenizer: Any) -> str:
    ids = prompt(tokenizer)
    with torch.no_grad():
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=24,
            do_sample=False,
        )
    text: str = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    return text.strip()


def train(model: Any, tokenizer: Any, steps: int) -> list[float]:
    """The loss over the answer's tokens at each step."""
    before = prompt(tokenizer)
    after = tokenizer(ANSWER + tokenizer.eos_token, return_tensors="pt").input_ids
    ids = torch.cat((before, after), dim=1)
    labels = ids.clone()
    labels[:, : before.shape[1]] = -100
    adapters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=LEARNING_RATE)
    losses = []
    model.train()
    for step in range(steps):
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        print(f"step {step + 1:3}  loss {losses[-1]:.4f}", flush=True)
    model.eval()
    return losses


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    # transformers 5.24 warns of a name that PEFT 0.21 asks it for.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
    torch.manual_seed(0)
    path = demo_model()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    base = gateup.load_gguf(path)
    held = sum(t.numel() * t.element_size() for t in [*base.parameters(), *base.buffers()])
    print(f"weights {held / MB:.0f} MB in memory, file {path.stat().st_size / MB:.0f} MB")
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=MODULES))
    model.print_trainable_parameters()
    print(f"before: {answer(model, tokenizer)}")
    losses = train(model, tokenizer, steps)
    trained = answer(model, tokenizer)
    print(f"after:  {trained}")
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(folder)
        model.save_pretrained(kept)
        again = PeftModel.from_pretrained(gateup.load_gguf(path), kept).eval()
        same = answer(again, tokenizer) == trained
    print(f"loaded again: {'the same answer' if same else 'ANOTHER ANSWER'}")
    sys.exit(0 if same and losses[-1] < losses[0] else 1)


if __name__ == "__main__":
    main()
