"""Which type every tensor is stored in: plain dtypes, llama.cpp's file types, Hugging Face's.

`stored` is the one entry for all three. For a llama.cpp file type the answer is the type of each
tensor of the GGUF, from the shapes alone, by the rules of a named build (llamacpp.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from math import prod
from typing import Literal

from gateup.errors import UsageError
from gateup.model.families import GGUFTensor, family_of, gguf_tensors
from gateup.model.quant import hf_formats
from gateup.model.quant.formats import FORMATS, StoredTensor, row_nbytes, stored_as
from gateup.model.quant.llamacpp import (
    CATEGORY_OF,
    CURRENT,
    FILE_TYPES,
    FIRST_RULES,
    KEPT,
    LOW,
    RULES,
    RULES_BUILD,
    SEVENTY_B,
    SEVENTY_B_V,
    Category,
    FileType,
    RuleSet,
    Situation,
)
from gateup.model.spec import ModelSpec, MoESpec

__all__ = [
    "FILE_TYPES",
    "RULES_BUILD",
    "FileType",
    "file_type",
    "gguf_types",
    "is_known",
    "kind_of",
    "known_formats",
    "stored",
]

PLAIN = ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2")

# A GGUF in a plain dtype keeps norms, biases and routers in F32, so it differs from the same
# dtype in safetensors; "gguf:bf16" asks for the former.
PREFIX = "gguf:"


def file_type(name: str) -> FileType:
    """The llama.cpp file type called `name`, any case, "gguf:" allowed. Raises UsageError."""
    found = FILE_TYPES.get(name.lower().removeprefix(PREFIX))
    if found is None:
        raise UsageError(f"llama.cpp file type {name!r} is not known", expected=_list(FILE_TYPES))
    return found


def kind_of(fmt: str) -> Literal["dtype", "gguf", "hf"]:
    """What `fmt` names: a plain dtype, a llama.cpp file type, a Hugging Face quantisation.

    Raises UsageError with the known formats.
    """
    name = fmt.lower()
    if name in PLAIN:
        return "dtype"
    if name.removeprefix(PREFIX) in FILE_TYPES:
        return "gguf"
    if hf_formats.is_known(name):
        return "hf"
    raise UsageError(f"format {fmt!r} is not known", expected=_list(known_formats()))


def is_known(fmt: str) -> bool:
    """Whether `stored` takes the name."""
    name = fmt.lower()
    return name in PLAIN or name.removeprefix(PREFIX) in FILE_TYPES or hf_formats.is_known(name)


def known_formats() -> list[str]:
    """Every format name `stored` takes; G stands for a group size."""
    ggufs = [n for n in FILE_TYPES if n not in PLAIN]
    return [*PLAIN, *ggufs, *(PREFIX + n for n in ("f32", "f16", "bf16")), *hf_formats.SPELLINGS]


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


def stored(spec: ModelSpec, fmt: str, *, rules: RuleSet = CURRENT) -> tuple[StoredTensor, ...]:
    """Every tensor of `spec` as it is stored in `fmt`.

    fmt    a plain dtype ("bf16"), a llama.cpp file type ("q4_k_m"; "gguf:bf16" for an
           unquantised GGUF), or "nf4", "nf4:double", "int8", "awq:128", "gptq:128", "fp8",
           "fp8:128"
    rules  the llama.cpp build whose row fallback counts

    Raises UsageError for an unknown format, or rows that the format cannot hold.
    """
    kind = kind_of(fmt)
    if kind == "dtype":
        return stored_as(spec.rows, fmt.lower())
    if kind == "hf":
        return hf_formats.stored(spec, fmt.lower())
    return tuple(
        StoredTensor(
            t.name,
            tuple(reversed(t.ne)),
            type_,
            prod(t.ne[1:]) * row_nbytes(FORMATS[type_], t.ne[0]),
            t.params,
            t.rows[0] if t.rows else None,
        )
        for t, type_ in gguf_types(spec, fmt, rules=rules)
    )


def gguf_types(
    spec: ModelSpec,
    file_type_name: str,
    *,
    rules: RuleSet = CURRENT,
    imatrix: bool = False,
    fall_back: bool = True,
) -> list[tuple[GGUFTensor, str]]:
    """The type llama-quantize gives each tensor of the model's GGUF, in the GGUF's order.

    The source is an unquantised GGUF (weights F16 or BF16; norms, biases and routers F32).
    imatrix    an importance matrix is given, which changes a few choices
    fall_back  False: the types the rules want, also for rows that are no whole number of their
               blocks

    Raises UsageError (file type), UnknownArchitectureError (no GGUF architecture).
    """
    chosen = file_type(file_type_name)
    tensors = gguf_tensors(spec)
    types = _Chooser(spec, chosen, tensors, rules, imatrix, fall_back).types()
    return [(t, types[t.name]) for t in tensors]


@lru_cache(maxsize=8192)
def category(name: str) -> Category:
    """The rule table's category of a GGUF tensor's name."""
    if name == "output.weight":
        return "output"
    if name == "token_embd.weight":
        return "token_embd"
    return next((c for part, c in CATEGORY_OF if part in name), "other")


def quantisable(tensor: GGUFTensor) -> bool:
    """Matrices are converted; vectors, norms, biases and routers stay F32."""
    if all(d == 1 for d in tensor.ne[1:]) or not tensor.name.endswith("weight"):
        return False
    return not any(k in tensor.name for k in KEPT)


def _layer(name: str) -> int:
    """Layer number in "blk.7.attn_v.weight"; -1 outside the layers."""
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "blk" else -1


class _Chooser:
    """Walks the tensors in llama.cpp's order (layer, then name): some rules count as they go."""

    def __init__(
        self,
        spec: ModelSpec,
        chosen: FileType,
        tensors: list[GGUFTensor],
        rules: RuleSet,
        imatrix: bool,
        fall_back: bool = True,
    ) -> None:
        self.chosen = chosen
        self.tensors = sorted(tensors, key=lambda t: (_layer(t.name), t.name))
        self.rules = rules
        self.imatrix = imatrix
        self.fall_back = fall_back
        self.layers = spec.num_layers
        moes = [x.mlp for x in spec.layers if isinstance(x.mlp, MoESpec)]
        self.experts = max((m.num_experts for m in moes), default=0)
        heads, kv = _layer0_heads(spec)
        self.gqa = heads // kv if kv else 0
        is_big = SEVENTY_B.get(family_of(spec).gguf_arch or "")
        self.big = bool(is_big and is_big(spec.num_layers, self.experts, heads, kv))
        self.tied = all(t.name != "output.weight" for t in tensors)
        self.v_count = sum(category(t.name) == "attn_v" for t in tensors)
        self.seen: Counter[Category] = Counter()

    def types(self) -> dict[str, str]:
        return {t.name: self._type(t) for t in self.tensors}

    def _type(self, tensor: GGUFTensor) -> str:
        if not quantisable(tensor):
            return "f32"
        default = self.chosen.default
        if FORMATS[default].block_size == 1:  # F32, F16, BF16: no rules, no blocks
            return default
        return self._fall_back(self._ruled(tensor, default), tensor.ne[0])

    def _ruled(self, tensor: GGUFTensor, default: str) -> str:
        kind = category(tensor.name)
        if kind == "token_embd" and self.tied:
            kind = "output"
        whole = tensor.ne[0] % FORMATS[default].block_size == 0
        if kind == "output" and not whole and self.fall_back:
            return "q8_0"
        situation = self._situation(tensor, kind)
        name = self.chosen.name
        rules = RULES[kind] if kind == "output" else (*FIRST_RULES, *RULES[kind])
        found = next((r.type for r in rules if r.holds(name, situation)), default)
        if kind == "attn_v" and self.big and name not in LOW:
            return SEVENTY_B_V.get(found, found)
        return found

    def _situation(self, tensor: GGUFTensor, kind: Category) -> Situation:
        """`index` counts tensors of the kind, except in the MLP of a MoE model, whose layer
        number is read from the name; the low-bit rules count even there."""
        index = self.seen[kind]
        self.seen[kind] += 1
        count = self.v_count if kind == "attn_v" else self.layers
        if kind.startswith("ffn") and self.experts > 1 and self.chosen.name not in LOW:
            index = _layer(tensor.name)
        stacked = len(tensor.ne) > 2 and tensor.ne[2] > 1
        return Situation(self.gqa, self.experts, index, count, stacked, self.imatrix)

    def _fall_back(self, type_: str, row: int) -> str:
        """A row that is no whole number of blocks takes the rule set's smaller block, or F16."""
        if row % FORMATS[type_].block_size == 0 or not self.fall_back:
            return type_
        smaller = self.rules.fallback.get(type_, type_)
        return "f16" if row % FORMATS[smaller].block_size else smaller


def _layer0_heads(spec: ModelSpec) -> tuple[int, int]:
    """(query heads, KV heads) of layer 0 as the GGUF states them: MLA is stored as one KV head."""
    attn = spec.layers[0].attention if spec.layers else None
    if attn is None:
        return 0, 0
    return attn.num_heads, 1 if attn.mla else attn.num_kv_heads
