"""Adapters that stack the base's layers anew before they adapt them."""

from __future__ import annotations

from collections.abc import Iterable

from gateup.checks.adapter_parts import layer_of
from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding
from gateup.checks.rule import rule
from gateup.checks.words import in_layers
from gateup.files.header import clip
from gateup.model.config import MAX_LAYERS

FIELD = "layer_replication"


def replicated(context: Context) -> tuple[int, ...]:
    """The base's layer that each layer of the stacked model is a copy of; () where the adapter
    stacks nothing, or asks for what cannot be."""
    value = (context.adapter_config or {}).get(FIELD)
    return tuple(_layers(value, context.spec.num_layers)) if value else ()


def _layers(value: object, have: int) -> list[int]:
    """The layers that [[start, end], …] stands for; [] for anything that is no such list."""
    out: list[int] = []
    for part in value if isinstance(value, list) else ():
        if not isinstance(part, list) or len(part) != 2 or any(type(n) is not int for n in part):
            return []
        start, end = part
        if not 0 <= start < end <= have or len(out) + end - start > MAX_LAYERS:
            return []
        out += range(start, end)
    return out


@rule(
    "adapter.replication",
    "Layers that the adapter stacks are layers of the base",
    needs=["adapter"],
)
def replication(context: Context) -> Iterable[Finding]:
    """PEFT's layer_replication builds a deeper model from one that is there: [[0, 24], [8, 32]] is
    layers 0 to 23 and then 8 to 31 again. Copies share their weights, so they cost no memory for
    weights; what tells them apart is the adapter, which has a pair for each of the new layers.

        Llama-2-7B, [[0, 24], [8, 32]]    48 layers: 1.5 times the time and the KV cache

    Three things follow. The adapter fits nothing but the stacked model: engines that do not know
    the field (vLLM, llama.cpp) refuse its upper layers or drop them. Merging is wrong: both copies
    would add their share to one weight. And numbers beyond the base's layers are no layers.
    """
    value = (context.adapter_config or {}).get(FIELD)
    if not value:
        return
    have, file = context.spec.num_layers, context.source("adapter")
    stacked = replicated(context)
    if not stacked:
        yield _no_layers(context, value)
        return
    assert context.adapter is not None
    named = {layer_of(t.canonical or t.name) for t in context.adapter.tensors}
    beyond = sorted(i for i in named if i is not None and i >= len(stacked))
    if beyond:
        yield Finding(
            "adapter.replication",
            "error",
            f"the adapter has {in_layers(beyond)}; {FIELD} stacks {len(stacked)}",
            (Evidence(FIELD, clip(value, 60), f"layers up to {beyond[-1]}", file),),
            "The file and its config come from different runs.",
            "take adapter_config.json and the weights from one run",
            {"layers": len(stacked), "beyond": len(beyond)},
        )
        return
    twice = len(stacked) - len(set(stacked))
    copies = "1 copy" if twice == 1 else f"{twice} copies"
    ratio = len(stacked) / have
    yield Finding(
        "adapter.replication",
        "note",
        f"the adapter makes {len(stacked)} layers of the base's {have}"
        + (f", {copies} among them" if twice else ""),
        (Evidence(FIELD, clip(value, 60), "", file),),
        f"Copies share the base's weights. Time and KV cache are {ratio:.3g} times the base's; only"
        " PEFT builds this model, other engines refuse the upper layers or drop them.",
        "do not merge it: copies share one weight, and each would add its share to it"
        if twice
        else "",
        {"layers": len(stacked), "base": have, "copies": twice},
    )


def _no_layers(context: Context, value: object) -> Finding:
    have, shown = context.spec.num_layers, clip(value, 60)
    wanted = f"[[start, end], …], 0 ≤ start < end ≤ {have}"
    return Finding(
        "adapter.replication",
        "error",
        f"{FIELD} is {shown}; the base has layers 0 to {have - 1}",
        (Evidence(FIELD, shown, wanted, context.source("adapter")),),
        "Each pair is a run of the base's layers, its end not included.",
        "use the adapter with the base it was trained on, or correct the numbers",
    )
