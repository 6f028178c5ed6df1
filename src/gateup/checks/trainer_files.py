"""A trainer's file as one kind of thing, whichever trainer wrote it.

Dialects: "llamafactory" (its YAML), "peft" (adapter_config.json), "transformers" (TrainingArguments
and scripts around them; axolotl's and TRL's names for the same settings are taken too).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gateup.checks.finding import Evidence
from gateup.files.header import clip

Dialect = Literal["llamafactory", "peft", "transformers"]
Method = Literal["lora", "full", "freeze", "oft"]

# Keys that only LLaMA-Factory has.
_FACTORY = frozenset({"finetuning_type", "lora_target", "lora_rank", "cutoff_len", "dataset_dir"})

# Setting -> the names it goes by, in the order they are looked up.
NAMES: Mapping[str, tuple[str, ...]] = {
    "rank": ("lora_rank", "lora_r", "r"),
    "alpha": ("lora_alpha",),
    "targets": ("lora_target", "lora_target_modules", "target_modules"),
    "cutoff": ("cutoff_len", "sequence_len", "max_seq_length", "max_seq_len"),
    "batch": ("per_device_train_batch_size", "micro_batch_size"),
    "accumulation": ("gradient_accumulation_steps",),
    "learning_rate": ("learning_rate",),
    "epochs": ("num_train_epochs", "num_epochs"),
    "max_steps": ("max_steps",),
    "warmup_steps": ("warmup_steps",),
    "warmup_ratio": ("warmup_ratio",),
    "max_samples": ("max_samples",),
    "bits": ("quantization_bit",),
}
_WHOLE = ("rank", "cutoff", "batch", "accumulation", "max_steps", "max_samples", "bits")
MAX_TARGETS = 200


@dataclass(frozen=True)
class TrainerRun:
    """What a trainer's file says. None: it does not say.

    method      "lora" also where only LoRA's settings tell
    bits        of on-the-fly quantisation: 4, 8
    targets     as PEFT takes them: names, or one string
    reentrant   gradient checkpointing's mode
    keys        setting -> the key it was read from
    odd         values that cannot be what their key stands for
    """

    dialect: Dialect
    values: Mapping[str, Any]
    source: str
    method: Method | None = None
    bits: int | None = None
    rank: int | None = None
    alpha: float | None = None
    rslora: bool = False
    targets: tuple[str, ...] | str | None = None
    cutoff: int | None = None
    batch: int | None = None
    accumulation: int | None = None
    learning_rate: float | None = None
    epochs: float | None = None
    max_steps: int | None = None
    warmup_steps: float | None = None
    warmup_ratio: float | None = None
    max_samples: int | None = None
    checkpointing: bool | None = None
    reentrant: bool | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    odd: tuple[Evidence, ...] = ()

    def place(self, setting: str) -> tuple[str, str]:
        """(file, key) of a setting, for evidence."""
        return self.source, self.keys.get(setting, setting)

    @property
    def lora(self) -> bool:
        return self.method == "lora"

    @property
    def sharded(self) -> bool:
        """Whether weights and optimizer may be spread over ranks: DeepSpeed, FSDP."""
        return any(self.values.get(k) for k in ("deepspeed", "fsdp", "fsdp_config"))


class _Reader:
    """Values under any of their names, coerced; what cannot be is remembered."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values, self.source = values, source
        self.keys: dict[str, str] = {}
        self.odd: list[Evidence] = []

    def raw(self, setting: str) -> Any:
        for key in NAMES[setting]:
            if self.values.get(key) is not None:
                self.keys[setting] = key
                return self.values[key]
        return None

    def _odd(self, key: str, value: object, expected: str) -> None:
        self.odd.append(Evidence(key, clip(value), expected, self.source))

    def number(self, setting: str) -> float | None:
        """YAML 1.1 reads 1e-4 as text; trainers take it as the number, and so does this."""
        value = self.raw(setting)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            self._odd(self.keys[setting], value, "a number")
            return None
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            self._odd(self.keys[setting], value, "a number")
            return None
        return number

    def whole(self, setting: str) -> int | None:
        number = self.number(setting)
        if number is None:
            return None
        if number != int(number) or abs(number) > 1 << 40:
            self._odd(self.keys[setting], self.values[self.keys[setting]], "a whole number")
            return None
        return int(number)

    def flag(self, *names: str) -> bool | None:
        """true and false, also as text; None where no name is there."""
        for key in names:
            value = self.values.get(key)
            if value is None:
                continue
            if isinstance(value, str) and value.lower() in ("true", "false"):
                value = value.lower() == "true"
            if isinstance(value, bool):
                self.keys[key] = key
                return value
            if key != "gradient_checkpointing":  # axolotl also takes "offload" and the like
                self._odd(key, value, "true or false")
                return None
            return True
        return None

    def targets(self) -> tuple[str, ...] | str | None:
        """Names separated by commas (LLaMA-Factory), a list, or PEFT's one string."""
        value = self.raw("targets")
        if value is None:
            return None
        key = self.keys["targets"]
        if isinstance(value, str):
            if value.strip().lower() in ("all", "all-linear"):
                return "all-linear"
            if key == "target_modules" and "," not in value:
                return value  # a regular expression, or one name, which fullmatch takes as well
            value = value.split(",")
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            self._odd(key, value, "names of modules")
            return None
        names = tuple(v.strip() for v in value if v.strip())
        if not names or len(names) > MAX_TARGETS:
            self._odd(key, value, f"1 to {MAX_TARGETS} names of modules")
            return None
        return "all-linear" if names == ("all",) else names


def dialect_of(values: Mapping[str, Any]) -> Dialect:
    if "peft_type" in values:
        return "peft"
    return "llamafactory" if _FACTORY & values.keys() else "transformers"


def read_run(values: Mapping[str, Any], source: str) -> TrainerRun:
    """The settings of a trainer's file. Never raises: what cannot be taken is in `odd`."""
    reader, dialect = _Reader(values, source), dialect_of(values)
    numbers: dict[str, Any] = {
        name: reader.whole(name) if name in _WHOLE else reader.number(name)
        for name in NAMES
        if name != "targets"
    }
    if numbers["bits"] is None:
        for key, bits in (("load_in_4bit", 4), ("load_in_8bit", 8)):
            if reader.flag(key):
                numbers["bits"], reader.keys["bits"] = bits, key
    targets = reader.targets()
    method = _method(reader, dialect, numbers, targets)
    if dialect == "llamafactory" and method == "lora":
        numbers["rank"] = 8 if numbers["rank"] is None else numbers["rank"]
        if not numbers["alpha"] and numbers["rank"] is not None:  # 0 too means its default
            numbers["alpha"] = 2.0 * numbers["rank"]
        targets = "all-linear" if targets is None else targets
    checkpointing, reentrant = _checkpointing(reader, dialect)
    return TrainerRun(
        dialect,
        values,
        source,
        method=method,
        rslora=bool(reader.flag("use_rslora")),
        targets=targets,
        checkpointing=checkpointing,
        reentrant=reentrant,
        keys=reader.keys,
        odd=tuple(reader.odd),
        **numbers,
    )


def _method(
    reader: _Reader, dialect: Dialect, numbers: Mapping[str, Any], targets: object
) -> Method | None:
    said = reader.values.get("finetuning_type", reader.values.get("adapter"))
    if said in ("lora", "qlora"):
        return "lora"
    if said in ("full", "freeze", "oft"):
        return said  # type: ignore[no-any-return]  # one of the three
    if said is not None and "finetuning_type" in reader.values:
        reader.odd.append(
            Evidence("finetuning_type", clip(said), "lora, full, freeze or oft", reader.source)
        )
        return None
    if dialect in ("peft", "llamafactory"):
        return "lora"
    return "lora" if numbers["rank"] is not None or targets is not None else None


def _checkpointing(reader: _Reader, dialect: Dialect) -> tuple[bool | None, bool | None]:
    """(on, reentrant). LLaMA-Factory checkpoints unless told not to, reentrant by default."""
    kwargs = None
    for key in ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"):
        value = reader.values.get(key)
        kwargs = value if isinstance(value, Mapping) else kwargs
    said = (kwargs or {}).get("use_reentrant")
    reentrant = said if isinstance(said, bool) else None
    if dialect == "llamafactory":
        off = reader.flag("disable_gradient_checkpointing")
        mode = reader.flag("use_reentrant_gc")
        return not off, True if mode is None else mode
    return reader.flag("activation_checkpointing", "gradient_checkpointing"), reentrant
