"""What a piece of torch code keeps for backward, and what it holds alive at its peak.

Both count storages, what an allocator is asked for, without its rounding:

    with SavedBytes(skip=model.parameters()) as saved, LiveBytes() as live:
        loss = model(x)
        kept = saved.nbytes
        loss.backward()
    print(kept, live.peak)
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class SavedBytes:
    """Bytes that autograd packs while it is entered, once or several times; each storage once.

    skip    tensors whose storages are left out: parameters, which are there anyhow
    nbytes  the sum so far
    """

    def __init__(self, skip: Iterable[Tensor] = ()) -> None:
        self._skip = {t.untyped_storage().data_ptr() for t in skip}
        self._seen: dict[int, torch.UntypedStorage] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda t: t)

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._skip:
            self._seen[storage.data_ptr()] = storage  # held, so that no address comes twice
        return tensor

    def __enter__(self) -> SavedBytes:
        self._hooks.__enter__()
        return self

    def __exit__(self, *args: object) -> None:
        self._hooks.__exit__(*args)

    @property
    def nbytes(self) -> int:
        return sum(s.nbytes() for s in self._seen.values())

    def forget(self) -> None:
        """Let go of the storages; `nbytes` is 0 again."""
        self._seen.clear()


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`peak`: the most bytes alive at once of storages that operations made while entered.

    Sees what torch's dispatcher sees: not the scratch of a kernel that bypasses it. `ignore`:
    sizes in bytes that are not counted, such as those of weight gradients.
    """

    def __init__(self, ignore: Container[int] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._ignore = ignore
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage()._cdata for t in _tensors((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            storage = tensor.untyped_storage()
            key = storage._cdata
            fresh = key not in given and key not in self._known
            if fresh and storage.nbytes() not in self._ignore:
                self._known.add(key)
                self.live += storage.nbytes()
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._freed, key, storage.nbytes())
        return out

    def _freed(self, key: int, nbytes: int) -> None:
        self._known.discard(key)
        self.live -= nbytes


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
