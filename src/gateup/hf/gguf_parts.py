"""The tensors of a GGUF put into a transformers model that has been built without memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gateup.errors import InputError
from gateup.files.checkpoint import Checkpoint
from gateup.files.header import TensorHeader, listed
from gateup.files.tensors import Bytes, TensorFiles
from gateup.model.spec import AttentionSpec, MoESpec
from gateup.nn.linear import QuantEmbedding, QuantLinear
from gateup.nn.quant_experts import QuantExperts
from gateup.ops.packed import PackedWeight, pack
from gateup.ops.unpack import unpack

# model_types that are served: their computation is the same in llama.cpp and transformers.
FAMILIES = (
    *("llama", "qwen2", "qwen3", "smollm3", "gemma", "gemma2", "gemma3_text", "phi3"),
    *("mixtral", "qwen2_moe", "qwen3_moe"),
)
# Where llama.cpp's converter reorders the rows of q and k: it rotates neighbouring dimensions,
# transformers those half a head apart.
PERMUTED = frozenset({"llama", "smollm3", "mixtral"})
# Where it adds one to every norm's weight, as these models apply it.
ONE_PLUS = frozenset({"gemma", "gemma2", "gemma3_text"})

_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
_EXPERT = re.compile(r"\.(\d{1,5})\.weight$")


class Assembler:
    """Which tensor goes where, and the going."""

    def __init__(
        self,
        model: Any,
        checkpoint: Checkpoint,
        files: TensorFiles,
        dtype: torch.dtype,
        native: bool | None,
    ) -> None:
        self.model, self.spec, self.files = model, checkpoint.spec, files
        self.dtype, self.native = dtype, native
        self.headers = {h.name: h for h in checkpoint.headers}
        self.kind: str = checkpoint.spec.config["model_type"]
        self.where = str(checkpoint.path)
        # module's path -> parameter's name -> tensor; layer -> projection -> tensors of experts
        self.parts: dict[str, dict[str, TensorHeader]] = {}
        self.experts: dict[int, dict[str, list[TensorHeader]]] = {}
        self._sort(checkpoint)
        self._check()

    def _sort(self, checkpoint: Checkpoint) -> None:
        rows = {row.name: row for row in self.spec.rows}
        for header in checkpoint.headers:
            row = rows.get(header.canonical or "")
            if row is None:
                continue
            if row.role.startswith("experts.") and row.layer is not None:
                found = self.experts.setdefault(row.layer, {})
                found.setdefault(row.role.removeprefix("experts."), []).append(header)
                continue
            # The only name that transformers 5 has changed since the files were written.
            name = row.name.replace(".block_sparse_moe.", ".mlp.")
            module, _, leaf = name.rpartition(".")
            self.parts.setdefault(module, {})[leaf] = header

    def _check(self) -> None:
        """InputError unless files and model have the same parameters of the same shapes."""
        params = {n: tuple(p.shape) for n, p in self.model.named_parameters()}
        if self.tied:
            params.pop("lm_head.weight", None)
        wanted = {n for n in params if ".mlp.experts." not in n}
        have = {f"{m}.{leaf}": h for m, leaves in self.parts.items() for leaf, h in leaves.items()}
        if set(have) != wanted:
            absent, extra = sorted(wanted - set(have)), sorted(set(have) - wanted)
            raise InputError(
                f"the file's tensors are not those of a {self.kind} model: missing "
                f"{listed(absent) or 'none'}; not known {listed(extra) or 'none'}",
                where=self.where,
            )
        for name, header in have.items():
            if _plain(header.shape) != _plain(params[name]):
                raise InputError(
                    f"tensor {header.name} has shape {list(header.shape)}",
                    where=self.where,
                    expected=f"{list(params[name])}",
                )

    @property
    def tied(self) -> bool:
        return bool(self.spec.tie_word_embeddings)

    def fill(self, advance: Callable[[int], None]) -> None:
        """Large tensors first: while one is repacked it is in memory twice."""
        size = {m: sum(h.nbytes for h in leaves.values()) for m, leaves in self.parts.items()}
        for path in sorted(self.parts, key=lambda m: -size[m]):
            self._place(path, self.parts[path])
            advance(size[path])
        for layer, found in self.experts.items():
            self._place_experts(layer, found)
            advance(sum(h.nbytes for headers in found.values() for h in headers))
        if self.tied:
            embedding = self.model.get_input_embeddings()
            self.model.lm_head = QuantLinear(embedding.packed, dtype=self.dtype)
        self._rotary()

    def _place(self, path: str, leaves: dict[str, TensorHeader]) -> None:
        module = self.model.get_submodule(path)
        if isinstance(module, nn.Linear):
            bias = self._values(leaves["bias"], path).to(self.dtype) if "bias" in leaves else None
            made: nn.Module = QuantLinear(
                self._packed(leaves["weight"], path, self.native), bias, dtype=self.dtype
            )
        elif isinstance(module, nn.Embedding):
            # Looked up row by row, it may as well stay in the file; as a head it is multiplied.
            native = self.native if self.tied else False
            made = QuantEmbedding(
                self._packed(leaves["weight"], path, native),
                module.padding_idx,
                scale=getattr(module, "scalar_embed_scale", 1.0),
                dtype=self.dtype,
            )
        else:
            for leaf, header in leaves.items():
                values = self._values(header, path).view(getattr(module, leaf).shape)
                setattr(module, leaf, nn.Parameter(values.to(self.dtype)))
            return
        self._put(path, made)

    def _put(self, path: str, module: nn.Module) -> None:
        parent, _, name = path.rpartition(".")
        setattr(self.model.get_submodule(parent), name, module)

    def _packed(self, header: TensorHeader, path: str, native: bool | None) -> PackedWeight:
        raw = self._rows(header)
        order = self._order(path, len(raw))
        w = pack(
            header.type,
            raw if order is None else raw[order],
            len(raw),
            header.shape[-1],
            native=native,
        )
        if w.native or order is not None:
            self.files.release(header)
        return w

    def _values(self, header: TensorHeader, path: str) -> Tensor:
        """A small tensor in float32, as the model means it."""
        values = unpack(header.type, torch.from_numpy(self._rows(header).copy()))
        if not bool(torch.isfinite(values).all()):
            raise InputError(
                f"tensor {header.name} holds values that are not finite",
                where=self.where,
                remedy="fetch the file again, or convert the model again",
            )
        if self.kind in ONE_PLUS and path.endswith("norm"):
            values = values - 1
        if header.name.endswith(".bias"):
            order = self._order(path, values.numel())
            values = values.flatten() if order is None else values.flatten()[order]
        return values

    def _rows(self, header: TensorHeader) -> Bytes:
        """[rows, bytes of a row]"""
        return self.files.raw(header).reshape(prod(header.shape[:-1]), -1)

    def _order(self, path: str, rows: int) -> np.ndarray[Any, Any] | None:
        """Which row of the file each row of q or k is; None where they lie in order."""
        attention = self._attention(path)
        if self.kind not in PERMUTED or attention is None:
            return None
        if path.endswith(".q_proj"):
            heads = attention.num_heads
        elif path.endswith(".k_proj"):
            heads = attention.num_kv_heads
        else:
            return None
        pairs = np.arange(rows).reshape(heads, rows // heads // 2, 2)
        return pairs.swapaxes(1, 2).reshape(-1)

    def _attention(self, path: str) -> AttentionSpec | None:
        _, _, rest = path.partition(".layers.")
        number = rest.partition(".")[0]
        return self.spec.layers[int(number)].attention if number else None

    def _place_experts(self, layer: int, found: dict[str, list[TensorHeader]]) -> None:
        moe = self.spec.layers[layer].mlp
        if not isinstance(moe, MoESpec):
            raise InputError(f"layer {layer} has experts in the file only", where=self.where)
        gate, up, down = (self._experts_of(found[p], moe.num_experts) for p in _PROJECTIONS)
        self._put(f"model.layers.{layer}.mlp.experts", QuantExperts(gate, up, down, moe.expert.act))

    def _experts_of(self, headers: Sequence[TensorHeader], count: int) -> list[PackedWeight]:
        """One matrix for each expert, from a stacked tensor or from one tensor for each."""
        if len(headers) == 1:
            header = headers[0]
            parts = [(header, part) for part in np.split(self._rows(header), count)]
        else:
            parts = [(h, self._rows(h)) for h in sorted(headers, key=_expert_number)]
        made = [pack(h.type, raw, len(raw), h.shape[-1], native=self.native) for h, raw in parts]
        if made[0].native:
            for header in headers:
                self.files.release(header)
        return made

    def _rotary(self) -> None:
        """Tables that no file holds are made again, with memory; Llama 3's factors applied."""
        for path, module in list(self.model.named_modules()):
            if any(buffer.is_meta for buffer in module.buffers(recurse=False)):
                made: Any = type(module)(config=self.model.config)
                self._put(path, made)
                header = self.headers.get("rope_freqs.weight")
                if header is not None:
                    made.inv_freq /= self._values(header, path).flatten()
                    made.original_inv_freq.copy_(made.inv_freq)


def _plain(shape: Sequence[int]) -> tuple[int, ...]:
    """Without axes of length 1, which writers of GGUF keep or drop as they like."""
    return tuple(n for n in shape if n != 1)


def _expert_number(header: TensorHeader) -> int:
    found = _EXPERT.search(header.name)
    return int(found[1]) if found else 0
