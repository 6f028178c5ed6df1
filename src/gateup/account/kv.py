"""The KV cache: bytes by model, context, format and batch.

Per token and layer: n_kv·(d_qk + d_v) elements, or the latent and the shared rope key in MLA
(r_kv + d_rope). Layers with a window hold min(T, window) tokens.
"""

from __future__ import annotations

from gateup.account.figure import Figure
from gateup.account.ledger import layer_label
from gateup.errors import UsageError
from gateup.model.quant.formats import BlockFormat, format_of
from gateup.model.spec import AttentionSpec, ModelSpec

SOURCE = "shapes; block sizes of the format"


def token_nbytes(attn: AttentionSpec, kv_type: str = "f16") -> int:
    """Bytes one token adds to one layer's cache.

    Raises UsageError where a block format does not divide a head.
    """
    fmt = format_of(kv_type)
    if attn.mla:
        return _row(fmt, attn.kv_elements, "kv_lora_rank + qk_rope_head_dim")
    k = _row(fmt, attn.head_dim, "head_dim") * attn.num_kv_heads
    v = _row(fmt, attn.v_head_dim, "v_head_dim") * attn.num_kv_heads
    return k + v


def _row(fmt: BlockFormat, width: int, name: str) -> int:
    if width % fmt.block_size:
        raise UsageError(
            f"a KV cache in {fmt.name} needs {name} (={width}) to be a multiple of "
            f"{fmt.block_size}",
            remedy="keep the cache in f16 or bf16",
        )
    return width // fmt.block_size * fmt.block_bytes


def layer_kv_nbytes(
    spec: ModelSpec, context: int, kv_type: str = "f16", batch: int = 1
) -> tuple[int, ...]:
    """Bytes of each layer's cache at `context` tokens, for `batch` sequences."""
    return tuple(
        0
        if layer.attention is None
        else batch * layer.attention.visible(context) * token_nbytes(layer.attention, kv_type)
        for layer in spec.layers
    )


def kv_nbytes(spec: ModelSpec, context: int, kv_type: str = "f16", batch: int = 1) -> Figure:
    """Bytes of the whole cache at `context` tokens, for `batch` sequences."""
    layers = layer_kv_nbytes(spec, context, kv_type, batch)
    fmt = format_of(kv_type)
    groups: dict[AttentionSpec, list[int]] = {}
    for layer in spec.layers:
        if layer.attention:
            groups.setdefault(layer.attention, []).append(layer.index)
    letters, numbers = [], []
    per = f"{fmt.block_bytes}" + (f"/{fmt.block_size}" if fmt.block_size > 1 else "")
    for attn, indices in groups.items():
        name = "L" if len(indices) == spec.num_layers else f"layers({layer_label(indices)})"
        width = "(r_kv + d_rope)" if attn.mla else "n_kv·(d_qk + d_v)"
        keys = "T" if attn.window is None else "min(T, window)"
        letters.append(f"{name}·{width}·{keys}·B·{per} B")
        heads = (
            f"({attn.mla.kv_lora_rank} + {attn.mla.qk_rope_head_dim})"
            if attn.mla
            else f"{attn.num_kv_heads}·({attn.head_dim} + {attn.v_head_dim})"
        )
        numbers.append(f"{len(indices)}·{heads}·{attn.visible(context)}·{batch}·{per}")
    return Figure(
        sum(layers),
        "B",
        "exact",
        " + ".join(letters) or "0",
        " + ".join(numbers) or "0",
        SOURCE,
    )
