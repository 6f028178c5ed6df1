"""Give a transformers model gateup's gated MLP, and take it back.

Only the `forward` of single modules changes. Classes, modules, parameters, their names, hooks and
the state dict stay what they are, so saving, generating, training and adapters go on working.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from types import MethodType
from typing import Any

from torch import nn

from gateup.errors import UsageError
from gateup.hf.budget import refuse_too_small
from gateup.hf.experts import ApplyGate
from gateup.hf.forward import FORWARDS, SLOTS, Forward
from gateup.hf.include import names, patterns, refuse_unmatched
from gateup.hf.report import Left, Patched, PatchReport
from gateup.hf.table import ROWS, Row, act_of, ancestor_of, gates_as_declared, row_of
from gateup.ops.options import MLPOptions, checked

# What an MLP's class tends to be called, and what a gated one tends to hold.
_LOOKS = re.compile(r"MLP|Mlp|FFN|FeedForward|GLU|Experts")
_PARTS = ("gate_proj", "up_proj", "gate_up_proj")
NOT_NAMED = "include does not name it"


def patch(
    model: nn.Module,
    *,
    options: MLPOptions | None = None,
    include: str | Iterable[str] | None = None,
    quiet: bool = False,
) -> PatchReport:
    """Run every gated MLP of `model` that gateup knows through gateup's ops.

    options  rounding, what backward keeps, tiling; default: transformers' bits, untiled
    include  full names of modules to patch, with * for any characters (dots too) and ? for one:
             "model.layers.1?.mlp", or several; default: all
    quiet    do not print the report

    Patching again changes the options; `unpatch` takes it back; `patched` tells. Raises
    UsageError, with nothing changed, when nothing would be patched (no gated MLP, or a name in
    `include` that none has) and for a budget that holds not even one token of some module.
    """
    options = MLPOptions() if options is None else checked(options)
    given = patterns(include)
    candidates = tuple(_candidates(model))
    also = _also(model, candidates) if given else {}
    refuse_unmatched(given, [n for name, _ in candidates for n in (name, *also.get(name, ()))])
    candidates = tuple((_asked(name, also, given), module) for name, module in candidates)
    chosen: list[tuple[str, nn.Module, Row, str]] = []
    left: list[Left] = []
    for name, module in candidates:
        row = row_of(module)
        act, why = _act(module, row, options, name, given)
        if row is None or act is None:
            left.append(Left(name, type(module).__name__, why))
        else:
            chosen.append((name, module, row, act))
    done = tuple(Patched(name, row.cls, act, row.words) for name, _, row, act in chosen)
    report = PatchReport(done, _not_around(left, done), options)
    if not done:
        raise _nothing(model, report, given)
    refuse_too_small(((name, module, row) for name, module, row, _ in chosen), options)
    for _, module, row, act in chosen:
        _install(module, row, act, options)
    if not quiet:
        print(report)
    return report


def patched(model: nn.Module) -> dict[str, MLPOptions]:
    """The options of every module that runs gateup's ops now, by name; empty where none does.

    Read from the modules themselves, so copies, loaded weights and single modules that were
    unpatched are told as they are. Modules spread by `gateup.parallel` are not among them, and
    `unpatch` leaves those alone too.
    """
    found = ((name, module, _slot(module)) for name, module in _modules(model))
    return {name: m.__dict__[slot].options for name, m, slot in found if slot is not None}


def unpatch(model: nn.Module) -> tuple[str, ...]:
    """Give every patched module its own forward back; returns their names, () if none was patched.

    `model` may be a single module or a part of the model: what lies outside stays patched.
    """
    undone = []
    for name, module in _modules(model):
        slot = _slot(module)
        if slot is None:
            continue
        if slot == "forward":
            del module.__dict__["forward"]
        else:
            module.__dict__[slot] = MethodType(type(module).forward, module)
        module.__dict__.pop("_apply_gate", None)
        undone.append(name)
    return tuple(undone)


def _install(module: nn.Module, row: Row, act: str, options: MLPOptions) -> None:
    slot = "_old_forward" if "_old_forward" in module.__dict__ else "forward"
    module.__dict__[slot] = FORWARDS[row.kind](module, row, act, options)
    if row.layout.stacked:
        module.__dict__["_apply_gate"] = ApplyGate(module.__dict__[slot], row.layout)


def _slot(module: nn.Module) -> str | None:
    """Where gateup's forward lies in `module`; None when it is not patched."""
    found = (s for s in SLOTS if isinstance(module.__dict__.get(s), Forward))
    return next(found, None)


def _act(
    module: nn.Module, row: Row | None, options: MLPOptions, name: str, given: tuple[str, ...]
) -> tuple[str | None, str]:
    """(activation, "") of a module to be patched, or (None, why it is not)."""
    why = _why_not(module, row, options, name, given)
    if row is None or why is not None:
        return None, why or ""
    return act_of(module, row, options)


def _why_not(
    module: nn.Module, row: Row | None, options: MLPOptions, name: str, given: tuple[str, ...]
) -> str | None:
    if row is None:
        stock = ancestor_of(module)
        if stock is not None:
            return f"it is a {stock} with another forward"
        if any(hasattr(module, part) for part in _PARTS):
            return f"{type(module).__module__} is not in gateup's table of gated MLPs"
        return "it has no gate"
    if not names(name, given):
        return NOT_NAMED
    other = _other_forward(module)
    if other:
        return f"its forward was replaced by {other}"
    if row.layout.stacked:
        return _why_not_experts(module, options)
    return None


def _why_not_experts(module: Any, options: MLPOptions) -> str | None:
    own = module.__dict__.get("_apply_gate")
    if not gates_as_declared(module) or not isinstance(own, ApplyGate | None):
        return "its subclass gates in its own way"
    if getattr(module, "has_post_expert_norm", False):
        return "it has a norm after each expert"
    if getattr(module, "_is_expert_parallel", False) and options != MLPOptions():
        return "its experts are spread over ranks; only the default options can serve them"
    return None


def _other_forward(module: nn.Module) -> str | None:
    """What stands in place of the class's forward, when it is neither gateup's nor accelerate's."""
    slots = module.__dict__
    found = slots.get("_old_forward" if "_hf_hook" in slots else "forward")
    if found is None or isinstance(found, Forward):
        return None
    function = getattr(found, "__func__", found)
    if function is type(module).forward:
        return None
    home = getattr(function, "__module__", type(function).__module__)
    return f"{home}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"the model is of type {type(model).__name__}",
            expected="a torch.nn.Module, such as AutoModelForCausalLM.from_pretrained returns",
        )
    found: Iterator[tuple[str, nn.Module]] = model.named_modules()
    return found


def _candidates(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in _modules(model):
        if ancestor_of(module) is not None or _LOOKS.search(type(module).__name__):
            yield name, module


def _also(
    model: nn.Module, candidates: tuple[tuple[str, nn.Module], ...]
) -> dict[str, tuple[str, ...]]:
    """First name -> the other names of a module that several places of the model share."""
    first = {id(module): name for name, module in candidates}
    more: dict[str, tuple[str, ...]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        known = first.get(id(module))
        if known is not None and name != known:
            more[known] = (*more.get(known, ()), name)
    return more


def _asked(name: str, also: dict[str, tuple[str, ...]], given: tuple[str, ...]) -> str:
    """The name by which `include` means a module; its first where it means none or all."""
    return next((n for n in (name, *also.get(name, ())) if names(n, given)), name)


def _not_around(left: list[Left], done: tuple[Patched, ...]) -> tuple[Left, ...]:
    """Without those that merely contain a module that was patched or is listed itself."""
    inner = [p.name for p in done] + [x.name for x in left]

    def contains(outer: str) -> bool:
        start = f"{outer}." if outer else ""
        return any(name != outer and name.startswith(start) for name in inner)

    return tuple(entry for entry in left if not contains(entry.name))


def _nothing(model: nn.Module, report: PatchReport, given: tuple[str, ...]) -> UsageError:
    what = f"no gated MLP was patched in {type(model).__name__}"
    if given:
        what += f" under {', '.join(given)}"
    left = [x for x in report.left if names(x.name, given)]
    seen = "; ".join(f"{x.name or 'the model'} ({x})" for x in left[:3])
    more = len(left) - 3
    return UsageError(
        what,
        where=(seen + (f"; and {more} more" if more > 0 else "")) or "nothing in it looks like one",
        expected="one of transformers' " + ", ".join(row.cls for row in ROWS),
    )
