"""Bytes autograd saves for backward: torch's saved_tensors_hooks beside gateup's formulas.

Every model is a small one of transformers' own class, on CPU. What is saved is counted by
storage, each once, parameters left out. A few things are on torch's side only and are taken off:
the rotary tables, which gateup counts among the hidden states, token ids, offsets of experts.

    python benchmarks/saved_bytes.py
"""

from __future__ import annotations

import json
import platform
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model

from gateup.account.memory import MemoryPlan, memory
from gateup.account.workload import LoRA, Training, Workload
from gateup.model.families import build_spec
from gateup.model.quant.formats import stored_as
from gateup.model.spec import ModelSpec, MoESpec
from gateup.ops.tally import SavedBytes

T = 128
DIMS: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 320,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**DIMS, head_dim=16),
    "qwen3": lambda: transformers.Qwen3Config(**DIMS, head_dim=16),
    "phi3": lambda: transformers.Phi3Config(**DIMS),
    "qwen2_moe": lambda: transformers.Qwen2MoeConfig(
        **DIMS, **MOE, shared_expert_intermediate_size=128
    ),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**DIMS, **MOE, head_dim=16),
}
TORCH = {"bf16": torch.bfloat16, "f32": torch.float32}


@dataclass(frozen=True)
class Case:
    model: str
    training: Training
    dtype: str = "bf16"
    attention: str = "sdpa"

    @property
    def label(self) -> str:
        t = self.training
        parts = [self.model, t.method, self.dtype, self.attention]
        if t.method != "full":
            parts.append("+".join(t.lora.targets))
        if t.autocast:
            parts.append("autocast")
        if t.checkpointing == "layer":
            parts.append("checkpointed")
        return " ".join(parts)

    @property
    def workload(self) -> Workload:
        return Workload(
            ctx=T,
            compute_dtype="bf16" if self.training.autocast else self.dtype,
            kv_type=self.dtype,
            flash=self.attention != "eager",
            training=self.training,
        )


def build(case: Case) -> tuple[ModelSpec, Any]:
    """The spec, and transformers' model of it (with PEFT's adapters where the case has them)."""
    config = CONFIGS[case.model]()
    config._attn_implementation = case.attention
    model = transformers.AutoModelForCausalLM.from_config(config).to(TORCH[case.dtype])
    values = {**config.to_dict(), "architectures": [type(model).__name__]}
    spec = build_spec(values, where="config", name=case.model)
    plan = case.training
    if plan.method != "full":
        targets = "all-linear" if plan.lora.targets == ("all",) else list(plan.lora.targets)
        model = get_peft_model(model, LoraConfig(r=plan.lora.rank, target_modules=targets))
    model.train()
    if plan.checkpointing == "layer":
        model.gradient_checkpointing_enable({"use_reentrant": False})
        if plan.method != "full":
            model.enable_input_require_grads()
    return spec, model


def plan_of(case: Case, spec: ModelSpec) -> MemoryPlan:
    return memory(spec, stored_as(spec.rows, case.dtype), case.workload)


def measured(case: Case, spec: ModelSpec, model: Any) -> int:
    """Bytes saved by one forward pass, less what gateup counts elsewhere."""
    ids = torch.arange(T)[None] % spec.vocab_size
    cast = torch.autocast("cpu", torch.bfloat16) if case.training.autocast else nullcontext()
    with cast, SavedBytes(model.parameters()) as saved:
        model(input_ids=ids, use_cache=False)
    return saved.nbytes - beside(case, spec)


def beside(case: Case, spec: ModelSpec) -> int:
    """What torch saves and gateup does not count as saved: rotary tables, ids, expert offsets."""
    attention = spec.layers[0].attention
    assert attention is not None
    total = 8 * T if case.training.method == "full" else 0
    if case.training.checkpointing == "none":
        total += 2 * attention.head_dim * TORCH[case.dtype].itemsize * T
        total += sum(4 * x.mlp.num_experts for x in spec.layers if isinstance(x.mlp, MoESpec))
    return total


def predicted(case: Case, plan: MemoryPlan, spec: ModelSpec) -> int:
    """gateup's items for the same moment.

    Frozen embeddings need no gradient, so the first layer's norm keeps nothing and its adapters'
    A is not cast; gateup counts both, because with a hook on the embeddings they are.
    """
    kinds = ("experts and router", "layer inputs", "autocast copies")
    total = sum(
        item.nbytes
        for item in plan.items
        if "logits" in item.phases
        and ("saved for backward" in item.label or item.label.startswith(kinds))
    )
    if case.training.method == "full" or case.training.checkpointing == "layer":
        return total
    H, r = spec.hidden_size, case.training.lora.rank
    return total - T * (4 * H + 4) - (3 * r * H * 2 if case.training.autocast else 0)


CASES = (
    *(
        Case(model, Training("full"), dtype)
        for model in ("llama", "qwen3", "phi3", "qwen2_moe", "qwen3_moe")
        for dtype in ("bf16", "f32")
    ),
    *(
        Case("llama", Training("lora", LoRA(4, targets=targets)), dtype)
        for targets in (("all",), ("q_proj", "down_proj"), ("v_proj", "gate_proj"))
        for dtype in ("bf16", "f32")
    ),
    Case("llama", Training("full"), attention="eager"),
    Case("llama", Training("full"), "f32", "eager"),
    Case("llama", Training("full", autocast=True), "f32"),
    Case("llama", Training("lora", LoRA(4), autocast=True)),
    Case("llama", Training("full", checkpointing="layer")),
    Case("llama", Training("lora", LoRA(4), checkpointing="layer")),
    Case("qwen2_moe", Training("lora", LoRA(4))),
    Case("qwen3_moe", Training("lora", LoRA(4))),
    Case("phi3", Training("lora", LoRA(4))),
)


def rows() -> Iterator[tuple[str, int, int]]:
    """(case, bytes measured, bytes by formula)."""
    for case in CASES:
        spec, model = build(case)
        plan = plan_of(case, spec)
        yield case.label, measured(case, spec, model), predicted(case, plan, spec)


def main() -> None:
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {T} tokens, CPU")
    print(f"{'case':52} {'measured':>10} {'formula':>10} {'ratio':>7}")
    results = []
    for label, torch_bytes, formula in rows():
        print(f"{label:52} {torch_bytes:>10,} {formula:>10,} {formula / torch_bytes:>7.3f}")
        results.append({"case": label, "measured": torch_bytes, "formula": formula})
    print(
        json.dumps(
            {
                "benchmark": "saved_bytes",
                "machine": platform.machine(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "tokens": T,
                "results": results,
            }
        )
    )


if __name__ == "__main__":
    main()
