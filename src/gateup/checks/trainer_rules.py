"""Trainers' files: what will fail, be ignored, or not train what was meant."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gateup.account.lora import module_name
from gateup.checks.adapter_rules import attention_note, mlp_cost
from gateup.checks.adapter_size_rules import rank_finding, scale_findings
from gateup.checks.adapter_target_rules import unmatched_targets
from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding, Severity
from gateup.checks.lora_targets import leaf_of, linear_modules, match_targets
from gateup.checks.rule import rule
from gateup.checks.trainer_files import TrainerRun, read_run
from gateup.checks.trainer_keys import ELSEWHERE, KNOWN
from gateup.checks.trainer_keys import near as _near
from gateup.files.header import clip, listed, many

# Unknown keys that are compared with the known ones, at 0.8 ms each.
MAX_UNKNOWN = 500


def run_of(context: Context) -> TrainerRun:
    assert context.trainer is not None
    return read_run(context.trainer, context.source("trainer"))


@rule("trainer.values", "Values are of the kind their key takes", needs=["trainer"])
def values(context: Context) -> Iterable[Finding]:
    """A number where a name belongs, a fraction where a whole number does, a size of 0.

    Example: `lora_rank: 8.5`, `per_device_train_batch_size: 0`, `finetuning_type: lorra`.

    YAML reads `1e-4` (without a dot) as text; trainers convert it, so that is not reported.
    """
    run = run_of(context)
    odd = list(run.odd)
    for name in ("rank", "cutoff", "batch", "accumulation"):
        value = getattr(run, name)
        if value is not None and value < 1:
            odd.append(Evidence(run.keys[name], str(value), "1 or more", run.source))
    if run.epochs is not None and run.epochs <= 0 and (run.max_steps or 0) < 1:
        odd.append(Evidence(run.keys["epochs"], f"{run.epochs:g}", "more than 0", run.source))
    if odd:
        yield Finding(
            "trainer.values",
            "error",
            f"{many(len(odd), 'value')} that cannot be: {listed([e.subject for e in odd], 4)}",
            tuple(odd),
            "The trainer refuses them, or takes them for something else.",
            "; ".join(f"{e.subject}: {e.expected}" for e in odd[:4]) + ".",
            {"odd": len(odd)},
        )


@rule("trainer.settings", "The trainer's file holds settings of a trainer", worst="warning")
def settings(context: Context) -> Iterable[Finding]:
    """A file none of whose keys is a setting of LLaMA-Factory, TrainingArguments, PEFT or axolotl
    says nothing about a training: it is another program's, or its settings lie one level deeper
    than they should. The rules of trainers' files then count as not checked.

    Example: `foo: 1`; or `training: {learning_rate: 1.0e-4, lora_rank: 8}`, all of it under one
    key that no trainer reads.
    """
    values = context.trainer
    if values is None or context.has("trainer"):
        return
    source = context.source("trainer")
    keys = [clip(k, 40)[1:-1] for k in values]
    yield Finding(
        "trainer.settings",
        "warning",
        f"no setting of a trainer was recognised in {source}",
        tuple(Evidence(k, "unknown", "a trainer's setting", source) for k in keys[:10]),
        f"Its keys are {listed(keys, 5)}." if keys else "It holds no keys.",
        "name the file that the training is started with; settings stand at its top: "
        "learning_rate, lora_rank, per_device_train_batch_size",
        {"keys": len(keys)},
    )


@rule("trainer.keys", "No key is a slip of the pen", needs=["trainer"])
def keys(context: Context) -> Iterable[Finding]:
    """A misspelt key does not do what it says: LLaMA-Factory stops ("Some keys are not used by the
    HfArgumentParser"), scripts around other trainers mostly ignore it and use the default.

    Example: `learning_rte: 1.0e-4` trains at 5e-5; `lora_r: 16` is axolotl's and PEFT's name for
    LLaMA-Factory's lora_rank.
    """
    run = run_of(context)
    known = KNOWN[run.dialect]
    if "task" in run.values:  # llamafactory-cli eval has a batch_size of its own
        known |= {"batch_size"}
    slips: list[tuple[str, str]] = []
    unknown = (k for k in run.values if isinstance(k, str) and k not in known and len(k) <= 80)
    for key in islice(unknown, MAX_UNKNOWN):
        if run.dialect == "llamafactory" and key in ELSEWHERE:
            slips.append((key, ELSEWHERE[key]))
        elif close := _near(key, known):
            slips.append((key, close))
    if not slips:
        return
    factory = run.dialect == "llamafactory"
    yield Finding(
        "trainer.keys",
        "error" if factory else "warning",
        f"{many(len(slips), 'key')} that no trainer reads: {listed([k for k, _ in slips], 4)}",
        tuple(Evidence(k, clip(run.values[k], 40), f"{near}?", run.source) for k, near in slips),
        "LLaMA-Factory stops at a key it does not know."
        if factory
        else "Keys that nothing reads are ignored, and the default holds.",
        "; ".join(f"write {near} for {k}" for k, near in slips[:6]) + ".",
        {"slips": len(slips)},
    )


def _on(run: TrainerRun, key: str) -> bool:
    value = run.values.get(key)
    return value is True or (isinstance(value, str) and value.lower() == "true")


def _size(run: TrainerRun, key: str) -> float:
    value = run.values.get(key)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else 0.0  # type: ignore[arg-type]


@dataclass(frozen=True)
class Conflict:
    """Two settings that cannot hold together. keys: those to show."""

    keys: tuple[str, ...]
    holds: Callable[[TrainerRun], bool]
    severity: Severity
    title: str
    cause: str
    remedy: str
    factory: bool = False  # only LLaMA-Factory has it


def _has(run: TrainerRun, key: str) -> bool:
    value = run.values.get(key)
    return value is not None and value is not False and value != ""


_LORA_KEYS = ("lora_rank", "lora_alpha", "lora_target", "lora_dropout", "use_rslora", "use_dora")

CONFLICTS: tuple[Conflict, ...] = (
    Conflict(
        ("fp16", "bf16"),
        lambda r: _on(r, "fp16") and _on(r, "bf16"),
        "error",
        "fp16 and bf16 are both true",
        "A run computes in one of them; the trainer refuses both.",
        "Keep bf16 (cards from Ampere on), which does not overflow at 65,504.",
    ),
    Conflict(
        ("finetuning_type", *_LORA_KEYS),
        lambda r: r.method in ("full", "freeze") and any(_has(r, k) for k in _LORA_KEYS),
        "warning",
        "LoRA settings in a run that trains the weights themselves",
        "finetuning_type full and freeze have no adapter: the lora_ keys are ignored.",
        "Write finetuning_type: lora, or take the lora_ keys out.",
        factory=True,
    ),
    Conflict(
        ("quantization_bit", "finetuning_type"),
        lambda r: _has(r, "quantization_bit") and r.method in ("full", "freeze"),
        "error",
        "quantised weights cannot be trained themselves",
        "quantization_bit loads the weights in 4 or 8 bits, which get no gradients.",
        "finetuning_type: lora trains adapters on them; or take quantization_bit out.",
        factory=True,
    ),
    Conflict(
        ("adapter_name_or_path", "finetuning_type"),
        lambda r: _has(r, "adapter_name_or_path") and r.method in ("full", "freeze"),
        "error",
        "an adapter is continued in a run without adapters",
        "adapter_name_or_path is taken with finetuning_type lora only.",
        "Merge the adapter into the base first, or write finetuning_type: lora.",
        factory=True,
    ),
    Conflict(
        ("use_galore", "use_apollo", "use_badam", "finetuning_type"),
        lambda r: r.lora and any(_on(r, k) for k in ("use_galore", "use_apollo", "use_badam")),
        "error",
        "a low-rank optimizer for full training in a LoRA run",
        "GaLore, APOLLO and BAdam replace the optimizer of full training.",
        "Write finetuning_type: full, or take the optimizer's key out.",
        factory=True,
    ),
    Conflict(
        ("pissa_init", "quantization_bit"),
        lambda r: _on(r, "pissa_init") and _has(r, "quantization_bit"),
        "error",
        "PiSSA starts from the weights' own singular vectors, which quantised weights cannot give",
        "PiSSA takes a part out of the weight, in full precision, before it is quantised.",
        "Initialise PiSSA on the full-precision base first and quantise what is left.",
        factory=True,
    ),
    Conflict(
        ("mask_history", "train_on_prompt"),
        lambda r: _on(r, "mask_history") and _on(r, "train_on_prompt"),
        "error",
        "mask_history and train_on_prompt are both true",
        "One trains on the last turn alone, the other on everything.",
        "Keep one of them.",
        factory=True,
    ),
    Conflict(
        ("eval_dataset", "val_size"),
        lambda r: _has(r, "eval_dataset") and _size(r, "val_size") > 0,
        "error",
        "eval_dataset and val_size are both set",
        "The validation set is either given or cut from the training set.",
        "Keep one of them.",
        factory=True,
    ),
    Conflict(
        ("streaming", "max_samples"),
        lambda r: _on(r, "streaming") and _has(r, "max_samples"),
        "error",
        "max_samples in a streaming run",
        "A stream is not cut by samples.",
        "Bound the run with max_steps.",
        factory=True,
    ),
    Conflict(
        ("streaming", "max_steps"),
        lambda r: _on(r, "streaming") and (r.max_steps or 0) < 1,
        "error",
        "a streaming run without max_steps",
        "A stream has no length from which epochs could be counted.",
        "Set max_steps.",
        factory=True,
    ),
    Conflict(
        ("gradient_checkpointing", "disable_gradient_checkpointing"),
        lambda r: _on(r, "gradient_checkpointing") and _on(r, "disable_gradient_checkpointing"),
        "warning",
        "gradient checkpointing is turned on and off",
        "LLaMA-Factory checkpoints unless disable_gradient_checkpointing is true.",
        "Keep disable_gradient_checkpointing alone.",
        factory=True,
    ),
    Conflict(
        ("warmup_steps", "warmup_ratio"),
        lambda r: (r.warmup_steps or 0) > 0 and (r.warmup_ratio or 0) > 0,
        "note",
        "warmup_steps and warmup_ratio are both set: the steps win",
        "transformers looks at warmup_ratio only where warmup_steps is 0.",
        "Keep one of them.",
    ),
    Conflict(
        ("max_steps", "num_train_epochs"),
        lambda r: (r.max_steps or 0) > 0 and r.epochs is not None,
        "note",
        "max_steps and num_train_epochs are both set: max_steps wins",
        "With max_steps above 0 the epochs are not looked at.",
        "Keep one of them.",
    ),
)


@rule("trainer.conflicts", "Settings that cannot hold together", needs=["trainer"])
def conflicts(context: Context) -> Iterable[Finding]:
    """Some pairs are refused at the start (fp16 with bf16, quantised weights with full training),
    others pass and one half is ignored.

    Example: `finetuning_type: full` with `lora_rank: 16`: every weight trains, the rank is not
    looked at, and the memory planned for LoRA does not reach.
    """
    run = run_of(context)
    for c in CONFLICTS:
        if (c.factory and run.dialect != "llamafactory") or not c.holds(run):
            continue
        shown = [k for k in c.keys if run.values.get(k) is not None]
        yield Finding(
            "trainer.conflicts",
            c.severity,
            c.title,
            tuple(Evidence(k, clip(run.values[k], 40), "", run.source) for k in shown),
            c.cause,
            c.remedy,
            {},
        )


@rule("trainer.targets", "Every lora_target matches a module", needs=["trainer"])
def targets(context: Context) -> Iterable[Finding]:
    """As adapter.targets, before the run: a name the model does not have is dropped in silence as
    long as another one matches. `lora_target: all` always means every linear module of the layers.
    PEFT takes one string in target_modules for a regular expression over whole names: "q_proj"
    matches nothing, ["q_proj"] does.

    Example: `lora_target: q_proj,v_proj,gate_proj` on Phi-3, which has qkv_proj and gate_up_proj.
    """
    run = run_of(context)
    if run.targets is None or run.method not in ("lora", None):
        return
    matches = match_targets(context.spec, run.targets)
    unmatched = [m for m in matches if not m.modules]
    if unmatched:
        yield unmatched_targets(
            "trainer.targets", context, matches, unmatched, run.rank or 8, run.place("targets")
        )


@rule("trainer.attention_only", "What attention-only targets leave out", needs=["trainer"])
def attention_only(context: Context) -> Iterable[Finding]:
    """As adapter.attention_only, before the run: `lora_target: q_proj,v_proj` is the first
    LoRA paper's choice; the MLP, two thirds of a layer, is left as it was.

    Example: on Llama-3-8B at rank 8 gate, up and down would add 14,155,776 parameters.
    """
    run = run_of(context)
    if run.targets is None or run.targets == "all-linear" or not run.lora:
        return
    hit = {leaf for m in match_targets(context.spec, run.targets) for leaf in m.leaves}
    rows = linear_modules(context.spec)
    parts = {r.part for n, r in rows.items() if leaf_of(n) in hit and r.layer is not None}
    cost = mlp_cost(context.spec, run.rank or 8)
    if parts == {"attention"} and cost:
        names = ", ".join(sorted(hit))
        yield attention_note("trainer.attention_only", names, context, cost, run.source)


@rule("trainer.rank", "The rank is smaller than what it stands in for", needs=["trainer"])
def rank(context: Context) -> Iterable[Finding]:
    """As adapter.rank, before the run: from r = in·out/(in + out) on, the adapter is as large as
    the matrix.

    Example: `lora_rank: 256` with lora_target all on Qwen2.5-0.5B: k_proj [128, 896] breaks even
    at rank 112.
    """
    run = run_of(context)
    if run.rank is None or run.rank < 1 or run.targets is None or not run.lora:
        return
    hit = {leaf for m in match_targets(context.spec, run.targets) for leaf in m.leaves}
    # all-linear leaves the router out.
    sized = [
        (module_name(r), (r.shape[1], r.shape[0]))
        for n, r in linear_modules(context.spec).items()
        if leaf_of(n) in hit and r.layer is not None and not r.role.endswith("router")
    ]
    over = [(n, (i, o), run.rank) for n, (i, o) in sized if run.rank * (i + o) >= i * o]
    if over:
        yield rank_finding("trainer.rank", over, len(sized), run.source)


@rule("trainer.scale", "The scale alpha/r is in the range people train with", needs=["trainer"])
def scale(context: Context) -> Iterable[Finding]:
    """As adapter.scale, before the run. LLaMA-Factory takes alpha = 2·rank where lora_alpha is not
    set: raising lora_rank alone keeps the scale at 2, setting lora_alpha once and raising the rank
    later lowers it.

    Example: `lora_rank: 256`, `lora_alpha: 16`: scale 0.0625.
    """
    run = run_of(context)
    if run.lora and run.rank and run.rank > 0 and run.alpha is not None and run.alpha >= 0:
        yield from scale_findings(
            "trainer.scale", run.rank, run.alpha, run.rslora, run.place("alpha")
        )


@rule(
    "trainer.checkpointing", "Checkpointed layers get gradients", needs=["trainer"], worst="warning"
)
def checkpointing(context: Context) -> Iterable[Finding]:
    """Reentrant gradient checkpointing runs a layer without recording it, and records it again in
    the backward pass, if the layer's input asks for a gradient. With LoRA the embeddings are
    frozen, nothing asks, and the adapters in the layers stay at zero; the loss hardly moves and
    the saved adapter is an identity. transformers 5, LLaMA-Factory and axolotl see to it
    themselves; scripts on transformers 4 with get_peft_model often do not.

    Example:

        gradient_checkpointing: true
        gradient_checkpointing_kwargs: {use_reentrant: true}

    Either `use_reentrant: false`, or model.enable_input_require_grads() before training.
    """
    run = run_of(context)
    if run.dialect == "llamafactory" or not run.checkpointing or not run.lora:
        return
    if _on(run, "enable_input_require_grads") or run.reentrant is False or run.axolotl:
        return
    said = run.reentrant is True
    yield Finding(
        "trainer.checkpointing",
        "warning" if said else "note",
        "reentrant gradient checkpointing with LoRA: the adapters may get no gradient"
        if said
        else "gradient checkpointing with LoRA, and use_reentrant is not said",
        (
            Evidence(
                "gradient_checkpointing_kwargs.use_reentrant",
                "true" if said else "not set (transformers 4: true; 5: false)",
                "false, or enable_input_require_grads()",
                run.source,
            ),
        ),
        "A reentrant layer records gradients only if its input asks for one. With frozen "
        "embeddings none does, and every lora_B in the layers stays zero.",
        'Set gradient_checkpointing_kwargs {"use_reentrant": false}, or call '
        "model.enable_input_require_grads() before training.",
        {},
    )


def setting(values: Mapping[str, Any], key: str) -> str:
    """A text setting in small letters, "" where it is none."""
    value = values.get(key)
    return value.lower() if isinstance(value, str) else ""
