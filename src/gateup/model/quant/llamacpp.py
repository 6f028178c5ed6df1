"""llama.cpp's choice of a type for each tensor, as a table.

Source: `src/llama-quant.cpp` of the named build, read for its rules; the rules below say the same
in another form, and golden data written by that build's own dry run is what tests compare with.
Rules are read from the top, and the first one whose file types and condition hold gives the type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

RULES_BUILD = "llama.cpp in llama-cpp-python 0.3.36"

Category = Literal[
    "token_embd",
    "output",
    "attn_v",
    "attn_k",
    "attn_q",
    "attn_output",
    "ffn_up",
    "ffn_gate",
    "ffn_down",
    "other",
]


@dataclass(frozen=True, slots=True)
class FileType:
    """One of llama.cpp's file types.

    name     as users write it, in lower case: "q4_k_m"
    number   general.file_type in the GGUF's metadata
    default  type of a tensor that no rule speaks of (key of FORMATS)
    imatrix  the build refuses to write it without an importance matrix
    """

    name: str
    number: int
    default: str
    imatrix: bool = False

    @property
    def label(self) -> str:
        """llama.cpp's spelling: Q4_K_M."""
        return self.name.upper()


FILE_TYPES: Mapping[str, FileType] = {
    name: FileType(name, number, default, imatrix)
    for name, number, default, imatrix in (
        ("f32", 0, "f32", False),
        ("f16", 1, "f16", False),
        ("bf16", 32, "bf16", False),
        ("q4_0", 2, "q4_0", False),
        ("q4_1", 3, "q4_1", False),
        ("q5_0", 8, "q5_0", False),
        ("q5_1", 9, "q5_1", False),
        ("q8_0", 7, "q8_0", False),
        ("q2_k_s", 21, "q2_k", True),
        ("q2_k", 10, "q2_k", False),
        ("q3_k_s", 11, "q3_k", False),
        ("q3_k_m", 12, "q3_k", False),
        ("q3_k_l", 13, "q3_k", False),
        ("q4_k_s", 14, "q4_k", False),
        ("q4_k_m", 15, "q4_k", False),
        ("q5_k_s", 16, "q5_k", False),
        ("q5_k_m", 17, "q5_k", False),
        ("q6_k", 18, "q6_k", False),
        ("iq1_s", 24, "iq1_s", True),
        ("iq1_m", 31, "iq1_m", True),
        ("iq2_xxs", 19, "iq2_xxs", True),
        ("iq2_xs", 20, "iq2_xs", True),
        ("iq2_s", 28, "iq2_xs", True),  # the build's table says IQ2_XS for both names
        ("iq2_m", 29, "iq2_s", True),
        ("iq3_xxs", 23, "iq3_xxs", True),
        ("iq3_xs", 22, "iq3_s", True),
        ("iq3_s", 26, "iq3_s", False),
        ("iq3_m", 27, "iq3_s", False),
        ("iq4_nl", 25, "iq4_nl", False),
        ("iq4_xs", 30, "iq4_xs", False),
        ("tq1_0", 36, "tq1_0", False),
        ("tq2_0", 37, "tq2_0", False),
        ("mxfp4_moe", 38, "mxfp4", False),
    )
}


@dataclass(frozen=True, slots=True)
class Situation:
    """What the conditions look at.

    gqa      query heads per KV head in layer 0 (llama.cpp looks at no other layer)
    experts  experts per MoE layer; 0 in a dense model
    index    place of this tensor among its kind, or its layer number (see mix.py)
    count    what `index` runs to
    stacked  the tensor has a third axis: experts
    imatrix  an importance matrix is given
    """

    gqa: int
    experts: int
    index: int = 0
    count: int = 0
    stacked: bool = False
    imatrix: bool = False


def more_bits(index: int, count: int) -> bool:
    """The first and the last eighth of the layers, and every third between them."""
    eighth = count // 8
    return index < eighth or index >= 7 * count // 8 or (index - eighth) % 3 == 2


Condition = Callable[[Situation], bool]

CONDITIONS: Mapping[str, Condition] = {
    "": lambda s: True,
    "more bits": lambda s: more_bits(s.index, s.count),
    "first 2": lambda s: s.index < 2,
    "first 4": lambda s: s.index < 4,
    "first 1/8": lambda s: s.index < s.count // 8,
    "first 1/8, imatrix": lambda s: s.index < s.count // 8 and s.imatrix,
    "first 1/8, no imatrix": lambda s: s.index < s.count // 8 and not s.imatrix,
    "first 1/16": lambda s: s.index < s.count // 16,
    "middle 3/4": lambda s: s.count // 8 <= s.index < 7 * s.count // 8,
    "gqa 4": lambda s: s.gqa >= 4,
    "gqa 4 or 4 experts": lambda s: s.gqa >= 4 or s.experts >= 4,
    "8 experts": lambda s: s.experts == 8,
    "not 8 experts": lambda s: s.experts != 8,
    "8 experts, more bits": lambda s: s.experts == 8 and more_bits(s.index, s.count),
    "no imatrix": lambda s: not s.imatrix,
    "stacked": lambda s: s.stacked,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """`files`: file types it speaks of, empty for all; `when`: key of CONDITIONS; `type`: the
    type it gives."""

    files: frozenset[str]
    when: str
    type: str

    def holds(self, file_type: str, situation: Situation) -> bool:
        if self.files and file_type not in self.files:
            return False
        return CONDITIONS[self.when](situation)


def _rules(*rows: tuple[str, str, str]) -> tuple[Rule, ...]:
    """Rows of (space-separated file types, "" for all; condition; type)."""
    return tuple(Rule(frozenset(files.split()), when, type_) for files, when, type_ in rows)


# File types under two and a half bits or so; they follow their own rules throughout.
_LOW = "iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq2_m"
LOW = frozenset(_LOW.split())
_IQ2_SM = "iq2_s iq2_m"
_RAISED = " q2_k q3_k_s q3_k_m q4_k_s q4_k_m iq3_xxs iq3_xs iq3_s iq3_m iq4_nl iq4_xs"

# Asked before the rules of a tensor's kind, except for the output matrix.
FIRST_RULES = _rules(("mxfp4_moe", "stacked", "mxfp4"), ("mxfp4_moe", "", "q8_0"))

RULES: Mapping[Category, tuple[Rule, ...]] = {
    # Also the embedding table of a model without an output matrix of its own (tied).
    "output": _rules(
        ("mxfp4_moe", "", "q8_0"),
        (_LOW + " iq3_xxs", "", "q5_k"),
        ("q8_0", "", "q8_0"),
        ("", "", "q6_k"),
    ),
    "token_embd": _rules(
        ("iq1_s iq1_m iq2_xxs iq2_xs", "", "q2_k"),
        (_IQ2_SM + " iq3_xxs", "", "iq3_s"),
        ("tq1_0 tq2_0", "", "q4_k"),
    ),
    # attn_v, and the fused attn_qkv and attn_kv_b, which hold V.
    "attn_v": _rules(
        (_LOW, "gqa 4 or 4 experts", "q4_k"),
        (_IQ2_SM, "", "iq3_s"),
        (_LOW, "", "q2_k"),
        ("", "8 experts", "q8_0"),
        ("q2_k q2_k_s iq3_xxs iq3_xs iq3_s", "gqa 4", "q4_k"),
        ("q2_k", "", "q3_k"),
        ("iq3_xxs", "no imatrix", "iq3_s"),
        ("iq3_m", "", "q4_k"),
        ("q3_k_m", "first 2", "q5_k"),
        ("q3_k_m", "", "q4_k"),
        ("q3_k_l", "", "q5_k"),
        ("iq4_nl iq4_xs", "gqa 4", "q5_k"),
        ("q4_k_m q5_k_m", "more bits", "q6_k"),
        ("q4_k_s", "first 4", "q5_k"),
    ),
    "attn_k": _rules(
        (_LOW, "8 experts", "q4_k"),
        ("", "8 experts", "q8_0"),
        ("iq3_xs", "", "iq3_xxs"),
        ("iq3_xxs", "", "iq2_s"),
    ),
    "attn_q": _rules(
        ("iq3_xs", "", "iq3_xxs"),
        ("iq3_xxs", "", "iq2_s"),
    ),
    "ffn_down": _rules(
        (_IQ2_SM, "first 1/8", "iq3_s"),
        (_LOW, "first 1/8", "q2_k"),
        ("q2_k", "", "q3_k"),
        ("q2_k_s", "first 1/8", "q4_k"),
        ("iq3_xxs", "first 1/8, no imatrix", "q4_k"),
        ("iq3_xxs", "no imatrix", "q3_k"),
        ("q3_k_m", "first 1/16", "q5_k"),
        ("q3_k_m", "", "q4_k"),
        ("q3_k_l", "", "q5_k"),
        ("iq3_m", "first 1/8", "q4_k"),
        ("iq3_m", "8 experts, more bits", "q4_k"),
        ("q4_k_m q5_k_m", "more bits", "q6_k"),
        ("iq4_nl iq4_xs", "first 1/8, no imatrix", "q5_k"),
        ("q4_k_s", "first 1/8", "q5_k"),
        ("q4_0", "first 1/8, imatrix", "q4_1"),
        ("q5_0", "first 1/8, imatrix", "q5_1"),
    ),
    "attn_output": _rules(
        (_LOW + _RAISED, "8 experts", "q5_k"),
        ("iq1_s iq1_m", "not 8 experts", "iq2_xxs"),
        (_IQ2_SM + " iq3_xxs", "not 8 experts", "iq3_s"),
        ("q2_k", "not 8 experts", "q3_k"),
        ("q3_k_m iq3_m", "not 8 experts", "q4_k"),
        ("q3_k_l", "not 8 experts", "q5_k"),
    ),
    "ffn_up": _rules(
        ("iq3_xs", "middle 3/4", "iq3_xxs"),
    ),
    "ffn_gate": _rules(
        ("iq3_xs", "middle 3/4", "iq3_xxs"),
    ),
    "other": (),
}

# In a "70B" model eight query heads share each V head, so attn_v is small and gets more bits.
SEVENTY_B_V: Mapping[str, str] = {"q3_k": "q5_k", "q4_k": "q5_k"}

# gguf_arch -> (layers, experts, query heads, KV heads of layer 0) -> is the model type "70B"?
SEVENTY_B: Mapping[str, Callable[[int, int, int, int], bool]] = {
    "llama": lambda layers, experts, q, kv: layers == 80 and experts != 8 and q != kv,
    "qwen2": lambda layers, experts, q, kv: layers == 80,
    "deci": lambda layers, experts, q, kv: layers == 80,
    "olmo": lambda layers, experts, q, kv: layers == 80,
}

# Part of a tensor's name -> category; the first that is found counts.
CATEGORY_OF: tuple[tuple[str, Category], ...] = (
    ("attn_qkv.weight", "attn_v"),
    ("attn_kv_b.weight", "attn_v"),
    ("attn_v.weight", "attn_v"),
    ("attn_k.weight", "attn_k"),
    ("attn_q.weight", "attn_q"),
    ("attn_output.weight", "attn_output"),
    ("ffn_up", "ffn_up"),
    ("ffn_gate", "ffn_gate"),
    ("ffn_down", "ffn_down"),
)

# Weights with two axes that stay in F32, by a part of their name.
KEPT = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "position_embd.weight",
    "token_types.weight",
)


@dataclass(frozen=True, slots=True)
class RuleSet:
    """What differs between builds: the type taken when a row is no whole number of blocks."""

    build: str
    fallback: Mapping[str, str]


_FALLBACK = {
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
    "iq1_s": "iq4_nl",
    "iq1_m": "iq4_nl",
    "iq2_xxs": "iq4_nl",
    "iq2_xs": "iq4_nl",
    "iq2_s": "iq4_nl",
    "iq3_xxs": "iq4_nl",
    "iq3_s": "iq4_nl",
    "iq4_xs": "iq4_nl",
    "tq1_0": "q4_0",
    "tq2_0": "q4_0",
}

CURRENT = RuleSet(RULES_BUILD, {**_FALLBACK, "q2_k": "q4_0", "q3_k": "q4_0"})
OLDER = RuleSet(
    "llama.cpp builds that let Q2_K and Q3_K fall back to IQ4_NL",
    {**_FALLBACK, "q2_k": "iq4_nl", "q3_k": "iq4_nl"},
)
RULE_SETS: Mapping[str, RuleSet] = {"current": CURRENT, "older": OLDER}
