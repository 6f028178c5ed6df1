"""What sampling settings mostly are: for remedies that name a value."""

from __future__ import annotations

from gateup.checks import known
from gateup.checks.words import written

# What settings mostly are, for remedies.
USUAL = {
    "temperature": "0.7, or 0 for the likeliest token",
    "top_p": "0.9, and 1 turns it off",
    "min_p": "0.05, and 0 turns it off",
    "typical_p": "0.9, and 1 turns it off",
    "top_k": "50, and 0 turns it off",
    "max_new_tokens": "512",
    "num_beams": "1",
    "num_return_sequences": "1",
    "repetition_penalty": "1.1, and 1 turns it off",
    "no_repeat_ngram_size": "0, which turns it off",
}


def in_range(key: str, name: str, value: object, wanted: str) -> str:
    """The number that a text holds, or the range and a usual value."""
    if isinstance(value, str) and _numeric(value):
        return f"write a number: {key}: {value}"
    usual = f"; {USUAL[name]} is usual" if name in USUAL else ""
    if name in ("top_p", "min_p", "typical_p") and _is_percent(value):
        usual = f"; {value} percent are {written(float(value) / 100)}"  # type: ignore[arg-type]
    return f"write {wanted}{usual}; without the line the engine's default holds"


def _is_percent(value: object) -> bool:
    number = known.number(value)
    return number is not None and 1 < number <= 100


def _numeric(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
