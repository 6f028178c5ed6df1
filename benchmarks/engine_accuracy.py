"""How far the engine's logits are from the float32 product of the same weights, beside llama.cpp's.

Teacher-forced over texts of this repository: relative error of the logits, positions whose
likeliest token changes, perplexity. The peer runs in an environment of its own.

    python benchmarks/engine_accuracy.py [MODEL] [--tokens 512] [--peers-python PATH]
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from gateup.engine import loading
from gateup.engine.decoder import CHUNK, Decoder, make_decoder
from gateup.engine.loading import load
from gateup.engine.model import TorchDecoder
from gateup.engine.tokenizer import load_tokenizer
from gateup.files.checkpoint import Checkpoint, open_model
from gateup.ops.packed import pack

ROOT = Path(__file__).parent.parent
TEXTS = ("LICENSE", "README.md", "docs/handbook.md")

# llama.cpp's repacked buffers are left out: its AMX path ends with a segmentation fault here.
PEER = """
import json, sys
import numpy, llama_cpp
path, ids_path, out = sys.argv[1:4]
ids = json.load(open(ids_path))
default = llama_cpp.llama_model_default_params
def plain():
    params = default()
    params.use_extra_bufts = False
    return params
llama_cpp.llama_cpp.llama_model_default_params = plain
model = llama_cpp.Llama(path, n_ctx=max(len(x) for x in ids), n_batch=512, n_ubatch=512,
                        logits_all=True, verbose=False)
rows = []
for x in ids:
    model.reset()
    model.eval(x)
    rows.append(numpy.array(model.scores[: len(x)], dtype=numpy.float32))
numpy.savez(out, *rows)
print(llama_cpp.__version__)
"""


def logits_of(decoder: Decoder, ids: torch.Tensor) -> torch.Tensor:
    cache = decoder.new_cache(ids.numel())
    parts = [ids[at : at + CHUNK] for at in range(0, ids.numel(), CHUNK)]
    return torch.cat([decoder.forward(p[None], cache, every=True)[0] for p in parts])


def exact_decoder(checkpoint: Checkpoint, context: int) -> TorchDecoder:
    """Weights dequantised to float32 where memory allows."""
    with patch.object(loading, "pack", lambda *args, **_: pack(*args, native=False)):
        parts = load(checkpoint, context)
    return TorchDecoder(parts.config, parts.weights)


def loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Negative log-likelihood of each next token, [T - 1]."""
    return torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="none")


def peer_logits(
    python: str, checkpoint: Checkpoint, texts: list[torch.Tensor]
) -> tuple[str, list[torch.Tensor]]:
    with tempfile.TemporaryDirectory() as folder:
        ids, out = Path(folder, "ids.json"), Path(folder, "logits.npz")
        ids.write_text(json.dumps([x.tolist() for x in texts]))
        command = [python, "-c", PEER, str(checkpoint.headers[0].file), str(ids), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = np.load(out)
        return done.stdout.strip(), [torch.from_numpy(found[k]) for k in found.files]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--peers-python")
    args = parser.parse_args()
    checkpoint = open_model(args.model)
    tokenizer = load_tokenizer(checkpoint)
    texts = [
        torch.tensor(tokenizer.encode(" ".join((ROOT / t).read_text("utf-8").split())))
        for t in TEXTS
    ]
    texts = [t[: args.tokens] for t in texts]
    exact = exact_decoder(checkpoint, args.tokens)
    truth = [logits_of(exact, t) for t in texts]
    rows: dict[str, list[torch.Tensor]] = {"float32": truth}
    for activations, terms in (("int16", 2), ("int8", 1)):
        parts = load(checkpoint, args.tokens, terms=terms)
        ours = make_decoder(parts.config, parts.weights)
        rows[f"gateup ({ours.name}, {activations})"] = [logits_of(ours, t) for t in texts]
    if args.peers_python:
        version, found = peer_logits(args.peers_python, checkpoint, texts)
        rows[f"llama.cpp (llama-cpp-python {version})"] = found
    print(
        f"{checkpoint.spec.name}, {checkpoint.label}, {platform.processor() or platform.machine()}"
    )
    print(f"{len(texts)} texts of {args.tokens} tokens; errors against float32")
    result: list[dict[str, Any]] = []
    for name, all_logits in rows.items():
        error = sum(float((a - b).norm() ** 2) for a, b in zip(all_logits, truth, strict=True))
        size = sum(float(b.norm() ** 2) for b in truth)
        pairs = zip(all_logits, truth, strict=True)
        changed = sum(int((a.argmax(-1) != b.argmax(-1)).sum()) for a, b in pairs)
        nll = torch.cat([loss(a, t) for a, t in zip(all_logits, texts, strict=True)])
        row = {
            "engine": name,
            "error": (error / size) ** 0.5,
            "changed": changed,
            "perplexity": float(nll.mean().exp()),
        }
        result.append(row)
        print(
            f"{name:44} error {row['error']:.4f}  changed {changed:4d}  "
            f"perplexity {row['perplexity']:.4f}"
        )
    print(json.dumps({"model": checkpoint.spec.name, "tokens": args.tokens, "rows": result}))


if __name__ == "__main__":
    main()
