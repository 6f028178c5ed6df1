"""Bytes a step moves between memory and processor, and FLOPs per byte.

Counted: every weight a step uses, once; every cache entry it sees, once; the entries it writes.
Not counted: activations, which stay in the processor's caches when a step is small and add to the
traffic when it is not. So FLOPs per byte are a bound: no implementation reaches more.
"""

from __future__ import annotations

from gateup.account.figure import Figure, worst
from gateup.account.flops import decode_flops, prefill_flops
from gateup.account.kv import kv_nbytes
from gateup.account.ledger import Ledger

SOURCE = "weights and cache entries of the step, each read once; activations not counted"
UNIFORM = SOURCE + "; routing taken as uniform and independent (a real router touches fewer)"


def weights_read(ledger: Ledger, tokens: int = 1) -> Figure:
    """Bytes of weights that a step over `tokens` tokens reads.

    One token: exact (k of E experts, one row of the embedding). More: an embedding row each, and
    E·(1 − (1 − k/E)^tokens) distinct experts of E if the router were uniform: an estimate.
    """
    experts = {(r.layer, r.role): (r.experts, r.active_experts) for r in ledger.spec.rows}
    plain = 0
    routed: dict[tuple[int, int], int] = {}
    for row in ledger.rows:
        E, k = experts.get((row.layer, row.role), (0, 0))
        if row.part == "embedding":
            plain += min(row.active_nbytes * tokens, row.nbytes)
        elif k < E and row.nbytes:
            routed[E, k] = routed.get((E, k), 0) + row.nbytes
        else:
            plain += row.active_nbytes
    letters, numbers, value = ["bytes every token uses"], [str(plain)], plain
    for (E, k), nbytes in routed.items():
        if tokens == 1:
            letters.append("bytes of experts·k/E")
            numbers.append(f"{nbytes}·{k}/{E}")
            value += nbytes * k // E
        else:
            letters.append("bytes of experts·(1 − (1 − k/E)^tokens)")
            numbers.append(f"{nbytes}·(1 − (1 − {k}/{E})^{tokens})")
            value += round(nbytes * (1 - (1 - k / E) ** tokens))
    guess = bool(routed) and tokens > 1
    return Figure(
        value,
        "B",
        "estimate" if guess else "exact",
        " + ".join(letters),
        " + ".join(numbers),
        UNIFORM if guess else SOURCE,
    )


def bytes_per_token(
    ledger: Ledger, context: int, kv_type: str = "f16", batch: int = 1
) -> dict[str, Figure]:
    """What one decode step of `batch` sequences moves, each at `context` tokens.

    Keys: weights, kv_read, kv_written, total (of the step), per_token (total / batch).
    """
    weights = weights_read(ledger, batch)
    read = kv_nbytes(ledger.spec, context, kv_type, batch)
    written = kv_nbytes(ledger.spec, 1, kv_type, batch)
    total = int(weights.value) + int(read.value) + int(written.value)
    kind = worst(weights.kind, read.kind, written.kind)
    numbers = f"{weights.value} + {read.value} + {written.value}"
    return {
        "weights": weights,
        "kv_read": read,
        "kv_written": written,
        "total": Figure(total, "B", kind, "weights + KV read + KV written", numbers, SOURCE),
        "per_token": Figure(
            total / batch, "B/token", kind, "total / batch", f"{total} / {batch}", SOURCE
        ),
    }


def intensity(
    ledger: Ledger, context: int, kv_type: str = "f16", batch: int = 1
) -> dict[str, Figure]:
    """FLOPs per byte. Keys: decode (one token for each of `batch`), prefill (`batch` × `context`).

    Beside a machine's FLOP/s divided by its bytes/s they say which of the two limits it.
    """
    decode = decode_flops(ledger.spec, context).total * batch
    moved = bytes_per_token(ledger, context, kv_type, batch)["total"]
    prefill = prefill_flops(ledger.spec, context, batch=batch).total
    weights = weights_read(ledger, batch * context)
    written = kv_nbytes(ledger.spec, context, kv_type, batch)
    once = int(weights.value) + int(written.value)
    return {
        "decode": _ratio(decode, moved, "FLOPs of the step / bytes it moves"),
        "prefill": _ratio(
            prefill,
            Figure(once, "B", weights.kind),
            "FLOPs of the prefill / (weights read + KV written)",
        ),
    }


def _ratio(flops: int, moved: Figure, formula: str) -> Figure:
    value = flops / moved.value if moved.value else 0.0
    kind = worst("bound", moved.kind)
    return Figure(value, "FLOP/B", kind, formula, f"{flops} / {moved.value}", SOURCE)
