"""Bytes a step moves between memory and processor, and FLOPs per byte."""

from __future__ import annotations

from fractions import Fraction

from gateup.account.figure import Figure, Kind, worst
from gateup.account.flops import decode_flops, prefill_flops
from gateup.account.kv import kv_nbytes
from gateup.account.ledger import Ledger

SOURCE = "every active weight and every visible cache entry read once; activations stay in cache"


def weights_read(ledger: Ledger, tokens: int = 1) -> Figure:
    """Bytes of weights that a step over `tokens` tokens reads.

    One token: exact (k of E experts, one embedding row). More: each row of experts is hit by
    E·(1 − (1 − k/E)^tokens) distinct experts, were routing uniform and tokens independent: an
    estimate, and an upper one, since real routers favour some experts.
    """
    spec_rows = {r.name: r for r in ledger.spec.rows}
    total = Fraction(0)
    estimated = False
    experts = {(r.layer, r.role): r for r in ledger.spec.rows if r.experts}
    del spec_rows
    for row in ledger.rows:
        moe = experts.get((row.layer, row.role))
        if moe is not None and tokens > 1 and moe.active_experts < moe.experts:
            miss = (1 - moe.active_experts / moe.experts) ** tokens
            total += Fraction(row.nbytes * (1 - miss))
            estimated = True
        elif row.part == "embedding":
            total += min(row.active_nbytes * tokens, row.nbytes)
        else:
            total += row.active_nbytes
    kind: Kind = "estimate" if estimated else "exact"
    value = round(total)
    return Figure(
        value,
        "B",
        kind,
        "active weights" if tokens == 1 else "weights; of E experts E·(1 − (1 − k/E)^tokens)",
        str(value),
        SOURCE,
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
    """FLOPs per byte moved. Keys: decode (a step of `batch`), prefill (`batch` × `context`)."""
    decode = decode_flops(ledger.spec, context).total * batch
    moved = bytes_per_token(ledger, context, kv_type, batch)["total"]
    prefill = prefill_flops(ledger.spec, context, batch=batch).total
    weights = weights_read(ledger, batch * context)
    cache = kv_nbytes(ledger.spec, context, kv_type, batch)
    once = int(weights.value) + int(cache.value)
    return {
        "decode": Figure(
            decode / moved.value if moved.value else 0.0,
            "FLOP/B",
            moved.kind,
            "decode FLOPs·B / bytes moved",
            f"{decode} / {moved.value}",
            SOURCE,
        ),
        "prefill": Figure(
            prefill / once if once else 0.0,
            "FLOP/B",
            weights.kind,
            "prefill FLOPs / (weights + KV written)",
            f"{prefill} / {once}",
            SOURCE,
        ),
    }
