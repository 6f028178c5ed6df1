"""What the user means to do with a model: run or train it, how long, how precise, how split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateup.errors import UsageError

Engine = Literal["transformers", "llama.cpp", "vllm", "gateup"]
Execution = Literal["eager", "fused", "tiled"]
Save = Literal["hf", "all", "gate_up", "input"]
Method = Literal["full", "lora", "qlora"]
Optimizer = Literal["adamw", "adamw8bit", "sgd"]
Checkpointing = Literal["none", "layer"]


@dataclass(frozen=True, slots=True)
class Parallel:
    """Ranks: tensor, pipeline, expert parallel, and FSDP (weights, gradients, optimizer sharded).

    A stage of the pipeline is a group of max(tp, ep) ranks that holds its layers once. Attention
    and dense MLPs are split tp ways; whole experts are shared out to ep ranks (where ep > tp,
    attention is replicated and data-parallel, as in vLLM), and where tp > ep the tp/ep ranks
    that share an expert split its width. fsdp shards all of that again over data-parallel groups.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    fsdp: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "ep", "fsdp"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} is {getattr(self, name)}", expected="1 or more")
        if self.tp % self.ep and self.ep % self.tp:
            raise UsageError(
                f"--tp {self.tp} and --ep {self.ep} do not nest",
                expected="one of the two to be a multiple of the other",
            )

    @property
    def world(self) -> int:
        """Devices used: pp·max(tp, ep)·fsdp; expert ranks are laid over the tensor ranks."""
        return self.pp * max(self.tp, self.ep) * self.fsdp

    @property
    def expert_tp(self) -> int:
        """Ranks that split the width of one expert."""
        return max(self.tp // self.ep, 1)


@dataclass(frozen=True, slots=True)
class LoRA:
    """rank r; targets are role names ("q_proj", "gate_proj", ...), "all", "attention" or "mlp".

    modules  an adapter that exists: (spec row, rank, DoRA magnitudes) of each module it adapts,
             instead of what rank and targets would give
    """

    rank: int = 16
    alpha: float | None = None
    targets: tuple[str, ...] = ("all",)
    dtype: str = "f32"  # PEFT keeps adapters in fp32 by default (autocast_adapter_dtype)
    modules: tuple[tuple[str, int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UsageError(f"--rank is {self.rank}", expected="1 or more")


@dataclass(frozen=True, slots=True)
class Training:
    """How a model is trained.

    save           what the MLP keeps for the backward pass: "hf" (transformers' eager: x, gate,
                   act(gate), up, product), "all" (fused act⊙up), "gate_up", "input"
    checkpointing  "layer": recompute each layer, keep its input only
    autocast       compute in the low dtype; fp32 weights (and adapters) get cast copies
    grad_dtype     of gradients; None: the trained parameters' own
    accumulation   micro-batches per step; above 1, gradients outlive each backward pass
    """

    method: Method = "lora"
    lora: LoRA = LoRA()
    optimizer: Optimizer = "adamw"
    save: Save = "hf"
    checkpointing: Checkpointing = "none"
    autocast: bool = False
    grad_dtype: str | None = None
    accumulation: int = 1


@dataclass(frozen=True, slots=True)
class Workload:
    """One run. ctx: tokens per sequence held in the KV cache (or trained on); batch: sequences
    per data-parallel rank.

    compute_dtype  dtype of activations
    kv_type        format of the KV cache ("f16", "bf16", "q8_0", ...)
    ubatch         tokens per physical batch in llama.cpp (n_ubatch), or the prefill chunk
    execution      how the MLP runs: "eager" (framework), "fused" (act⊙up in one), "tiled"
    tile           tokens per tile when execution is "tiled"
    last_logits    compute logits for the last position only (inference)
    flash          attention without a T×T score matrix
    """

    ctx: int = 4096
    batch: int = 1
    compute_dtype: str = "bf16"
    kv_type: str = "f16"
    engine: Engine = "transformers"
    ubatch: int = 512
    execution: Execution = "eager"
    tile: int = 1024
    last_logits: bool = True
    flash: bool = True
    training: Training | None = None
    parallel: Parallel = Parallel()

    def __post_init__(self) -> None:
        for name in ("ctx", "batch", "ubatch", "tile"):
            value = getattr(self, name)
            if not 1 <= value <= 1 << 40:
                raise UsageError(
                    f"--{name} is {value}", expected=f"a whole number from 1 to {1 << 40}"
                )
