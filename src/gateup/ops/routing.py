"""From a router's logits to k experts per token and their weights, family by family.

Each step is the torch operation that transformers' router of the family uses, in its order and
dtype, so that choices (ties included) and weights have its bits. Letters: T tokens, E experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from gateup.errors import UsageError
from gateup.ops.arguments import positive

Scores = Literal["softmax", "topk_softmax", "sigmoid", "topk_sigmoid"]


@dataclass(frozen=True, slots=True)
class Routing:
    """How logits [T, E] become weights and experts [T, top_k].

    scores                 "softmax": over all experts, then the k largest; "topk_softmax": over
                           the k largest logits (gpt-oss); "sigmoid": one by one, then the k
                           largest (DeepSeek-V3); "topk_sigmoid": of the k largest logits (Llama 4)
    norm_topk_prob         divide the k weights by their sum
    n_group, topk_group    experts lie in n_group groups, and a token's experts are taken from the
                           topk_group groups whose two best experts add up to most (1: no groups)
    routed_scaling_factor  multiplies the weights at last
    float_logits           the logits are computed in float32 from float32 weights (DeepSeek-V3)
    float_weights          the weights stay float32; otherwise they take the logits' dtype
    on_input               the weight multiplies the expert's input, not its output (Llama 4)
    """

    top_k: int
    scores: Scores = "softmax"
    norm_topk_prob: bool = False
    n_group: int = 1
    topk_group: int = 1
    routed_scaling_factor: float = 1.0
    float_logits: bool = False
    float_weights: bool = False
    on_input: bool = False

    def __post_init__(self) -> None:
        if self.scores not in get_args(Scores):
            raise UsageError(
                f"scores is {self.scores!r}", expected="one of " + ", ".join(get_args(Scores))
            )
        for name in ("top_k", "n_group", "topk_group"):
            positive(name, getattr(self, name))
        if self.topk_group > self.n_group:
            raise UsageError(
                f"topk_group is {self.topk_group}, n_group {self.n_group}",
                expected="at most as many groups as there are",
            )
        if self.n_group > 1 and self.scores != "sigmoid":
            raise UsageError(
                f"n_group is {self.n_group} with scores {self.scores!r}",
                expected='groups with "sigmoid" scores only',
            )
        if self.on_input and self.top_k > 1:
            raise UsageError(
                f"the weight goes on the input of {self.top_k} experts",
                expected="top_k 1: each expert would need an input of its own",
            )

    def check(self, num_experts: int) -> None:
        """UsageError when this cannot choose among `num_experts`."""
        if self.top_k > num_experts:
            raise UsageError(
                f"top_k is {self.top_k}, num_experts {num_experts}", expected="at most all experts"
            )
        if self.n_group == 1:
            return
        if num_experts % self.n_group or num_experts < 2 * self.n_group:
            raise UsageError(
                f"{num_experts} experts do not make {self.n_group} groups",
                expected="groups of one size, two experts or more in each",
            )
        if self.top_k > (reach := self.topk_group * (num_experts // self.n_group)):
            raise UsageError(
                f"top_k is {self.top_k}, and {self.topk_group} of {self.n_group} groups hold"
                f" {reach} experts"
            )


# Keys are model_type in config.json. What the config says itself (see `routing_for`) comes on top.
FAMILY_ROUTING: Mapping[str, Routing] = MappingProxyType(
    {
        "mixtral": Routing(2, norm_topk_prob=True, float_weights=True),
        "qwen2_moe": Routing(4),
        "qwen3_moe": Routing(8),
        "olmoe": Routing(8),
        "deepseek_v3": Routing(
            8,
            "sigmoid",
            norm_topk_prob=True,
            n_group=8,
            topk_group=4,
            routed_scaling_factor=2.5,
            float_logits=True,
            float_weights=True,
        ),
        "gpt_oss": Routing(4, "topk_softmax"),
        "llama4_text": Routing(1, "topk_sigmoid", on_input=True),
    }
)

_CONFIG_KEYS = {"num_experts_per_tok": "top_k", "experts_per_token": "top_k"} | {
    name: name for name in ("norm_topk_prob", "n_group", "topk_group", "routed_scaling_factor")
}
# Mixtral and gpt-oss have no such switch: a stray key in a config changes nothing there.
_FIXED = {"mixtral": {"norm_topk_prob"}, "gpt_oss": {"norm_topk_prob"}}


def routing_for(model_type: str, config: Mapping[str, Any] | None = None) -> Routing:
    """The family's routing with the numbers of a config.json.

    Raises UsageError for a family whose routing is not known.
    """
    routing = FAMILY_ROUTING.get(model_type)
    if routing is None:
        raise UsageError(
            f"the routing of {model_type!r} is not known",
            expected="one of " + ", ".join(FAMILY_ROUTING),
        )
    known = {f.name for f in fields(Routing)} - _FIXED.get(model_type, set())
    found = {
        _CONFIG_KEYS[key]: value
        for key, value in (config or {}).items()
        if key in _CONFIG_KEYS and value is not None and _CONFIG_KEYS[key] in known
    }
    return replace(routing, **found)


class Routed(NamedTuple):
    """weights [T, k]; experts [T, k], int64: each token's, by number."""

    weights: Tensor
    experts: Tensor


def route(logits: Tensor, routing: Routing, correction: Tensor | None = None) -> Routed:
    """The k experts of each token and their weights.

    logits      [T, E]
    correction  [E], added to "sigmoid" scores for the choice alone (e_score_correction_bias)
    Ties go as torch.topk decides them. Raises UsageError where k or the groups do not fit E.
    """
    if logits.dim() != 2:
        raise UsageError(f"logits have shape {tuple(logits.shape)}", expected="[T, E]")
    routing.check(logits.shape[1])
    if correction is not None and routing.scores != "sigmoid":
        raise UsageError(
            f"a correction bias with scores {routing.scores!r}", expected='scores "sigmoid"'
        )
    if routing.scores == "softmax":
        scores = torch.softmax(logits, dim=-1, dtype=_wide(logits))
        weights, index = torch.topk(scores, routing.top_k, dim=-1)
    elif routing.scores == "sigmoid":
        scores = logits.sigmoid()
        choice = scores if correction is None else scores + correction
        index = torch.topk(_in_best_groups(choice, routing), routing.top_k, -1, sorted=False)[1]
        weights = scores.gather(1, index)
    else:
        weights, index = torch.topk(logits, routing.top_k, dim=-1)
        if routing.scores == "topk_softmax":
            weights = torch.softmax(weights, dim=1)
        else:
            weights = torch.sigmoid(weights.to(_wide(weights)))
    if routing.norm_topk_prob:
        # DeepSeek-V3 guards against k sigmoids that all are zero; softmax needs none.
        guard = 1e-20 if routing.scores == "sigmoid" else 0.0
        weights = weights / (weights.sum(dim=-1, keepdim=True) + guard)
    if routing.routed_scaling_factor != 1.0:
        weights = weights * routing.routed_scaling_factor
    return Routed(weights if routing.float_weights else weights.to(logits.dtype), index)


def _wide(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def _in_best_groups(choice: Tensor, routing: Routing) -> Tensor:
    """`choice` [T, E] with -inf outside each token's topk_group best groups."""
    tokens, experts = choice.shape
    if routing.n_group == 1:
        return choice
    grouped = choice.view(tokens, routing.n_group, experts // routing.n_group)
    best = grouped.topk(2, dim=-1)[0].sum(dim=-1)
    groups = torch.topk(best, k=routing.topk_group, dim=-1, sorted=False)[1]
    keep = torch.zeros_like(best).scatter_(1, groups, 1).bool()
    return grouped.masked_fill(~keep.unsqueeze(-1), float("-inf")).reshape(tokens, experts)
