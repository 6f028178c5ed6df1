"""Models spoilt for a rule."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
Edit = Callable[[Tensors], None]


def edited(source: Path, target: Path, edit: Edit, **config: object) -> Path:
    """A copy of the model with other tensors, or other fields in its config."""
    shutil.copytree(source, target)
    file = target / "model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file({k: v.contiguous() for k, v in tensors.items()}, file, metadata={"format": "pt"})
    if config:
        path = target / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return target
