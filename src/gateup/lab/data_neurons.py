"""The Neurons page's numbers: which neurons fire, what one reads and writes, what changes without.

All numbers come from gateup.engine.neurons, which is imported when a model is held. Letters as
there: a gate's output, b up's, h = act(a)·b.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gateup.account.figure import Figure
from gateup.account.report import units
from gateup.files.checkpoint import Checkpoint
from gateup.lab.errors import LabError
from gateup.lab.held import HELD, MAX_TOKENS, Held, Loaded

if TYPE_CHECKING:
    import torch

    from gateup.engine.neurons import Trace

MAX_CHARACTERS = 200
MAX_OFF = 64  # neurons that are off at a time: as many as a URL can carry
WORDS = 8  # tokens of a list of promoted or suppressed ones
BARS = 10  # tokens before and after

Neuron = tuple[int, int]  # layer, number


@dataclass(frozen=True, slots=True)
class Ask:
    """What the page shows. None: the last layer, the last token, the layer's strongest neuron."""

    text: str
    layer: int | None = None
    position: int | None = None
    neuron: int | None = None
    off: tuple[Neuron, ...] = ()
    top: int = 8


@dataclass(frozen=True, slots=True)
class Firing:
    """One neuron at one token.

    adds    the length of what it adds to the residual stream: |h| times its column's
    pushes  the tokens whose logits this h raises most; none where h is 0
    """

    neuron: int
    a: float
    act: float
    b: float
    h: float
    adds: float
    pushes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scored:
    """A token's text, its score, and what the score is at the chosen token."""

    token: str
    score: float
    here: float = 0.0


@dataclass(frozen=True, slots=True)
class Written:
    """What a neuron writes (most and least promoted) and what its two rows read."""

    promoted: tuple[Scored, ...]
    suppressed: tuple[Scored, ...]
    gate: tuple[Scored, ...]
    gate_least: tuple[Scored, ...]
    up: tuple[Scored, ...]
    up_least: tuple[Scored, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """A next token's probability with every neuron, and without those that are off."""

    token: str
    before: float
    after: float


@dataclass(frozen=True)
class View:
    """Everything on the page for one Ask.

    asked    with every None and every number out of range replaced by what is shown
    absent   of the neurons to switch off, those that the model does not have
    peaks    [layers][tokens]: the largest |h| of a layer's neurons
    ranked   [layers][top]: the neurons of largest |h| at the chosen token, and that h
    firing   the chosen layer's at the chosen token
    besides  what else there is to say of the scores: "branch", "cap"
    """

    asked: Ask
    absent: tuple[Neuron, ...]
    layers: int
    width: int
    act: str
    tokens: tuple[str, ...]
    peaks: list[list[float]]
    ranked: list[list[tuple[int, float]]]
    firing: tuple[Firing, ...]
    figures: dict[str, Figure]
    written: Written
    besides: tuple[str, ...]
    bars: tuple[Bar, ...]
    change: dict[str, Figure]


def look(checkpoint: Checkpoint, ask: Ask, held: Held = HELD) -> View:
    """Run the text and gather what the page shows; seconds where the model is not in memory.

    Raises GateupError: LabError for a text that is empty, too long or has control characters, and
    for a model that has experts or does not fit; others where its files cannot be run.
    """
    if not ask.text.strip():
        raise LabError("neurons", "error.empty")
    if len(ask.text) > MAX_CHARACTERS:
        raise LabError("neurons", "error.long", most=MAX_CHARACTERS)
    for c in ask.text:
        if unicodedata.category(c) in ("Cc", "Cs"):  # control characters, half surrogate pairs
            raise LabError("neurons", "error.control", code=f"U+{ord(c):04X}")
    with held.use(checkpoint) as loaded:
        import torch

        with torch.inference_mode():
            return _look(loaded, ask)


def _look(loaded: Loaded, ask: Ask) -> View:
    decoder, layers = loaded.decoder, loaded.decoder.config.layers
    ids = loaded.tokenizer.encode(ask.text)
    if len(ids) > MAX_TOKENS:
        raise LabError("neurons", "error.tokens", n=len(ids), most=MAX_TOKENS)
    off = tuple(o for o in ask.off if o[0] < len(layers) and o[1] < layers[o[0]].width)
    trace = loaded.kept(("trace", *ids), lambda: decoder.trace(ids))
    if not bool(trace.logits.isfinite().all()):
        raise LabError("neurons", "error.finite", name=loaded.checkpoint.spec.name)
    layer = len(layers) - 1 if ask.layer is None else min(ask.layer, len(layers) - 1)
    position = len(ids) - 1 if ask.position is None else min(ask.position, len(ids) - 1)
    ranked = [_ranked(h[position], ask.top) for h in trace.hidden]
    neuron = ask.neuron
    if neuron is None or neuron >= layers[layer].width:
        neuron = ranked[layer][0][0]
    shown = replace(ask, layer=layer, position=position, neuron=neuron, off=off)
    bars, change = _compared(loaded, ids, trace, shown)
    return View(
        asked=shown,
        absent=tuple(o for o in ask.off if o not in off),
        layers=len(layers),
        width=layers[layer].width,
        act=layers[layer].act,
        tokens=tuple(token_text(loaded, i) for i in ids),
        peaks=[h.abs().amax(-1).tolist() for h in trace.hidden],
        ranked=ranked,
        firing=_firing(loaded, trace, layer, position, [j for j, _ in ranked[layer]]),
        figures=_figures(loaded, trace, layer, position, neuron),
        written=_written(loaded, trace, layer, position, neuron),
        besides=tuple(
            name
            for name, there in (
                ("branch", trace.branch[layer] is not None),
                ("cap", decoder.config.logit_softcap is not None),
            )
            if there
        ),
        bars=bars,
        change=change,
    )


def token_text(loaded: Loaded, token: int) -> str:
    """A token's text, its spaces visible; bytes of half a character as ‹E4 BB›."""
    text = loaded.tokenizer.decode([token], special=True)
    if not text or "\ufffd" in text:  # a part of a character, or nothing by itself
        piece = loaded.tokenizer.core.id_to_token(token) or f"#{token}"
        text = piece_text(piece) if text else piece
    text = text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")
    return units.printable(text)


def piece_text(piece: str) -> str:
    """A vocabulary's piece of bytes, as characters where these are whole: "‹E4 BB›", "天‹E6›".

    Pieces are written in the 256 letters of byte-level BPE, or as "<0xE4>"; others stay.
    """
    if single := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", piece):
        raw = bytes.fromhex(single[1])
    elif all(c in _LETTERS for c in piece):
        raw = bytes(_LETTERS[c] for c in piece)
    else:
        return piece
    text = raw.decode("utf-8", "surrogateescape")  # byte n that is no character: U+DC00 + n
    return re.sub(
        "[\udc80-\udcff]+",
        lambda m: "‹" + " ".join(f"{ord(c) - 0xDC00:02X}" for c in m[0]) + "›",
        text,
    )


def has_parts(view: View) -> bool:
    """Whether a token on the page is part of a character."""
    written = view.written
    scored = (written.promoted, written.suppressed, written.gate, written.gate_least)
    tokens = [*view.tokens, *(bar.token for bar in view.bars)]
    tokens += [token for firing in view.firing for token in firing.pushes]
    tokens += [s.token for group in (*scored, written.up, written.up_least) for s in group]
    return any(PART.search(token) for token in tokens)


def _letters() -> dict[str, int]:
    """Byte-level BPE's letter -> byte: Latin-1's visible ones as they are, others from U+0100."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (b for b in range(256) if b not in visible)
    return {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(others)}


_LETTERS = _letters()
# What piece_text() writes for bytes that are no whole character.
PART = re.compile("‹[0-9A-F]{2}(?: [0-9A-F]{2})*›")


def _ranked(h: torch.Tensor, top: int) -> list[tuple[int, float]]:
    """(neuron, h) of the largest |h|."""
    found = h.abs().topk(min(top, h.numel())).indices
    return [(j, v + 0.0) for j, v in zip(found.tolist(), h[found].tolist(), strict=True)]


def _lengths(loaded: Loaded, layer: int) -> torch.Tensor:
    return loaded.kept(("lengths", layer), lambda: loaded.decoder.lengths(layer))


def _firing(
    loaded: Loaded, trace: Trace, layer: int, position: int, neurons: Sequence[int]
) -> tuple[Firing, ...]:
    """The neurons in that order, each with the tokens it raises there."""
    decoder, chosen = loaded.decoder, list(neurons)
    writes = loaded.kept(
        ("writes", layer, *neurons), lambda: decoder.writes(layer, neurons)
    )  # [n, V]
    a, act, b = (
        x[0, chosen].tolist() for x in decoder.parts(layer, trace.inputs[layer][position, None])
    )
    h = [v + 0.0 for v in trace.hidden[layer][position, chosen].tolist()]  # -0.0 becomes 0.0
    lengths = _lengths(loaded, layer)[chosen].tolist()
    out = []
    for k, j in enumerate(neurons):
        sign = math.copysign(1.0, h[k])
        raised = (writes[k] * sign).topk(4).indices.tolist() if h[k] else []
        pushes = tuple(token_text(loaded, i) for i in raised)
        out.append(Firing(j, a[k], act[k], b[k], h[k], lengths[k] * abs(h[k]), pushes))
    return tuple(out)


def _figures(
    loaded: Loaded, trace: Trace, layer: int, position: int, neuron: int
) -> dict[str, Figure]:
    """The chosen neuron at the chosen token, each number with what it was computed from."""
    x = trace.inputs[layer][position, None]
    a, act, b = (float(p[0, neuron]) for p in loaded.decoder.parts(layer, x))
    h = float(trace.hidden[layer][position, neuron]) + 0.0  # -0.0 becomes 0.0
    length = float(_lengths(loaded, layer)[neuron])
    rank = int((trace.hidden[layer][position].abs() > abs(h)).sum()) + 1
    name, width = loaded.decoder.config.layers[layer].act, trace.hidden[layer].shape[-1]
    return {
        "a": Figure(a, "", "estimate", "gate_j · x"),
        "act": Figure(act, "", "estimate", f"{name}(a)", f"{name}({a:.4g})"),
        "b": Figure(b, "", "estimate", "up_j · x"),
        "h": Figure(h, "", "estimate", "act(a) · b", f"{act:.4g} · {b:.4g}"),
        "rank": Figure(rank, "", "estimate", "1 + #{i : |h_i| > |h_j|}", f"{rank} / {width:,}"),
        "length": Figure(length, "", "exact", "‖d_j‖"),
        "adds": Figure(
            abs(h) * length, "", "estimate", "|h| · ‖d_j‖", f"{abs(h):.4g} · {length:.4g}"
        ),
        "size": Figure(float(trace.size[position]), "", "estimate", "√(mean x² + ε)"),
    }


def _written(loaded: Loaded, trace: Trace, layer: int, position: int, neuron: int) -> Written:
    """Scores less their mean over the vocabulary: what all tokens share moves no probability."""
    decoder = loaded.decoder

    def score() -> torch.Tensor:
        found = decoder.writes(layer, [neuron])[0]
        return found - found.mean()

    scores = loaded.kept(("scores", layer, neuron), score)
    factor = float(decoder.direct(trace, layer, position)[neuron])
    a, b = loaded.kept(("reads", layer, neuron), lambda: decoder.reads(layer, neuron))
    return Written(
        _most(loaded, scores, 1, factor),
        _most(loaded, scores, -1, factor),
        _most(loaded, a, 1),
        _most(loaded, a, -1),
        _most(loaded, b, 1),
        _most(loaded, b, -1),
    )


def _most(
    loaded: Loaded, scores: torch.Tensor, sign: int, factor: float = 0.0
) -> tuple[Scored, ...]:
    """The tokens of largest (sign 1) or smallest (-1) score."""
    found = (scores * sign).topk(min(WORDS, scores.numel())).indices.tolist()
    return tuple(
        Scored(token_text(loaded, i), float(scores[i]), float(scores[i]) * factor + 0.0)
        for i in found
    )


def _compared(
    loaded: Loaded, ids: list[int], trace: Trace, ask: Ask
) -> tuple[tuple[Bar, ...], dict[str, Figure]]:
    """Next-token probabilities behind the chosen token, before and after; and how far apart."""
    assert ask.position is not None
    before = trace.logits[ask.position].softmax(-1)
    after = before
    if ask.off:
        off: dict[int, list[int]] = {}
        for layer, neuron in ask.off:
            off.setdefault(layer, []).append(neuron)
        without = loaded.kept(
            ("logits", ask.off, *ids), lambda: loaded.decoder.trace(ids, off).logits
        )
        after = without[ask.position].softmax(-1)
    found = before.maximum(after).topk(min(BARS, before.numel())).indices.tolist()
    bars = tuple(Bar(token_text(loaded, i), float(before[i]), float(after[i])) for i in found)
    # p log(p / q); a probability that float32 has as 0 adds nothing, or is held at its least
    tiny = 1e-38
    kl = float((before * (before.clamp_min(tiny) / after.clamp_min(tiny)).log()).sum())
    return bars, {
        "moved": Figure(
            float((before - after).abs().sum()) / 2, "share", "estimate", "½ Σ |p_after − p_before|"
        ),
        "kl": Figure(max(kl, 0.0), "nat", "estimate", "Σ p_before · ln(p_before / p_after)"),
    }
