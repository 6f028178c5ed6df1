"""Names between dialects: which spec row a tensor of a file is, whatever the file calls it.

Dialects: "hf" (files on the Hub; canonical), "gguf" (llama.cpp), "meta" (the original Llama
files, and Mistral's consolidated.safetensors), "megatron" (Megatron-Core). The names themselves
are the families' tables; here they are turned round: from a name to its row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

from gateup.errors import UnknownArchitectureError, UsageError
from gateup.model.families import family_of, gguf_tensors
from gateup.model.spec import ModelSpec, TensorSpec

Dialect = Literal["hf", "gguf", "meta", "megatron"]

# What wrappers put before the names: (prefix in the file, what stands there canonically).
# Tried in turn, again and again while one fits, until the name is known.
PREFIXES: tuple[tuple[str, str], ...] = (
    ("model.language_model.", "model."),  # vision models, transformers >= 4.52
    ("language_model.model.", "model."),  # vision models before that
    ("language_model.", ""),
    ("base_model.model.", ""),  # PEFT
    ("_orig_mod.", ""),  # torch.compile
    ("module.", ""),  # DistributedDataParallel, DeepSpeed
)

# Checkpoints of the bare backbone leave out the attribute that holds it, and the other way round.
BACKBONES = ("model.", "transformer.", "bert.")

# Endings that older files use: (in the file, canonical).
ENDINGS: tuple[tuple[str, str], ...] = (
    (".LayerNorm.gamma", ".LayerNorm.weight"),  # BERT files converted from TensorFlow
    (".LayerNorm.beta", ".LayerNorm.bias"),
)


def _hf_names(spec: ModelSpec) -> Iterator[tuple[str, tuple[TensorSpec, ...]]]:
    for row in spec.rows:
        yield row.name, (row,)


def _gguf_names(spec: ModelSpec) -> Iterator[tuple[str, tuple[TensorSpec, ...]]]:
    for tensor in gguf_tensors(spec):
        if tensor.rows:
            yield tensor.name, tensor.rows


def _table_names(
    spec: ModelSpec, dialect: Literal["meta", "megatron"]
) -> Iterator[tuple[str, tuple[TensorSpec, ...]]]:
    table = family_of(spec).names
    templates = {role: getattr(names, dialect) for role, names in table.items()}
    if not any(templates.values()):
        raise UnknownArchitectureError(
            f"{spec.architecture} has no {dialect} names", where=spec.name
        )
    # Several roles may share one tensor (Megatron's linear_qkv, linear_fc1).
    found: dict[str, tuple[TensorSpec, ...]] = {}
    for row in spec.rows:
        template = templates[row.role]
        if template is None:
            continue
        name = template.replace("{i}", str(row.layer))
        if row.copies == 1:
            name = name.replace("{e}", "0")
        found[name] = (*found.get(name, ()), row)
    yield from found.items()


def _entries(spec: ModelSpec, dialect: Dialect) -> Iterator[tuple[str, tuple[TensorSpec, ...]]]:
    """(name, rows) of every tensor; {e} stays in names of experts stored one by one."""
    if dialect == "hf":
        return _hf_names(spec)
    if dialect == "gguf":
        return _gguf_names(spec)
    if dialect in get_args(Dialect):
        return _table_names(spec, dialect)
    raise UsageError(
        f"{dialect!r} is not a dialect of names", expected=", ".join(get_args(Dialect))
    )


def translate(spec: ModelSpec, dialect: Dialect) -> dict[str, tuple[TensorSpec, ...]]:
    """Every tensor's name in `dialect` -> the spec rows it holds, experts one by one.

    More than one row where the dialect fuses what the Hub keeps apart (Megatron's linear_qkv).
    Rows that have no name in the dialect are left out.

    Raises UnknownArchitectureError where the family has no names in that dialect, UsageError.
    """
    out: dict[str, tuple[TensorSpec, ...]] = {}
    for name, rows in _entries(spec, dialect):
        if "{e}" in name:
            head, tail = name.split("{e}")
            for e in range(rows[0].copies):
                out[f"{head}{e}{tail}"] = rows
        else:
            out[name] = rows
    return out


class NameIndex:
    """From a tensor's name in one dialect to its spec row and, for experts, the expert's number.

    Holds one entry per row, not per expert, so that it costs the same for 8 experts as for 256.
    """

    def __init__(self, spec: ModelSpec, dialect: Dialect) -> None:
        self._hf = dialect == "hf"
        self._single: dict[str, tuple[TensorSpec, ...]] = {}
        self._experts: dict[tuple[str, str], tuple[TensorSpec, ...]] = {}
        dots = set()
        for name, rows in _entries(spec, dialect):
            if "{e}" in name:
                head, tail = name.split(".{e}.")
                self._experts[head, tail] = rows
                dots.add(tail.count("."))
            else:
                self._single[name] = rows
        self._tail_dots = tuple(sorted(dots))

    def find(self, name: str) -> tuple[TensorSpec, int | None] | None:
        """(row, expert number or None), or None for a tensor that the spec does not have.

        Where one tensor holds several rows this is the first; `rows` gives all of them.
        """
        found = self._find(name)
        return None if found is None else (found[0][0], found[1])

    def rows(self, name: str) -> tuple[TensorSpec, ...]:
        """All rows that the tensor holds (several where the dialect fuses); () if unknown."""
        found = self._find(name)
        return () if found is None else found[0]

    def canonical(self, name: str) -> str | None:
        """The tensor's canonical name, or None; of the first row where several are fused."""
        found = self.find(name)
        if found is None:
            return None
        row, expert = found
        return row.name if expert is None else row.name.replace("{e}", str(expert))

    def _find(self, name: str) -> tuple[tuple[TensorSpec, ...], int | None] | None:
        found = self._exact(name)
        if found is not None or not self._hf:
            return found
        for variant in _variants(name):
            found = self._exact(variant)
            if found is not None:
                return found
        return None

    def _exact(self, name: str) -> tuple[tuple[TensorSpec, ...], int | None] | None:
        rows = self._single.get(name)
        if rows is not None:
            return rows, None
        for dots in self._tail_dots:
            parts = name.rsplit(".", dots + 1)
            if len(parts) != dots + 2:
                continue
            head, dot, number = parts[0].rpartition(".")
            # "007" and "²" are digits to Python and no expert's number.
            if not dot or not number.isdecimal() or len(number) > 6 or str(int(number)) != number:
                continue
            rows = self._experts.get((head, ".".join(parts[1:])))
            if rows is not None and int(number) < rows[0].copies:
                return rows, int(number)
        return None


def _variants(name: str) -> Iterator[str]:
    """The name without wrappers' prefixes, with the backbone's attribute, with newer endings."""
    for old, new in ENDINGS:
        if name.endswith(old):
            name = name.removesuffix(old) + new
            yield name
    seen = name
    for _ in range(4):  # PEFT around torch.compile around a vision model: three wrappers
        for prefix, instead in PREFIXES:
            if seen.startswith(prefix):
                seen = instead + seen.removeprefix(prefix)
                yield seen
                break
        else:
            break
    for backbone in BACKBONES:
        yield seen.removeprefix(backbone) if seen.startswith(backbone) else backbone + seen
