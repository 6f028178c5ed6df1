"""LoRA: which matrices a target set means, and what adapters on them cost, as PEFT builds them.

A matrix [out, in] gets A [r, in] and B [out, r]: r·(in + out) parameters. PEFT's `target_modules`
match modules by the end of their name, and only nn.Linear (GPT-2: Conv1D) modules count for
"all-linear", the output head left out. transformers 5 holds routed experts as stacked parameters
and routers as parameters of a module of their own, so `target_modules` never reaches them: routed
experts are adapted by `target_parameters`, which the target "experts" stands for here, at rank r
for every expert: r·E·(in + out) for gate_up [E, 2I, H] and for down [E, H, I].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from gateup.account.workload import LoRA
from gateup.errors import UsageError
from gateup.model.quant.formats import FORMATS
from gateup.model.spec import ModelSpec, TensorSpec

# Groups of targets; the value is the part whose linear modules they mean.
GROUPS = {"all": ("attention", "mlp"), "attention": ("attention",), "mlp": ("mlp",)}

# Families whose router is an nn.Linear in transformers 5 (llama4: class Llama4Router(nn.Linear)),
# so that "all-linear" adapts it.
LINEAR_ROUTERS = ("llama4_text", "llama4")


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """The adapter of one matrix: A [rank, inp] and B [out, rank], `copies` times (experts).

    row   the spec's row it belongs to; for stacked gate and up, the gate's
    """

    name: str
    role: str
    layer: int | None
    inp: int
    out: int
    rank: int
    copies: int
    row: TensorSpec

    @property
    def params(self) -> int:
        return self.rank * (self.inp + self.out) * self.copies


def module_name(row: TensorSpec) -> str:
    return row.name.removesuffix(".weight")


def _linear(spec: ModelSpec, row: TensorSpec) -> bool:
    """Whether PEFT's all-linear reaches the row (head aside)."""
    if not row.matmul or row.experts or row.part not in ("attention", "mlp"):
        return False
    if len(row.shape) != 2:
        return False
    return row.role.rpartition(".")[2] != "router" or spec.family in LINEAR_ROUTERS


def _expert(row: TensorSpec) -> bool:
    return bool(row.experts) and row.matmul


def _matches(row: TensorSpec, target: str) -> bool:
    module = module_name(row)
    return module == target or module.endswith("." + target)


def resolve_targets(spec: ModelSpec, targets: Iterable[str]) -> set[str]:
    """Roles that `targets` stand for: names as PEFT takes them ("gate_proj", "mlp.up_proj"), "all"
    (every linear module except the head), "attention", "mlp", "experts" (routed experts).

    Raises UsageError for a target that matches no module, with the nearest names there are.
    """
    roles: set[str] = set()
    for target in targets:
        if target in ("experts", "mlp.experts"):
            found = {r.role for r in spec.rows if _expert(r)}
        elif target in GROUPS:
            found = {r.role for r in spec.rows if r.part in GROUPS[target] and _linear(spec, r)}
        else:
            linear = (r for r in spec.rows if _linear(spec, r) or r.part in ("head", "embedding"))
            found = {r.role for r in linear if _matches(r, target)}
        if not found:
            raise _unmatched(spec, target)
        roles |= found
    return roles


def _unmatched(spec: ModelSpec, target: str) -> UsageError:
    known = sorted({module_name(r).rpartition(".")[2] for r in spec.rows if _linear(spec, r)})
    near = get_close_matches(target, known, n=4, cutoff=0.3)
    near += [n for n in known if target.removesuffix("_proj") in n and n not in near]
    stacked = any(_expert(r) and _matches(r, target) for r in spec.rows)
    has_experts = any(_expert(r) for r in spec.rows)
    groups = [*GROUPS, *(["experts"] if has_experts else [])]
    return UsageError(
        f"LoRA target {target!r} matches no linear module of {spec.name}",
        where="--targets",
        expected=f"one of {', '.join(near or known)}, or {', '.join(groups)}",
        remedy=(
            "routed experts are stacked parameters in transformers 5: use the target experts"
            if stacked
            else None
        ),
    )


def adapter_rows(spec: ModelSpec, lora: LoRA) -> tuple[AdapterRow, ...]:
    """One AdapterRow per adapted matrix, in spec order."""
    roles = resolve_targets(spec, lora.targets)
    out: list[AdapterRow] = []
    for row in spec.rows:
        if row.role not in roles:
            continue
        if _expert(row):
            out.extend(_expert_rows(row, lora.rank))
        else:
            width, inp = row.shape
            out.append(
                AdapterRow(module_name(row), row.role, row.layer, inp, width, lora.rank, 1, row)
            )
    return tuple(out)


def _expert_rows(row: TensorSpec, rank: int) -> Iterable[AdapterRow]:
    """Stacked in memory as gate_up [E, 2I, H] and down [E, H, I], however the file keeps them."""
    leaf = row.role.rpartition(".")[2]
    if leaf == "up_proj":
        return  # in gate_up with the gate
    dims = row.shape[-2:]
    if leaf == "gate_proj":
        width, inp = 2 * dims[0], dims[1]
    else:
        width, inp = dims  # in + out is the same in either orientation
    module = (
        row.name.split(".experts")[0]
        + ".experts."
        + ("gate_up_proj" if leaf == "gate_proj" else leaf)
    )
    yield AdapterRow(module, row.role, row.layer, inp, width, rank, row.experts, row)


def adapter_nbytes(rows: Iterable[AdapterRow], dtype: str) -> int:
    """Bytes of the adapters' parameters in a plain dtype."""
    return sum(r.params for r in rows) * FORMATS[dtype].block_bytes
