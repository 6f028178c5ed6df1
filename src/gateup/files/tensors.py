"""The bytes of tensors, mapped: nothing is read before it is touched, and processes share it."""

from __future__ import annotations

import mmap
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from gateup.errors import InputError, TruncatedError
from gateup.files.header import TensorHeader, clip
from gateup.files.opening import open_regular

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class TensorFiles:
    """Maps the files that tensors lie in, each once, when the first of its tensors is asked for.

    The mapping is private: pages are the page cache's own, shared with every process that maps
    the file, and what someone wrote to them would stay in this process.
    """

    def __init__(self) -> None:
        self._maps: dict[Path, mmap.mmap] = {}

    def raw(self, tensor: TensorHeader) -> Bytes:
        """The tensor's bytes, [nbytes] uint8, read-only, over the mapping (no copy).

        Raises InputError where the file cannot be mapped, TruncatedError where it has become
        shorter since its header was read.
        """
        view = self._map(tensor.file)
        end = tensor.offset + tensor.nbytes
        if end > len(view):
            raise TruncatedError(
                f"{tensor.file.name} is truncated: the tensor ends at byte {end:,}, the file has "
                f"{len(view):,}",
                where=f"{tensor.file}, tensor {clip(tensor.name)}",
                remedy="fetch the file again",
                have=len(view),
                need=end,
                tensors=1,
                cut=(tensor.name,),
            )
        array: Bytes = np.frombuffer(view, np.uint8, tensor.nbytes, tensor.offset)
        array.flags.writeable = False
        return array

    def release(self, tensor: TensorHeader) -> None:
        """Give the tensor's pages back to the page cache: they count as this process's memory
        otherwise. They are read again when they are touched."""
        view = self._maps.get(tensor.file)
        if view is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        start = -(-tensor.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (tensor.offset + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
        if length > 0:
            view.madvise(mmap.MADV_DONTNEED, start, length)

    def _map(self, path: Path) -> mmap.mmap:
        view = self._maps.get(path)
        if view is None:
            handle, size = open_regular(path)
            with handle:
                view = self._maps[path] = _mapped(handle.fileno(), size, path)
        return view

    def close(self) -> None:
        """Forget the mappings; memory that arrays still show stays mapped until they are gone."""
        self._maps.clear()

    def __enter__(self) -> TensorFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _mapped(descriptor: int, size: int, path: Path) -> mmap.mmap:
    """Private and writable, which torch asks for; read-only where the system refuses that, as
    Linux does for a file larger than its memory (arrays are then copied on their way to torch)."""
    if not size:
        raise InputError(f"{path.name} is empty", where=str(path))
    try:
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    except OSError:
        try:
            return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
        except OSError as e:
            raise InputError(f"{path.name} cannot be mapped: {e}", where=str(path)) from None
