"""Ask llama.cpp itself which type it gives every tensor, and keep the answers for the tests.

    python -m venv /path/to/venv && /path/to/venv/bin/pip install llama-cpp-python==0.3.36
    PYTHONPATH=src /path/to/venv/bin/python benchmarks/golden_type_mix.py tests/facts/type_mix.json

For every model a GGUF is written whose header is real and whose data is a hole in a sparse file,
so that models of any size cost no disk; llama_model_quantize then runs with dry_run for every file
type, and its log is read. Of gateup only names and shapes are used, none of its type rules. Small
random models are also quantised for real, and the types read back from the files written.

Output: {"build", "rows": [...], "models": {name: {"kinds", "files": {type: [row of each kind]},
"imatrix": [types that need one]}}, "written": [...]}; models that are no presets carry their
"config". A row lists the types of one kind of tensor in layer order, run-length coded:
"q6_k*2 q4_k q6_k".
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from gateup.model import presets
from gateup.model.families import GGUFTensor, build_spec, family_of, gguf_tensors
from gateup.model.presets import PRESETS
from gateup.model.spec import ModelSpec, MoESpec

# llama.cpp's own numbers (llama.h, enum llama_ftype).
FTYPES = {
    "F32": 0, "F16": 1, "BF16": 32, "Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q8_0": 7,
    "Q2_K": 10, "Q2_K_S": 21, "Q3_K_S": 11, "Q3_K_M": 12, "Q3_K_L": 13, "Q4_K_S": 14,
    "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ1_S": 24, "IQ1_M": 31,
    "IQ2_XXS": 19, "IQ2_XS": 20, "IQ2_S": 28, "IQ2_M": 29, "IQ3_XXS": 23, "IQ3_XS": 22,
    "IQ3_S": 26, "IQ3_M": 27, "IQ4_NL": 25, "IQ4_XS": 30, "TQ1_0": 36, "TQ2_0": 37,
    "MXFP4_MOE": 38,
}  # fmt: skip

# Beside the presets: layer counts and widths that particular rules look at.
_LLAMA = {
    "architecture": "LlamaForCausalLM",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 17,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "tie_word_embeddings": False,
}
EXTRA: dict[str, dict[str, Any]] = {
    "65b-like, 80 layers without GQA": {
        **_LLAMA, "num_hidden_layers": 80, "num_key_value_heads": 4,
    },
    "odd row, no block fits": {**_LLAMA, "hidden_size": 200, "intermediate_size": 424},
    "tied, H a multiple of 32 only": {**_LLAMA, "hidden_size": 288, "tie_word_embeddings": True},
    "seven layers": {**_LLAMA, "num_hidden_layers": 7},
    "DeciLM with blocks left out": {
        **_LLAMA, "architecture": "DeciLMForCausalLM", "num_hidden_layers": 24, "head_dim": 64,
        "block_configs": [
            {
                "attention": {"no_op": i % 7 == 3, "n_heads_in_group": 2},
                "ffn": {"no_op": i % 5 == 4, "ffn_mult": 2.0 if i % 2 else 4.0},
            }
            for i in range(24)
        ],
    },
}  # fmt: skip

# (name, config, file types) quantised for real, with random weights.
WRITTEN: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("small", _LLAMA, ("Q4_K_M", "Q2_K", "Q5_K_S", "IQ4_XS", "Q8_0", "F16", "BF16")),
    ("small, tied, fallback", EXTRA["tied, H a multiple of 32 only"], ("Q4_K_M", "Q3_K_L", "Q6_K")),
    ("small, odd", EXTRA["odd row, no block fits"], ("Q4_K_M", "Q4_0")),
]

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9


def specs() -> dict[str, tuple[ModelSpec, dict[str, Any] | None]]:
    """Name -> spec, and the config where the name is not a preset's."""
    out: dict[str, tuple[ModelSpec, dict[str, Any] | None]] = {}
    for name in PRESETS:
        spec = presets.spec(name)
        if family_of(spec).gguf_arch is not None:
            out[name] = spec, None
    for name, values in EXTRA.items():
        config = {k: v for k, v in values.items() if k != "architecture"}
        config["architectures"] = [values["architecture"]]
        out[name] = build_spec(config, where=name, name=name), config
    return out


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    """GGUF type tag and value."""
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", U32, value)
    if isinstance(value, float):
        return struct.pack("<If", F32, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    return struct.pack("<IIQ", ARRAY, U32, len(value)) + struct.pack(f"<{len(value)}I", *value)


def metadata(spec: ModelSpec) -> dict[str, Any]:
    """More keys than any one architecture reads; llama.cpp ignores what it does not ask for."""
    attn = [x.attention for x in spec.layers]
    heads = [a.num_heads if a else 0 for a in attn]
    kv = [(1 if a.mla else a.num_kv_heads) if a else 0 for a in attn]
    widths = []
    for x in spec.layers:
        mlp = x.mlp.expert if isinstance(x.mlp, MoESpec) else x.mlp
        widths.append(mlp.intermediate_size if mlp else 0)
    first = next(a for a in attn if a)
    keys: dict[str, Any] = {
        "context_length": 131072,
        "embedding_length": spec.hidden_size,
        "block_count": spec.num_layers,
        "feed_forward_length": widths[0] if len(set(widths)) == 1 else widths,
        "attention.head_count": heads[0] if len(set(heads)) == 1 else heads,
        "attention.head_count_kv": kv[0] if len(set(kv)) == 1 else kv,
        "attention.key_length": first.head_dim,
        "attention.value_length": first.v_head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.layer_norm_epsilon": 1e-6,
        "rope.dimension_count": first.head_dim,
        "logit_scale": 1.0,
        "vocab_size": spec.vocab_size,
    }
    window = next((a.window for a in attn if a and a.window), None)
    if window or spec.family == "gpt_oss":  # openai-moe will not load without the key
        keys["attention.sliding_window"] = window or 128
    if first.mla:
        keys["attention.kv_lora_rank"] = first.mla.kv_lora_rank
        keys["attention.key_length"] = first.mla.kv_lora_rank + first.mla.qk_rope_head_dim
        keys["attention.value_length"] = first.mla.kv_lora_rank
        keys["attention.key_length_mla"] = first.head_dim
        keys["attention.value_length_mla"] = first.v_head_dim
        keys["rope.dimension_count"] = first.mla.qk_rope_head_dim
        if first.mla.q_lora_rank:
            keys["attention.q_lora_rank"] = first.mla.q_lora_rank
    keys.update(_moe_keys(spec))
    arch = family_of(spec).gguf_arch
    assert arch is not None
    out: dict[str, Any] = {"general.architecture": arch, "tokenizer.ggml.model": "none"}
    out.update({f"{arch}.{k}": v for k, v in keys.items()})
    return out


def _moe_keys(spec: ModelSpec) -> dict[str, Any]:
    moes = [x.mlp for x in spec.layers if isinstance(x.mlp, MoESpec)]
    if not moes:
        return {}
    moe = moes[0]
    dense = next(i for i, x in enumerate(spec.layers) if isinstance(x.mlp, MoESpec))
    shared = moe.shared.intermediate_size if moe.shared else 0
    keys = {
        "expert_count": moe.num_experts,
        "expert_used_count": moe.top_k,
        "expert_feed_forward_length": moe.expert.intermediate_size,
        "expert_shared_count": shared // moe.expert.intermediate_size,
        "leading_dense_block_count": dense,
        "expert_weights_scale": 1.0,
        "interleave_moe_layer_step": 1,
    }
    if shared:
        keys["expert_shared_feed_forward_length"] = shared
    return keys


def is_matrix(t: GGUFTensor) -> bool:
    """What llama.cpp's converter writes in F16; everything else is F32."""
    axes = max((i + 1 for i, d in enumerate(t.ne) if d > 1), default=1)
    name = t.name
    return (
        axes > 1
        and name.endswith(".weight")
        and not name.endswith("_norm.weight")
        and not any(k in name for k in ("ffn_gate_inp", "position_embd", "token_types"))
    )


def write_gguf(path: Path, spec: ModelSpec, *, fill: bool = False) -> None:
    """The unquantised GGUF: matrices F16 and the rest F32; data a hole, or random if `fill`."""
    tensors = gguf_tensors(spec)
    meta = metadata(spec)
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(meta))]
    head += [_string(k) + _value(v) for k, v in meta.items()]
    offset, places = 0, []
    for t in tensors:
        size = prod(t.ne) * (2 if is_matrix(t) else 4)
        head.append(_string(t.name) + struct.pack("<I", len(t.ne)))
        head.append(struct.pack(f"<{len(t.ne)}Q", *t.ne))
        head.append(struct.pack("<IQ", 1 if is_matrix(t) else 0, offset))
        places.append((offset, t))
        offset += -(-size // 32) * 32
    raw = b"".join(head)
    start = -(-len(raw) // 32) * 32
    rng = np.random.default_rng(0)
    with path.open("wb") as f:
        f.write(raw)
        f.truncate(start + offset)
        if fill:
            for place, t in places:
                f.seek(start + place)
                data = rng.standard_normal(prod(t.ne), dtype=np.float32)
                f.write(data.astype(np.float16 if is_matrix(t) else np.float32).tobytes())


_LOG: list[str] = []


@llama_cpp.llama_log_callback
def _collect(level: int, text: bytes, user: Any) -> None:
    del level, user
    _LOG.append(text.decode(errors="replace"))


_LINE = re.compile(r"\[ *\d+/ *\d+\] (\S+) +- \[.*?\], type = *(\w+), size = (.*)")
_TO = re.compile(r"-> +[\d.]+ MiB \((\w+)\)")


def quantize(source: Path, target: Path, ftype: int, *, dry_run: bool) -> dict[str, str]:
    """Type of every tensor, from the log of llama_model_quantize."""
    _LOG.clear()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = ftype
    params.dry_run = dry_run
    params.nthread = 1
    done = llama_cpp.llama_model_quantize(
        str(source).encode(), str(target).encode(), ctypes.byref(params)
    )
    text = "".join(_LOG)
    if done != 0:
        raise SystemExit(f"quantising failed:\n{text[-3000:]}")
    types = {}
    for name, before, rest in _LINE.findall(text):
        after = _TO.search(rest)
        types[name] = (after[1] if after else before).lower()
    return types


_GGUF_TYPES = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 10: "q2_k",
    11: "q3_k", 12: "q4_k", 13: "q5_k", 14: "q6_k", 20: "iq4_nl", 23: "iq4_xs", 30: "bf16",
}  # fmt: skip


def read_back(path: Path, names: Sequence[str]) -> tuple[dict[str, str], int]:
    """(type of every tensor, bytes of the data section) of a GGUF, straight from its bytes."""
    raw = path.read_bytes()
    types, end = {}, 0
    for name in names:
        at = raw.index(_string(name)) + 8 + len(name)
        (axes,) = struct.unpack_from("<I", raw, at)
        type_, _ = struct.unpack_from("<IQ", raw, at + 4 + 8 * axes)
        types[name] = _GGUF_TYPES[type_]
        end = max(end, at + 4 + 8 * axes + 12)
    return types, len(raw) - -(-end // 32) * 32


def kind(name: str) -> str:
    return re.sub(r"^blk\.\d+\.", "blk.", name)


def run_lengths(types: list[str]) -> str:
    runs = ((t, len(list(group))) for t, group in groupby(types))
    return " ".join(t if n == 1 else f"{t}*{n}" for t, n in runs)


def rows_of(spec: ModelSpec, types: Mapping[str, str]) -> dict[str, str]:
    """kind -> run-length coded types in the order of the GGUF's layers."""
    out: dict[str, list[str]] = {}
    for t in gguf_tensors(spec):
        out.setdefault(kind(t.name), []).append(types[t.name])
    return {k: run_lengths(v) for k, v in out.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", help="only models whose name contains this")
    args = parser.parse_args()
    llama_cpp.llama_log_set(_collect, ctypes.c_void_p(0))
    index: dict[str, int] = {}
    models: dict[str, Any] = {}
    written = []
    with tempfile.TemporaryDirectory() as tmp:
        source, target = Path(tmp, "in.gguf"), Path(tmp, "out.gguf")
        for name, (spec, config) in specs().items():
            if args.only and args.only not in name:
                continue
            write_gguf(source, spec)
            files, kinds, imatrix = {}, [], []
            for label, number in FTYPES.items():
                rows = rows_of(spec, quantize(source, target, number, dry_run=True))
                kinds = list(rows)
                if "will require an imatrix" in "".join(_LOG):
                    imatrix.append(label.lower())
                files[label.lower()] = [index.setdefault(r, len(index)) for r in rows.values()]
            models[name] = {"kinds": kinds, "files": files, "imatrix": imatrix}
            if config:
                models[name]["config"] = config
            print(name, len(kinds), "kinds", file=sys.stderr)
        for name, config, labels in WRITTEN:
            config = {**config, "architectures": ["LlamaForCausalLM"]}
            spec = build_spec(config, where=name, name=name)
            write_gguf(source, spec, fill=True)
            for label in labels:
                quantize(source, target, FTYPES[label], dry_run=False)
                types, size = read_back(target, [t.name for t in gguf_tensors(spec)])
                written.append(
                    {
                        "name": name,
                        "config": config,
                        "file": label.lower(),
                        "types": rows_of(spec, types),
                        "data_nbytes": size,
                    }
                )
                target.unlink()
    build = f"llama.cpp in llama-cpp-python {llama_cpp.__version__}"
    golden = {"build": build, "rows": list(index), "models": models, "written": written}
    text = json.dumps(golden, separators=(",", ":"))
    args.out.write_text(re.sub(r'("[^"]+":\{"kinds")', r"\n\1", text) + "\n")


if __name__ == "__main__":
    main()
