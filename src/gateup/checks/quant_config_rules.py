"""What config.json says of its quantisation, and what the files hold of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding, Severity
from gateup.checks.rule import rule
from gateup.files.header import TensorHeader, clip, listed, many
from gateup.files.match import base_name
from gateup.model.config import whole
from gateup.model.spec import TensorSpec

# quant_method -> endings of which the files must hold one, for methods that transformers 5.24
# does not apply to plain weights at load once config.json names them. () where it does, or where
# the method's own tensors are no weight beside scales.
METHODS: Mapping[str, tuple[str, ...]] = {
    "aqlm": (),
    "auto-round": (),
    "awq": ("qweight",),
    "bitnet": (),
    "bitsandbytes": (),  # quantises plain weights at load
    "bitsandbytes_4bit": (),
    "bitsandbytes_8bit": (),
    "compressed-tensors": ("weight_packed", "weight_scale"),
    "eetq": (),
    "fbgemm_fp8": ("weight_scale",),
    "fouroversix": (),
    "fp8": ("weight_scale_inv", "weight_scale"),
    "fp_quant": (),
    "gemma": (),
    "gguf": (),
    "gptq": ("qweight",),
    "higgs": (),
    "hqq": (),
    "metal": (),
    "mxfp4": ("_blocks",),
    "mxfp8": (),
    "nvfp4": (),
    "quanto": (),
    "quark": (),
    "sinq": (),
    "spqr": (),
    "torchao": (),
    "vptq": (),
}
# Of other programs: vLLM, ExLlama, SGLang. transformers ignores them with a line in a log.
ELSEWHERE = frozenset(
    {
        *("awq_marlin", "gptq_marlin", "marlin", "exl2", "exl3", "mlx", "inc", "moe_wna16"),
        *("modelopt", "modelopt_fp4", "petit_nvfp4", "experts_int8", "w4afp8"),
        *("w8a8_fp8", "w8a8_int8"),
    }
)
BITS = {"gptq": (2, 3, 4, 8), "awq": (4, 8)}
# Scales of the cache alone say nothing of the weights.
_OF_WEIGHTS = frozenset(
    ("qweight", "weight_packed", "weight_scale", "weight_scale_inv", "absmax", "SCB", "_blocks")
)
# Files beside the weights in which older quantisers wrote their settings.
_BESIDE = ("quant_config.json", "quantize_config.json", "hf_quant_config.json")
_EXPERT = re.compile(r"\.experts\.\d+\.")
FLOATS = ("f64", "f32", "f16", "bf16")
FIELD = "quantization_config"


def declared_settings(config: Mapping[str, Any]) -> Any:
    """quantization_config, or its older name in compressed-tensors; None where there is none."""
    found = config.get(FIELD)
    return config.get("compression_config") if found is None else found


def method_of(settings: Any) -> str | None:
    """The method that settings name; bitsandbytes' flags stand for its name."""
    if not isinstance(settings, Mapping):
        return None
    if settings.get("load_in_4bit") is True or settings.get("load_in_8bit") is True:
        return "bitsandbytes"
    name = settings.get("quant_method")
    return name if isinstance(name, str) else None


@rule("quant.config", "quantization_config can be read, and says what the files hold")
def quant_config(context: Context) -> Iterable[Finding]:
    """quantization_config names the method that wrote the weights and how to read them back. A
    method that loaders do not know is skipped with a line in a log, and packed integers are then
    taken for weights; a width or group of the wrong kind stops them deep inside.

        {"quant_method": "gptq", "bits": "4", "group_size": 0}    text, and groups of nothing
        {"quant_method": "awq"}                                   no bits
        {"quant_method": "fp8", "weight_block_size": [0, 0]}      blocks of nothing
        {"quant_method": "gptq", "bits": 4, "group_size": -1}     right: one group a row

    The files have to agree. GPTQ and AWQ store qweight, scales and qzeros instead of weight,
    compressed-tensors weight_packed or weight_scale, FP8 weight_scale_inv or weight_scale. Plain
    weights under such a config are dropped at load, and the layers are made up. bitsandbytes over
    plain weights is right: it quantises while it loads; other methods that may do so are not
    compared with the files. Quantised weights under a config without quantization_config are read
    as numbers they are not.
    """
    if context.checkpoint.kind == "gguf":
        return
    settings = declared_settings(context.spec.config)
    if settings is None:
        yield from _undeclared(context)
        return
    if _of_mlx(context) and isinstance(settings, Mapping) and "quant_method" not in settings:
        return
    odd = list(_odd(settings))
    worst: Severity = "error" if any(level == "error" for level, _, _ in odd) else "warning"
    if odd:
        yield _finding(context, worst, [(e, why) for _, e, why in odd])
    if not odd or worst == "warning":
        yield from _against_files(context, settings)


def _of_mlx(context: Context) -> bool:
    """Whether MLX quantised it, whose settings name no method and lie under a key of its own."""
    return isinstance(context.spec.config.get("quantization"), Mapping)


Odd = tuple[Severity, tuple[str, str, str], str]


def _finding(
    context: Context, severity: Severity, found: list[tuple[tuple[str, str, str], str]]
) -> Finding:
    (key, value, _), _ = found[0]
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    source = f"{context.source('config')}, field {FIELD}"
    return Finding(
        "quant.config",
        severity,
        f"{FIELD}: {key} is {value}{more}",
        tuple(Evidence(k, v, wanted, source) for (k, v, wanted), _ in found),
        " ".join(dict.fromkeys(why for _, why in found)),
        f"take {FIELD} from the config.json that the quantiser wrote; a model whose weights are "
        "not quantised has none: remove it there",
        {"odd": len(found)},
    )


def _odd(settings: Any) -> Iterator[Odd]:
    """(severity, (key, value, what is expected), why) of what cannot be."""
    if not isinstance(settings, Mapping):
        wanted = 'an object: {"quant_method": "awq", "bits": 4, "group_size": 128, ...}'
        why = "Loaders read keys from it and stop with an AttributeError."
        yield "error", (FIELD, clip(settings, 40), wanted), why
        return
    method = method_of(settings)
    if method is None:
        said = settings.get("quant_method")
        shown = "absent" if said is None else clip(said, 40)
        why = "Without a method nobody can read the weights; transformers stops with a ValueError."
        yield "error", ("quant_method", shown, "a name, such as gptq"), why
    elif method not in METHODS:
        elsewhere = method.lower() in ELSEWHERE
        why = "transformers skips a method that it does not know and loads what is there as plain."
        yield (
            "warning" if elsewhere else "error",
            ("quant_method", clip(method, 40), listed(sorted(METHODS), 30)),
            why + (" vLLM or another engine may read it." if elsewhere else ""),
        )
    elif method in BITS:
        yield from _odd_groups(settings, method)
    elif method == "fp8":
        yield from _odd_fp8(settings)
    elif method.startswith("bitsandbytes"):
        yield from _odd_bitsandbytes(settings)
    elif method == "compressed-tensors":
        yield from _odd_compressed(settings)


def _odd_groups(settings: Mapping[str, Any], method: str) -> Iterator[Odd]:
    bits = settings.get("bits", settings.get("w_bit"))
    group = settings.get("group_size", settings.get("q_group_size"))
    if not whole(bits) or bits not in BITS[method]:
        wanted = " or ".join(map(str, BITS[method])) + ", a number without quotes"
        shown = "absent" if bits is None else clip(bits, 40)
        why = f"{method} packs that many bits a weight; loaders cannot unpack without it."
        yield "error", ("bits", shown, wanted), why
    why = "A scale belongs to that many inputs of a row (-1: to the whole row)."
    if group is None:
        yield "warning", ("group_size", "absent", "128, mostly, or -1"), why + " 128 is assumed."
    elif not whole(group) or (group != -1 and group <= 0):
        yield "error", ("group_size", clip(group, 40), "a whole number above 0, or -1"), why


def _odd_fp8(settings: Mapping[str, Any]) -> Iterator[Odd]:
    block = settings.get("weight_block_size")
    two = isinstance(block, list | tuple) and len(block) == 2
    if block is not None and not (two and all(whole(b) and b > 0 for b in block)):
        why = "A scale belongs to a block of that many rows and columns."
        yield "error", ("weight_block_size", clip(block, 40), "two sizes, as [128, 128]"), why
    scheme = settings.get("activation_scheme", "dynamic")
    if not isinstance(scheme, str) or scheme.lower() not in ("dynamic", "static"):
        why = "transformers refuses any other scheme."
        yield "error", ("activation_scheme", clip(scheme, 40), "dynamic or static"), why


def _odd_bitsandbytes(settings: Mapping[str, Any]) -> Iterator[Odd]:
    flags = [settings.get(k) for k in ("load_in_4bit", "load_in_8bit")]
    if all(f is True for f in flags):
        yield "error", ("load_in_4bit", "true, load_in_8bit too", "one"), "It is one or the other."
    elif not any(f is True for f in flags) and "_" not in str(settings.get("quant_method")):
        why = "With neither flag transformers skips the quantisation."
        yield "warning", ("load_in_4bit", "not true, load_in_8bit neither", "one true"), why
    kind = settings.get("bnb_4bit_quant_type", "nf4")
    if flags[0] is True and kind not in ("nf4", "fp4"):
        why = "bitsandbytes has these two sets of levels."
        yield "error", ("bnb_4bit_quant_type", clip(kind, 40), "nf4 or fp4"), why


def _odd_compressed(settings: Mapping[str, Any]) -> Iterator[Odd]:
    groups = settings.get("config_groups")
    why = "Each group says which modules it is for and how their weights are stored."
    if groups is not None and not isinstance(groups, Mapping):
        yield "error", ("config_groups", clip(groups, 40), "an object of groups"), why
        return
    for name, group in list((groups or {}).items())[:100]:
        key = f"config_groups.{clip(name, 40)[1:-1]}"
        if not isinstance(group, Mapping):
            # A group may be the name of a preset scheme, which stands with its targets.
            if not isinstance(group, list):
                yield "error", (key, clip(group, 40), "an object"), why
            continue
        weights = group.get("weights")
        bits = weights.get("num_bits", 8) if isinstance(weights, Mapping) else 8
        if not whole(bits) or not 1 <= bits <= 16:
            wanted = "a whole number from 1 to 16"
            yield "error", (f"{key}.weights.num_bits", clip(bits, 40), wanted), why


def _tails(context: Context) -> dict[str, list[TensorHeader]]:
    """Ending of what quantisers write -> its tensors."""
    found: dict[str, list[TensorHeader]] = {}
    for t in context.checkpoint.headers:
        base = base_name(t.name)
        if base is not None:
            found.setdefault(base[1], []).append(t)
    return found


def _against_files(context: Context, settings: Mapping[str, Any]) -> Iterator[Finding]:
    method = method_of(settings) or ""
    wanted = METHODS.get(method, ())
    if not context.checkpoint.headers or not wanted or _other_layout(settings):
        return
    tails = _tails(context)
    if not any(w in tails for w in wanted):
        words = " or ".join(w.replace("_blocks", "*_blocks") for w in wanted)
        yield Finding(
            "quant.config",
            "error" if method != "mxfp4" else "warning",
            f"config.json says {method}, and the files hold no {words}: the weights are plain",
            (
                Evidence("quant_method", method, "absent", f"{context.source('config')}, {FIELD}"),
                Evidence("files", context.checkpoint.label, words, "headers"),
            ),
            f"A loader builds {method}'s layers, finds none of their tensors and drops the plain "
            "ones: the layers hold random numbers or nothing.",
            f"remove {FIELD} from config.json, or fetch the quantised weights that belong to it",
            {"method": method},
        )
    elif "qweight" in wanted:
        yield from _incomplete(context, method, tails)


def _other_layout(settings: Mapping[str, Any]) -> bool:
    """Layouts under other names, and configs that declare plain files."""
    if settings.get("is_marlin_format") or settings.get("checkpoint_format") == "marlin":
        return True
    if settings.get("quant_method") != "compressed-tensors":
        return False
    status = settings.get("quantization_status", "compressed")
    return not settings.get("config_groups") or status != "compressed"


def _incomplete(
    context: Context, method: str, tails: Mapping[str, list[TensorHeader]]
) -> Iterator[Finding]:
    """Modules with packed weights and without what unpacks them."""
    stems = {t.name.rpartition(".")[0] for t in tails["qweight"]}
    lacking = []
    for tail in ("scales", "qzeros"):
        there = {t.name.rpartition(".")[0] for t in tails.get(tail, ())}
        lacking += [f"{s}.{tail}" for s in sorted(stems - there)]
    if lacking:
        yield Finding(
            "quant.config",
            "error",
            f"{many(len(lacking), 'tensor')} that {method} needs in no file: {listed(lacking, 3)}",
            tuple(Evidence(n, "absent", "beside its qweight", "headers") for n in lacking[:20]),
            "Packed weights mean nothing without the scales and zeros of their groups.",
            "fetch all files of one revision, or quantise again",
            {"tensors": len(lacking)},
        )


def _undeclared(context: Context) -> Iterator[Finding]:
    """Quantised tensors under a config that says nothing of it."""
    if _of_mlx(context):
        return
    tails = {k: v for k, v in _tails(context).items() if k in _OF_WEIGHTS}
    if not tails:
        return
    beside = [n for n in _BESIDE if n in context.beside]
    tensors = [t for ts in tails.values() for t in ts]
    yield Finding(
        "quant.config",
        "warning" if beside else "error",
        f"the files are quantised ({', '.join(sorted(tails))}), and config.json does not say so",
        tuple(Evidence(t.name, t.type, "declared by " + FIELD, "headers") for t in tensors[:20]),
        "transformers reads the method from config.json alone; without it the packed integers are "
        "dropped or taken for weights."
        + (f" {beside[0]} beside them is read by vLLM and older tools." if beside else ""),
        f"put {FIELD} into config.json, as the quantiser wrote it"
        + (f": {beside[0]} holds its settings" if beside else ""),
        {"tensors": len(tensors)},
    )


@rule("tensors.dtype", "Weights are stored as numbers that a loader takes", needs=["headers"])
def dtype(context: Context) -> Iterable[Finding]:
    """Weights are float32, float16 or bfloat16. Integers hold weights only where a quantiser wrote
    them, with scales beside them. A loader casts whatever is there to the model's dtype: weights
    of 0.02 stored as int8 were rounded to 0 before, the file loads without a word, and the layer
    is dead. float8 without scales has lost every weight outside its range.

    One tensor of another float than its like in the other layers (float32 among bfloat16) is
    loaded rightly and reported as a note: somebody has written it by other means.
    """
    if context.checkpoint.kind == "gguf":
        return
    scaled = _scaled(context)
    by_name = {r.name: r for r in context.spec.rows if not r.buffer}
    rows = {
        t: by_name[name]
        for t in context.checkpoint.headers
        if (name := _EXPERT.sub(".experts.{e}.", t.canonical or "")) in by_name
        or (name := t.canonical or "") in by_name
    }
    plain = [t for t in rows if not base_name(t.name)]
    odd = [t for t in plain if t.type not in FLOATS and not _explained(context, t, scaled, rows[t])]
    for eight in (False, True):
        found = [t for t in odd if t.type.startswith("f8") is eight]
        if found:
            yield _no_floats(context, found, eight)
    yield from _mixed([t for t in plain if t.type in FLOATS], rows)


def _scaled(context: Context) -> frozenset[str | None]:
    """Names of the weights beside which a quantiser's tensors lie."""
    return frozenset(t.canonical for t in context.checkpoint.headers if base_name(t.name))


def _explained(
    context: Context,
    tensor: TensorHeader,
    scaled: frozenset[str | None],
    row: TensorSpec,
) -> bool:
    """Whether a quantiser wrote it: its scales are there, or its method keeps them elsewhere."""
    if not row.matmul and len(row.shape) < 2:
        return False  # nobody quantises norms and biases
    if tensor.canonical in scaled or _of_mlx(context):
        return True
    method = method_of(declared_settings(context.spec.config))
    return method in ELSEWHERE or (method in METHODS and not METHODS[method or ""])


def _no_floats(context: Context, found: list[TensorHeader], eight: bool) -> Finding:
    types = ", ".join(sorted({t.type for t in found}))
    return Finding(
        "tensors.dtype",
        "error",
        f"{many(len(found), 'tensor')} stored as {types}"
        + (" without scales" if eight else ", which is no type of weights")
        + f": {listed([t.name for t in found], 3)}",
        tuple(Evidence(t.name, t.type, "bf16, f16 or f32", "headers") for t in found[:20]),
        "float8 holds 2 or 3 bits of fraction and needs a scale to reach small weights; none lies "
        "beside these."
        if eight
        else "Nothing in config.json or beside these tensors says that they are quantised: they "
        "are loaded as the whole numbers they are, and weights below 0.5 have been rounded to 0.",
        "write them again from the original weights in the model's dtype"
        + ("; or with the quantiser, which stores scales and a quantization_config" * eight),
        {"tensors": len(found)},
    )


def _mixed(
    tensors: list[TensorHeader], rows: Mapping[TensorHeader, TensorSpec]
) -> Iterator[Finding]:
    """Few tensors of another float than most of their kind."""
    kinds: dict[str, list[TensorHeader]] = {}
    for t in tensors:
        kinds.setdefault(rows[t].role, []).append(t)
    usual = Counter(t.type for t in tensors)
    odd: list[tuple[TensorHeader, str]] = []
    for like in kinds.values():
        counts = Counter(t.type for t in like)
        if len(counts) > 1:
            most = max(counts, key=lambda k: (counts[k], usual[k]))
            odd += [(t, most) for t in like if t.type != most]
    if odd:
        yield Finding(
            "tensors.dtype",
            "note",
            f"{many(len(odd), 'tensor')} of another float than in the other layers: "
            f"{listed([t.name for t, _ in odd], 3)}",
            tuple(Evidence(t.name, t.type, most, "the other layers") for t, most in odd[:20]),
            "Loaders cast them to the model's dtype. float16 ends at 65504 and has 10 bits of "
            "fraction, bfloat16 7; only a cast from float16 to bfloat16 rounds, and one from "
            "bfloat16 may overflow.",
            "",
            {"tensors": len(odd)},
        )
