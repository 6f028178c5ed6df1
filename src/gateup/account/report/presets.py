"""The models known by name, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from gateup import __version__
from gateup.account.report import units
from gateup.account.report.console import cell, columns, line, put
from gateup.account.report.units import tag
from gateup.model import presets

PRESETS_SCHEMA = "gateup.presets/1"


@dataclass(frozen=True, slots=True)
class Known:
    """A preset with what tells it from the others."""

    name: str
    hub_id: str
    params: int
    mlp_params: int


def listed() -> list[Known]:
    """Every preset, by family and size as the data has them."""
    out = []
    for preset in presets.PRESETS.values():
        spec = presets.spec(preset.name)
        out.append(Known(preset.name, preset.hub_id, spec.params, spec.part_params("mlp")))
    return out


def render_presets(known: Sequence[Known], console: Console) -> None:
    table = columns(console, "name", "on the Hub", "parameters", "MLP share", left=2)
    for k in known:
        share = units.share(k.mlp_params, k.params)
        table.add_row(
            cell(k.name), cell(k.hub_id, "dim"), cell(tag(units.billions(k.params))), cell(share)
        )
    put(console, table, drop=(1,))
    console.print()
    line(console, "Names are taken in any case, with - or _, and with or without -instruct.", "dim")


def presets_json(known: Sequence[Known]) -> dict[str, Any]:
    """Plain integers are exact."""
    return {
        "schema": PRESETS_SCHEMA,
        "generator": f"gateup {__version__}",
        "presets": [
            {
                "name": k.name,
                "hub_id": k.hub_id,
                "params": k.params,
                "mlp_params": k.mlp_params,
                "mlp_share": k.mlp_params / k.params,
            }
            for k in known
        ],
    }
