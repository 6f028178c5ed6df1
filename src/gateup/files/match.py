"""Headers against the description: which row each tensor is, what the rows take, what differs.

Counts of parameters come from the spec, bytes from the headers. Where the two disagree the
figures stay as they are and a sentence says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from gateup.files.header import TensorHeader, clip, listed, many, new_header
from gateup.files.mismatch import Kind, Mismatch, sentences
from gateup.model.families import GGUFTensor, gguf_tensors
from gateup.model.families.names import Dialect, NameIndex
from gateup.model.quant import hf_formats
from gateup.model.quant.formats import StoredTensor
from gateup.model.spec import ModelSpec, TensorSpec

# What quantisers write beside or instead of `<module>.weight`, by the name's last part
# [source: the writers named]. True: it holds the weight itself, packed.
COMPANIONS: Mapping[str, bool] = {
    "qweight": True,  # AutoAWQ, AutoGPTQ
    "qzeros": False,
    "scales": False,
    "g_idx": False,
    "weight_scale_inv": False,  # DeepSeek's FP8
    "activation_scale": False,
    "weight_packed": True,  # compressed-tensors
    "weight_scale": False,
    "weight_zero_point": False,
    "weight_shape": False,
    "weight_g_idx": False,
    "weight_global_scale": False,
    "input_scale": False,
    "input_zero_point": False,
    "input_global_scale": False,
    "output_scale": False,
    "k_scale": False,
    "v_scale": False,
    "weight_scale_2": False,  # NVIDIA ModelOpt
    "absmax": False,  # bitsandbytes: `<module>.weight.absmax`
    "quant_map": False,
    "nested_absmax": False,
    "nested_quant_map": False,
    "bitsandbytes__nf4": False,
    "bitsandbytes__fp4": False,
    "SCB": False,
    "weight_format": False,
}
# The same for weights that are parameters of the module itself (stacked experts).
ENDINGS: Mapping[str, bool] = {
    "_blocks": True,  # gpt-oss, MXFP4
    "_scales": False,
    "_scale_inv": False,
}
# Types that a quantised weight's bytes are declared as.
PACKED = frozenset({"i32", "u8", "i8", "f8_e4m3", "f8_e5m2", "f4"})

_LAYER = re.compile(r"(?:^|\.)(?:layers|blk|h)\.(\d{1,6})\.")
# Mixtral GGUFs of before April 2024 have a tensor for each expert.
_OLD_EXPERT = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down))\.(\d{1,5})\.weight")
_TOWERS = ("vision", "visual", "image", "mm_projector", "multi_modal_projector", "audio", "mmproj")
_RECOMPUTED = ("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".rotary_pos_emb.inv_freq")


class Matched(NamedTuple):
    """Headers with canonical names, what is stored, and the differences."""

    headers: tuple[TensorHeader, ...]
    stored: tuple[StoredTensor, ...]
    mismatches: tuple[Mismatch, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """The differences in sentences."""
        return sentences(self.mismatches)


@dataclass(slots=True)
class _Found:
    """What the files hold of one row."""

    row: TensorSpec
    main: dict[str, list[int]] = field(default_factory=dict)  # type -> [tensors, bytes]
    companions: int = 0  # bytes
    tails: set[str] = field(default_factory=set)
    wrong: list[TensorHeader] = field(default_factory=list)  # other shapes than the row's

    @property
    def copies(self) -> int:
        return sum(n for n, _ in self.main.values())


class _Strays:
    """Tensors outside the description, by what they are."""

    def __init__(self, spec: ModelSpec) -> None:
        self.layers = spec.num_layers
        self.tied = spec.tie_word_embeddings
        self.kinds: dict[Kind, list[TensorHeader]] = {}

    def add(self, tensor: TensorHeader) -> None:
        self.kinds.setdefault(self._kind(tensor.name), []).append(tensor)

    def _kind(self, name: str) -> Kind:
        layer = _LAYER.search(name)
        if any(t in name for t in _TOWERS):
            return "tower"
        if layer and int(layer[1]) >= self.layers:
            return "beyond"
        if self.tied and (name == "output.weight" or name.endswith("lm_head.weight")):
            return "head"
        if name.endswith(_RECOMPUTED):
            return "recomputed"
        return "unknown"

    def stored(self) -> Iterable[StoredTensor]:
        """One entry per kind and type: a vision tower is one line, not 500."""
        for kind, tensors in self.kinds.items():
            by_type: dict[str, list[int]] = {}
            for t in tensors:
                entry = by_type.setdefault(t.type, [0, 0])
                entry[0] += prod(t.shape)
                entry[1] += t.nbytes
            one = tensors[0]
            for type_, (elements, nbytes) in by_type.items():
                if len(tensors) == 1:
                    yield StoredTensor(one.name, one.shape, type_, nbytes, 0, None)
                else:
                    yield StoredTensor(
                        _STRAY_LABELS[kind].format(layers=self.layers),
                        (elements,),
                        type_,
                        nbytes,
                        0,
                        None,
                    )

    def mismatches(self) -> Iterable[Mismatch]:
        for kind, tensors in self.kinds.items():
            nbytes = sum(t.nbytes for t in tensors)
            names = listed([t.name for t in tensors], 3)
            reason = _STRAY_REASONS[kind].format(layers=self.layers)
            sentence = (
                f"{many(len(tensors), 'tensor')} ({nbytes:,} bytes) {reason}: {names}; "
                "the bytes are counted, parameters are not"
            )
            yield Mismatch(kind, sentence, tuple(tensors), names=tuple(t.name for t in tensors))


_STRAY_LABELS = {
    "tower": "vision or audio parts",
    "beyond": "layers beyond {layers} (multi-token prediction)",
    "head": "lm_head (tied)",
    "recomputed": "tables recomputed at load",
    "unknown": "tensors outside the description",
}
_STRAY_REASONS = {
    "tower": "of vision or audio parts, which are not described",
    "beyond": "of layers beyond the config's {layers} (multi-token prediction)",
    "head": "of an output head that the config ties to the embeddings",
    "recomputed": "of tables that are recomputed at load",
    "unknown": "that the description does not have",
}


def base_name(name: str) -> tuple[str, str, bool] | None:
    """(name of the weight it belongs to, which companion, packed weight?) of what a quantiser
    writes; None for any other name."""
    head, _, tail = name.rpartition(".")
    packed = COMPANIONS.get(tail)
    if packed is not None:
        head = head.removesuffix(".quant_state")
        return (head if head.endswith(".weight") else head + ".weight"), tail, packed
    for ending, packed in ENDINGS.items():
        if tail.endswith(ending):
            return name.removesuffix(ending), ending, packed
    return None


class _Place(NamedTuple):
    """Where tensors of one name, or of one name but for the expert's number, belong.

    entry  None: outside the description
    tail   the companion's ending, None for a plain tensor
    main   it holds the weight itself
    same   the file's name is the canonical one
    """

    entry: _Found | None
    tail: str | None
    main: bool
    same: bool


class _Matcher:
    """Finds the place of a name. All experts of a layer share one look-up: without that,
    matching the 91,000 tensors of DeepSeek-V3 takes twice as long."""

    def __init__(self, spec: ModelSpec, dialect: Dialect) -> None:
        self.index = NameIndex(spec, dialect)
        self.found: dict[str, _Found] = {}
        self.experts: dict[tuple[str, str], _Place] = {}

    def place(self, name: str) -> tuple[_Place, str | None]:
        """(place, canonical name)."""
        head, _, rest = name.partition(".experts.")
        number, _, tail = rest.partition(".")
        if not tail or not number.isdecimal() or len(number) > 6 or str(int(number)) != number:
            return self.look_up(name)
        known = self.experts.get((head, tail))
        if (
            known is None
            or known.entry is None
            or not known.same
            or int(number) >= known.entry.row.copies
        ):
            place, canonical = self.look_up(name)
            self.experts[head, tail] = place
            return place, canonical
        if known.tail is None:
            return known, name
        return known, known.entry.row.name.replace("{e}", number)

    def look_up(self, name: str) -> tuple[_Place, str | None]:
        belongs = base_name(name)
        weight = belongs[0] if belongs else name
        hit = self.index.find(weight)
        if hit is None and belongs:  # stacked experts are parameters without ".weight"
            weight = weight.removesuffix(".weight")
            hit = self.index.find(weight)
        if hit is None:
            return _Place(None, None, False, False), None
        row, expert = hit
        entry = self.found.get(row.name)
        if entry is None:
            entry = self.found[row.name] = _Found(row)
        canonical = row.name if expert is None else row.name.replace("{e}", str(expert))
        place = _Place(
            entry,
            belongs[1] if belongs else None,
            belongs is None or belongs[2],
            canonical == weight and expert is not None,
        )
        return place, (name if canonical == name else canonical)


def match_hf(spec: ModelSpec, tensors: Iterable[TensorHeader], dialect: Dialect = "hf") -> Matched:
    """Safetensors headers against the spec. `dialect` says whose names the files use."""
    matcher = _Matcher(spec, dialect)
    strays = _Strays(spec)
    headers = []
    for tensor in tensors:
        name, _, type_, shape, offset, nbytes, file = tensor
        place, canonical = matcher.place(name)
        entry = place.entry
        if entry is None:
            strays.add(tensor)
            headers.append(tensor)
            continue
        found_as = new_header((name, canonical, type_, shape, offset, nbytes, file))
        headers.append(found_as)
        if place.main:
            counts = entry.main.get(type_)
            if counts is None:
                counts = entry.main[type_] = [0, 0]
            counts[0] += 1
            counts[1] += nbytes
            if shape != entry.row.shape:
                entry.wrong.append(found_as)
        else:
            entry.companions += nbytes
        if place.tail is not None:
            entry.tails.add(place.tail)
    found = matcher.found
    quant = spec.config.get("quantization_config")
    stored = [
        s
        for row in spec.rows
        if row.name in found
        for s in _store(found[row.name], quant if isinstance(quant, dict) else {})
    ]
    mismatches = (*_row_mismatches(spec, found), *strays.mismatches())
    return Matched(tuple(headers), (*stored, *strays.stored()), mismatches)


def _store(found: _Found, quant: Mapping[str, Any]) -> list[StoredTensor]:
    """One StoredTensor per type; scales and tables count with the weight they belong to."""
    row = found.row
    out = []
    extra = found.companions
    left = row.params
    for i, (type_, (n, nbytes)) in enumerate(found.main.items()):
        packed = bool(found.tails) and (type_ in PACKED or i + 1 == len(found.main))
        if packed:
            nbytes, extra = nbytes + extra, 0
        params = min(left, row.params // row.copies * n)
        left -= params
        out.append(
            StoredTensor(
                row.name,
                row.shape,
                _scheme(type_, found.tails, quant) if packed else type_,
                nbytes,
                params,
                row,
            )
        )
    if extra:  # tables without their weight
        out.append(StoredTensor(row.name, row.shape, "u8", extra, 0, row))
    return out


def _scheme(type_: str, tails: set[str], quant: Mapping[str, Any]) -> str:
    """The format's name in the terms of quant.mix; the declared type where it has none."""
    name = type_
    if "qweight" in tails and quant.get("bits", quant.get("w_bit", 4)) == 4:
        group = quant.get("group_size", quant.get("q_group_size"))
        name = f"{quant.get('quant_method')}:{group}"
    elif "bitsandbytes__nf4" in tails:
        name = "nf4:double" if "nested_absmax" in tails else "nf4"
    elif "SCB" in tails:
        name = "int8"
    elif "_blocks" in tails:
        return "mxfp4"
    elif type_ == "f8_e4m3" and "weight_scale_inv" in tails:
        block = quant.get("weight_block_size")
        name = f"fp8:{block[0]}" if isinstance(block, list) and block else "fp8"
    elif type_ == "f8_e4m3" and "weight_scale" in tails:
        name = "fp8"
    return name if hf_formats.is_known(name) else type_


def _row_mismatches(spec: ModelSpec, found: Mapping[str, _Found]) -> Iterable[Mismatch]:
    absent, partly, doubled = [], [], []
    wrong: list[tuple[tuple[int, ...], TensorHeader]] = []
    for row in spec.rows:
        entry = found.get(row.name)
        if entry is None or not entry.main:
            if not row.buffer:
                absent.append(row)
            continue
        if entry.copies < row.copies:
            partly.append((row, f"{row.name} ({entry.copies:,} of {row.copies:,})"))
        elif entry.copies > row.copies:
            doubled.append(row)
        if not entry.tails:
            wrong.extend((row.shape, t) for t in entry.wrong)
    if absent:
        params = sum(r.params for r in absent)
        names = [r.name for r in absent]
        sentence = (
            f"{many(len(absent), 'row')} of the description ({params:,} parameters) in no file: "
            f"{listed(names, 3)}"
        )
        yield Mismatch("absent", sentence, rows=tuple(absent), names=tuple(names))
    if partly:
        names = [said for _, said in partly]
        sentence = f"experts missing from {many(len(partly), 'row')}: {listed(names, 3)}"
        yield Mismatch("partly", sentence, rows=tuple(r for r, _ in partly), names=tuple(names))
    if doubled:
        names = [r.name for r in doubled]
        sentence = f"{many(len(doubled), 'row')} stored more than once: {listed(names, 3)}"
        yield Mismatch("doubled", sentence, rows=tuple(doubled), names=tuple(names))
    yield from _shape_mismatch(wrong)


def _shape_mismatch(wrong: Sequence[tuple[tuple[int, ...], TensorHeader]]) -> Iterable[Mismatch]:
    """One for all tensors whose shape is not the described one."""
    if not wrong:
        return
    shape, first = wrong[0]
    stored = sum(prod(t.shape) for _, t in wrong)
    said = sum(prod(s) for s, _ in wrong)
    sentence = (
        f"{many(len(wrong), 'tensor')} of another shape than described ({stored:,} elements in the "
        f"files, {said:,} by the config, which the figures follow): {clip(first.name)} is "
        f"{list(first.shape)}, described as {list(shape)}"
    )
    tensors = tuple(t for _, t in wrong)
    yield Mismatch("shape", sentence, tensors, tuple(s for s, _ in wrong))


def match_gguf(spec: ModelSpec, tensors: Iterable[TensorHeader]) -> Matched:
    """GGUF headers against the tensors that llama.cpp's converter makes of the model.

    `canonical` is the name of the (first) row a tensor holds, with "{e}" where it stacks experts.
    """
    expected = {t.name: t for t in gguf_tensors(spec)}
    strays = _Strays(spec)
    headers: list[TensorHeader] = []
    stored: list[StoredTensor] = []
    wrong: list[tuple[tuple[int, ...], TensorHeader]] = []
    singles: dict[tuple[str, str], list[TensorHeader]] = {}
    seen: set[str] = set()
    for tensor in tensors:
        name = tensor.name
        old = _OLD_EXPERT.fullmatch(name) if name not in expected else None
        whole = f"{old[1]}_exps.weight" if old else name
        described = expected.get(whole)
        if described is None:
            strays.add(tensor)
            headers.append(tensor)
            continue
        seen.add(whole)
        row = described.rows[0] if described.rows else None
        headers.append(tensor._replace(canonical=row.name if row else None))
        if old:
            singles.setdefault((whole, tensor.type), []).append(tensor)
            continue
        shape = described.ne[::-1]
        if _squeezed(tensor.shape) != _squeezed(shape):
            wrong.append((shape, headers[-1]))
        stored.append(
            StoredTensor(name, tensor.shape, tensor.type, tensor.nbytes, described.params, row)
        )
    stored.extend(_stored_singles(singles, expected))
    mismatches = (
        *_absent_from_gguf([t for n, t in expected.items() if n not in seen and t.params]),
        *_shape_mismatch(wrong),
        *strays.mismatches(),
    )
    return Matched(tuple(headers), (*stored, *strays.stored()), mismatches)


def _absent_from_gguf(absent: Sequence[GGUFTensor]) -> Iterable[Mismatch]:
    if not absent:
        return
    names = [t.name for t in absent]
    sentence = (
        f"{many(len(absent), 'tensor')} of the description ({sum(t.params for t in absent):,} "
        f"parameters) not in the file: {listed(names, 3)}"
    )
    rows = tuple(t.rows[0] for t in absent if t.rows)
    yield Mismatch("absent", sentence, rows=rows, names=tuple(names))


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without axes of length 1 in front, which writers of GGUF keep or drop as they like."""
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape


def _stored_singles(
    singles: Mapping[tuple[str, str], list[TensorHeader]], expected: Mapping[str, GGUFTensor]
) -> Iterable[StoredTensor]:
    """Experts one by one, gathered per type."""
    for (whole, type_), tensors in singles.items():
        described = expected[whole]
        row = described.rows[0]
        experts = max(row.experts, 1)
        yield StoredTensor(
            whole.replace("_exps.weight", ".{e}.weight"),
            tensors[0].shape,
            type_,
            sum(t.nbytes for t in tensors),
            min(described.params, described.params // experts * len(tensors)),
            row,
        )
