"""A GGUF as a transformers model whose weights stay in the file's blocks.

The model is transformers' own class with its own code. Its linear layers and embeddings are
`gateup.nn.QuantLinear` and `QuantEmbedding`, its experts `QuantExperts`, and its gated MLPs run
through gateup's ops (`gateup.unpatch(model)` takes that back). Only norms, biases and routers
become floating point.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from gateup.errors import InputError, UsageError
from gateup.files.checkpoint import Checkpoint, open_model
from gateup.files.tensors import TensorFiles
from gateup.hf.gguf_config import check_families, config_of, end_tokens
from gateup.hf.gguf_parts import FAMILIES, Assembler
from gateup.hf.patch import patch
from gateup.hf.table import row_of
from gateup.ops import unpack
from gateup.ops.options import MLPOptions

# Differences between file and description that change nothing in what is computed.
_HARMLESS = frozenset({"recomputed", "note"})
# Repacking runs at about 1 GB/s; below this it is over before a bar is read.
SHOW_PROGRESS_FROM = 1 << 30
_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def load_gguf(
    path: str | Path,
    *,
    dtype: torch.dtype | str = torch.float32,
    native: bool | None = None,
) -> Any:
    """The model in `path`: a .gguf (any part of a split one), a folder with one, or "smollm2".

    dtype   what the model computes in, and what norms and biases become
    native  None: weights are repacked for the C++ kernels where they know the type, otherwise
            they stay where the file is mapped; False: all stay there, which takes no memory of
            its own and can move to other devices

    generate(), hooks, gradient checkpointing and PEFT's adapters work as on any model; gradients
    flow to activations and adapters. What would need the weights as numbers (merging an adapter,
    save_pretrained of the base) is refused. Raises InputError, ConfigError, HeaderError,
    UsageError, all before a weight is read.
    """
    wanted = _dtype(dtype)
    checkpoint = open_model(path)
    _check(checkpoint, str(path))
    with TensorFiles() as files:
        config = config_of(checkpoint, lambda name: _numbers(files, checkpoint, name))
        model = _skeleton(config, wanted, str(path))
        parts = Assembler(model, checkpoint, files, wanted, native)
        with _progress(checkpoint) as advance:
            parts.fill(advance)
    _finish(model, checkpoint)
    return model


def _dtype(dtype: torch.dtype | str) -> torch.dtype:
    found = _DTYPES.get(dtype.removeprefix("torch.")) if isinstance(dtype, str) else dtype
    if found is None or found not in _DTYPES.values():
        raise UsageError(f"dtype is {dtype}", expected="one of " + ", ".join(_DTYPES))
    return found


def _check(checkpoint: Checkpoint, where: str) -> None:
    if checkpoint.kind != "gguf":
        raise InputError(
            f"it is no GGUF but {checkpoint.label}",
            where=where,
            expected="a .gguf file",
            remedy="AutoModelForCausalLM.from_pretrained loads safetensors",
        )
    if checkpoint.adapter is not None:
        raise InputError(
            "it is an adapter",
            where=where,
            expected="a .gguf file",
            remedy="load the base, then PeftModel.from_pretrained(model, folder)",
        )
    check_families(checkpoint.spec.config["model_type"], FAMILIES, where)
    for mismatch in checkpoint.mismatches:
        if mismatch.kind not in _HARMLESS:
            raise InputError(
                f"the file is not the model it describes: {mismatch.sentence}", where=where
            )
    for header in checkpoint.headers:
        if not unpack.known(header.type):
            raise InputError(
                f"tensor {header.name} is of type {header.type}, which cannot be read",
                where=where,
                expected="f32, f16, bf16 or a block format that the gguf package dequantises",
            )


def _numbers(files: TensorFiles, checkpoint: Checkpoint, name: str) -> list[float]:
    """The values of a small tensor."""
    header = next((h for h in checkpoint.headers if h.name == name), None)
    if header is None:
        raise InputError(f"tensor {name} is missing", where=str(checkpoint.path))
    raw = torch.from_numpy(files.raw(header).copy())
    values: list[float] = unpack.unpack(header.type, raw[None]).flatten().tolist()
    return values


def _skeleton(config: Mapping[str, Any], dtype: torch.dtype, where: str) -> Any:
    """The model on the meta device: classes and shapes, no memory."""
    try:
        import transformers
        from huggingface_hub.errors import StrictDataclassError
    except ImportError:
        raise UsageError(
            "transformers is not installed", remedy="pip install 'gateup[torch]'"
        ) from None
    arguments = {k: v for k, v in config.items() if k not in ("architectures", "model_type")}
    try:
        made = transformers.AutoConfig.for_model(config["model_type"], **arguments)
    except (StrictDataclassError, ValueError, TypeError, KeyError) as e:
        said = " ".join(str(e).split())
        raise InputError(f"transformers refuses the model's config: {said}", where=where) from None
    made.architectures = list(config["architectures"])
    with torch.device("meta"):
        build: Any = transformers.AutoModelForCausalLM.from_config
        return build(made, dtype=dtype)


def _finish(model: Any, checkpoint: Checkpoint) -> None:
    ends = end_tokens(checkpoint)
    if ends:
        model.generation_config.eos_token_id = ends
    model.save_pretrained = NoSaving()
    model.eval()
    if any(row_of(module) is not None for module in model.modules()):
        patch(model, options=MLPOptions(rounding="wide"), quiet=True)


class NoSaving:
    """Stands for the base model's save_pretrained, which would write no linear layer at all."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise UsageError(
            "a model loaded in place from a GGUF cannot be saved as safetensors",
            expected="an adapter's save_pretrained",
            remedy="the GGUF itself is the model; copy it",
        )


@contextmanager
def _progress(checkpoint: Checkpoint) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, for files large enough that one waits; yields what advances it."""
    total = checkpoint.file_nbytes or 0
    if total < SHOW_PROGRESS_FROM or not sys.stderr.isatty():
        yield lambda nbytes: None
        return
    console = Console(stderr=True)
    with Progress(*Progress.get_default_columns(), console=console, transient=True) as bar:
        task = bar.add_task("weights", total=total)
        yield lambda nbytes: bar.advance(task, nbytes)
