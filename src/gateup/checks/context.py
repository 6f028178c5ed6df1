"""Everything a rule may look at. Rules never open files: what they need is read before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from gateup.checks.edits import Edit, find_edit
from gateup.checks.measured import Trial, WeightScan
from gateup.checks.tokenizer_files import TokenizerInfo
from gateup.checks.trainer_keys import is_trainers
from gateup.checks.trainer_model import NamedModel
from gateup.errors import GateupError
from gateup.files.adapter import Adapter
from gateup.files.checkpoint import Checkpoint
from gateup.files.mismatch import Kind, Mismatch
from gateup.model.config import Config
from gateup.model.spec import ModelSpec

Need = Literal[
    "headers",
    "base",
    "adapter",
    "tokenizer",
    "tp",
    "quant",
    "trainer",
    "trainer_state",
    "generation",
    "scan",
    "trial",
]
# Part of the context -> why a rule that needs it is skipped.
NEEDS: Mapping[Need, str] = {
    "headers": "there are no weights beside the description",
    "base": "no --base was given",
    "adapter": "no --adapter was given",
    "tokenizer": "no tokenizer was found beside the model, and no --tokenizer was given",
    "tp": "no --tp was given",
    "quant": "no --quant was given",
    "trainer": "no --trainer was given",
    "trainer_state": "no trainer_state.json was found beside the model or the adapter",
    "generation": "no generation_config.json was found beside the model, and no --generation given",
    "scan": "no --deep was given",
    "trial": "no --deep was given",
}


@dataclass(frozen=True)
class Context:
    """What is checked, and what it is to be used for. None: not given, not found.

    checkpoint      the model; of an adapter's folder: its base
    base            a second model to compare with (`--base` beside a model)
    adapter         the adapter that goes on `checkpoint`
    adapter_config  its adapter_config.json, raw
    zero_halves     its tensors that LoRA starts at zero and that hold zeros only
    tokenizer       the tokenizer's files, beside the model or given
    adapter_tokenizer   the one saved beside the adapter, which may have grown
    tp              tensor-parallel degree asked about
    quant           format asked about: "q4_k_m", "awq:128", "fp8:128"
    trainer         a trainer's settings (LLaMA-Factory YAML, TrainingArguments, …), raw
    trainer_base    the model that those settings name
    trainer_state   trainer_state.json of a run, raw
    generation      generation_config.json or the like, raw
    sources         part -> the file it was read from, for evidence
    unreadable      files beside the model that could not be read: the error of each
    template        chat_template.jinja beside the model, its text
    beside          files in the model's folder: name -> bytes
    scan            what reading every weight found (--deep)
    trial           what a text does in the model (--deep)
    unmeasured      "scan", "trial" -> why it is not there although it was asked for
    unmeasurable    the same where the measurement itself stumbled
    """

    checkpoint: Checkpoint
    base: Checkpoint | None = None
    adapter: Adapter | None = None
    adapter_config: Mapping[str, Any] | None = None
    zero_halves: tuple[str, ...] | None = None
    tokenizer: TokenizerInfo | None = None
    adapter_tokenizer: TokenizerInfo | None = None
    tp: int | None = None
    quant: str | None = None
    trainer: Mapping[str, Any] | None = None
    trainer_base: NamedModel | None = None
    trainer_state: Mapping[str, Any] | None = None
    generation: Mapping[str, Any] | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    unreadable: tuple[GateupError, ...] = ()
    template: str | None = None
    beside: Mapping[str, int] = field(default_factory=dict)
    scan: WeightScan | None = None
    trial: Trial | None = None
    unmeasured: Mapping[Need, str] = field(default_factory=dict)
    unmeasurable: Mapping[Need, str] = field(default_factory=dict)

    @property
    def spec(self) -> ModelSpec:
        return self.checkpoint.spec

    @property
    def config(self) -> Config:
        """The model's config.json, or what GGUF metadata give for it, with typed getters."""
        return Config(self.spec.config, self.source("config"))

    @cached_property
    def edit(self) -> Edit | None:
        """The edit of config.json that would make it describe the files, where there is one."""
        return find_edit(self.checkpoint)

    @property
    def chat_template(self) -> tuple[str, str] | None:
        """(template, where it stands) as transformers takes it: the file of its own first."""
        if self.template is not None:
            return self.template, self.source("template")
        own = self.tokenizer.config.get("chat_template") if self.tokenizer else None
        return (own, f"{self.source('tokenizer')}, chat_template") if isinstance(own, str) else None

    def mismatches(self, *kinds: Kind) -> list[Mismatch]:
        """What differs between config and files, beyond what `edit` explains."""
        found = self.edit.mismatches if self.edit else self.checkpoint.mismatches
        return [m for m in found if m.kind in kinds]

    def source(self, part: str) -> str:
        """Where a part came from, as evidence names it: "config.json", "preset llama-3-8b"."""
        if part in self.sources:
            return self.sources[part]
        if part == "config":
            kind = self.checkpoint.kind
            if kind == "preset":
                return f"preset {self.spec.name}"
            return "GGUF metadata" if kind == "gguf" else "config.json"
        return part

    @cached_property
    def _trains(self) -> bool:
        """Whether a trainer's file was given, and is one."""
        return self.trainer is not None and is_trainers(self.trainer)

    def has(self, need: Need) -> bool:
        """Whether a part that a rule needs is there."""
        if need == "headers":
            return bool(self.checkpoint.headers)
        if need == "trainer":
            return self._trains
        return getattr(self, need) is not None

    def why_not(self, need: Need) -> str:
        """Why a part is not there."""
        if need == "trainer" and self.trainer is not None:
            return "the trainer's file holds no setting that is known"
        return self.unmeasured.get(need) or NEEDS[need]
