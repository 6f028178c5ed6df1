"""Peak of live tensors in a forward pass or a training step: torch's storages beside gateup's plan.

A dispatch mode sees every tensor that an operation makes and counts its storage while it lives:
what an allocator would be asked for, without its rounding. Models are small ones of transformers'
own classes, on CPU; a peak excludes weights, adapters and optimizer, on both sides.

    python benchmarks/peak_memory.py
"""

from __future__ import annotations

import json
import platform
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from gateup.account.memory import memory
from gateup.account.workload import LoRA, Training, Workload
from gateup.model.families import build_spec
from gateup.model.quant.formats import stored_as
from gateup.ops.tally import LiveBytes

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
HEADS = {"intermediate_size": 16, "num_attention_heads": 24, "head_dim": 16}
NARROW = (("hidden_size", 512), ("moe_intermediate_size", 16), ("head_dim", 16))
MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 320}


@dataclass(frozen=True)
class Case:
    """A model of `kind` with DIMS and `dims`, run as said; training None: one prefill."""

    kind: str
    dims: tuple[tuple[str, int], ...] = ()
    dtype: str = "bf16"
    attention: str = "sdpa"
    last_logits: bool = True
    training: Training | None = None

    @property
    def label(self) -> str:
        t = self.training
        dims = " ".join(f"{k}={v}" for k, v in self.dims)
        what = "prefill" if t is None else f"{t.method}, checkpointing {t.checkpointing}"
        logits = "" if self.last_logits or t else ", all logits"
        return f"{self.kind} {self.dtype} {self.attention} {what}{logits} {dims}"


MLA = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24}
DEEPSEEK = {**MLA, "num_key_value_heads": 6, "n_routed_experts": 8, "num_experts_per_tok": 2,
            "moe_intermediate_size": 320, "first_k_dense_replace": 1}  # fmt: skip
GPT2 = {"n_embd": 96, "n_layer": 3, "n_head": 6, "n_inner": 320, "vocab_size": 64,
        "resid_pdrop": 0, "attn_pdrop": 0, "embd_pdrop": 0}  # fmt: skip
GEMMA = {"head_dim": 16, "sliding_window": 64}
# kind -> (config class, dimensions beside DIMS)
CONFIGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, {}),
    "qwen3": (transformers.Qwen3Config, {}),
    "phi3": (transformers.Phi3Config, {}),
    "qwen3_moe": (transformers.Qwen3MoeConfig, MOE),
    "qwen2_moe": (
        transformers.Qwen2MoeConfig,
        {**MOE, "shared_expert_intermediate_size": 640},
    ),
    "mixtral": (
        transformers.MixtralConfig,
        {"num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "deepseek_v2": (
        transformers.DeepseekV2Config,
        {**DEEPSEEK, "n_shared_experts": 2, "q_lora_rank": None, "n_group": None,
         "topk_group": None, "topk_method": "greedy"},
    ),
    "deepseek_v3": (
        transformers.DeepseekV3Config,
        {**DEEPSEEK, "n_shared_experts": 1, "q_lora_rank": 48, "n_group": 2, "topk_group": 1},
    ),
    "gpt_oss": (
        transformers.GptOssConfig,
        {**GEMMA, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "llama4": (
        transformers.Llama4TextConfig,
        {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 1,
         "intermediate_size_mlp": 320, "interleave_moe_layer_step": 2},
    ),
    "gemma2": (transformers.Gemma2Config, GEMMA),
    "gemma3": (transformers.Gemma3TextConfig, GEMMA),
    "olmo2": (transformers.Olmo2Config, {}),
    "granite": (transformers.GraniteConfig, {}),
    "smollm3": (transformers.SmolLM3Config, {}),
    "gpt2": (transformers.GPT2Config, GPT2),
}  # fmt: skip
# Without scaled_dot_product_attention in transformers.
EAGER = ("gpt_oss", "gemma2")


def build(case: Case) -> Any:
    kind, dims = CONFIGS[case.kind]
    config = kind(**{**({} if case.kind == "gpt2" else DIMS), **dims, **dict(case.dims)})
    config._attn_implementation = case.attention
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[case.dtype]
    return transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()


def compare(case: Case) -> tuple[int, int, str]:
    """(peak measured, peak by gateup's plan, its phase)."""
    model = build(case)
    values = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    spec = build_spec(values, where="config", name=case.kind)
    workload = Workload(
        ctx=T,
        compute_dtype="bf16" if case.training and case.training.autocast else case.dtype,
        kv_type=case.dtype,
        flash=case.attention != "eager",
        last_logits=case.last_logits,
        training=case.training,
    )
    plan = memory(spec, stored_as(spec.rows, case.dtype), workload)
    outside = [i for i in plan.items if i.group in ("kv", "optimizer") or i.label == "adapters"]
    outside += [i for i in plan.items if i.label.startswith("weights: ")]
    peaks = {
        phase: total - sum(i.nbytes for i in outside if phase in i.phases)
        for phase, total in plan.peaks.items()
        if phase not in ("load", "decode", "optimizer")
    }
    phase = max(peaks, key=lambda p: peaks[p])
    return run(model, case), peaks[phase], phase


def run(model: Any, case: Case) -> int:
    ids = torch.arange(T)[None] % model.config.vocab_size
    plan = case.training
    if plan is None:
        with torch.no_grad(), LiveBytes() as live:
            model(input_ids=ids, use_cache=False, logits_to_keep=1 if case.last_logits else 0)
        return live.peak
    if plan.method != "full":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=plan.lora.rank, target_modules="all-linear"))
    model.train()
    if plan.checkpointing == "layer":
        model.gradient_checkpointing_enable({"use_reentrant": False})
        if plan.method != "full":
            model.enable_input_require_grads()
    with LiveBytes() as live:
        with torch.autocast("cpu", torch.bfloat16) if plan.autocast else nullcontext():
            out = model(input_ids=ids, labels=ids, use_cache=False)
        out.loss.backward()
    return live.peak


WIDE = (("vocab_size", 4096),)
HEADY = tuple(HEADS.items())
CASES = (
    *(Case("llama", dtype=dtype) for dtype in ("bf16", "f32")),
    *(Case("llama", HEADY, dtype) for dtype in ("bf16", "f32")),
    *(Case("llama", HEADY, dtype, "eager") for dtype in ("bf16", "f32")),
    *(Case("llama", WIDE, dtype, last_logits=False) for dtype in ("bf16", "f32")),
    Case("qwen3"),
    Case("phi3"),
    Case("qwen3_moe"),
    Case("qwen3_moe", NARROW),
    *(
        Case("llama", dims, dtype, training=training)
        for dims in ((), WIDE)
        for dtype in ("bf16", "f32")
        for training in (Training("full"), Training("lora", LoRA(4)))
    ),
    Case("llama", training=Training("full", checkpointing="layer")),
    Case("llama", training=Training("lora", LoRA(4), checkpointing="layer")),
    Case("llama", dtype="f32", training=Training("full", autocast=True)),
    Case("qwen3_moe", training=Training("full")),
    *(
        Case(kind, attention="eager" if kind in EAGER else "sdpa", training=training)
        for kind in CONFIGS
        if kind not in ("llama", "qwen3", "phi3", "qwen3_moe")
        for training in (None, Training("full"), Training("lora", LoRA(4)))
        if kind != "llama4" or training is None or training.method == "full"
    ),
)


def rows() -> Iterator[tuple[str, int, int, str]]:
    for case in CASES:
        yield case.label, *compare(case)


def main() -> None:
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {T} tokens, CPU")
    print(f"{'case':78} {'measured':>11} {'plan':>11} {'ratio':>6}  phase")
    results = []
    for label, peak, plan, phase in rows():
        print(f"{label:78} {peak:>11,} {plan:>11,} {plan / peak:>6.3f}  {phase}")
        results.append({"case": label, "measured": peak, "plan": plan, "phase": phase})
    print(
        json.dumps(
            {
                "benchmark": "peak_memory",
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
