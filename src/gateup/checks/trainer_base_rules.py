"""A trainer's file against the model it is for: the model it names, the template it writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding
from gateup.checks.rule import rule
from gateup.checks.trainer_model import NamedModel
from gateup.files.header import clip, listed
from gateup.model import presets
from gateup.model.spec import ModelSpec

# Special tokens that LLaMA-Factory's templates write.
TEMPLATE_TOKENS: Mapping[str, tuple[str, ...]] = {
    "llama3": ("<|start_header_id|>", "<|eot_id|>"),
    "llama4": ("<|header_start|>", "<|eot|>"),
    "qwen": ("<|im_start|>", "<|im_end|>"),
    "qwen3": ("<|im_start|>", "<|im_end|>"),
    "qwen3_nothink": ("<|im_start|>", "<|im_end|>"),
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "gemma": ("<start_of_turn>", "<end_of_turn>"),
    "gemma2": ("<start_of_turn>", "<end_of_turn>"),
    "gemma3": ("<start_of_turn>", "<end_of_turn>"),
    "phi": ("<|user|>", "<|end|>"),
    "phi4": ("<|im_start|>", "<|im_sep|>"),
}
# Rows an embedding needs for a template's tokens to exist at all: their ids in the one tokenizer
# that has them.
TEMPLATE_ROWS = {"llama3": 128_256, "llama4": 200_000, "gemma": 256_000}
# Rows that the models of a template have at most (Llama 2's kin: 32,000, with added pieces 55,296).
TEMPLATE_MOST = {"llama2": 65_536}
_QWEN = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"})
_GEMMA = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text"})
# LLaMA-Factory's templates that belong to one family -> model_type of its members. Those that many
# use (chatml, alpaca, vicuna, deepseek's, default) are not here.
TEMPLATE_FAMILIES: Mapping[str, frozenset[str]] = {
    "llama2": frozenset({"llama"}),
    "llama3": frozenset({"llama"}),
    "llama4": frozenset({"llama4", "llama4_text"}),
    "mistral": frozenset({"mistral", "mixtral"}),
    "mistral_small": frozenset({"mistral", "mistral3"}),
    "qwen": _QWEN,
    "qwen3": _QWEN,
    "qwen3_nothink": _QWEN,
    "gemma": _GEMMA,
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "phi": frozenset({"phi3"}),
    "phi4": frozenset({"phi3"}),
    "phi4_mini": frozenset({"phi3"}),
    "gpt_oss": frozenset({"gpt_oss"}),
}
# Models of other families that were trained on ChatML's markers, by words in their names.
CHATML_NAMES = ("smollm", "yi-", "hermes", "dolphin", "chatml", "qwen")
# Word in a model's name -> model_type that models of that name have.
NAME_FAMILIES: Mapping[str, frozenset[str]] = {
    "llama": frozenset({"llama", "llama4", "llama4_text", "nemotron-nas", "deci"}),
    "mistral": frozenset({"mistral", "mistral3"}),
    "mixtral": frozenset({"mixtral"}),
    "qwen": _QWEN,
    "gemma": _GEMMA,
    "phi": frozenset({"phi3"}),
    "smollm": frozenset({"llama", "smollm3"}),
    "olmo": frozenset({"olmo", "olmo2", "olmoe"}),
    "granite": frozenset({"granite"}),
    "gpt-oss": frozenset({"gpt_oss"}),
}
_FIELDS = ("family", "num_layers", "hidden_size", "vocab_size")
_BILLIONS = re.compile(r"(?<![a-z0-9.])(\d{1,3}(?:\.\d{1,2})?)b(?![a-z0-9])")
# By how much the count of parameters may miss the number in a name: "7b" stands for 6.6 to 8.5.
SIZE_SLACK = 1.6


@rule(
    "trainer.model",
    "The file is for the model that is checked",
    needs=["trainer"],
    worst="warning",
)
def model(context: Context) -> Iterable[Finding]:
    """A trainer's file names its model: model_name_or_path (LLaMA-Factory, transformers) or
    base_model (axolotl). Where that is another model than the one that is checked, the answers
    about targets, memory and template are about a run that will not take place.

    Example: `gateup check ./llama-3-8b --trainer sft.yaml`, whose model_name_or_path is
    Qwen/Qwen2.5-7B: another family, other names of modules, another template.

    Without MODEL, `gateup check --trainer sft.yaml` takes the model that the file names.
    """
    named = context.trainer_base
    if named is None or _same_place(named, context):
        return
    spec = context.spec
    differs = _differences(spec, named) if named.spec else _by_name(spec, named)
    if not differs:
        return
    yield Finding(
        "trainer.model",
        "warning",
        f"{named.key} names {clip(named.ref, 60)}; {spec.name} is checked",
        tuple(differs),
        "The file is for another model than MODEL: what is said here about its settings holds for "
        "MODEL only.",
        "Check the model that the file names: leave MODEL out"
        + (f", or give {clip(named.ref, 60)}" if named.path or named.spec else "")
        + f"; or correct {named.key} in {context.source('trainer')}.",
        {"named": clip(named.ref, 60)},
    )


def _same_place(named: NamedModel, context: Context) -> bool:
    mine = context.checkpoint.path
    if named.path is None or mine is None:
        return False
    return _folder(named) == (mine if mine.is_dir() else mine.parent).resolve()


def _folder(named: NamedModel) -> object:
    path = named.path
    assert path is not None
    return (path if path.is_dir() else path.parent).resolve()


def _differences(spec: ModelSpec, named: NamedModel) -> list[Evidence]:
    other = named.spec
    assert other is not None
    mine = presets.find(spec.name)
    source = f"{named.key}: {clip(named.ref, 40)}"
    differs = [
        Evidence(k, str(getattr(spec, k)), str(getattr(other, k)), source)
        for k in _FIELDS
        if getattr(spec, k) != getattr(other, k)
    ]
    if not differs and _shapes(spec) != _shapes(other):
        differs = [Evidence("parameters", f"{spec.params:,}", f"{other.params:,}", source)]
    if mine is not None and named.known and mine.name != named.known:
        return differs or [Evidence("model", mine.name, named.known, source)]
    # A fine-tune may have tokens of its own.
    return [] if {e.subject for e in differs} <= {"vocab_size"} else differs


def _shapes(spec: ModelSpec) -> list[tuple[int, ...]]:
    return [r.shape for r in spec.rows if r.part not in ("embedding", "head")]


def _by_name(spec: ModelSpec, named: NamedModel) -> list[Evidence]:
    """What a name alone tells: the family's word, and billions of parameters."""
    name = named.ref.rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1].lower()
    source, out = f"{named.key}: {clip(named.ref, 40)}", []
    families = [v for word, v in NAME_FAMILIES.items() if word in name]
    if families and not any(spec.family in f for f in families):
        word = next(w for w in NAME_FAMILIES if w in name)
        out.append(Evidence("family", spec.family, f"{word}'s", source))
    size = _BILLIONS.search(name)
    billions = float(size[1]) if size else 0.0
    held = spec.params / 1e9
    if billions and not billions / SIZE_SLACK <= held <= billions * SIZE_SLACK:
        out.append(Evidence("parameters", f"{held:.3g} billion", f"about {size[1]}", source))  # type: ignore[index]
    return out


def _template(context: Context) -> str:
    """LLaMA-Factory's template; "" for none."""
    value = (context.trainer or {}).get("template")
    return value if isinstance(value, str) else ""


@rule(
    "trainer.template",
    "The template's tokens are in the tokenizer",
    needs=["trainer", "tokenizer"],
    worst="warning",
)
def template(context: Context) -> Iterable[Finding]:
    """A chat template marks turns with special tokens. Where the tokenizer does not have them they
    are cut into ordinary pieces: training runs, the model learns to spell them, and the serving
    side, which stops at the real token, never stops.

    Example: `template: llama3` on Llama-2: <|start_header_id|> and <|eot_id|> do not exist among
    its 32,000 tokens.
    """
    name, known = _template(context), context.tokenizer
    wanted = TEMPLATE_TOKENS.get(name, ())
    if known is None or not known.added:
        return
    absent = [t for t in wanted if t not in known.added]
    if absent:
        found = f"not among {known.size:,} entries"
        yield Finding(
            "trainer.template",
            "warning",
            f"template {name} writes {listed(absent)}, which the tokenizer does not have",
            tuple(Evidence(t, found, "a token of its own", known.source) for t in absent),
            "They are cut into ordinary pieces, and what stops generation is never learnt.",
            "Take the template of this model's family, or add the tokens (new_special_tokens with "
            "resize_vocab) and train the embeddings too.",
            {"absent": len(absent)},
        )


@rule(
    "trainer.family",
    "The template is one of the model's family",
    needs=["trainer"],
    worst="warning",
)
def family(context: Context) -> Iterable[Finding]:
    """LLaMA-Factory does not look whether a template suits the model: `template: qwen` on a Llama
    trains on <|im_start|> and <|im_end|>, which Llama's tokenizer does not have. The family is in
    config.json, so this is seen without a tokenizer; so are too few rows, or too many, for the
    template's vocabulary. A model whose tokenizer has the template's tokens is not reported.

    Example: `template: llama3` on Llama-2: 32,000 rows, and the template's tokens are rows 128,000
    and up. `template: llama2` on Llama-3 is the same fault the other way round.
    """
    name, spec, known = _template(context), context.spec, context.tokenizer
    wanted = TEMPLATE_TOKENS.get(name, ())
    if wanted and known is not None and known.added:
        return  # trainer.template has looked at the tokens themselves
    families, source = TEMPLATE_FAMILIES.get(name, frozenset()), context.source("config")
    least = TEMPLATE_ROWS.get("gemma" if name.startswith("gemma") else name, 0)
    most = TEMPLATE_MOST.get(name, spec.vocab_size)
    evidence = []
    chatml = "<|im_end|>" in wanted and any(n in spec.name.lower() for n in CHATML_NAMES)
    if families and spec.family not in families and not chatml:
        evidence.append(
            Evidence("model_type", spec.family, " or ".join(sorted(families)), f"template {name}")
        )
    if not least <= spec.vocab_size <= most:
        bound = f"{least:,} or more" if spec.vocab_size < least else f"{most:,} at most"
        evidence.append(Evidence("vocab_size", f"{spec.vocab_size:,}", bound, f"template {name}"))
    if evidence:
        others = [
            t
            for t, f in TEMPLATE_FAMILIES.items()
            if spec.family in f
            and TEMPLATE_ROWS.get("gemma" if t.startswith("gemma") else t, 0) <= spec.vocab_size
            and spec.vocab_size <= TEMPLATE_MOST.get(t, spec.vocab_size)
        ]
        tokens = f" ({listed([*wanted])})" if wanted else ""
        yield Finding(
            "trainer.family",
            "warning",
            f"template {name} is not of the family of {spec.name} ({spec.family})",
            tuple(evidence),
            f"It writes another family's markers{tokens}: where the tokenizer does not have them "
            "they are cut into ordinary pieces, and what stops generation is never learnt.",
            (f"Templates for {spec.family} by {source}: {', '.join(others)}. " if others else "")
            + "If the tokenizer does have the markers, give it with --tokenizer.",
            {"vocab_size": spec.vocab_size},
        )
