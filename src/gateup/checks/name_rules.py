"""Weights under another name: prefixes that wrappers add, and Meta's names for the projections."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding
from gateup.checks.rule import rule
from gateup.files.header import clip, listed, many
from gateup.model.spec import TensorSpec

# What wrappers put into names, anywhere in them -> who does.
WRAPPERS = {
    "_orig_mod": "torch.compile's",
    "module": "DataParallel's or DeepSpeed's",
    "_forward_module": "Lightning's",
    "_fsdp_wrapped_module": "FSDP's",
    "_checkpoint_wrapped_module": "activation checkpointing's",
    "base_model.model": "PEFT's",
    "base_layer": "PEFT's",
}
_WRAPPER = re.compile(rf"(?:(?<=\.)|^)({'|'.join(map(re.escape, WRAPPERS))})\.")
# Meta's names -> ours. w2 is down: their order is gate, down, up.
META = {
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.w2": "mlp.down_proj",
    "mlp.w1": "mlp.gate_proj",
    "mlp.w3": "mlp.up_proj",
    "mlp.w2": "mlp.down_proj",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
}
_META = re.compile("|".join(map(re.escape, META)))
_HEADS = ("", "model.")


class FoundAs(NamedTuple):
    """Rows that are there under other names.

    tensors how many
    how     "with '_orig_mod.' in the name (torch.compile's)"
    remedy  what to rename
    """

    tensors: int
    how: str
    remedy: str


def found_as(names: Sequence[str], rows: Iterable[TensorSpec]) -> FoundAs | None:
    """Whether the names are those of the rows but for what wrappers and converters do to them."""
    wanted = {n for r in rows for n in (r.names() if r.copies > 1 else (r.name,))}
    wrappers: Counter[str] = Counter()
    prefixes: Counter[str] = Counter()
    meta: Counter[str] = Counter()
    count = 0
    for name in names:
        undone = _WRAPPER.findall(name)
        plain = _WRAPPER.sub("", name)
        match = _META.search(plain)
        if match:
            plain = plain.replace(match[0], META[match[0]])
        target, prefix = _in(wanted, plain)
        if target is None:
            continue
        count += 1
        wrappers.update(undone)
        if match:
            meta[match[0]] += 1
        if prefix:
            prefixes[prefix] += 1
    return FoundAs(count, *_said(wrappers, prefixes, meta)) if count else None


def _in(wanted: set[str], name: str) -> tuple[str | None, str]:
    """(the row's name, what stands in front of it too much) of a name."""
    for head in _HEADS:
        if head + name in wanted:
            return head + name, ""
    at = 0
    for _ in range(8):
        at = name.find(".", at) + 1
        if at == 0:
            break
        if name[at:] in wanted:
            return name[at:], name[:at]
    return None, ""


def _said(wrappers: Counter[str], prefixes: Counter[str], meta: Counter[str]) -> tuple[str, str]:
    how, todo = [], []
    for wrapper in wrappers:
        how.append(f"with '{wrapper}.' in the name ({WRAPPERS[wrapper]})")
        todo.append(f"strip '{wrapper}.' from the names")
    for prefix in [p for p, _ in prefixes.most_common(3)]:
        how.append(f"with {clip(prefix, 60)} in front of the name: a wrapper's")
        todo.append(f"strip {clip(prefix, 60)} from the names")
    if meta:
        how.append("under Meta's names")
        todo.append(
            f"rename {listed([f'{a} to {META[a]}' for a in sorted(meta)], 10)}"
            + (" (w2 is down: the order is gate, down, up)" if any("w2" in a for a in meta) else "")
        )
    if not todo:
        how.append("without 'model.' in front of the name")
        todo.append("put 'model.' in front of the names")
    return ", ".join(how), "; ".join(todo)


@rule("tensors.names", "Tensors bear the names that loaders look for", needs=["headers"])
def names(context: Context) -> Iterable[Finding]:
    """A state_dict saved through a wrapper carries the wrapper in its names: _orig_mod. of
    torch.compile, module. of DataParallel, base_model.model. of PEFT. gateup reads through them;
    transformers finds none of its names, fills every weight with random numbers, and says so in a
    log. Meta's own names (layers.0.feed_forward.w1) are the same story beside a config.json.

        _orig_mod.model.layers.0.mlp.gate_proj.weight    saved from the compiled module

    Save the module inside: model._orig_mod.save_pretrained(…), accelerator.unwrap_model(model),
    merge_and_unload().
    """
    if context.checkpoint.kind != "safetensors":
        return
    wrapped: Counter[str] = Counter()
    meta, evidence = 0, []
    for t in context.checkpoint.headers:
        if t.canonical is None or t.name == t.canonical:
            continue
        found = set(_WRAPPER.findall(t.name)) - set(_WRAPPER.findall(t.canonical))
        theirs = not found and bool(_META.search(t.name)) and not _META.search(t.canonical)
        if found or theirs:
            wrapped.update(found)
            meta += theirs
            evidence.append(Evidence(t.name, "in the file", t.canonical, "the class's own names"))
    if wrapped:
        whose = " and ".join(f"'{w}.' ({WRAPPERS[w]})" for w in sorted(wrapped))
        yield Finding(
            "tensors.names",
            "error",
            f"{many(len(evidence), 'tensor')} with {whose} in the name",
            tuple(evidence),
            "The wrapper was saved, not the model inside. transformers finds none of these names: "
            "it fills the weights with random numbers and goes on.",
            f"strip {' and '.join(repr(w + '.') for w in sorted(wrapped))} from the names, or save"
            " the model inside the wrapper",
            {"tensors": len(evidence)},
        )
    elif meta:
        yield Finding(
            "tensors.names",
            "warning",
            f"{many(meta, 'tensor')} under Meta's names",
            tuple(evidence),
            "transformers finds none of its names in this file; programs that read Meta's or "
            "Mistral's own format do.",
            "convert the file, or fetch the one with model.layers names; in Meta's numbers w1 is "
            "gate, w3 up, w2 down",
            {"tensors": meta},
        )
