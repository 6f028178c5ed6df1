"""A decoder whose weights are read a layer at a time: memory for one layer, however many there are.

For measurements that go through a model once. Shape letters: N tokens of all texts together,
H hidden_size, T tokens of one text, V vocab_size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from gateup.engine.config import LayerConfig
from gateup.engine.loading import Progress, _layer, _refuse, _Source, _with_factors
from gateup.engine.model import _Attention, _turns, rms_norm, softcapped
from gateup.engine.spec_config import decoder_config
from gateup.engine.weights import LayerWeights
from gateup.files.checkpoint import Checkpoint
from gateup.files.tensors import TensorFiles
from gateup.ops.packed import PackedWeight, dequantise, linear, pack

# Float32 logits held at once: 128 MB.
MAX_LOGITS = 1 << 25


class Layerwise:
    """Texts of one length T, read from their start, go through the layers side by side.

    config  of the decoder, rotary frequencies for texts of T tokens

    Weights stay in the blocks of their file; `dense` makes one floating point.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        files: TensorFiles,
        length: int,
        progress: Progress | None = None,
    ) -> None:
        """Raises as engine.loading.load."""
        config = decoder_config(checkpoint, length)
        _refuse(checkpoint)
        self.files = files
        self.source = _Source(checkpoint, files, progress, native=False)
        self.config = _with_factors(config, self.source)
        self.turns = _turns(self.config, torch.arange(length)[None])
        self.length = length

    def embedded(self, ids: torch.Tensor) -> torch.Tensor:
        """Token numbers [N] -> x [N, H], float32."""
        table = self.source.matrix("embed_tokens", None)
        return dequantise(table, ids) * self.config.embedding_scale

    def layers(self) -> Iterator[tuple[int, LayerConfig, LayerWeights]]:
        """(number, what it computes, its weights) of each layer; what the last one read of its
        file is given back first."""
        of_layer: dict[int, list[str]] = {}
        for row in self.source.checkpoint.spec.rows:
            if row.layer is not None:
                of_layer.setdefault(row.layer, []).extend(row.names())
        for i, layer in enumerate(self.config.layers):
            yield i, layer, _layer(self.source, i, layer)
            for name in of_layer.get(i, ()):
                for header in self.source.headers.get(name, ()):
                    self.files.release(header)

    def attended(self, x: torch.Tensor, layer: LayerConfig, w: LayerWeights) -> torch.Tensor:
        """x [N, H] with attention's branch added."""
        texts = x.shape[0] // self.length
        shape = (texts, layer.num_kv_heads, self.length, layer.head_dim)
        store = (torch.empty(shape), torch.empty(shape))
        turns = {
            rope: (cos.expand(texts, -1, -1, -1), sin.expand(texts, -1, -1, -1))
            for rope, (cos, sin) in self.turns.items()
        }
        w = replace(w, q=dense(w.q), k=dense(w.k), v=dense(w.v), o=dense(w.o))
        attention = _Attention(layer, w, self.config.norm_eps)
        branch = attention(x, store, range(texts), [0] * texts, turns)
        return self.added(x, branch, w.attention_post_norm)

    def mlp_input(self, x: torch.Tensor, w: LayerWeights) -> torch.Tensor:
        """What gate and up read, [N, H]."""
        return rms_norm(x, w.mlp_norm, self.config.norm_eps)

    def added(
        self, x: torch.Tensor, branch: torch.Tensor, norm: torch.Tensor | None
    ) -> torch.Tensor:
        """x with a branch [N, H] added, through its norm where the layer has one."""
        if norm is not None:
            branch = rms_norm(branch, norm, self.config.norm_eps)
        return torch.add(x, branch, alpha=self.config.residual_scale)

    def logits(self, x: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """(rows, their logits [n, V]) of x [N, H] behind the last layer, a part at a time."""
        tied = self.source.checkpoint.spec.tie_word_embeddings
        head = self.source.matrix("embed_tokens" if tied else "lm_head", None)
        x = rms_norm(x, self.source.norm("norm", None), self.config.norm_eps)
        step = max(1, MAX_LOGITS // self.config.vocab_size)
        for start in range(0, x.shape[0], step):
            rows = slice(start, min(start + step, x.shape[0]))
            out = linear(x[rows], head) * self.config.logit_scale
            if self.config.logit_softcap is not None:
                out = softcapped(out, self.config.logit_softcap)
            yield rows, out


def dense(w: PackedWeight) -> PackedWeight:
    """The matrix in float32: several texts read it, and blocks are taken apart at each use."""
    numbers = dequantise(w).contiguous()
    return pack("f32", numbers.view(torch.uint8), w.n, w.k, native=False)
