"""LoRA: which matrices a target set means, and what adapters on them cost, as PEFT builds them.

A matrix [out, in] gets A [r, in] and B [out, r]: r·(in + out) parameters. PEFT's `target_modules`
match modules by the end of their name, and only nn.Linear (GPT-2: Conv1D) modules count for
"all-linear", the output head left out. In transformers 5 routed experts are stacked parameters and
routers parameters of a module of their own, which that does not reach. Hence two kinds of family:

- CONVERTED: PEFT [0.21] turns the old names (gate, gate_proj, up_proj, down_proj; Mixtral's gate,
  w1, w3, w2) into `target_parameters`: the router at rank r, every expert's gate_up [2I, H] at rank
  2r (gate and up had r each) and down at r. Those names then mean the experts only: dense MLPs and
  shared experts that bear them are left out.
- the rest (qwen2_moe, gpt_oss, llama4): experts are adapted only by `target_parameters`, for which
  the target "experts" stands here (in any family), at rank r for each expert's gate_up and down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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

_QWEN = {
    "gate": ("router",),
    "gate_proj": ("experts.gate_proj",),
    "up_proj": ("experts.up_proj",),
    "down_proj": ("experts.down_proj",),
}
_MIXTRAL = dict(zip(("gate", "w1", "w3", "w2"), _QWEN.values(), strict=True))

# Family -> old module name -> the roles PEFT makes of it [source: PEFT 0.21.2,
# transformers_weight_conversion.py; transformers 5.24's conversion patterns].
CONVERTED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "mixtral": _MIXTRAL,
    **dict.fromkeys(("qwen3_moe", "deepseek_v2", "deepseek_v3", "olmoe"), _QWEN),
}


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """The adapter of one matrix: A [rank, inp] and B [out, rank], `copies` times (experts).

    row    the spec's row it belongs to; for stacked gate and up, the gate's
    extra  DoRA's magnitudes
    """

    name: str
    role: str
    layer: int | None
    inp: int
    out: int
    rank: int
    copies: int
    row: TensorSpec
    extra: int = 0

    @property
    def params(self) -> int:
        return self.rank * (self.inp + self.out) * self.copies + self.extra

    @property
    def active_params(self) -> int:
        """Those that one token multiplies with: of k experts of E; an embedding's are looked up."""
        if self.row.part == "embedding":
            return self.rank * self.out
        return self.params * (self.row.active_experts or 1) // (self.row.experts or 1)


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
    (PEFT's "all-linear"), "attention", "mlp", "experts" (routed experts).

    Raises UsageError for a target that matches nothing, with the nearest names there are, and
    where PEFT wants gate and up of the experts together.
    """
    return set(_resolve(spec, targets))


def _resolve(spec: ModelSpec, targets: Iterable[str]) -> dict[str, int]:
    """Role -> how many times the rank its adapter gets."""
    found: dict[str, int] = {}
    for target in targets:
        if target in ("experts", "mlp.experts"):
            roles = {r.role: 1 for r in spec.rows if _expert(r)}
        elif target in GROUPS:
            roles = _group(spec, target)
        else:
            roles = _named(spec, target)
        if not roles:
            raise _unmatched(spec, target)
        for role, times in roles.items():
            found[role] = max(times, found.get(role, 0))
    halves = {"experts.gate_proj", "experts.up_proj"} & found.keys()
    if len(halves) == 1 and spec.family in CONVERTED:
        names = [n for n, r in CONVERTED[spec.family].items() if "experts.down_proj" not in r]
        raise UsageError(
            f"LoRA on one of the experts' gate and up only in {spec.name}",
            where="--targets",
            expected=f"both {names[1]} and {names[2]}: they are one parameter in transformers 5",
        )
    return found


def _group(spec: ModelSpec, target: str) -> dict[str, int]:
    old = CONVERTED.get(spec.family, {})
    roles = {
        r.role: 1
        for r in spec.rows
        if r.part in GROUPS[target]
        and _linear(spec, r)
        and module_name(r).rpartition(".")[2] not in old
    }
    if "mlp" in GROUPS[target]:
        for name in old:
            if target == "all" or name != "gate":
                roles |= _converted(spec, name)
    return roles


def _named(spec: ModelSpec, target: str) -> dict[str, int]:
    leaf = target.rpartition(".")[2]
    if leaf in CONVERTED.get(spec.family, {}):
        return _converted(spec, leaf)
    linear = (r for r in spec.rows if _linear(spec, r) or r.part in ("head", "embedding"))
    return {r.role: 1 for r in linear if _matches(r, target) and len(r.shape) == 2}


def _converted(spec: ModelSpec, name: str) -> dict[str, int]:
    """What PEFT makes of an old name; gate and up share one adapter of rank 2r."""
    roles = CONVERTED[spec.family][name]
    there = {r.role for r in spec.rows}
    return {r: 1 if r in ("router", "experts.down_proj") else 2 for r in roles if r in there}


def _unmatched(spec: ModelSpec, target: str) -> UsageError:
    known = sorted(
        {module_name(r).rpartition(".")[2] for r in spec.rows if _linear(spec, r)}
        | CONVERTED.get(spec.family, {}).keys()
    )
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
    if lora.modules:
        given = {name: (rank, extra) for name, rank, extra in lora.modules}
        return tuple(
            replace(a, extra=given[row.name][1])
            for row in spec.rows
            if row.name in given
            for a in _rows_of(spec, row, given[row.name][0])
        )
    roles = _resolve(spec, lora.targets)
    return tuple(
        a
        for row in spec.rows
        if row.role in roles
        for a in _rows_of(spec, row, lora.rank * roles[row.role])
    )


def _rows_of(spec: ModelSpec, row: TensorSpec, rank: int) -> Iterable[AdapterRow]:
    if _expert(row):
        yield from _expert_rows(row, rank)
    else:
        out, inp = _out_in(spec, row)
        yield AdapterRow(module_name(row), row.role, row.layer, inp, out, rank, 1, row)


def _out_in(spec: ModelSpec, row: TensorSpec) -> tuple[int, int]:
    """GPT-2's Conv1D is stored [in, out]; everything else [out, in]."""
    out, inp = row.shape
    return (inp, out) if spec.family == "gpt2" else (out, inp)


def _expert_rows(row: TensorSpec, rank: int) -> Iterable[AdapterRow]:
    """Stacked in memory as gate_up [E, 2I, H] and down [E, H, I], however the file keeps them."""
    leaf = row.role.rpartition(".")[2]
    if leaf == "up_proj":
        return  # in gate_up with the gate
    out, inp = row.shape[-2:]  # stored [in, out] in gpt-oss and llama4: the sum is the same
    if leaf == "gate_proj":
        leaf, out = "gate_up_proj", 2 * out
    name = row.name.split(".experts")[0] + ".experts." + leaf
    yield AdapterRow(name, row.role, row.layer, inp, out, rank, row.experts, row)


def adapter_nbytes(rows: Iterable[AdapterRow], dtype: str) -> int:
    """Bytes of the adapters' parameters in a plain dtype."""
    return sum(r.params for r in rows) * FORMATS[dtype].block_bytes
