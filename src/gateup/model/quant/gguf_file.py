"""The size of a GGUF file before it is made: tensor data exactly, the header as far as known.

A GGUF is magic, version, counts; the metadata; one info per tensor; then the tensors' data, each
starting at a multiple of general.alignment. What the metadata costs depends on the vocabulary,
which config.json does not hold, so it is left out of the estimate and said so.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateup.model.quant.formats import StoredTensor
from gateup.model.quant.llamacpp import CURRENT, RuleSet
from gateup.model.quant.mix import file_type, stored
from gateup.model.spec import ModelSpec

ALIGNMENT = 32  # GGUF's default for general.alignment; llama-quantize writes nothing else

# magic u32, version u32, tensor count u64, metadata count u64
_FIXED = 4 + 4 + 8 + 8


def padded(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """`nbytes` rounded up to a multiple of `alignment`."""
    return -(-nbytes // alignment) * alignment


@dataclass(frozen=True, slots=True)
class FileEstimate:
    """data: padded tensor data, exact. infos: the fixed header and the tensor infos, exact.

    The metadata (hyperparameters and, by far the most of it, the tokenizer: 1.77 MB at SmolLM2's
    vocabulary of 49,152) comes on top and is not in `total`.
    """

    data: int
    infos: int

    @property
    def total(self) -> int:
        return self.data + self.infos


def tensors_of(spec: ModelSpec, fmt: str, rules: RuleSet = CURRENT) -> tuple[StoredTensor, ...]:
    """Tensors of the model's GGUF in file type `fmt`; "bf16" means the GGUF here."""
    return stored(spec, "gguf:" + file_type(fmt).name, rules=rules)


def tensor_data_nbytes(spec: ModelSpec, fmt: str, *, rules: RuleSet = CURRENT) -> int:
    """Bytes of the GGUF's data section: every tensor padded to 32 bytes.

    Raises UsageError for a file type that is not known.
    """
    return sum(padded(t.nbytes) for t in tensors_of(spec, fmt, rules))


def info_nbytes(tensor: StoredTensor) -> int:
    """One tensor info: name (u64 length, bytes), axis count u32, u64 per axis, type u32, offset
    u64."""
    return 8 + len(tensor.name.encode()) + 4 + 8 * len(tensor.shape) + 4 + 8


def file_estimate(spec: ModelSpec, fmt: str, *, rules: RuleSet = CURRENT) -> FileEstimate:
    """Size of the GGUF that llama-quantize makes, without the metadata."""
    tensors = tensors_of(spec, fmt, rules)
    data = sum(padded(t.nbytes) for t in tensors)
    return FileEstimate(data, _FIXED + sum(info_nbytes(t) for t in tensors))
