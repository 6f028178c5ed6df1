"""A memory that counts the numbers that pass, and refuses pieces that are too large."""

import numpy as np


class Memory:
    def __init__(self, values, size, block):
        self._values = values
        self._out = np.full(size, np.nan, dtype=np.float32)
        self._block = block
        self.loaded = self.stored = 0

    def load(self, start, count):
        return self._piece(self._values, start, count)

    def load_out(self, start, count):
        return self._piece(self._out, start, count)

    def store(self, start, values):
        values = np.asarray(values, dtype=np.float32).ravel()
        self._check(self._out, start, values.size)
        self.stored += values.size
        self._out[start : start + values.size] = values

    def _piece(self, array, start, count):
        self._check(array, start, count)
        self.loaded += count
        return array[start : start + count].copy()

    def _check(self, array, start, count):
        if count > self._block:
            raise ValueError(f"{count} numbers at once: more than block = {self._block}")
        if start < 0 or start + count > array.size:
            raise IndexError(f"{start}:{start + count} is outside an array of {array.size}")


def call(solution, function, gate_up, tokens, width, block):
    """(out [T, I], numbers loaded, numbers stored)."""
    memory = Memory(gate_up.ravel(), tokens * width, block)
    getattr(solution, function)(memory, tokens, width, block)
    return memory._out.reshape(tokens, width), memory.loaded, memory.stored
