"""Widths that can be padded with zeros: where they stand, what padding them costs.

A zero row of gate and of up makes h = act(0) · 0 = 0 in that channel, and a zero column of down
meets it: no output changes, whatever the activation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gateup.model.spec import MLP, ClassicFFNSpec, GatedMLPSpec, LayerSpec, ModelSpec, MoESpec

# Names of the widths, as a split names them.
DENSE = "intermediate_size"
EXPERT = "expert intermediate_size"
SHARED = "shared expert width"


def _parts(mlp: MLP | None) -> Iterator[tuple[str, GatedMLPSpec | ClassicFFNSpec, int]]:
    """(name of the width, what has it, how many there are) in one layer's MLP."""
    if isinstance(mlp, MoESpec):
        yield EXPERT, mlp.expert, mlp.num_experts
        if mlp.shared:
            yield SHARED, mlp.shared, 1
    elif mlp is not None:
        yield DENSE, mlp, 1


def widths(spec: ModelSpec) -> list[tuple[str, int]]:
    """Every (name, width) that occurs, sorted."""
    found = ((name, m.intermediate_size) for x in spec.layers for name, m, _ in _parts(x.mlp))
    return sorted(set(found))


def added_weights(spec: ModelSpec, what: str, width: int, wanted: int) -> int:
    """Weights that padding every `what` of `width` to `wanted` adds.

    matrices · H · (wanted - width) for each MLP, and the biases of gate and up where there are any.
    """
    more = wanted - width
    total = 0
    for layer in spec.layers:
        for name, mlp, count in _parts(layer.mlp):
            if name == what and mlp.intermediate_size == width:
                biases = (mlp.matrices - 1) * more if mlp.bias else 0
                total += count * (mlp.matrices * spec.hidden_size * more + biases)
    return total


def padded(spec: ModelSpec, what: str, width: int, wanted: int) -> ModelSpec:
    """The description with `wanted` for that width; its rows, which no split looks at, stay."""
    layers = tuple(
        LayerSpec(x.index, x.attention, _padded(x.mlp, what, width, wanted)) for x in spec.layers
    )
    return replace(spec, layers=layers)


def _padded(mlp: MLP | None, what: str, width: int, wanted: int) -> MLP | None:
    if mlp is None:
        return None
    if not isinstance(mlp, MoESpec):
        same = what == DENSE and mlp.intermediate_size == width
        return replace(mlp, intermediate_size=wanted) if same else mlp
    if what == EXPERT and mlp.expert.intermediate_size == width:
        return replace(mlp, expert=replace(mlp.expert, intermediate_size=wanted))
    if what == SHARED and mlp.shared and mlp.shared.intermediate_size == width:
        return replace(mlp, shared=replace(mlp.shared, intermediate_size=wanted))
    return mlp


# Name of the width -> keys of config.json that may hold it, the first present counts.
_KEYS = {
    DENSE: ("intermediate_size_mlp", "n_inner", "intermediate_size"),
    EXPERT: ("moe_intermediate_size", "intermediate_size"),
    SHARED: ("shared_expert_intermediate_size", "moe_intermediate_size", "intermediate_size"),
}


def config_key(spec: ModelSpec, what: str) -> str:
    """The key of config.json that this width is read from; its name where none is there."""
    return next((k for k in _KEYS[what] if spec.config.get(k) is not None), what)
