"""How far the kernels' activations move what the lab's Neurons page shows, on the demo model.

    python benchmarks/neurons.py

h of every neuron and the next token's probabilities, with activations as two int8 numbers (what
the page uses) and as one, against float32 activations on the same weights.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from gateup.engine import loading
from gateup.engine.neurons import NeuronDecoder, Trace
from gateup.engine.tokenizer import load_tokenizer
from gateup.files.checkpoint import open_model
from gateup.ops.packed import PackedWeight, pack

TEXTS = (
    "The capital of France is",
    "def add(a, b):\n    return",
    "Water boils at a hundred degrees, and it freezes at",
)


def floating(*args: Any, **_: Any) -> PackedWeight:
    """The matrix in the bytes of its file, which torch multiplies in float32."""
    return pack(*args, native=False)


def worst(found: list[Trace], true: list[Trace]) -> tuple[float, float]:
    """The largest error of an h, of the largest |h| of its layer and token; of a probability."""
    h = p = 0.0
    for ours, exact in zip(found, true, strict=True):
        for a, b in zip(ours.hidden, exact.hidden, strict=True):
            h = max(h, float(((a - b).abs().amax(-1) / b.abs().amax(-1)).max()))
        p = max(p, float((ours.logits.softmax(-1) - exact.logits.softmax(-1)).abs().max()))
    return h, p


def main() -> None:
    checkpoint = open_model("smollm2")
    tokenizer = load_tokenizer(checkpoint)
    ids = [tokenizer.encode(text) for text in TEXTS]

    def traces(terms: int) -> list[Trace]:
        decoded = loading.load(checkpoint, 64, terms=terms)
        decoder = NeuronDecoder(decoded.config, decoded.weights)
        return [decoder.trace(i) for i in ids]

    with patch.object(loading, "pack", floating):
        true = traces(1)
    for terms, name in ((2, "two int8 numbers"), (1, "one int8 number")):
        h, p = worst(traces(terms), true)
        print(f"{name:17} h {100 * h:8.4f} % of its layer's largest, probabilities {p:.5f}")


if __name__ == "__main__":
    main()
