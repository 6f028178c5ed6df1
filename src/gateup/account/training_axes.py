"""The axes of training, and all of a scenario's axes together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gateup.account.axes import (
    INFERENCE_AXES,
    NONE,
    SOME,
    TINY,
    batch_axis,
    context_axis,
    devices_axis,
    execution_axis,
    sibling_axis,
    stacked_note,
    train,
)
from gateup.account.scenario import Scenario
from gateup.account.search import Axis, Option
from gateup.account.workload import Training

# Models that LLaMA-Factory's enable_liger_kernel covers, by model_type.
LIGER = frozenset(
    {
        *("gemma", "gemma2", "gemma3", "gemma3_text", "granite", "llama", "mistral", "mixtral"),
        *("olmo2", "phi3", "qwen2", "qwen3", "qwen3_moe", "gpt_oss"),
    }
)


def free_options(scenario: Scenario) -> list[Option]:
    """What training can save without losing anything but a little time, so that it comes before
    whatever loses something.
    """
    if scenario.workload.training is None:
        return []
    axes = [make(scenario) for make in (_checkpointing, _liger)]
    return [a.options[0] for a in axes if a is not None and a.options]


def axes_of(scenario: Scenario) -> list[Axis]:
    """The axes on which this scenario can be changed, in the order changes are made."""
    makers = TRAINING_AXES if scenario.workload.training is not None else INFERENCE_AXES
    return [axis for make in makers if (axis := make(scenario)) is not None and axis.options]


def _training(s: Scenario) -> Training:
    assert s.workload.training is not None
    return s.workload.training


def _checkpointing(s: Scenario) -> Axis | None:
    if _training(s).checkpointing != "none":
        return None
    how = train(checkpointing="layer")
    text = "checkpointing: keep each layer's input, compute the rest again"
    return Axis("checkpointing", (Option(text, how, NONE, 0, 3),))


def _save(s: Scenario) -> Axis | None:
    """What the MLP keeps for backward, on our own engine."""
    modes = ("hf", "all", "gate_up", "input")
    if s.workload.engine == "transformers":
        return None
    texts = {
        "all": "fused act⊙up: the MLP keeps x, gate, up and their product",
        "gate_up": "the MLP keeps x, gate and up only",
        "input": "the MLP keeps x only",
    }
    now = modes.index(_training(s).save)
    return Axis(
        "save",
        tuple(
            Option(texts[m], train(save=m), NONE, 0, (0.1, 0.3, 1.2)[modes.index(m) - 1])
            for m in modes[now + 1 :]
        ),
    )


def _liger(s: Scenario) -> Axis | None:
    """Liger's kernels in transformers: one switch for the chunked loss and the fused act⊙up."""
    training = _training(s)
    known = s.spec.config.get("model_type") in LIGER
    if s.workload.engine != "transformers" or not known or training.loss == "chunked":
        return None
    save = "all" if training.save == "hf" else training.save
    text = "Liger kernels: the loss in chunks of tokens (no T×V logits), fused act⊙up"
    return Axis("liger", (Option(text, train(loss="chunked", save=save), NONE, 0, 0.1),))


def _optimizer(s: Scenario) -> Axis | None:
    if _training(s).optimizer != "adamw":
        return None
    how = train(optimizer="adamw8bit")
    return Axis("optimizer", (Option("8-bit AdamW instead of AdamW", how, TINY, 1),))


def _qlora(s: Scenario) -> Axis | None:
    method = _training(s).method
    if method == "full" or s.fmt == "nf4:double":
        return None

    def to(fmt: str) -> Callable[[Scenario], Scenario]:
        return lambda x: train(method="qlora")(x).with_(fmt=fmt)

    stacked = stacked_note(s, "nf4")
    double = "nf4 with double quantisation"
    if method == "qlora":
        text = f"{double}: the scales quantised too"
        ours = Option(text, to("nf4:double"), TINY, 0.5)
        return Axis("qlora", (ours,) if s.fmt == "nf4" else ())
    return Axis(
        "qlora",
        (
            Option("QLoRA: the frozen weights in nf4" + stacked, to("nf4"), TINY, 2, 1.5),
            Option(
                f"QLoRA: the frozen weights in {double}{stacked}", to("nf4:double"), TINY, 2.5, 1.5
            ),
        ),
    )


def _lora(s: Scenario) -> Axis | None:
    """Full training given up for LoRA."""
    if _training(s).method != "full":
        return None

    def qlora(x: Scenario) -> Scenario:
        return train(method="qlora", autocast=False)(x).with_(fmt="nf4")

    return Axis(
        "method",
        (
            Option("LoRA instead of full training", train(method="lora"), SOME, 5),
            Option("QLoRA instead of full training", qlora, SOME, 6, 1.5),
        ),
    )


def _rank(s: Scenario) -> Axis | None:
    lora = _training(s).lora
    if _training(s).method == "full" or lora.modules:  # an adapter that is there keeps its rank
        return None
    options = []
    for i, rank in enumerate(r for r in (64, 32, 16, 8, 4) if r < lora.rank):
        text = f"rank {rank} instead of {lora.rank}"
        options.append(Option(text, _lora_set(rank=rank), SOME, 3 + i))
    return Axis("rank", tuple(options))


def _lora_set(**changes: Any) -> Callable[[Scenario], Scenario]:
    def apply(s: Scenario) -> Scenario:
        return train(lora=replace(_training(s).lora, **changes))(s)

    return apply


def _targets(s: Scenario) -> Axis | None:
    lora = _training(s).lora
    if _training(s).method == "full" or lora.modules or lora.targets != ("all",):
        return None
    text = "LoRA on attention only instead of all linear layers"
    return Axis("targets", (Option(text, _lora_set(targets=("attention",)), SOME, 7),))


TRAINING_AXES: tuple[Callable[[Scenario], Axis | None], ...] = (
    _lora,
    _qlora,
    _checkpointing,
    _save,
    _liger,
    execution_axis,
    _optimizer,
    batch_axis,
    _rank,
    _targets,
    context_axis,
    devices_axis,
    sibling_axis,
)
