"""Adds to a check's context what takes reading the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from gateup.checks.context import NEEDS, Context, Need
from gateup.checks.runner import STUMBLES, stumbled
from gateup.deep.scan import scan
from gateup.deep.trial import trial
from gateup.engine.bar import LoadingBar
from gateup.engine.spec_config import family_of
from gateup.engine.tokenizer import Tokenizer, load_tokenizer
from gateup.errors import GateupError
from gateup.files.checkpoint import Checkpoint
from gateup.files.header import TensorHeader
from gateup.files.tensors import TensorFiles

T = TypeVar("T")


def measure(context: Context) -> Context:
    """The context with `scan` and `trial`, as far as the model can be read and run.

    What cannot be is left out, with the reason in `unmeasured`.
    """
    checkpoint = replace(context.checkpoint, adapter=None)  # an adapter's folder: its base
    if not checkpoint.headers:
        why: dict[Need, str] = {"scan": NEEDS["headers"], "trial": NEEDS["headers"]}
        return replace(context, unmeasured=why)
    extra: Sequence[TensorHeader] = context.adapter.tensors if context.adapter else ()
    reasons: dict[Need, str] = {}
    faults: dict[Need, str] = {}

    def attempt(need: Need, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except GateupError as error:
            reasons[need] = error.what
        except STUMBLES as error:
            faults[need] = stumbled(error)
        return None

    name = checkpoint.spec.name
    with LoadingBar(f"reading {name}") as bar, TensorFiles() as files:
        seen = attempt("scan", lambda: scan(checkpoint, files, bar, extra))
    with LoadingBar(f"running {name}") as bar, TensorFiles() as files:
        ran = attempt("trial", lambda: trial(checkpoint, _tokenizer(context), files, bar))
    return replace(context, scan=seen, trial=ran, unmeasured=reasons, unmeasurable=faults)


def _tokenizer(context: Context) -> Tokenizer:
    """The one that was named with --tokenizer, or the model's own; for a model that can be run."""
    family_of(context.spec)
    checkpoint: Checkpoint = context.checkpoint
    found = context.tokenizer
    beside = checkpoint.path if checkpoint.path is None else checkpoint.path.resolve()
    if found is not None and (found.path / "tokenizer.json").is_file():
        folders = () if beside is None else (beside, beside.parent)
        if found.path.resolve() not in folders:
            checkpoint = replace(checkpoint, kind="safetensors", path=found.path)
    return load_tokenizer(checkpoint)
