"""Fields that no shape shows: a wrong one loads, runs, and computes something else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from gateup.account.kv import kv_nbytes
from gateup.checks import known
from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding
from gateup.checks.rule import rule
from gateup.checks.words import written
from gateup.errors import GateupError
from gateup.files.header import clip
from gateup.model import presets
from gateup.model.families import build_spec
from gateup.model.families.base import ACTIVATIONS
from gateup.model.spec import AttentionSpec

GEMMA = ("gemma", "gemma2", "gemma3", "gemma3_text")
# transformers' names of activations [source: transformers 5.24 ACT2FN].
TRANSFORMERS_ACTS = frozenset(
    {
        *("gelu", "gelu_10", "gelu_fast", "gelu_new", "gelu_python", "gelu_pytorch_tanh"),
        *("gelu_python_tanh", "gelu_accurate", "hardswish", "laplace", "leaky_relu", "linear"),
        *("mish", "quick_gelu", "relu", "relu2", "relu6", "sigmoid", "silu", "sqrtsoftplus"),
        *("swish", "tanh", "prelu", "xielu"),
    }
)
# The field that a family's class looks up; "" where it looks up none. Others: hidden_act.
ACT_KEYS = {
    "gpt2": "activation_function",
    "gemma2": "hidden_activation",
    "gemma3": "hidden_activation",
    "gemma3_text": "hidden_activation",
    "gpt_oss": "",
    "nemotron-nas": "",  # code of its own, beside the weights
    "openelm": "",
}
# Spelling -> the one that every engine takes.
PLAIN_SPELLING = {"swish": "silu"}
# Names that transformers does not have -> what is meant.
MEANT = {
    "swiglu": "silu",
    "geglu": "gelu_pytorch_tanh",
    "gelu_tanh": "gelu_pytorch_tanh",
    "identity": "linear",
}
CLASSIC = ("gpt2", "bert")
EPS_KEYS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps")

# Families whose activations leave float16's range (±65504): what says so.
OVERFLOWS = {
    "gemma2": "vLLM refuses float16 for gemma2: numerical instability",
    "gemma3": "vLLM refuses float16 for gemma3; huggingface/transformers issue 36822",
    "gemma3_text": "vLLM refuses float16 for gemma3_text; huggingface/transformers issue 36822",
    "qwen2": "QwenLM/Qwen3 issue 761: only '!' in float16, right in bfloat16",
    "deepseek_v2": "deepseek-ai/DeepSeek-V2 issue 93: NaN activations in float16",
    "gpt_oss": "unsloth's list of models that leave float16's range",
}


def _field(context: Context, key: str) -> str:
    return f"{context.source('config')}, field {key}"


@rule("semantics.act", "The activation is the one the model was trained with")
def act(context: Context) -> Iterable[Finding]:
    """hidden_act names the function between gate and product. Nothing in the weights shows it.

    A name that transformers does not know ("swiglu", "gelu_tanh", "identity") does not load.

    Aliases: "swish" is SiLU, "gelu_new", "gelu_fast" and "gelu_pytorch_tanh" are the tanh form of
    GELU, "gelu" the exact one. Engines that compare text (vLLM takes only "silu" for Llama) refuse
    an alias.

    Gemma is trained with the tanh form, but the first Gemma files say "gelu". hidden_activation
    wins where it is set; transformers corrects the old value for Gemma 1, other programs take it
    at its word:

        model_type gemma, hidden_act "gelu", no hidden_activation
        gelu(1) = 0.8413, tanh form 0.8412; they differ by at most 4.7e-4 per value

    Logits come out slightly off, and a loose tolerance hides it. SiLU in its place breaks
    generation outright.
    """
    config, family = context.spec.config, context.spec.family
    unknown = _unknown_act(context)
    if unknown:
        yield unknown
        return
    if family in GEMMA:
        yield from _gemma_act(context)
        return
    name = config.get("hidden_act")
    if not isinstance(name, str) or family in CLASSIC:
        return
    plain = PLAIN_SPELLING.get(name, name)
    if plain != name:
        yield Finding(
            "semantics.act",
            "note",
            f'hidden_act "{name}" is another name for "{plain}"',
            (Evidence("hidden_act", name, plain, _field(context, "hidden_act")),),
            "vLLM compares the text and takes one spelling only.",
            f'write "{plain}"',
        )
    if ACTIVATIONS.get(name) != "silu":
        yield Finding(
            "semantics.act",
            "warning",
            f'hidden_act is "{name}"; every published {family} model has SiLU',
            (Evidence("hidden_act", name, "silu", _like(context)),),
            "The weights fit any activation; with another one than they were trained with, the"
            " model speaks nonsense. A model retrained with it (ReLU for sparsity, say) is right.",
            'write "silu", unless this model was trained otherwise',
        )


def _unknown_act(context: Context) -> Finding | None:
    """A name that transformers cannot look up. A GGUF's comes from its architecture."""
    config = context.spec.config
    key = ACT_KEYS.get(context.spec.family, "hidden_act")
    if context.checkpoint.kind == "gguf" or not key or key not in config:
        return None
    name = config[key]
    optional = key != "hidden_act" or context.spec.family in GEMMA
    if name in TRANSFORMERS_ACTS or (name is None and optional):
        return None
    near = MEANT.get(name) if isinstance(name, str) else None
    if near is None and isinstance(name, str):
        near = next(iter(get_close_matches(name.lower(), TRANSFORMERS_ACTS, 1, cutoff=0.75)), None)
    return Finding(
        "semantics.act",
        "error",
        f"transformers knows no activation {clip(name, 40)}",
        (
            Evidence(
                key,
                "null" if name is None else clip(name, 60),
                near or "a name of ACT2FN: silu, gelu_pytorch_tanh, relu, …",
                _field(context, key),
            ),
        ),
        "It raises an error while it builds the model, before a weight is read."
        + (
            " A gated MLP is one by its architecture; only its gate's function is named."
            if name in ("swiglu", "geglu")
            else ""
        ),
        f'write "{near}"' if near else "use the value of the original config.json",
    )


def _like(context: Context) -> str:
    twins = known.twins(context.spec)
    return f"{known.names(twins)}, of the same shape" if twins else "the family's published files"


def _gemma_act(context: Context) -> Iterable[Finding]:
    config, tanh = context.spec.config, "gelu_pytorch_tanh"
    old, new = config.get("hidden_act"), config.get("hidden_activation")
    key, name = ("hidden_activation", new) if isinstance(new, str) else ("hidden_act", old)
    if not isinstance(name, str):
        return
    meant = ACTIVATIONS.get(name)
    if meant == "gelu_tanh":
        if isinstance(old, str) and ACTIVATIONS.get(old) != "gelu_tanh":
            yield Finding(
                "semantics.act",
                "note",
                f'hidden_act "{old}" is not what is computed: hidden_activation "{name}" is',
                (Evidence("hidden_act", old, tanh, _field(context, "hidden_activation")),),
                "Programs that read only hidden_act compute something else.",
                f'write "{tanh}" in both',
            )
        return
    exact = meant == "gelu"
    yield Finding(
        "semantics.act",
        "warning" if exact else "error",
        f'{key} is "{name}"; {context.spec.family} was trained with {tanh}',
        (Evidence(key, name, tanh, "Gemma's own code: the tanh form, in every size"),),
        "The value is a legacy of the first files: gelu and its tanh form differ by at most 4.7e-4"
        " per value, so logits are slightly off and loose tolerances pass."
        if exact
        else "The weights were trained with GELU; with another function generation breaks down.",
        f'set hidden_activation (and hidden_act) to "{tanh}"',
        {"difference": 4.7e-4} if exact else {},
    )


@rule("semantics.eps", "The norms' epsilon is the one of the model")
def eps(context: Context) -> Iterable[Finding]:
    """RMSNorm divides by sqrt(mean(x²) + eps). Llama 1 has eps 1e-6, Llama 2 and 3 have 1e-5, and
    no tensor shows which. A converter that had 1e-6 built in cost Llama-2-7B quality nobody could
    explain:

        Llama-2-7B Q5_K_M, wikitext-2    eps 1e-6: perplexity 5.8986    eps 1e-5: 5.8283

    Where a known model has the same sizes, its value is what is expected.
    """
    config = context.spec.config
    key = next((k for k in EPS_KEYS if config.get(k) is not None), None)
    if key is None:
        return
    value = known.number(config[key])
    if value is None or not 0 < value < 1:
        yield Finding(
            "semantics.eps",
            "error",
            f"{key} is {str(config[key])[:40]}",
            (Evidence(key, repr(config[key])[:60], "a number from 0 to 1", _field(context, key)),),
            "eps keeps the norm of an all-zero row from dividing by zero. It must be a number above"
            " 0, and far below the mean square of a row, which is about 1: a larger one makes every"
            " output small.",
            "write 1e-05 or 1e-06, as the original config.json has it",
        )
        return
    twins = [p for p in known.nearest(context.spec) if p.config.get(key) is not None]
    if twins and not any(known.same(value, p.config[key]) for p in twins):
        right = twins[-1].config[key]
        yield Finding(
            "semantics.eps",
            "warning",
            f"{key} is {written(value)}; {known.names(twins)}, of the same shape, has"
            f" {written(right)}",
            (Evidence(key, written(value), written(right), f"preset {twins[-1].name}"),),
            "eps is read from config.json, and a converter's default may have taken its place. The"
            " model runs, a little worse: Llama-2-7B's perplexity was 5.8986 instead of 5.8283.",
            f"write {written(right)}",
            {"found": value, "expected": right},
        )
    elif not twins and value > 1e-4:
        yield Finding(
            "semantics.eps",
            "warning",
            f"{key} is {written(value)}: published models have 1e-12 to 1e-5",
            (Evidence(key, written(value), "1e-05 or 1e-06", _field(context, key)),),
            "So large an eps changes what the norm computes wherever activations are small.",
            "compare with the original config.json",
            {"found": value},
        )


@rule("semantics.head_dim", "head_dim is read, not computed")
def head_dim(context: Context) -> Iterable[Finding]:
    """Many models set head_dim by itself. Calculators that take hidden_size / num_attention_heads
    for it are wrong by that factor.

    Qwen3-4B: hidden 2560, 32 heads, head_dim 128, 8 KV heads, 36 layers, bf16 cache:

        2 · 36 · 8 · 128 · 2 = 147,456 bytes per token      (5.625 GiB at 40,960 tokens)
        with 2560 / 32 = 80 it would be 92,160: 1.6 times too little

    Qwen3-8B has 4096 / 32 = 128 and is not concerned.
    """
    spec = context.spec
    kinds = {x.attention for x in spec.layers if x.attention and not x.attention.mla}
    shapes = {(a.num_heads, a.num_kv_heads, a.head_dim) for a in kinds}
    if len(shapes) != 1:
        return  # heads differ between layers: no one number to compare with
    (heads, kv, dim), hidden = shapes.pop(), spec.hidden_size
    if dim % 2:
        yield Finding(
            "semantics.head_dim",
            "error",
            f"head_dim {dim} is odd",
            (Evidence("head_dim", str(dim), "an even number", _field(context, "head_dim")),),
            "Rotary embeddings turn dimensions in pairs.",
            "use the head_dim of the original config.json",
        )
    elif heads * dim != hidden:
        yield _head_dim_note(context, heads, kv, dim)


def _head_dim_note(context: Context, heads: int, kv: int, dim: int) -> Finding:
    spec, hidden = context.spec, context.spec.hidden_size
    per_token = kv_nbytes(spec, 1).value
    context_length = spec.max_position_embeddings or 1
    total = kv_nbytes(spec, context_length).value
    computed = hidden / heads
    wrong = per_token * computed / dim
    return Finding(
        "semantics.head_dim",
        "note",
        f"head_dim is {dim}, not hidden_size / num_attention_heads = {written(computed)}",
        (
            Evidence("head_dim", str(dim), f"{written(computed)} by division", _source(context)),
            Evidence(
                "KV cache, f16",
                f"{per_token:,} bytes per token; {total / 2**30:.3f} GiB at {context_length:,}",
                f"{wrong:,.0f} with {written(computed)}: {dim / computed:.3g} times off",
                f"layers × {kv} KV heads × 2 × head_dim × 2 bytes",
            ),
        ),
        "The projections are heads × head_dim wide, which need not be hidden_size. Calculators"
        " that divide count too little or too much.",
        "",
        {
            "head_dim": dim,
            "by_division": computed,
            "kv_bytes_per_token": int(per_token),
            "kv_bytes_at_max": int(total),
        },
    )


def _source(context: Context) -> str:
    if context.spec.config.get("head_dim") is None:
        return f"the class of {context.spec.family}, where config.json is silent"
    return _field(context, "head_dim")


@rule(
    "semantics.kv_heads",
    "num_key_value_heads is there where the model has fewer KV heads",
    worst="warning",
)
def kv_heads(context: Context) -> Iterable[Finding]:
    """A config without num_key_value_heads means as many KV heads as query heads. Old files and
    old converters lack the key, and every size that follows from it is wrong: of Llama-2-70B, 64
    KV heads instead of 8, the cache eight times too large, k_proj of another shape.

        Llama-2-70B, 4,096 tokens in f16    8 KV heads: 1.25 GiB    64: 10 GiB
    """
    spec = context.spec
    if context.has("headers"):
        return  # shapes settle it: config.fields
    twins = known.twins(spec, without="num_key_value_heads")
    heads = _attention(context)
    kv = {p.config.get("num_key_value_heads") or heads.num_heads for p in twins} if heads else set()
    if heads is None or not kv or heads.num_kv_heads in kv:
        return
    right = max(kv)
    absent = spec.config.get("num_key_value_heads") is None
    yield Finding(
        "semantics.kv_heads",
        "warning",
        f"{heads.num_kv_heads} KV heads; {known.names(twins)}, otherwise of the same shape, has"
        f" {right}",
        (
            Evidence(
                "num_key_value_heads",
                f"absent, so {heads.num_heads}" if absent else str(heads.num_kv_heads),
                str(right),
                f"preset {twins[0].name}",
            ),
        ),
        "Without the key each query head has a KV head of its own: the KV cache and k_proj, v_proj"
        f" are {heads.num_kv_heads / right:.3g} times as large.",
        f"write num_key_value_heads: {right}",
        {"found": heads.num_kv_heads, "expected": right},
    )


def _attention(context: Context) -> AttentionSpec | None:
    return next((x.attention for x in context.spec.layers if x.attention), None)


@rule(
    "semantics.tied",
    "tie_word_embeddings is what the model's family and size have",
    worst="warning",
)
def tied(context: Context) -> Iterable[Finding]:
    """Small models share the embedding with the output head, large ones of the same family mostly
    do not: Qwen2.5 ties 0.5B, 1.5B and 3B; Llama 3.2 ties, Llama 3.1 does not; Gemma always does.

    A tied model with the flag lost gets a random head: fluent loss of about ln V, words at random.
    The other way round, a trained head is thrown away without a word.

        Qwen2.5-0.5B    tied, 494,032,768 parameters    untied 630,167,424
    """
    spec = context.spec
    if context.has("headers"):
        return  # the files show whether there is a head: config.tied
    twins = known.twins(spec)
    flags = {presets.spec(p.name).tie_word_embeddings for p in twins}
    if not twins or spec.tie_word_embeddings in flags:
        return
    right = not spec.tie_word_embeddings
    head = spec.vocab_size * spec.hidden_size
    yield Finding(
        "semantics.tied",
        "warning",
        f"the head is {'not ' if right else ''}tied; that of {known.names(twins)} is"
        f"{'' if right else ' not'}",
        (
            Evidence(
                "tie_word_embeddings",
                str(spec.config.get("tie_word_embeddings", "absent")).lower(),
                str(right).lower(),
                f"preset {twins[0].name}",
            ),
        ),
        f"A head of {head:,} parameters is "
        + ("made up at random." if right else "thrown away, and the embedding used for it."),
        f"write tie_word_embeddings: {str(right).lower()}",
        {"head_parameters": head},
    )


@rule("semantics.dtype", "float16 holds the model's activations", worst="warning")
def dtype(context: Context) -> Iterable[Finding]:
    """float16 ends at 65,504, bfloat16 at 3.4e38. A model trained in bfloat16 may have activations
    beyond float16's range, most of all in h = act(gate) · up before down_proj: one channel
    overflows to inf, the norm makes NaN of it, and every logit is NaN.

    What people see is one token for ever. argmax of all-NaN logits is token 0, and token 0 of
    GPT-2's, Qwen's and Llama 3's vocabularies is "!":

        "!!!!!!!!!!!!"          Qwen2 in float16
        "" or "<pad><pad>"      Gemma 2 and 3, whose token 0 is <pad>

    So a row of '!' is not a sampling problem. Load in bfloat16, or in float32 on GPUs without it;
    engines that keep the residual stream in float32 (llama.cpp on the CPU) do not mind.
    """
    spec = context.spec
    if spec.dtype != "f16" or spec.family not in OVERFLOWS:
        return
    quantised = isinstance(spec.config.get("quantization_config"), Mapping)
    key = "torch_dtype" if spec.config.get("torch_dtype") is not None else "dtype"
    yield Finding(
        "semantics.dtype",
        "note" if quantised else "warning",
        f"float16 is declared; activations of {spec.family} can leave its range of ±65,504",
        (Evidence(key, "float16", "bfloat16", OVERFLOWS[spec.family]),),
        "The family is trained in bfloat16. An overflow becomes inf, then NaN in the next norm, and"
        " NaN logits give token 0 for ever: '!!!!' with Qwen's vocabulary, <pad> with Gemma's."
        + (
            " Quantised kernels that want float16 are the usual reason for it." if quantised else ""
        ),
        "load in bfloat16 (vLLM: --dtype bfloat16), or float32 where the GPU has no bfloat16",
        {"float16_max": 65504},
    )


@rule("semantics.bias", "Biases that the config declares are biases the class has", worst="warning")
def bias(context: Context) -> Iterable[Finding]:
    """mlp_bias and attention_bias exist for some families only. Llama reads both, Qwen2 has biases
    on q, k and v whatever the config says, Mistral reads neither. A flag that the class does not
    read changes nothing, and a checkpoint that needs it loses its biases.

        model_type mistral, mlp_bias true: the class builds no biases
    """
    spec = context.spec
    for key in ("mlp_bias", "attention_bias", "qkv_bias"):
        if spec.config.get(key) is not True:
            continue
        try:
            other = build_spec({**spec.config, key: False}, where=context.source("config"), name="")
        except GateupError:
            continue  # without the flag it is no model: so it is read
        if other.rows == spec.rows:
            yield Finding(
                "semantics.bias",
                "warning",
                f"{key} true has no effect: {spec.architecture} does not read it",
                (Evidence(key, "true", "absent", f"the class {spec.architecture}"),),
                "Biases in the files, if there are any, are dropped at load.",
                "remove the key, or name an architecture that has these biases",
            )
