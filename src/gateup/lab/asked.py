"""What is typed for the Neurons page: numbers of tokens, layers and neurons.

Texts are kept as typed until a view of them is there. Then what the model or the text does not have
is said, and becomes what is shown.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gateup.lab.data_neurons import MAX_OFF, Ask, Neuron, View

LAST = "last"
NAMED_AT_MOST = 5  # of what is left out
# At most 9 digits: numbers that any part of the lab can hold.
_NUMBER = re.compile(r"[0-9]{1,9}")
_PAIR = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")

Message = tuple[str, Mapping[str, object]]  # a key of words/neurons.py and its values


@dataclass(frozen=True, slots=True)
class Off:
    """Neurons to switch off, in order, and what of the text was left out.

    unknown  pieces that are no layer:neuron
    over     neurons behind the first `most`
    """

    taken: tuple[Neuron, ...]
    unknown: tuple[str, ...]
    over: tuple[Neuron, ...]


def _plain(text: str) -> str:
    """With full-width digits, signs and spaces as half-width ones."""
    return unicodedata.normalize("NFKC", text).replace("、", ",").strip()


def number(text: str) -> int | None:
    """A whole number from 0; None for everything else."""
    plain = _plain(text)
    return int(plain) if _NUMBER.fullmatch(plain) else None


def read_off(text: str, most: int = MAX_OFF) -> Off:
    """ "3:120, 5:7": layer and neuron, separated by commas, semicolons or spaces."""
    pieces = re.split(r"[\s,;]+", re.sub(r"\s*:\s*", ":", _plain(text)))
    found: dict[Neuron, None] = {}
    unknown: dict[str, None] = {}
    for piece in pieces:
        if pair := _PAIR.fullmatch(piece):
            found[int(pair[1]), int(pair[2])] = None
        elif piece:
            unknown[piece] = None
    # As typed, those behind are over: by number, one typed first could be.
    every = tuple(found)
    return Off(tuple(sorted(every[:most])), tuple(unknown), every[most:])


def write_off(neurons: Iterable[Neuron]) -> str:
    """As read_off() reads it."""
    return ",".join(f"{layer}:{neuron}" for layer, neuron in neurons)


def ask(values: Mapping[str, Any]) -> Ask:
    """What the page's parameters ask for."""
    return Ask(
        values["text"],
        number(values["layer"]),
        number(values["position"]),
        number(values["neuron"]),
        read_off(values["off"]).taken,
        values["top"],
    )


def settled(values: Mapping[str, Any], view: View) -> tuple[dict[str, str], list[Message]]:
    """(the parameters as `view` of them shows them, what is to be said of those that differ)."""
    shown: dict[str, str] = {}
    said: list[Message] = []
    asked, last = view.asked, {"position": len(view.tokens), "layer": view.layers}
    for name, absent, number_shown in (
        ("position", LAST, asked.position),
        ("layer", LAST, asked.layer),
        ("neuron", "", asked.neuron),
    ):
        typed = _plain(values[name])
        if typed in ("", LAST):
            shown[name] = absent
        elif number(typed) == number_shown:
            shown[name] = str(number_shown)
        else:
            shown[name] = absent
            most = last.get(name, view.width) - 1
            said.append((f"none.{name}", {"asked": typed, "last": most, "layer": asked.layer}))
    off = read_off(values["off"])
    shown["off"] = write_off(asked.off)
    for key, pieces in (
        ("off.unknown", off.unknown),
        ("off.over", [write_off([n]) for n in off.over]),
        ("off.absent", [write_off([n]) for n in view.absent]),
    ):
        if pieces:
            more = " …" if len(pieces) > NAMED_AT_MOST else ""
            named = ", ".join(_cut(p) for p in pieces[:NAMED_AT_MOST]) + more
            said.append((key, {"off": named, "most": MAX_OFF}))
    return shown, said


def _cut(piece: str, most: int = 24) -> str:
    return piece if len(piece) <= most else piece[: most - 1] + "…"
