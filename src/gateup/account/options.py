"""What `gateup plan` can be asked: one table that the command line and the Python API share."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, get_args

from gateup.account.workload import (
    Checkpointing,
    Engine,
    Execution,
    LoRA,
    Loss,
    Method,
    Optimizer,
    Parallel,
    Save,
    Training,
)
from gateup.errors import UsageError

# As many devices as --device takes. The search for a split that works tries every degree below.
MAX_RANKS = 16_384

# No count of layers or micro-batches is larger.
MOST = 1 << 20

_OF_TRAINING = (
    *("rank", "alpha", "targets", "optimizer", "save", "checkpointing", "loss", "accumulation"),
)


def option(default: Any, *flags: str, panel: str, help: str) -> Any:
    """A dataclass field that is also a command-line option: `flags` and `help` as shown there."""
    return field(default=default, metadata={"flags": flags, "panel": panel, "help": help})


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The run to plan for. None means: gateup chooses, and the report says what it chose.

    Raises UsageError for a value that no run could have.
    """

    quant: str | None = option(
        None, "--quant", panel="Run", help="Weights in this format (q4_k_m, nf4, f16, awq:128, …)."
    )
    ctx: int | None = option(
        None, "--ctx", "--seq", panel="Run", help="Tokens per sequence, prompt and answer."
    )
    batch: int = option(1, "--batch", panel="Run", help="Sequences at once.")
    kv: str | None = option(
        None, "--kv", panel="Run", help="Format of the KV cache (f16, q8_0, …)."
    )
    dtype: str | None = option(
        None, "--dtype", panel="Run", help="Dtype of activations, and of weights not quantised."
    )
    engine: str | None = option(
        None, "--engine", panel="Run", help="transformers, llama.cpp, vllm or gateup."
    )
    ubatch: int | None = option(
        None, "--ubatch", panel="Run", help="Tokens per physical batch (512; vLLM 2048)."
    )
    execution: str = option("eager", "--exec", panel="Run", help="MLP as eager, fused or tiled.")
    tile: int = option(1024, "--tile", panel="Run", help="Tokens per tile (--exec tiled).")
    flash: bool = option(
        True, "--flash/--no-flash", panel="Run", help="Attention without a T×T score matrix."
    )
    all_logits: bool = option(
        False, "--all-logits", panel="Run", help="Logits for every position, not the last only."
    )
    device: str | None = option(
        None,
        "--device",
        panel="Machine",
        help="24GB (a card's size: 24 GiB), bytes (24000000000B), rtx4090, 2xh100, or this.",
    )
    tp: int = option(1, "--tp", panel="Machine", help="Tensor-parallel ranks.")
    pp: int = option(1, "--pp", panel="Machine", help="Pipeline-parallel ranks.")
    ep: int = option(1, "--ep", panel="Machine", help="Expert-parallel ranks.")
    fsdp: int = option(1, "--fsdp", panel="Machine", help="FSDP (ZeRO-3) ranks.")
    gpu_layers: int | None = option(
        None,
        "--gpu-layers",
        panel="Machine",
        help="Layers on the card, output included (llama.cpp's -ngl; all).",
    )
    cpu_moe_layers: int | None = option(
        None,
        "--cpu-moe-layers",
        panel="Machine",
        help="Layers whose experts stay with the host (llama.cpp's --n-cpu-moe).",
    )
    train: str | None = option(None, "--train", panel="Training", help="full, lora or qlora.")
    rank: int | None = option(None, "--rank", panel="Training", help="LoRA rank r (default 16).")
    alpha: float | None = option(None, "--alpha", panel="Training", help="LoRA alpha.")
    targets: str | None = option(
        None, "--targets", panel="Training", help="all, mlp, attention, or roles: q_proj,down_proj."
    )
    optimizer: str | None = option(
        None, "--optimizer", panel="Training", help="adamw, adamw8bit or sgd."
    )
    save: str | None = option(
        None, "--save", panel="Training", help="Kept for backward: hf, all, gate_up or input."
    )
    checkpointing: str | None = option(
        None, "--checkpointing", panel="Training", help="none or layer."
    )
    loss: str | None = option(
        None, "--loss", panel="Training", help="full, or chunked: no T×V logits (Liger)."
    )
    accumulation: int | None = option(
        None, "--accumulation", panel="Training", help="Micro-batches of --batch per step (1)."
    )
    autocast: bool = option(
        False,
        "--autocast",
        panel="Training",
        help="Compute in --dtype: full training keeps fp32 weights, LoRA the base as it is.",
    )
    measure: bool = option(
        False, "--measure", panel="Machine", help="Run what this machine can; show it beside."
    )

    def __post_init__(self) -> None:
        choice("--engine", self.engine, Engine)
        choice("--exec", self.execution, Execution)
        choice("--train", self.train, Method)
        choice("--optimizer", self.optimizer, Optimizer)
        choice("--save", self.save, Save)
        choice("--checkpointing", self.checkpointing, Checkpointing)
        choice("--loss", self.loss, Loss)
        choice("--dtype", self.dtype, COMPUTE_DTYPES)
        if self.alpha is not None and not (math.isfinite(self.alpha) and self.alpha > 0):
            raise UsageError(f"--alpha is {self.alpha}", expected="a finite number above 0")
        for name, least in (("gpu_layers", 0), ("cpu_moe_layers", 0), ("accumulation", 1)):
            value = getattr(self, name)
            if value is not None and not least <= value <= MOST:
                flag = "--" + name.replace("_", "-")
                raise UsageError(
                    f"{flag} is {value}", expected=f"a whole number from {least} to {MOST}"
                )
        self._refuse_stray()

    def _refuse_stray(self) -> None:
        """An option that would have no effect is refused rather than ignored."""
        if self.train is None:
            for name in _OF_TRAINING:
                if getattr(self, name) is not None:
                    raise UsageError(
                        f"--{name} is about training", remedy="add --train lora, qlora or full"
                    )
            if self.autocast:
                raise UsageError("--autocast is about training", remedy="add --train full or lora")
        if self.train == "full":
            for name in ("rank", "alpha", "targets"):
                if getattr(self, name) is not None:
                    raise UsageError(
                        f"--{name} is about LoRA, and --train full has no adapter",
                        remedy="use --train lora or qlora",
                    )

    def parallel(self) -> Parallel:
        for name in ("tp", "pp", "ep", "fsdp"):
            if getattr(self, name) > MAX_RANKS:
                raise UsageError(f"--{name} is {getattr(self, name)}", expected=f"1 to {MAX_RANKS}")
        return Parallel(self.tp, self.pp, self.ep, self.fsdp)

    def training(self) -> Training | None:
        """The training asked for; a fused MLP keeps what fused act⊙up does, unless --save is given.

        Raises UsageError for a rank below 1 or an empty target list.
        """
        if self.train is None:
            return None
        names = tuple(
            t.strip() for t in ("all" if self.targets is None else self.targets).split(",")
        )
        if not all(names):
            raise UsageError(
                f"--targets is {self.targets!r}", expected="all, or names with commas between"
            )
        extra: dict[str, Any] = {
            name: value
            for name in ("optimizer", "save", "checkpointing", "loss", "accumulation")
            if (value := getattr(self, name)) is not None
        }
        if self.execution == "fused":
            extra.setdefault("save", "all")
        rank = 16 if self.rank is None else self.rank
        return Training(
            method=self.train,  # type: ignore[arg-type]  # checked against Method above
            lora=LoRA(rank=rank, alpha=self.alpha, targets=names),
            autocast=self.autocast,
            **extra,
        )


COMPUTE_DTYPES = ("bf16", "f16", "f32")


def choice(flag: str, value: str | None, allowed: Any) -> None:
    """Refuse a value not among `allowed` (a Literal type or a tuple), naming the closest."""
    names = allowed if isinstance(allowed, tuple) else get_args(allowed)
    if value is None or value in names:
        return
    close = get_close_matches(value.lower(), names, n=1)
    raise UsageError(
        f"{flag} is {value!r}",
        expected="one of " + ", ".join(names),
        remedy=f"did you mean {close[0]}?" if close else None,
    )
