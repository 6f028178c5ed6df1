"""Trainers' files: which modules are trained whole, and what quantisation they ask for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding
from gateup.checks.lora_targets import shown
from gateup.checks.rule import rule
from gateup.checks.trainer_files import TrainerRun, is_open, read_run
from gateup.files.header import clip, listed, many
from gateup.model.spec import ModelSpec

# LLaMA-Factory's quantization_method -> bits it takes.
METHOD_BITS: Mapping[str, tuple[int, ...]] = {
    "bnb": (4, 8),
    "bitsandbytes": (4, 8),
    "hqq": (1, 2, 3, 4, 5, 6, 8),
    "eetq": (8,),
}
MAX_NAMES = 200


def _run(context: Context) -> TrainerRun:
    assert context.trainer is not None
    return read_run(context.trainer, context.source("trainer"))


def _names(values: Mapping[str, Any], key: str) -> list[str]:
    """Names separated by commas, or a list; none that are put in later."""
    value = values.get(key)
    if value is None or is_open(value):
        return []
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list):
        return []
    return [p.strip() for p in parts if isinstance(p, str) and p.strip()][:MAX_NAMES]


def _inside(spec: ModelSpec) -> list[str]:
    """What lies directly in a layer: self_attn, mlp, input_layernorm."""
    found = (re.search(rf"\.{r.layer}\.([^.]+)", r.name) for r in spec.rows if r.layer is not None)
    return list(dict.fromkeys(m[1] for m in found if m))


def _beside(spec: ModelSpec) -> list[str]:
    """Modules outside the layers: embed_tokens, norm, lm_head."""
    out = [r.name.split(".")[-2] for r in spec.rows if r.layer is None and "." in r.name]
    return list(dict.fromkeys([*out, *(["lm_head"] if spec.tie_word_embeddings else [])]))


@rule("trainer.freeze", "Freeze training names parts of a layer", needs=["trainer"])
def freeze(context: Context) -> Iterable[Finding]:
    """finetuning_type freeze trains some layers whole. freeze_trainable_modules names what lies
    directly in a layer (self_attn, mlp), not the matrices in it; freeze_extra_modules what lies
    outside the layers. LLaMA-Factory stops at any other name. freeze_trainable_layers counts from
    the end, below zero from the start; 0 trains no layer.

    Example: `freeze_trainable_modules: gate_proj`: it lies in mlp, and mlp is the name.
    """
    run, spec = _run(context), context.spec
    if run.dialect != "llamafactory" or run.method != "freeze":
        return
    odd: list[Evidence] = []
    for key, own in (
        ("freeze_trainable_modules", [*_inside(spec), "all"]),
        ("freeze_extra_modules", _beside(spec)),
    ):
        odd += [
            Evidence(key, shown(name), ", ".join(own[:8]), f"module names of {spec.family}")
            for name in _names(run.values, key)
            if name not in own
        ]
    layers = run.values.get("freeze_trainable_layers")
    if type(layers) is int and layers == 0:
        odd.append(Evidence("freeze_trainable_layers", "0", "1 or more, or -1 or less", run.source))
    if odd:
        yield Finding(
            "trainer.freeze",
            "error",
            f"{many(len(odd), 'setting')} of freeze training that cannot be: "
            f"{listed([e.found for e in odd], 4)}",
            tuple(odd),
            "LLaMA-Factory stops at a name that the model does not have at that place; 0 layers "
            "leave nothing to train.",
            "; ".join(dict.fromkeys(f"{e.subject}: one of {e.expected}" for e in odd)) + ".",
            {"odd": len(odd)},
        )


@rule(
    "trainer.whole",
    "Modules to be trained whole are in the model",
    needs=["trainer"],
    worst="warning",
)
def whole(context: Context) -> Iterable[Finding]:
    """additional_target (LLaMA-Factory) and modules_to_save (PEFT) name modules that are trained
    whole beside the adapter. A name that no module's name ends in is passed over without a word.

    Example: `additional_target: embed_token,lm_head`: the embedding is called embed_tokens, and
    new tokens' rows stay as they were.
    """
    run, spec = _run(context), context.spec
    if run.method not in ("lora", None):
        return
    modules = {r.name.rpartition(".")[0] for r in spec.rows}
    # Parents too: self_attn is a module.
    parents = {".".join(m.split(".")[:i]) for m in modules for i in range(1, m.count(".") + 2)}
    parents |= {"lm_head"} if spec.tie_word_embeddings else set()
    for key in ("additional_target", "modules_to_save", "lora_modules_to_save"):
        names = _names(run.values, key)
        idle = [n for n in names if not any(p.endswith(n) for p in parents)]
        if not idle:
            continue
        leaves = list(dict.fromkeys(p.rpartition(".")[2] for p in sorted(parents)))
        near = {n: get_close_matches(n, leaves, n=1, cutoff=0.7) for n in idle}
        yield Finding(
            "trainer.whole",
            "warning",
            f"{len(idle)} of {many(len(names), 'name')} in {key} mean no module of {spec.name}: "
            f"{listed([shown(n) for n in idle], 4)}",
            tuple(
                Evidence(key, shown(n), near[n][0] if near[n] else "a module's name", run.source)
                for n in idle
            ),
            "PEFT passes such a name over without a word: what it meant is not trained.",
            "; ".join(f"write {near[n][0]} for {shown(n)}" for n in idle if near[n])
            or f"Modules outside the layers: {', '.join(_beside(spec))}.",
            {"idle": len(idle), "names": len(names)},
        )


@rule("trainer.quantised", "The run's quantisation is one there is", needs=["trainer"])
def quantised(context: Context) -> Iterable[Finding]:
    """quantization_bit loads the weights in so many bits (QLoRA): bitsandbytes takes 4 and 8, HQQ 1
    to 6 and 8, EETQ 8. A model that is quantised already (AWQ, GPTQ) stays as it is, and the
    setting does nothing; full training of one stops.

    Example: `quantization_bit: 5` with bitsandbytes, which is the method where none is named.
    """
    run = _run(context)
    method = run.values.get("quantization_method", "bnb")
    name = method.lower() if isinstance(method, str) else "bnb"
    bits, key = run.bits, run.keys.get("bits", "quantization_bit")
    taken = METHOD_BITS.get(name)
    if key == "quantization_bit" and bits is not None and taken and bits not in taken:
        yield Finding(
            "trainer.quantised",
            "error",
            f"{key} is {bits}; {name} takes {listed([str(b) for b in taken], 8)}",
            (Evidence(key, str(bits), " or ".join(map(str, taken)), run.source),),
            "LLaMA-Factory stops when the model is loaded.",
            f"{key}: 4 for QLoRA."
            if 4 in taken
            else f"{key}: {taken[0]}, or quantization_method: bnb.",
            {"bits": bits},
        )
    config = context.spec.config.get("quantization_config")
    held = config.get("quant_method") if isinstance(config, Mapping) else None
    if not isinstance(held, str) or held == "mxfp4":
        return
    place = Evidence("quantization_config", clip(held, 40), "", context.source("config"))
    if run.method in ("full", "freeze"):
        yield Finding(
            "trainer.quantised",
            "error",
            f"{run.method} training of weights that are quantised with {clip(held, 40)}",
            (place, Evidence("finetuning_type", run.method, "lora", run.source)),
            "Packed weights get no gradients.",
            "Train adapters (finetuning_type: lora), or take the model in bf16.",
        )
    elif bits is not None:
        yield Finding(
            "trainer.quantised",
            "warning",
            f"{key} {bits}, and the model is quantised with {clip(held, 40)} already",
            (place, Evidence(key, str(bits), "not set", run.source)),
            "The model stays in its own format; the setting does nothing, and memory is that of "
            "the file.",
            f"Take {key} out, or take the model in bf16.",
            {"bits": bits},
        )
