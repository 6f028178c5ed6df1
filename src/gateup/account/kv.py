"""The KV cache: bytes by model, context, format and batch.

Per token and layer: n_kv·(d_qk + d_v) elements, or the latent and the shared rope key in MLA
(r_kv + d_rope). Layers with a window hold min(T, window) tokens. That is what must be held;
llama.cpp allocates more (`llamacpp_kv_nbytes`).
"""

from __future__ import annotations

from gateup.account.figure import Figure
from gateup.account.ledger import layer_label
from gateup.errors import UsageError
from gateup.model.quant.formats import BlockFormat, format_of
from gateup.model.spec import AttentionSpec, ModelSpec

SOURCE = "shapes of config.json; transformers' caches hold the same; block sizes of ggml-common.h"

# llama.cpp in llama-cpp-python 0.3.36, read, and measured on small Gemma 2, 3 and Mistral files: a
# sequence's cells are rounded up to 256, those of a windowed layer are the window's and one
# physical batch's. Only these families have a windowed cache there: for Mistral, Phi-3, Qwen and
# Mixtral it keeps every token, whatever the config says.
LLAMACPP_PAD = 256
LLAMACPP_WINDOWED = frozenset(
    {"gemma2", "gemma3", "gemma3_text", "gpt_oss", "llama4", "llama4_text"}
)
LLAMACPP_SOURCE = "llama.cpp in llama-cpp-python 0.3.36, llama-kv-cache.cpp and -iswa.cpp"


def token_nbytes(attn: AttentionSpec, kv_type: str = "f16") -> int:
    """Bytes one token adds to one layer's cache.

    Raises UsageError where the format's blocks do not divide a head (llama.cpp refuses it too).
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
    texts = []
    for attn, indices in _groups(spec).items():
        keys = "T" if attn.window is None else f"min(T, {attn.window})"
        texts.append(_text(spec, attn, indices, (keys, attn.visible(context)), (kv_type, batch)))
    return _figure(sum(layers), texts, SOURCE)


def llamacpp_kv_nbytes(
    spec: ModelSpec,
    context: int,
    kv_type: str = "f16",
    batch: int = 1,
    *,
    ubatch: int = 512,
    swa_full: bool = False,
) -> Figure:
    """Bytes llama.cpp allocates for `batch` sequences of `context` tokens each (-np, not -kvu).

    ubatch    n_ubatch, which a windowed layer's cache holds beside the window
    swa_full  --swa-full: windowed layers hold the whole context
    """
    cells = _pad(context)
    total, texts = 0, []
    for attn, indices in _groups(spec).items():
        held, keys = cells, "pad256(T)"
        if attn.window is not None and spec.family in LLAMACPP_WINDOWED and not swa_full:
            held = _pad(min(cells, attn.window + ubatch))
            keys = f"pad256(min(T, {attn.window} + ubatch))"
        total += batch * held * token_nbytes(attn, kv_type) * len(indices)
        texts.append(_text(spec, attn, indices, (keys, held), (kv_type, batch)))
    return _figure(total, texts, LLAMACPP_SOURCE)


def _pad(n: int) -> int:
    return -(-n // LLAMACPP_PAD) * LLAMACPP_PAD


def _groups(spec: ModelSpec) -> dict[AttentionSpec, list[int]]:
    """Layers by their attention; layers without one hold nothing."""
    groups: dict[AttentionSpec, list[int]] = {}
    for layer in spec.layers:
        if layer.attention:
            groups.setdefault(layer.attention, []).append(layer.index)
    return groups


def _text(
    spec: ModelSpec,
    attn: AttentionSpec,
    indices: list[int],
    keys: tuple[str, int],
    kind: tuple[str, int],
) -> tuple[str, str]:
    """One group of layers in letters and in numbers: layers·width·keys·batch·bytes.

    keys  (letters, tokens held);  kind  (kv_type, batch)
    """
    fmt = format_of(kind[0])
    per = f"{fmt.block_bytes}" + (f"/{fmt.block_size}" if fmt.block_size > 1 else "")
    count = f"{len(indices)} layers ({layer_label(indices)})"
    if len(indices) == spec.num_layers:
        count = "L"
    if attn.mla:
        width, values = (
            "(r_kv + d_rope)",
            f"({attn.mla.kv_lora_rank} + {attn.mla.qk_rope_head_dim})",
        )
    elif attn.head_dim == attn.v_head_dim:
        width, values = "2·n_kv·d", f"2·{attn.num_kv_heads}·{attn.head_dim}"
    else:
        width = "n_kv·(d_qk + d_v)"
        values = f"{attn.num_kv_heads}·({attn.head_dim} + {attn.v_head_dim})"
    return (
        f"{count}·{width}·{keys[0]}·B·bytes({fmt.name})",
        f"{len(indices)}·{values}·{keys[1]}·{kind[1]}·{per}",
    )


def _figure(value: int, texts: list[tuple[str, str]], source: str) -> Figure:
    letters = " + ".join(x for x, _ in texts) or "0"
    numbers = " + ".join(x for _, x in texts) or "0"
    return Figure(value, "B", "exact", letters, numbers, source)
