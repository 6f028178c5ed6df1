"""How numbers are written for people: thousands separators, GiB for memory, a sign for the kind.

Memory is in powers of 1024 (GiB), files and bandwidth in powers of 1000 (GB), each with its unit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateup.account.figure import Figure, Kind

SIGNS: Mapping[Kind, str] = {"exact": "=", "bound": "≤", "estimate": "≈"}
LEGEND = "= exact   ≤ bound (never more)   ≈ estimate"

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")


def integer(n: float) -> str:
    """1234567 -> "1,234,567"; a float is rounded to a whole number first."""
    return f"{round(n):,}"


def _scaled(n: float, base: int, steps: tuple[str, ...]) -> tuple[float, str]:
    step = 0
    # 999.995 would print as "1,000.00" of the smaller unit, hence the half-ulp of two decimals.
    while step + 1 < len(steps) and abs(n) / base**step >= base - 0.005:
        step += 1
    return n / base**step, steps[step]


def memory(nbytes: float) -> str:
    """Bytes of memory: "4.58 GiB", "512 B"."""
    value, unit = _scaled(nbytes, 1024, _BINARY)
    return f"{integer(nbytes)} B" if unit == "B" else f"{value:,.2f} {unit}"


def traffic(nbytes: float) -> str:
    """Bytes of a file or over a bus: "4.91 GB", "512 B"."""
    value, unit = _scaled(nbytes, 1000, _DECIMAL)
    return f"{integer(nbytes)} B" if not unit else f"{value:,.2f} {unit}B"


def si(n: float, unit: str = "") -> str:
    """A count in powers of 1000: si(15e9, "FLOPs") -> "15.0 GFLOPs", si(8.03e9) -> "8.03 G"."""
    value, prefix = _scaled(n, 1000, _DECIMAL)
    if not prefix:
        return f"{value:,.4g} {unit}".rstrip()
    return f"{value:,.2f} {prefix}{unit}"


def short_memory(nbytes: float) -> str:
    """Bytes for a chart, where room is scarce: "512 GiB", "8.5 GiB"."""
    value, unit = _scaled(nbytes, 1024, _BINARY)
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"


def short_si(n: float) -> str:
    """A count for a chart: "50 G"."""
    value, prefix = _scaled(n, 1000, _DECIMAL)
    return f"{value:.3g} {prefix}".rstrip()


def billions(n: float) -> str:
    """Parameters as model cards write them: "8.03 B", "134.52 M", "9,216"."""
    for scale, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if n >= scale:
            return f"{n / scale:,.2f} {letter}"
    return integer(n)


def share(part: float, whole: float) -> str:
    """ "70.2 %"; "-" when there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def percent(fraction: float) -> str:
    """0.702 -> "70.2 %"."""
    return f"{100 * fraction:.1f} %"


def rounded(value: float) -> str:
    """Whole numbers and large ones without decimals, others to four digits: "82,210", "2.891"."""
    whole = float(value).is_integer() or abs(value) >= 10_000
    return integer(value) if whole else f"{value:,.4g}"


def _plain(unit: str) -> Callable[[float], str]:
    def write(value: float) -> str:
        return f"{rounded(value)} {unit}".rstrip()

    return write


# Figure.unit -> how its value is written; any other unit: the number, then the unit.
_WRITERS: Mapping[str, Callable[[float], str]] = {
    "B": memory,
    "bytes": memory,
    "B/token": lambda v: memory(v) + "/token",
    "B/s": lambda v: traffic(v) + "/s",
    "FLOP": lambda v: si(v, "FLOP"),
    "FLOP/token": lambda v: si(v, "FLOP") + "/token",
    "FLOP/s": lambda v: si(v, "FLOP/s"),
    "share": percent,
}


def written(figure: Figure) -> str:
    """The figure's value with its unit, without the sign of its kind."""
    return _WRITERS.get(figure.unit, _plain(figure.unit))(figure.value)


def tagged(figure: Figure) -> str:
    """The figure with the sign of its kind: "= 4.58 GiB", "≤ 21.5 tokens/s"."""
    return f"{SIGNS[figure.kind]} {written(figure)}"


def tag(text: str, kind: Kind = "exact") -> str:
    """A text that is already written out, with its kind's sign."""
    return f"{SIGNS[kind]} {text}"


def printable(text: str) -> str:
    """A name from a user's file, made harmless to a terminal: control characters are escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def raw(value: float) -> str:
    """A value unscaled: 8030261248 -> "8,030,261,248", 0.70199 -> "0.702"."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
