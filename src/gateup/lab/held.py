"""The model whose neurons the lab looks at: one in memory at a time, given back when idle.

torch and the engine are imported when a model is first asked for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any, TypeVar

from gateup.account.machine import probe
from gateup.files.checkpoint import Checkpoint
from gateup.lab.errors import LabError
from gateup.model.spec import MoESpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateup.engine.neurons import NeuronDecoder
    from gateup.engine.tokenizer import Tokenizer

MAX_TOKENS = 64  # of a text: as many columns as a chart can show
IDLE = 600.0  # seconds after the last use until the memory is given back
RESULTS = 16  # traces, scores and the like that are kept beside the model
PACKAGES = ("torch", "tokenizers")

T = TypeVar("T")


def missing() -> tuple[str, ...]:
    """The packages a model needs to run and that are not installed."""
    return tuple(name for name in PACKAGES if find_spec(name) is None)


@dataclass(eq=False)
class Loaded:
    """A model in memory, and what was computed with it last."""

    checkpoint: Checkpoint
    decoder: NeuronDecoder
    tokenizer: Tokenizer
    results: OrderedDict[Any, Any] = field(default_factory=OrderedDict)

    def kept(self, key: Any, compute: Callable[[], T]) -> T:
        """compute(), or what it gave when `key` was last asked for."""
        if key not in self.results:
            self.results[key] = compute()
            while len(self.results) > RESULTS:
                self.results.popitem(last=False)
        self.results.move_to_end(key)
        found: T = self.results[key]
        return found


class Held:
    """Lends the model, to one thread at a time.

    worker  the thread that pages run it in: each thread that computes gets OpenMP threads of its
            own, which wait for work by taking the others' cores
    idle    seconds after the last use until it is given back
    timer   of that
    """

    def __init__(self, idle: float = IDLE) -> None:
        self.idle = idle
        self.loaded: Loaded | None = None
        self.worker = ThreadPoolExecutor(1, "gateup-neurons")
        self._lock = Lock()
        self.timer: Timer | None = None

    @contextmanager
    def use(self, checkpoint: Checkpoint) -> Iterator[Loaded]:
        """That model; another one that is held is given back before it is read.

        Raises GateupError where it cannot be run, does not fit or has layers of experts.
        """
        with self._lock:
            self._wait_no_more()
            try:
                if self.loaded is None or self.loaded.checkpoint is not checkpoint:
                    self.loaded = None
                    self.loaded = _load(checkpoint)
                yield self.loaded
            finally:
                self.timer = Timer(self.idle, self.release)
                self.timer.daemon = True
                self.timer.start()

    def release(self) -> None:
        """Give the memory back; waits for who uses it."""
        with self._lock:
            self.loaded = None

    def close(self) -> None:
        """Give it back now, and wait for nothing more."""
        self._wait_no_more()
        self.release()

    def _wait_no_more(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


def _load(checkpoint: Checkpoint) -> Loaded:
    _check(checkpoint)
    from gateup.engine.loading import load
    from gateup.engine.neurons import NeuronDecoder
    from gateup.engine.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(checkpoint)
    # Two int8 numbers an activation: logits of float32 activations to 0.03 %.
    decoded = load(checkpoint, MAX_TOKENS, terms=2)
    return Loaded(checkpoint, NeuronDecoder(decoded.config, decoded.weights), tokenizer)


def _check(checkpoint: Checkpoint) -> None:
    """Refuse what cannot be looked at before anything is read."""
    spec = checkpoint.spec
    for i, layer in enumerate(spec.layers):
        if isinstance(layer.mlp, MoESpec):
            raise LabError("neurons", "error.experts", name=spec.name, layer=i)
    weights = sum(h.nbytes for h in checkpoint.headers)
    free = probe().available
    if weights > free:
        raise LabError("neurons", "error.memory", name=spec.name, need=weights, free=free)


HELD = Held()
