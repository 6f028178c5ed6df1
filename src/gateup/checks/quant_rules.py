"""Quantisation: rows must be whole groups, and a type asked for is not always the type given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import lcm

from gateup.account.parallel import SPLITS, block_of
from gateup.account.report import units
from gateup.checks.context import Context
from gateup.checks.finding import SHOWN, Evidence, Finding
from gateup.checks.padding import added_weights, config_key, widths
from gateup.checks.rule import rule
from gateup.checks.target import declared_quant
from gateup.checks.trainer_files import read_run
from gateup.checks.words import written
from gateup.errors import GateupError, UnknownArchitectureError
from gateup.model.families import GGUFTensor
from gateup.model.quant.formats import FORMATS
from gateup.model.quant.hf_formats import SCHEMES, converted, declared, matrix_of
from gateup.model.quant.llamacpp import CURRENT, OLDER
from gateup.model.quant.mix import FILE_TYPES, file_type, gguf_types, kind_of
from gateup.model.spec import ModelSpec, TensorSpec

# Names of quantisation methods that shrink what a checkpoint stores.
PLAIN = ("f32", "f16", "bf16", "f64")


@rule("quant.group", "Every matrix is whole groups of the quantisation asked for", needs=("quant",))
def group(context: Context) -> Iterable[Finding]:
    """AWQ and GPTQ give one scale to G consecutive inputs of a row: in_features must divide by G.
    They also pack 8 outputs (GPTQ 32) in a word. FP8 with blocks has a scale for each square of
    128 × 128; transformers lets the last block be short, vLLM and SGLang refuse it.

    Qwen2-0.5B has H = 896 = 7 × 128 and fits. gpt-oss has 2880 = 22.5 × 128:

        awq:128   2880 / 128 = 22.5 groups    no
        awq:64    2880 / 64 = 45 groups       yes

    A width of the MLP can be padded with zeros before quantising; hidden_size cannot.
    """
    fmt = (context.quant or "").lower()
    if kind_of(fmt) != "hf":
        return
    try:
        wrong = _misfit_rows(context.spec, fmt)
    except GateupError as error:  # a group that the method does not have
        evidence = (Evidence("--quant", fmt, error.expected or "", "the method's packing"),)
        yield Finding("quant.group", "error", error.what, evidence, "", error.remedy or "")
        return
    if wrong:
        yield _group_finding(context, fmt, wrong)


def _demands(fmt: str) -> tuple[int, int]:
    """(multiple of out, multiple of in) that matrices must have."""
    name, _, size = fmt.partition(":")
    if name == "fp8" and size.isdigit():
        return int(size), int(size)
    scheme = SCHEMES[fmt] if fmt in SCHEMES else SCHEMES[f"{name}:*"]
    out, inp = scheme.multiples
    return out or int(size), inp or int(size)


def _misfit_rows(spec: ModelSpec, fmt: str) -> dict[str, list[TensorSpec]]:
    """Role -> rows whose matrices are no whole groups."""
    demand_out, demand_in = _demands(fmt)
    wrong: dict[str, list[TensorSpec]] = {}
    for row in spec.rows:
        matrix = matrix_of(row)
        if matrix is None or not converted(row, fmt):
            continue
        if fmt.startswith("fp8") and SPLITS.get(row.role.rpartition(".")[2]) == "whole":
            continue  # DeepSeek-V3's kv_a_proj has 576 = 4.5 × 128 rows and is served so
        _, out, inp = matrix
        if out % demand_out or inp % demand_in:
            wrong.setdefault(row.role, []).append(row)
    return wrong


def _group_finding(context: Context, fmt: str, wrong: dict[str, list[TensorSpec]]) -> Finding:
    demand_out, demand_in = _demands(fmt)
    block = fmt.startswith("fp8")
    evidence, inputs = [], set()
    for rows in wrong.values():
        _, out, inp = matrix_of(rows[0]) or (0, 0, 0)
        inputs.add(inp)
        many = f"{rows[0].name}" + (f" and {len(rows) - 1} like it" if len(rows) > 1 else "")
        parts = [
            f"{side} {n} = {written(n / d)} × {d}"
            for side, n, d in (("out", out, demand_out), ("in", inp, demand_in))
            if n % d
        ]
        wanted = f"out a multiple of {demand_out}, in a multiple of {demand_in}"
        evidence.append(Evidence(many, ", ".join(parts), wanted, f"--quant {fmt}"))
    count = sum(sum(r.copies for r in rows) for rows in wrong.values())
    return Finding(
        "quant.group",
        "warning" if block else "error",
        f"{_matrices(count)} no whole {'blocks' if block else 'groups'} of {fmt}",
        tuple(evidence),
        "transformers lets the last block be short; vLLM and SGLang refuse it."
        if block
        else "A scale belongs to a whole group of inputs; a row that ends inside one cannot be"
        " packed.",
        "; or ".join(_group_remedies(context.spec, fmt, inputs)),
        {"matrices": count, "group": demand_in, "widths": ", ".join(map(str, sorted(inputs)))},
    )


def _matrices(count: int) -> str:
    return "1 matrix is" if count == 1 else f"{count:,} matrices are"


def _group_remedies(spec: ModelSpec, fmt: str, inputs: set[int]) -> Iterable[str]:
    name = fmt.partition(":")[0]
    _, demand = _demands(fmt)
    if name in ("awq", "gptq"):
        fits = [g for g in (128, 64, 32) if g < demand and all(i % g == 0 for i in inputs)]
        if fits:
            yield f"use {name}:{fits[0]}, of which every row is whole groups"
    for what, width in widths(spec):
        if width % demand:
            to = -(-width // demand) * demand
            yield (
                f"pad {config_key(spec, what)} {width} to {to} before quantising:"
                f" costs {added_weights(spec, what, width, to):,} weights and changes no output"
            )
    if spec.hidden_size % demand:
        yield f"take fp8 or nf4 without groups: hidden_size {spec.hidden_size} cannot be padded"


@rule(
    "quant.rows", "Every row takes the GGUF type asked for, or which one it gets", needs=("quant",)
)
def rows(context: Context) -> Iterable[Finding]:
    """k-quants store 256 consecutive weights of a row together, so ne[0], the input width, must be
    a multiple of 256. Where it is not, llama.cpp takes a type with blocks of 32 (Q4_K becomes
    Q5_0, Q5_K Q5_1, Q6_K Q8_0, Q2_K and Q3_K Q4_0, in older builds IQ4_NL), and F16 where not even
    32 divides it. The file works and is larger than its name says.

    Of a model with I = 14464 and H = 4096, asked for Q3_K:

        ffn_down [14464, 4096]    14464 = 56.5 × 256    falls back
        ffn_gate, ffn_up          rows of 4096 = 16 × 256, untouched

    The row's length counts, not the number of weights: that 14464 · 4096 is a multiple of 256 is
    no help.
    """
    fmt = context.quant or ""
    if kind_of(fmt) != "gguf":
        return
    try:
        got = gguf_types(context.spec, fmt)
    except UnknownArchitectureError as error:
        yield Finding(
            "quant.rows",
            "error",
            f"no GGUF can be made: {error.what}",
            (Evidence("architectures", context.spec.architecture, "", context.source("config")),),
            "llama.cpp's converter has no description of this family.",
            "serve it with transformers or vLLM, and quantise as awq:128, fp8 or nf4",
        )
        return
    wanted = gguf_types(context.spec, fmt, fall_back=False)
    changed = [(t, w, g) for (t, w), (_, g) in zip(wanted, got, strict=True) if w != g]
    if changed:
        yield _rows_finding(context, fmt, changed)


def _nbytes(tensor: GGUFTensor, type_: str) -> Fraction:
    return Fraction(tensor.elements * FORMATS[type_].block_bytes, FORMATS[type_].block_size)


def _kind(name: str) -> str:
    """ "blk.7.ffn_down.weight" -> "blk.*.ffn_down.weight"."""
    parts = name.split(".")
    return ".".join(["blk", "*", *parts[2:]]) if parts[0] == "blk" else name


def _rows_finding(
    context: Context, fmt: str, changed: list[tuple[GGUFTensor, str, str]]
) -> Finding:
    label = file_type(fmt).label
    extra = -int(-sum(_nbytes(t, g) - _nbytes(t, w) for t, w, g in changed) // 1)
    total = int(sum(_nbytes(t, g) for t, g in gguf_types(context.spec, fmt)))
    many = len(changed) > 1
    share = f"{100 * extra / (total - extra):.1f}%"
    return Finding(
        "quant.rows",
        "warning",
        f"{label}: {len(changed)} tensor{'s' * many} cannot have the type meant for"
        f" {'them' if many else 'it'}",
        tuple(_rows_evidence(changed, f"{CURRENT.build}, --quant {fmt}")),
        f"A row must be whole blocks, and rows of {_listed({t.ne[0] for t, _, _ in changed})} are"
        f" not. All other tensors have their type; the fallback makes the file {extra:,} bytes"
        f" ({share}) {'larger' if extra >= 0 else 'smaller'} than the types meant.",
        "; or ".join(_rows_remedies(context.spec, changed)),
        {"tensors": len(changed), "extra_bytes": extra, "file_bytes": total},
    )


def _rows_evidence(
    changed: Sequence[tuple[GGUFTensor, str, str]], source: str
) -> Iterable[Evidence]:
    """One piece for each (row, type meant, type given); their counts sum up to all of them."""
    groups: dict[tuple[int, str, str], list[GGUFTensor]] = {}
    for tensor, want, get in changed:
        groups.setdefault((tensor.ne[0], want, get), []).append(tensor)
    ordered = sorted(groups.items(), key=lambda g: -len(g[1]))
    if len(ordered) > SHOWN:
        last = [t for _, ts in ordered[SHOWN - 1 :] for t in ts]
        ordered = ordered[: SHOWN - 1]
    else:
        last = []
    for (row, want, get), tensors in ordered:
        size = FORMATS[want].block_size
        yield Evidence(
            _counted(tensors),
            f"rows of {row} = {written(row / size)} × {size}: {get.upper()}{_older(want, row)}",
            f"{want.upper()}, rows of a multiple of {size}",
            source,
        )
    if last:
        yield Evidence(_counted(last), "other types likewise", "whole blocks", source)


def _counted(tensors: Sequence[GGUFTensor]) -> str:
    """ "54 tensors (24 blk.*.attn_k, 24 blk.*.attn_q, 6 blk.*.attn_v)", "token_embd"."""
    kinds = Counter(_kind(t.name).removesuffix(".weight") for t in tensors)
    if len(tensors) == 1:
        return tensors[0].name
    return f"{len(tensors)} tensors ({', '.join(f'{n} {k}' for k, n in sorted(kinds.items()))})"


def _older(want: str, row: int) -> str:
    """What older builds take, where that is another type."""
    older = OLDER.fallback.get(want)
    if older is None or older == CURRENT.fallback.get(want) or row % FORMATS[older].block_size:
        return ""
    return f" ({older.upper()} in older builds)"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _rows_remedies(spec: ModelSpec, changed: list[tuple[GGUFTensor, str, str]]) -> Iterable[str]:
    """Padding, and how many of the tensors it mends; that nothing need be done, always."""
    block = lcm(*(FORMATS[w].block_size for _, w, _ in changed))
    lengths = {t.ne[0] for t, _, _ in changed}
    for what, width in widths(spec):
        mended = [t for t, _, _ in changed if t.ne[0] == width and "ffn_down" in t.name]
        if mended and width % block:
            to = -(-width // block) * block
            left = [t for t, _, _ in changed if t not in mended]
            rest = (
                f"; the other {len(left)} keep rows of {_listed({t.ne[0] for t in left})}, which no"
                " padding changes"
                if left
                else ""
            )
            yield (
                f"pad {config_key(spec, what)} {width} to {to} before converting: mends"
                f" {len(mended)} of the {len(changed)}, costs"
                f" {added_weights(spec, what, width, to):,} weights and changes no output{rest}"
            )
    if all(n % 32 == 0 for n in lengths):
        yield "nothing needs to be done: the file works; Q8_0, Q5_0 and IQ4_NL take every row"
    else:
        yield "nothing needs to be done: the file works, with these tensors in F16"


# Types that llama-quantize writes no tensor of without an importance matrix, embedding and head
# left out [source: llama.cpp's tensor_requires_imatrix].
NEEDS_MATRIX = frozenset({"iq3_xxs", "iq2_xxs", "iq2_xs", "iq2_s", "iq1_m", "iq1_s"})
Q2_K_S = "q2_k_s"  # in this mix Q2_K needs one too


@rule("quant.imatrix", "Types that need an importance matrix are known to", needs=("quant",))
def imatrix(context: Context) -> Iterable[Finding]:
    """Below about 3 bits llama-quantize refuses to work without an importance matrix: how much
    each input of each matrix matters, measured on a text. It stops at the first tensor of type
    IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S or IQ3_XXS, and of Q2_K in a Q2_K_S.

        llama-imatrix -m model-f16.gguf -f text.txt -o model.imatrix
        llama-quantize --imatrix model.imatrix model-f16.gguf model-iq2_xxs.gguf IQ2_XXS

    gateup sees no matrix: with one at hand this finding has had its answer.
    """
    name = (context.quant or "").lower()
    if kind_of(name) != "gguf":
        return
    label, chosen = file_type(name).label, file_type(name)
    try:
        types = gguf_types(context.spec, name)
    except GateupError:  # no GGUF at all: quant.rows'
        return
    needs = NEEDS_MATRIX | ({"q2_k"} if chosen.name == Q2_K_S else set())
    stops = [
        (t, type_)
        for t, type_ in types
        if type_ in needs and t.name not in ("token_embd.weight", "output.weight")
    ]
    if stops:
        yield Finding(
            "quant.imatrix",
            "error",
            f"llama-quantize makes no {label} without an importance matrix: {len(stops)} tensors"
            " need it",
            tuple(
                Evidence(
                    _counted([t for t, k in stops if k == kind]),
                    kind.upper(),
                    "a matrix",
                    CURRENT.build,
                )
                for kind in dict.fromkeys(k for _, k in stops)
            ),
            "At so few bits the choice of what to keep decides whether the model still speaks;"
            " llama-quantize stops at the first of these tensors rather than guess it.",
            "measure it with llama-imatrix and pass it with --imatrix; or take IQ3_S, Q3_K_S or"
            " Q2_K, which need none",
            {"tensors": len(stops)},
        )
    elif chosen.imatrix:
        yield Finding(
            "quant.imatrix",
            "note",
            f"{label} needs an importance matrix, but no tensor of this model gets such a type",
            (Evidence("--quant", name, "an importance matrix", CURRENT.build),),
            "Every row falls back to a type that needs none. Older builds refuse by the name.",
            "",
        )


@rule(
    "quant.twice",
    "What is quantised already is not quantised again",
    needs=("quant",),
    worst="warning",
)
def twice(context: Context) -> Iterable[Finding]:
    """Quantising a quantised model adds the errors of both, and most tools refuse it: a Q4_1 GGUF
    made into Q8_0 is twice as large and no better.

        SmolLM2-135M-Instruct.Q4_1.gguf --quant q4_k_m    start from the bf16 checkpoint

    llama-quantize takes it only with --allow-requantize.
    """
    wanted = context.quant or ""
    if wanted.lower() in PLAIN or wanted.lower().removeprefix("gguf:") in PLAIN:
        return
    there = _quantised_as(context)
    if there is None or there.lower() == wanted.lower():
        return
    yield Finding(
        "quant.twice",
        "warning",
        f"the model is {there} already; {wanted} would quantise it a second time",
        (Evidence(context.spec.name, there, "bf16, f16 or f32 weights", context.source("config")),),
        "What the first quantisation rounded off is gone; the second adds its own error.",
        "quantise the original weights",
    )


@rule("quant.experts", "Routed experts are quantised too", worst="warning")
def experts(context: Context) -> Iterable[Finding]:
    """bitsandbytes replaces nn.Linear modules as a model loads. transformers 5 keeps routed experts
    as stacked parameters, not modules: they stay in bf16, and they are most of a mixture's weights.
    A model that was to fit in 4 bits does not.

        Mixtral-8x7B, nf4    45.1 of 46.7 billion parameters are experts and stay: 90.2 GB

    AWQ, GPTQ and FP8 checkpoints hold each expert quantised, as GGUFs do.
    """
    fmt, source = _on_the_fly(context)
    if fmt is None:
        return
    stays = [r for r in context.spec.rows if r.experts and r.matmul]
    if not stays:
        return
    held, total = sum(r.params for r in stays), context.spec.params
    yield Finding(
        "quant.experts",
        "warning",
        f"{fmt} leaves the routed experts as they are: {held:,} of {total:,} parameters"
        f" ({100 * held / total:.0f}%), {units.traffic(2 * held)} in bf16",
        (
            Evidence(
                stays[0].name.replace("{e}", "*"),
                "a stacked parameter in memory",
                "an nn.Linear",
                source,
            ),
        ),
        "bitsandbytes converts modules; transformers 5 keeps experts as stacked parameters, which"
        " it does not see. transformers 4 held them as modules; `gateup plan` counts nf4 and int8"
        " of a mixture so.",
        "take an AWQ, GPTQ or FP8 checkpoint, or a GGUF (q4_k_m): there experts are quantised",
        {"expert_params": held, "params": total, "bytes": 2 * held},
    )


def _on_the_fly(context: Context) -> tuple[str | None, str]:
    """(bitsandbytes' format that is applied at load, what says so)."""
    fmt = (context.quant or "").lower()
    if fmt.startswith(("nf4", "int8")):
        return fmt, f"--quant {fmt}"
    if context.trainer is not None:
        run = read_run(context.trainer, context.source("trainer"))
        method = run.values.get("quantization_method", "bnb")
        if run.bits in (4, 8) and method in ("bnb", "bitsandbytes"):
            return ("nf4" if run.bits == 4 else "int8"), run.source
    said = declared(context.spec.config)
    if said and said.startswith(("nf4", "int8")) and not context.has("headers"):
        return said, f"{context.source('config')}, field quantization_config"
    return None, ""


def _quantised_as(context: Context) -> str | None:
    """The format of the model's weights, where it is no plain dtype."""
    declared = declared_quant(context.spec.config)
    if declared is not None:
        return declared
    settings = context.spec.config.get("quantization_config")
    if isinstance(settings, dict) and isinstance(settings.get("quant_method"), str):
        return str(settings["quant_method"])[:40]
    if context.checkpoint.kind != "gguf" or not context.checkpoint.stored:
        return None
    main: dict[str, int] = {}
    for tensor in context.checkpoint.stored:
        main[tensor.type] = main.get(tensor.type, 0) + tensor.params
    most = max(main, key=lambda t: main[t])
    if block_of(most) == 1:
        return None
    label = context.checkpoint.label.split(" ")[0]
    return label if label.lower() in FILE_TYPES else most.upper()
