"""A decoder's weights from a model's files: found by role, put in the engine's order, packed.

Letters: D head_dim, E experts. A GGUF stores rows of q and k of a Llama so that the two numbers of
a rotary pair are neighbours; here its rows (whole blocks, nothing is dequantised) go back to the
Hub's order, where they are half a head apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from gateup.account.machine import probe
from gateup.engine.config import DecoderConfig, LayerConfig, MoEConfig
from gateup.engine.rope import divided
from gateup.engine.spec_config import decoder_config, family_of
from gateup.engine.weights import LayerWeights, MLPWeights, MoEWeights, Weights
from gateup.errors import GateupError, InputError
from gateup.files.checkpoint import Checkpoint
from gateup.files.header import TensorHeader, clip
from gateup.files.tensors import Bytes, TensorFiles
from gateup.model.spec import TensorSpec
from gateup.ops.packed import PackedWeight, dequantise, pack

# Differences between description and files that leave a decoder without its weights, or weights
# without their place in the decoder.
_FATAL = ("absent", "partly", "doubled", "shape", "unknown", "beyond")

# Types that torch multiplies as they are. Others, where the kernels do not take them, are held as
# float32 while memory lasts: dequantising at every use makes a token of a 135M model take 1.3 s
# instead of 0.05.
_DENSE = ("f32", "f16", "bf16", "f64")

# (bytes done, bytes in all) after each matrix
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Decoded:
    """What `load` makes: the two parts of a decoder."""

    config: DecoderConfig
    weights: Weights


def load(
    checkpoint: Checkpoint,
    context: int | None = None,
    progress: Progress | None = None,
    *,
    terms: int = 1,
) -> Decoded:
    """The decoder's configuration for texts of `context` tokens, and its weights.

    terms  how the kernels take activations for quantised weights: see PackedWeight

    Raises UnknownArchitectureError, ConfigError; InputError where the files have no weights, or
    not those that the description has, or values that are no numbers.
    """
    config = decoder_config(checkpoint, context)
    _refuse(checkpoint)
    with TensorFiles() as files:
        source = _Source(checkpoint, files, progress, terms=terms)
        config = _with_factors(config, source)
        embed = source.matrix("embed_tokens", None)
        layers = tuple(_layer(source, i, x) for i, x in enumerate(config.layers))
        norm = source.norm("norm", None)
        tied = checkpoint.spec.tie_word_embeddings
        head = embed if tied else source.matrix("lm_head", None)
    return Decoded(config, Weights(embed, layers, norm, head))


def _refuse(checkpoint: Checkpoint) -> None:
    """Raise where there are no weights, or none that this loader can place."""
    where = str(checkpoint.path or checkpoint.label)
    if not checkpoint.headers:
        raise InputError(
            f"{checkpoint.label}: there are no weights to run",
            where=where,
            expected="safetensors or a GGUF",
            remedy="fetch the model's files",
        )
    if checkpoint.adapter is not None:
        raise InputError(
            "an adapter cannot be run by itself",
            where=str(checkpoint.adapter.path),
            remedy="merge it into its base model first",
        )
    quantised = checkpoint.spec.config.get("quantization_config")
    if checkpoint.kind == "safetensors" and isinstance(quantised, dict):
        raise InputError(
            f"the weights are quantised by {clip(quantised.get('quant_method'))}",
            where=where,
            expected="bf16, f16 or f32 safetensors, or a GGUF",
            remedy="take the model's unquantised files, or a GGUF of it",
        )
    for m in checkpoint.mismatches:
        if m.kind in _FATAL:
            raise InputError(m.sentence, where=where, remedy=f"`gateup check {where}` says more")


class _Source:
    """A checkpoint's tensors by role and layer."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        files: TensorFiles,
        progress: Progress | None,
        native: bool | None = None,
        terms: int = 1,
    ) -> None:
        """native: as for `pack`; False keeps every matrix in the bytes of its file."""
        self.native = native
        self.terms = terms
        self.checkpoint = checkpoint
        self.files = files
        self.progress = progress
        self.done = 0
        self.spare = probe().available // 2
        self.total = sum(h.nbytes for h in checkpoint.headers)
        family = family_of(checkpoint.spec)
        self.gguf = checkpoint.kind == "gguf"
        meta = any(h.name == "tok_embeddings.weight" for h in checkpoint.headers)
        self.permuted = (self.gguf and family.permuted) or meta
        self.plus_one = family.plus_one and not self.gguf
        self.rows = {(r.role, r.layer): r for r in checkpoint.spec.rows}
        self.headers: dict[str, list[TensorHeader]] = {}
        self.named = {h.name: h for h in checkpoint.headers}
        for h in checkpoint.headers:
            if h.canonical is not None:
                self.headers.setdefault(h.canonical, []).append(h)

    def has(self, role: str, layer: int | None) -> bool:
        return (role, layer) in self.rows

    def header(self, name: str) -> TensorHeader:
        found = self.headers.get(name)
        if not found:
            raise InputError(f"{name} is in no file", where=str(self.checkpoint.path))
        return found[0]

    def values(self, header: TensorHeader) -> torch.Tensor:
        """A tensor's numbers in float32, [.., last axis]; refused where one is not finite."""
        rows, width = _rows_of(header.shape)
        w = self._pack(header, self.files.raw(header), rows, width)
        out = dequantise(w).reshape(header.shape).clone()
        if not bool(torch.isfinite(out).all()):
            raise not_finite(header.name, str(header.file))
        return out

    def vector(self, role: str, layer: int | None) -> torch.Tensor | None:
        """A bias or norm, float32; None where the description has none."""
        row = self.rows.get((role, layer))
        return None if row is None else self.values(self.header(row.name))

    def norm(self, role: str, layer: int | None) -> torch.Tensor:
        """A norm's multiplier."""
        found = self.vector(role, layer)
        assert found is not None, role
        return found + 1.0 if self.plus_one else found

    def matrix(self, role: str, layer: int | None, heads: int = 0) -> PackedWeight:
        """The matrix of a role; `heads`: of so many, rows to put into the Hub's order."""
        header = self.header(self.rows[role, layer].name)
        raw = self.files.raw(header)
        rows, width = _rows_of(header.shape)
        if heads and self.permuted:
            raw = _halves(raw, heads, rows)
        return self._finish(header, self._pack(header, raw, rows, width))

    def parts(self, role: str, layer: int, sizes: Sequence[int]) -> list[PackedWeight]:
        """A fused matrix cut into so many rows each."""
        header = self.header(self.rows[role, layer].name)
        rows, width = _rows_of(header.shape)
        table = self.files.raw(header).reshape(rows, -1)
        out = []
        at = 0
        for n in sizes:
            out.append(self._pack(header, table[at : at + n].reshape(-1), n, width))
            at += n
        self._finish(header, out[0])
        return out

    def expert(self, role: str, layer: int, e: int) -> PackedWeight:
        """One expert's matrix, stored by itself or stacked along a first axis."""
        row = self.rows[role, layer]
        single = self.headers.get(row.name.replace("{e}", str(e))) if "{e}" in row.name else None
        if single and len(single[0].shape) == 2:
            header = single[0]
            raw = self.files.raw(header)
        else:
            header, raw = self._stacked(row, e)
        rows, width = header.shape[-2:]
        return self._finish(header, self._pack(header, raw, rows, width), raw.nbytes)

    def _stacked(self, row: TensorSpec, e: int) -> tuple[TensorHeader, Bytes]:
        """Expert `e`'s share: of a stacked tensor, or its own in GGUFs before April 2024."""
        found = self.headers.get(row.name, [])
        for header in found:
            if header.name.endswith(f".{e}.weight") and len(found) > 1:
                return header, self.files.raw(header)
        header = self.header(row.name)
        if len(found) != 1 or header.shape[0] <= e:
            raise InputError(f"expert {e} of {row.name} is in no file", where=str(header.file))
        size = header.nbytes // header.shape[0]
        return header, self.files.raw(header)[e * size : (e + 1) * size]

    def _pack(self, header: TensorHeader, raw: Bytes, rows: int, width: int) -> PackedWeight:
        try:
            w = pack(header.type, raw, rows, width, native=self.native)
        except GateupError as e:
            where = f"{header.file}, tensor {clip(header.name)}"
            raise InputError(e.what, where=where, expected=e.expected, remedy=e.remedy) from None
        if w.native and header.type not in _DENSE:
            return replace(w, terms=self.terms)
        if w.native or self.native is False or header.type in _DENSE:
            return w
        if self.spare < 4 * rows * width:
            return w
        self.spare -= 4 * rows * width
        numbers = dequantise(w).view(torch.uint8)
        return pack("f32", numbers, rows, width)

    def _finish(
        self, header: TensorHeader, w: PackedWeight, nbytes: int | None = None
    ) -> PackedWeight:
        """Count what is done, and drop the file's pages where the weight does not live in them."""
        nbytes = header.nbytes if nbytes is None else nbytes
        self.done += nbytes
        if w.native and nbytes == header.nbytes:
            self.files.release(header)
        if self.progress is not None:
            self.progress(self.done, self.total)
        return w


def not_finite(name: str, where: str) -> InputError:
    """The error for a tensor with values that are no numbers."""
    return InputError(
        f"{name} has values that are not finite (NaN or infinity)",
        where=where,
        remedy="the file is damaged, or was saved from a run that had diverged: fetch it again",
    )


def _rows_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """(rows, width) of a tensor as a matrix; a vector is one row."""
    rows = 1
    for d in shape[:-1]:
        rows *= d
    return rows, shape[-1] if shape else 1


def _halves(raw: Bytes, heads: int, rows: int) -> Bytes:
    """Rows of each head from neighbouring pairs (2j, 2j + 1) to halves (j, j + D/2)."""
    half = rows // heads // 2
    table = raw.reshape(heads, half, 2, -1)
    return np.ascontiguousarray(table.swapaxes(1, 2)).reshape(-1)


def _layer(source: _Source, i: int, x: LayerConfig) -> LayerWeights:
    q, k, v = _attention(source, i, x)
    biases = [source.vector(f"{p}_proj.bias", i) for p in "qkvo"]
    if source.permuted:
        for at, heads in ((0, x.num_heads), (1, x.num_kv_heads)):
            bias = biases[at]
            if bias is not None:
                biases[at] = bias.view(heads, -1, 2).transpose(1, 2).reshape(-1)
    post = x.post_norm
    return LayerWeights(
        input_norm=source.norm("input_layernorm", i),
        q=q,
        k=k,
        v=v,
        o=source.matrix("o_proj", i),
        # Gemma 2 and 3 call the norm before the MLP otherwise, and have one behind attention
        # under the name that everyone else's has.
        mlp_norm=source.norm(
            "pre_feedforward_layernorm" if post else "post_attention_layernorm", i
        ),
        mlp=_mlp(source, i, x),
        q_bias=biases[0],
        k_bias=biases[1],
        v_bias=biases[2],
        o_bias=biases[3],
        q_norm=source.norm("q_norm", i) if x.qk_norm else None,
        k_norm=source.norm("k_norm", i) if x.qk_norm else None,
        attention_post_norm=source.norm("post_attention_layernorm", i) if post else None,
        mlp_post_norm=source.norm("post_feedforward_layernorm", i) if post else None,
    )


def _attention(source: _Source, i: int, x: LayerConfig) -> list[PackedWeight]:
    """q, k and v."""
    wide, narrow = x.num_heads * x.head_dim, x.num_kv_heads * x.head_dim
    if source.has("qkv_proj", i):
        return source.parts("qkv_proj", i, [wide, narrow, narrow])
    return [
        source.matrix("q_proj", i, x.num_heads),
        source.matrix("k_proj", i, x.num_kv_heads),
        source.matrix("v_proj", i),
    ]


def _mlp(source: _Source, i: int, x: LayerConfig) -> MLPWeights | MoEWeights:
    if x.moe is not None:
        return _experts(source, i, x.moe)
    if source.has("gate_up_proj", i):
        gate, up = source.parts("gate_up_proj", i, [x.width, x.width])
    else:
        gate, up = source.matrix("gate_proj", i), source.matrix("up_proj", i)
    return MLPWeights(
        gate,
        up,
        source.matrix("down_proj", i),
        source.vector("gate_proj.bias", i),
        source.vector("up_proj.bias", i),
        source.vector("down_proj.bias", i),
    )


def _experts(source: _Source, i: int, moe: MoEConfig) -> MoEWeights:
    router = source.values(source.header(source.rows["router", i].name))
    gate, up, down = (
        [source.expert(f"experts.{n}_proj", i, e) for e in range(moe.num_experts)]
        for n in ("gate", "up", "down")
    )
    return MoEWeights(router, tuple(map(MLPWeights, gate, up, down)))


def _with_factors(config: DecoderConfig, source: _Source) -> DecoderConfig:
    """The rotary frequencies divided by the table that a GGUF keeps for them.

    rope_freqs: Llama 3.1's scaling. rope_factors_long, _short: Phi-3's, one for texts longer than
    the original context; attn_factor in the metadata is what cosine and sine are multiplied by.
    """
    if not source.gguf:
        return config
    metadata = source.checkpoint.metadata
    arch = metadata.get("general.architecture")
    original = metadata.get(f"{arch}.rope.scaling.original_context_length")
    name, scale = "rope_freqs.weight", 1.0
    if "rope_factors_long.weight" in source.named:
        long = isinstance(original, int) and config.context > original
        name = f"rope_factors_{'long' if long else 'short'}.weight"
        given = metadata.get(f"{arch}.rope.scaling.attn_factor")
        scale = float(given) if isinstance(given, float) and 0 < given < 1e6 else 1.0
    header = source.named.get(name)
    if header is None:
        return config
    factors = source.values(header).reshape(-1)
    layers = []
    for x in config.layers:
        if x.rope is None:
            layers.append(x)
            continue
        if len(x.rope.inv_freq) != factors.numel() or not bool((factors > 0).all()):
            raise InputError(
                f"{name} has {factors.numel()} factors",
                where=str(header.file),
                expected=f"{len(x.rope.inv_freq)} numbers above 0, one per rotary pair",
            )
        rope = replace(divided(x.rope, factors), scale=x.rope.scale * scale)
        layers.append(replace(x, rope=rope))
    return replace(config, layers=tuple(layers))
