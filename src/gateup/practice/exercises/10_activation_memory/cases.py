"""Real and held-out sizes; the oracle is gateup's own account of what autograd saves."""

import numpy as np

from gateup.account.saved import saved_gated
from gateup.model.spec import GatedMLPSpec
from gateup.practice.exercise import Case

# gateup's names for these ways to run the block: "hf" is transformers' eager MLP.
SAVE = {"eager": "hf", "fused": "all", "gate_up": "gate_up", "input": "input"}


def kept(mode, tokens, H, I, layers, itemsize):
    """Bytes of all layers; one layer's intermediates on top under "checkpoint"."""
    spec = GatedMLPSpec(I, "silu")
    inner = saved_gated(spec, SAVE.get(mode, "input"), True, itemsize).value
    once = saved_gated(spec, "hf", True, itemsize).value if mode == "checkpoint" else 0
    return tokens * (layers * (H * itemsize + inner) + once)


def _case(name, mode, tokens, H, I, layers, itemsize):
    args = (mode, tokens, H, I, layers, itemsize)
    right, x = kept(*args), tokens * layers * H * itemsize
    mistakes = {"no_input": right - x, "elements": right // itemsize}
    if mode == "eager":
        mistakes["silu_forgotten"] = kept("fused", *args[1:])
    if mode == "checkpoint":
        mistakes["no_transient"] = kept("input", *args[1:])
        mistakes["transient_everywhere"] = kept("eager", *args[1:])
    return Case(name, args, right, mistakes)


def cases(seed):
    rng = np.random.default_rng(seed)
    tokens, H, I, layers = (int(n) for n in rng.integers((2, 8, 20, 2), (999, 90, 300, 40)))
    made = [
        _case(mode, mode, tokens, H, I, layers, 2)
        for mode in ("eager", "fused", "gate_up", "input", "checkpoint")
    ]
    return [
        *made,
        _case("eager, float32", "eager", tokens, H, I, layers, 4),
        _case("Llama-3-8B, checkpointed", "checkpoint", 8192, 4096, 14336, 32, 2),
        _case("no token", "eager", 0, H, I, layers, 2),
    ]
