"""gateup: everything about the gated feed-forward network of Llama-family models."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Public functions and where they live; imported on first use, so that `import gateup` is cheap.
_LAZY = {
    "check": ("gateup.deep.check", "check"),
    "load": ("gateup.engine.generate", "load"),
    "load_gguf": ("gateup.hf.load", "load_gguf"),
    "open": ("gateup.files.checkpoint", "open_model"),
    "patch": ("gateup.hf.patch", "patch"),
    "patched": ("gateup.hf.patch", "patched"),
    "plan": ("gateup.account.report.answer", "plan"),
    "unpatch": ("gateup.hf.patch", "unpatch"),
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        module, attribute = _LAZY[name]
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module 'gateup' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
