"""The oracle for tensor names and shapes: transformers' own classes, built without weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

Shapes = dict[str, tuple[int, ...]]


def _class_tensors(config: Mapping[str, Any]) -> Shapes:
    import torch
    import transformers

    cls = getattr(transformers, config["architectures"][0])
    with torch.device("meta"):
        model = cls(cls.config_class.from_dict(dict(config)))
    # named_parameters gives a tied head once, under the embedding's name.
    out = {name: tuple(p.shape) for name, p in model.named_parameters()}
    saved = model.state_dict().keys()
    out.update({name: tuple(b.shape) for name, b in model.named_buffers() if name in saved})
    return out


@pytest.fixture(scope="session")
def class_tensors() -> Callable[[Mapping[str, Any]], Shapes]:
    """config.json content -> {name: shape} of the parameters and persistent buffers of its class.

    The names are those of the module tree; where a release of transformers renames on saving,
    the test that compares says so.
    """
    return _class_tensors
