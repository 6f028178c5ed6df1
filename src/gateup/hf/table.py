"""Which classes of transformers hold a gated MLP, how it lies in memory, and with which activation.

A class is known by its module and name, so transformers itself is never imported. The layout of a
class not listed here is not guessed from its shapes: two layouts can look alike and compute
different things.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from gateup.model.layout import SPLIT, GateUpLayout
from gateup.ops.activations import GPT_OSS_ALPHA, GPT_OSS_LIMIT
from gateup.ops.options import MLPOptions

FUSED = GateUpLayout(form="concat")
EXPERTS = GateUpLayout(form="concat", stacked=True)
GPT_OSS_EXPERTS = GateUpLayout(form="interleaved", orientation="in_out", stacked=True)


Kind = Literal["split", "fused", "experts"]


@dataclass(frozen=True, slots=True)
class Row:
    """One class: `family` names its module, `act` the attribute that holds the activation.

    kind "split": gate_proj, up_proj, down_proj, linear modules; "fused": gate_up_proj, down_proj,
    linear modules; "experts": gate_up_proj [E, ...], down_proj [E, ...], parameters, and with
    _bias beside them in gpt-oss, whose activation is part of the class (act None).
    """

    family: str
    cls: str
    layout: GateUpLayout = SPLIT
    act: str | None = "act_fn"

    @property
    def key(self) -> tuple[str, str]:
        return f"transformers.models.{self.family}.modeling_{self.family}", self.cls

    @property
    def kind(self) -> Kind:
        if self.layout.stacked:
            return "experts"
        return "split" if self.layout.form == "split" else "fused"

    @property
    def words(self) -> str:
        """The layout for people."""
        return _WORDS[self.layout]


_WORDS: Mapping[GateUpLayout, str] = {
    SPLIT: "gate and up apart",
    FUSED: "gate and up in one, gate first",
    EXPERTS: "stacked experts, gate first",
    GPT_OSS_EXPERTS: "stacked experts, gate and up interleaved",
}

ROWS = (
    Row("llama", "LlamaMLP"),
    Row("mistral", "MistralMLP"),
    Row("qwen2", "Qwen2MLP"),
    Row("qwen3", "Qwen3MLP"),
    Row("gemma", "GemmaMLP"),
    Row("gemma2", "Gemma2MLP"),
    Row("gemma3", "Gemma3MLP"),
    Row("phi3", "Phi3MLP", FUSED, "activation_fn"),
    Row("olmo2", "Olmo2MLP"),
    Row("granite", "GraniteMLP"),
    Row("smollm3", "SmolLM3MLP"),
    Row("mixtral", "MixtralExperts", EXPERTS),
    Row("qwen2_moe", "Qwen2MoeMLP"),
    Row("qwen2_moe", "Qwen2MoeExperts", EXPERTS),
    Row("qwen3_moe", "Qwen3MoeMLP"),
    Row("qwen3_moe", "Qwen3MoeExperts", EXPERTS),
    Row("deepseek_v3", "DeepseekV3MLP"),
    Row("deepseek_v3", "DeepseekV3Experts", EXPERTS),
    Row("gpt_oss", "GptOssExperts", GPT_OSS_EXPERTS, None),
)
TABLE: Mapping[tuple[str, str], Row] = MappingProxyType({row.key: row for row in ROWS})


class KnownAct(NamedTuple):
    """same_bits: the module computes it with the operations that gateup uses."""

    name: str
    same_bits: bool = True


# By class name; transformers' own (transformers.activations) and torch's.
_ACT_CLASSES: Mapping[str, KnownAct] = {
    "SiLU": KnownAct("silu"),
    "SiLUActivation": KnownAct("silu"),
    "ReLU": KnownAct("relu"),
    "ReLUSquaredActivation": KnownAct("relu2"),
    "Sigmoid": KnownAct("sigmoid"),
    "Identity": KnownAct("identity"),
    "LinearActivation": KnownAct("identity"),
    # The tanh formula spelled out, each step rounded to the dtype.
    "NewGELUActivation": KnownAct("gelu_tanh", same_bits=False),
    "FastGELUActivation": KnownAct("gelu_tanh", same_bits=False),
    "AccurateGELUActivation": KnownAct("gelu_tanh", same_bits=False),
}
_ACT_FUNCTIONS: Mapping[Any, KnownAct] = {
    F.silu: KnownAct("silu"),
    F.gelu: KnownAct("gelu"),
    F.relu: KnownAct("relu"),
    F.sigmoid: KnownAct("sigmoid"),
    torch.sigmoid: KnownAct("sigmoid"),
    torch.relu: KnownAct("relu"),
}
_HOMES = ("torch.nn.modules.activation", "torch.nn.modules.linear", "transformers.activations")


def row_of(module: nn.Module) -> Row | None:
    """The row of the class that gives `module` its forward.

    By that class, because FSDP2 and others put the module into a subclass made on the spot.
    """
    return TABLE.get(_home(module, "forward"))


def ancestor_of(module: nn.Module) -> str | None:
    """The class of the table that `module`'s class derives from; None where there is none."""
    classes = ((c.__module__, c.__qualname__) for c in type(module).__mro__)
    return next((key[1] for key in classes if key in TABLE), None)


def _home(module: nn.Module, attribute: str) -> tuple[str, str]:
    for cls in type(module).__mro__:
        if attribute in vars(cls):
            return cls.__module__, cls.__qualname__
    return "", ""


def act_of(module: nn.Module, row: Row, options: MLPOptions) -> tuple[str | None, str]:
    """(activation, "") as the module itself would compute it, or (None, why not)."""
    if row.act is None:
        return _gpt_oss(module)
    function = getattr(module, row.act)
    known = _known(function)
    if known is None:
        return None, f"its activation {_called(function)} is not one that gateup knows"
    if options.rounding == "hf" and not known.same_bits:
        return None, (
            f"its activation {_called(function)} rounds each step of {known.name}; only"
            ' rounding="wide" can stand for it'
        )
    return known.name, ""


def _known(function: Any) -> KnownAct | None:
    if not isinstance(function, nn.Module):
        return _ACT_FUNCTIONS.get(function) if callable(function) else None
    if type(function).__module__ not in _HOMES or "forward" in vars(function):
        return None
    name = type(function).__name__
    if name == "GELU":
        return KnownAct("gelu_tanh" if vars(function)["approximate"] == "tanh" else "gelu")
    if name in ("GELUActivation", "GELUTanh"):
        return _gelu(function, "gelu" if name == "GELUActivation" else "gelu_tanh")
    return _ACT_CLASSES.get(name)


def _gelu(function: nn.Module, name: str) -> KnownAct:
    """transformers' GELU classes carry either torch's function or a formula in Python."""
    act: Any = function.act
    return KnownAct(name, same_bits=getattr(act, "func", act) is F.gelu)


def _gpt_oss(module: nn.Module) -> tuple[str | None, str]:
    limit, alpha = getattr(module, "limit", None), getattr(module, "alpha", None)
    if (limit, alpha) != (GPT_OSS_LIMIT, GPT_OSS_ALPHA):
        return None, (
            f"its swiglu limit is {limit} and alpha {alpha}; gateup's gpt_oss has"
            f" {GPT_OSS_LIMIT} and {GPT_OSS_ALPHA}"
        )
    return "gpt_oss", ""


def _called(function: Any) -> str:
    if isinstance(function, nn.Module):
        return type(function).__name__
    return str(getattr(function, "__name__", function))


def gates_as_declared(module: nn.Module) -> bool:
    """Whether experts still gate as the class that runs them says."""
    return _home(module, "_apply_gate") in (("", ""), _home(module, "forward"))
