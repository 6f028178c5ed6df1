"""Inside the MLPs of a decoder: what each neuron computes, reads and writes, and what the model
says without some of them.

Neuron j of a layer is row j of gate, row j of up and column j of down. At a token whose MLP input
is x it computes a = gate_j·x, b = up_j·x and h = act(a)·b, and adds h times its column to the
residual stream. Letters: T tokens, H hidden_size, I intermediate_size, V vocab_size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gateup.engine.config import DecoderConfig
from gateup.engine.model import TorchDecoder, rms_norm
from gateup.engine.weights import MLPWeights, MoEWeights, Weights
from gateup.errors import UsageError
from gateup.ops.act_and_mul import act_and_mul_split
from gateup.ops.packed import dequantise, linear, linears

# Rows made floating point at a time: 16 MB of a width of 4,096.
_ROWS = 1024

Off = Mapping[int, Sequence[int]]


@dataclass(frozen=True, eq=False, slots=True)
class Trace:
    """One text through the model, float32.

    logits  [T, V] behind each token
    inputs  per layer [T, H]: what gate and up read
    hidden  per layer [T, I]: h of each neuron, 0 where it was switched off
    size    [T]: √(mean x² + eps) of the residual stream before the final norm
    branch  per layer [T]: the same of the MLP's output where the layer norms it (Gemma 2, 3)
    """

    logits: torch.Tensor
    inputs: tuple[torch.Tensor, ...]
    hidden: tuple[torch.Tensor, ...]
    size: torch.Tensor
    branch: tuple[torch.Tensor | None, ...]


class NeuronDecoder(TorchDecoder):
    """A TorchDecoder that keeps what its neurons compute and can leave some of them out."""

    name = "neurons"

    def __init__(self, config: DecoderConfig, weights: Weights) -> None:
        """Raises UsageError where a layer's MLP is a mixture of experts."""
        super().__init__(config, weights)
        for i, layer in enumerate(weights.layers):
            if isinstance(layer.mlp, MoEWeights):
                raise UsageError(
                    f"layer {i} has experts",
                    expected="one dense gated MLP in every layer",
                    remedy="another model",
                )
        self._off: Off = {}
        self._inputs: list[torch.Tensor] = []
        self._hidden: list[torch.Tensor] = []
        self._branch: list[torch.Tensor | None] = []
        self._last = torch.empty(0)

    def trace(self, ids: Sequence[int], off: Off | None = None) -> Trace:
        """A text from its start. off: neurons by layer whose h is 0 at every token.

        Raises UsageError where a token or a neuron is none of the model's. Not for two threads at
        a time.
        """
        off = off or {}
        for layer, neurons in off.items():
            for j in neurons:
                self.check(layer, j)
        cache = self.new_cache(max(len(ids), 1), dtype=torch.float32)
        try:
            self._off = off
            logits = self.forward(torch.tensor(ids, dtype=torch.int64), cache, every=True)[0]
            return Trace(
                logits, tuple(self._inputs), tuple(self._hidden), self._last, tuple(self._branch)
            )
        finally:
            self._off, self._last = {}, torch.empty(0)
            self._inputs, self._hidden, self._branch = [], [], []

    def check(self, layer: int, neuron: int) -> None:
        """Raise UsageError where there is no such neuron."""
        layers = self.config.layers
        if not (0 <= layer < len(layers) and 0 <= neuron < layers[layer].width):
            raise UsageError(
                f"there is no neuron {neuron} in a layer {layer}",
                expected=f"layers 0 to {len(layers) - 1}, neurons 0 to "
                f"{layers[min(max(layer, 0), len(layers) - 1)].width - 1}",
            )

    def _mlp(self, i: int, x: torch.Tensor, w: MLPWeights | MoEWeights) -> torch.Tensor:
        assert isinstance(w, MLPWeights)
        gate, up = linears(x, [w.gate, w.up], [w.gate_bias, w.up_bias])
        hidden = act_and_mul_split(gate, up, self.config.layers[i].act)
        if i in self._off:
            hidden[:, list(self._off[i])] = 0
        y = linear(hidden, w.down, w.down_bias)
        self._inputs.append(x)
        self._hidden.append(hidden)
        normed = self.weights.layers[i].mlp_post_norm is not None
        self._branch.append(self._size(y) if normed else None)
        return y

    def _head(self, x: torch.Tensor) -> torch.Tensor:
        self._last = self._size(x)
        return super()._head(x)

    def _size(self, x: torch.Tensor) -> torch.Tensor:
        """What an RMS norm divides by: [N, H] → [N]."""
        return (x.pow(2).mean(-1) + self.config.norm_eps).sqrt()

    # ---- one neuron -----------------------------------------------------------------------------

    @torch.inference_mode()
    def parts(self, layer: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(a, act(a), b), each [N, I], for inputs [N, H] of a layer's MLP."""
        w = self._weights(layer)
        gate, up = linears(x, [w.gate, w.up], [w.gate_bias, w.up_bias])
        act = self.config.layers[layer].act
        return gate, act_and_mul_split(gate, torch.ones_like(gate), act), up

    @torch.inference_mode()
    def columns(self, layer: int, neurons: Sequence[int]) -> torch.Tensor:
        """[n, H]: what each of them adds to the residual stream for h = 1.

        Columns of down, times the residual multiplier (Granite), and, where the layer norms its
        MLP's output, times that norm's weight: there it is still to be divided by Trace.branch.
        """
        for j in neurons:
            self.check(layer, j)
        down = self._weights(layer).down
        found = torch.cat(
            [
                dequantise(down, torch.arange(at, min(at + _ROWS, down.n)))[:, list(neurons)]
                for at in range(0, down.n, _ROWS)
            ]
        ).T
        norm = self.weights.layers[layer].mlp_post_norm
        scaled = found if norm is None else found * norm
        return (scaled * self.config.residual_scale).contiguous()

    @torch.inference_mode()
    def lengths(self, layer: int) -> torch.Tensor:
        """[I]: the Euclidean length of each of `columns`."""
        down = self._weights(layer).down
        norm = self.weights.layers[layer].mlp_post_norm
        total = torch.zeros(down.k)
        for at in range(0, down.n, _ROWS):
            rows = torch.arange(at, min(at + _ROWS, down.n))
            part = dequantise(down, rows)
            total += (part if norm is None else part * norm[rows, None]).pow(2).sum(0)
        return total.sqrt() * abs(self.config.residual_scale)

    @torch.inference_mode()
    def writes(self, layer: int, neurons: Sequence[int]) -> torch.Tensor:
        """[n, V]: U (w ⊙ d), d a neuron's column, w the final norm's weight, U the unembedding.

        With `direct`'s factor it is what the neuron adds to each logit, were the later layers to
        pass it on unread and the final norm to divide by what it divided by.
        """
        d = self.columns(layer, neurons)
        return linear(d * self.weights.norm, self.weights.head) * self.config.logit_scale

    def direct(self, trace: Trace, layer: int, position: int) -> torch.Tensor:
        """[I]: h / size (/ branch); times `writes`, a neuron's part of a token's logits."""
        factor = trace.hidden[layer][position] / trace.size[position]
        branch = trace.branch[layer]
        return factor if branch is None else factor / branch[position]

    @torch.inference_mode()
    def reads(self, layer: int, neuron: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(a, b), each [V]: what gate and up would give for each token's bare embedding.

        rms_norm(embedding, this layer's norm)·row: exact only for a residual stream that no
        layer has written to.
        """
        self.check(layer, neuron)
        w, norm = self._weights(layer), self.weights.layers[layer].mlp_norm
        row = torch.tensor([neuron])
        rows = torch.cat([dequantise(w.gate, row), dequantise(w.up, row)])  # [2, H]
        parts = []
        for at in range(0, self.config.vocab_size, _ROWS):
            tokens = torch.arange(at, min(at + _ROWS, self.config.vocab_size))
            x = dequantise(self.weights.embed, tokens) * self.config.embedding_scale
            parts.append(rms_norm(x, norm, self.config.norm_eps) @ rows.T)
        found = torch.cat(parts)
        for k, bias in enumerate((w.gate_bias, w.up_bias)):
            if bias is not None:
                found[:, k] += bias[neuron]
        return found[:, 0], found[:, 1]

    def _weights(self, layer: int) -> MLPWeights:
        w = self.weights.layers[layer].mlp
        assert isinstance(w, MLPWeights)
        return w
