"""Write a GGUF of a model's shapes with random weights: what speed depends on, without its meaning.

    python benchmarks/random_gguf.py llama-3.2-1b q4_k_m OUT.gguf

The types of the tensors are those that llama.cpp's quantiser gives them. There is no tokenizer.
Needs gguf and libgguf; 0.8 GB in two seconds for llama-3.2-1b.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def write_random(path: Path, preset: str, fmt: str) -> None:
    """A GGUF of the preset's shapes in the types of `fmt`, weights normal of deviation k^-1/2.

    A megabyte of numbers is quantised once per type and width, then repeated.
    """
    import gguf
    import libgguf
    import numpy as np

    from gateup.files.checkpoint import open_model
    from gateup.model.quant.mix import stored

    spec = open_model(preset).spec
    config = spec.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    rng = np.random.default_rng(0)
    made: dict[tuple[str, int], Any] = {}
    for tensor in stored(spec, fmt):
        width = tensor.shape[-1]
        if tensor.type == "f32":
            writer.add_tensor(tensor.name, np.ones(tensor.shape, np.float32))
            continue
        kind = gguf.GGMLQuantizationType[tensor.type.upper()]
        rows = tensor.shape[0]
        if (tensor.type, width) not in made:
            sample = rng.normal(0, width**-0.5, (512, width)).astype(np.float32)
            made[tensor.type, width] = np.ascontiguousarray(libgguf.quantize_rows(sample, kind))
        block = made[tensor.type, width]
        data = np.tile(block, (-(-rows // len(block)), 1))[:rows]
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    preset, fmt, path = sys.argv[1:]
    write_random(Path(path), preset, fmt)
    print(f"{path}: {Path(path).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
