"""What only the weights show: numbers that are none, idle neurons, gate taken for up.

The measurements are in the context (`--deep`); these rules judge them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, inf, isfinite, log, log2

from gateup.checks.context import Context
from gateup.checks.finding import Evidence, Finding, Severity
from gateup.checks.measured import FLOAT16_MAX, LayerRun, Order, QuietRows
from gateup.checks.rule import rule
from gateup.checks.words import in_layers, written
from gateup.files.header import listed, many

# A model that has learnt is this share of ln V, and half a nat, below guessing.
LEARNT = 0.1
# Orders whose losses differ by less are not told apart. A swap costs SmolLM2 20 nats, a model of
# two layers after 80 steps more than 1.
CLEAR = 0.2
# Shares of a layer's neurons from which idle ones are more than worth knowing. Padding to whole
# groups makes less than 1 % of zeros.
QUIET_SHARE = 0.01
DEAD_SHARE = 0.1
FLAT_SHARE = 0.25
# Share below which flat gates are not worth a word: SmolLM2 has 3 % in its last layer.
FLAT_NOTE = 0.05
# ReLU's neurons are silent by design; over a few hundred tokens a third may stay so.
SPARSE = ("relu", "relu2")
SPARSE_SHARE = 0.5


@rule(
    "deep.gate_up_order",
    "Gate and up are read in the order they were trained in",
    needs=["headers", "trial"],
)
def gate_up_order(context: Context) -> Iterable[Finding]:
    """act(gate(x)) ⊙ up(x) is not symmetric, and the two matrices look alike: exchanged, or read as
    halves where they lie as neighbours, they load without complaint and the model talks nonsense.
    A short text tells. It goes through the model once for each order, and the order it was
    trained in costs the fewest nats a token.

        SmolLM2-135M           as declared 2.8 nats a token, exchanged 23.5; guessing ln V = 10.8

    Meta's own names are w1 (gate), w3 (up), w2 (down): a converter that takes them in the order of
    their numbers has up where down belongs, which the shapes show, and one that takes w1 and w3
    for up and gate has this fault, which nothing but the text shows.

    Where every order costs as much as guessing the weights have learnt nothing yet, and the rule
    cannot tell.
    """
    trial = context.trial
    assert trial is not None
    guess = log(trial.vocab)
    costs = {o.key: o.loss if isfinite(o.loss) else inf for o in trial.orders}
    declared = trial.orders[0]
    best = min(trial.orders, key=lambda o: costs[o.key])
    numbers = {f"loss.{k}": v for k, v in costs.items()} | {"guessing": guess}
    evidence = tuple(_cost(o, guess) for o in trial.orders)
    if costs[best.key] > guess - max(0.5, LEARNT * guess):
        yield Finding(
            "deep.gate_up_order",
            "note",
            "cannot tell gate from up: no order reads the text better than guessing"
            if isfinite(costs[best.key])
            else "cannot tell gate from up: in every order the text gives values that are no"
            " numbers",
            evidence,
            "Weights that are random, or damaged otherwise, make nonsense of it in any order.",
            "",
            numbers,
        )
    elif costs[declared.key] - costs[best.key] > CLEAR:
        yield _wrong_order(context, best, evidence, numbers)


def _cost(order: Order, guess: float) -> Evidence:
    return Evidence(
        order.words, f"{order.loss:.2f} nats a token", "", f"guessing costs ln V = {guess:.2f}"
    )


def _wrong_order(
    context: Context, best: Order, evidence: tuple[Evidence, ...], numbers: Mapping[str, float]
) -> Finding:
    trial = context.trial
    assert trial is not None
    names = trial.gate_up
    layers = f"{context.spec.num_layers} layers"
    if best.key == "swapped" and len(names) == 2:
        remedy = (
            f"exchange {names[0]} and {names[1]}, and so in all {layers}; names and shapes stay"
        )
    elif best.key == "swapped":
        remedy = (
            f"exchange the two halves of {names[0] if names else 'gate_up_proj'} in all {layers}"
        )
    else:
        first, second = ("1::2", "::2") if best.key.endswith("up first") else ("::2", "1::2")
        remedy = (
            f"in all {layers}: W = torch.cat([W[{first}], W[{second}]]) for"
            f" {names[0] if names else 'gate_up_proj'}, its bias and its scales alike"
        )
    return Finding(
        "deep.gate_up_order",
        "error",
        f"gate and up are not read as they were trained: {best.words}, a short text costs"
        f" {best.loss:.2f} nats a token instead of {trial.orders[0].loss:.2f}",
        evidence,
        "Whoever wrote the file took gate for up, or laid them otherwise than"
        f" {context.spec.architecture} declares. It loads, and the model talks nonsense.",
        remedy,
        numbers,
    )


@rule("deep.nan_weights", "Every weight is a number", needs=["headers", "scan"])
def nan_weights(context: Context) -> Iterable[Finding]:
    """One NaN or infinity in a weight reaches every logit: 0 · NaN is NaN. They come from a run
    that diverged and was saved all the same, from a conversion to float16 of values beyond 65,504,
    from bytes that were damaged on the way. A block format has them in its scales, where one makes
    32 or 256 weights unusable.

        model.layers.3.mlp.down_proj.weight    2 NaN, the first at [0, 17]

    Every tensor is read for it, a few million weights at a time; an adapter's as well.
    """
    scan = context.scan
    assert scan is not None
    bad = scan.not_finite
    if not bad:
        return
    nans, infinities = sum(b.nans for b in bad), sum(b.infinities for b in bad)
    yield Finding(
        "deep.nan_weights",
        "error",
        f"{many(len(bad), 'tensor')} of {scan.tensors:,} with values that are no numbers:"
        f" {nans:,} NaN, {infinities:,} infinite",
        tuple(
            Evidence(
                b.name,
                f"{b.nans:,} NaN, {b.infinities:,} infinite, the first at {list(b.first)}",
                "finite numbers",
            )
            for b in bad
        ),
        "They reach every logit. A training run had diverged when it was saved, a conversion left"
        " float16's range, or the file was damaged on the way.",
        "take an earlier checkpoint, or convert in bfloat16 or float32; where the source is sound,"
        " fetch the file again and compare its checksum",
        {"tensors": len(bad), "nan": nans, "infinite": infinities},
    )


@rule("deep.zero_rows", "Neurons have weights", needs=["headers", "scan"], worst="warning")
def zero_rows(context: Context) -> Iterable[Finding]:
    """Neuron j of an MLP is row j of gate, row j of up and column j of down. Where one of the three
    is zero (or a thousand times smaller than its neighbours') the neuron adds nothing: it is
    padding, was pruned by a mask, or never moved from a start at zero.

        width 29568 padded to 29696    128 rows and columns of zeros a layer, 0.4 %: as meant

    Zeros cost what other weights cost: bytes, and bandwidth at every token. A small share is a
    note. Many are worth cutting out, which changes no output where they are exactly zero.
    """
    scan = context.scan
    assert scan is not None
    if not scan.quiet:
        return
    worst = max(scan.quiet, key=lambda q: q.quiet / q.of)
    many_of = any(q.quiet > QUIET_SHARE * q.of for q in scan.quiet)
    layers = sorted({q.layer for q in scan.quiet})
    total, zero = sum(q.quiet for q in scan.quiet), sum(q.zero for q in scan.quiet)
    empty = [q for q in scan.quiet if q.zero == q.of]
    yield Finding(
        "deep.zero_rows",
        "warning" if many_of else "note",
        f"{total:,} rows of gate and up or columns of down next to zero in {in_layers(layers)}"
        + (f"; {len(empty)} {'matrices' if empty[1:] else 'matrix'} all zero" if empty else ""),
        tuple(_quiet(q) for q in _first(scan.quiet)),
        "A zero row of gate or up, or a zero column of down, makes the whole neuron add nothing.",
        "nothing where the width was padded on purpose; otherwise these neurons can be cut out of"
        " all three matrices"
        + (" without changing any output" if zero == total else " at little cost"),
        {"quiet": total, "zero": zero, "layers": len(layers), "share": worst.quiet / worst.of},
    )


def _first(rows: Sequence[QuietRows]) -> list[QuietRows]:
    return sorted(rows, key=lambda q: (-q.quiet / q.of, q.layer))


def _quiet(q: QuietRows) -> Evidence:
    what = "columns" if q.role == "down" else "rows"
    exact = "all exactly zero" if q.zero == q.quiet else f"{q.zero:,} exactly zero"
    return Evidence(q.name, f"{q.quiet:,} of {q.of:,} {what} next to zero, {exact}")


@rule("deep.dead_neurons", "Neurons take part", needs=["headers", "trial"], worst="warning")
def dead_neurons(context: Context) -> Iterable[Finding]:
    """A neuron is dead where h = act(gate) ⊙ up stays next to nothing (a thousandth of its
    neighbours') on every token of a text: the gate never opens, or up gives nothing to let
    through. Learning rates that were too large, biases that ran away and pruning by masks leave
    such neurons; they cost bytes and time and add nothing.

        gate bias -30    silu(-30 + g) is about -3e-12, whatever the text

    A few hundred tokens prove it of no single neuron; a tenth of a layer is another matter. With
    ReLU silence is normal, and half a layer is what counts.
    """
    trial = context.trial
    assert trial is not None
    found = [x for x in trial.layers if x.dead]
    if not found:
        return
    loud = [x for x in found if x.dead > x.width * _dead_share(x)]
    count, of = sum(x.dead for x in found), sum(x.width for x in trial.layers)
    yield Finding(
        "deep.dead_neurons",
        "warning" if loud else "note",
        f"{count:,} of {of:,} neurons stay silent over {trial.tokens} tokens, in"
        f" {in_layers(x.layer for x in found)}",
        tuple(
            Evidence(
                f"layer {x.layer}",
                f"{x.dead:,} of {x.width:,} silent",
                f"fewer than {100 * _dead_share(x):.0f}%",
            )
            for x in sorted(found, key=lambda x: -x.dead / x.width)
        ),
        "Their gate stays shut on every token, or their up rows give nothing. Zero weights are"
        " listed by deep.zero_rows.",
        "prune them (rows of gate and up, columns of down), or train on with a smaller learning"
        " rate; a text of the model's own subject may wake some"
        if loud
        else "",
        {"dead": count, "neurons": of, "tokens": trial.tokens},
    )


def _dead_share(run: LayerRun) -> float:
    return SPARSE_SHARE if run.act in SPARSE else DEAD_SHARE


@rule("deep.gate_saturation", "Gates open and close", needs=["headers", "trial"], worst="warning")
def gate_saturation(context: Context) -> Iterable[Finding]:
    """A gate decides token by token. SiLU is flat on both sides: above 5 it lets up through as it
    is multiplied by g itself, below -5 it is shut. A neuron whose gate is on one side for every
    token decides nothing: it is linear or it is off, and gradients through the gate's decision are
    gone.

        gate bias 20    every gate at about 20: silu(g) = g, no decision left

    GELU is flat from 2.4 on. A few always-open neurons are normal in a last layer; a quarter of a
    layer means that gate's scale is wrong: weights multiplied twice, a missing norm, a bias of
    another model.
    """
    trial = context.trial
    assert trial is not None
    found = [x for x in trial.layers if x.width and x.open + x.shut > FLAT_NOTE * x.width]
    if not found:
        return
    loud = any(x.open + x.shut > FLAT_SHARE * x.width for x in found)
    yield Finding(
        "deep.gate_saturation",
        "warning" if loud else "note",
        f"gates that never move in {in_layers(x.layer for x in found)}:"
        f" {sum(x.open for x in found):,} always open, {sum(x.shut for x in found):,} always shut"
        f" of {sum(x.width for x in found):,}",
        tuple(
            Evidence(
                f"layer {x.layer}",
                f"{x.open:,} open and {x.shut:,} shut on every token, of {x.width:,}",
                f"fewer than {100 * FLAT_SHARE:.0f}%",
            )
            for x in sorted(found, key=lambda x: -(x.open + x.shut) / x.width)
        ),
        f"On all {trial.tokens} tokens these gates lie on a flat side of {found[0].act}: the neuron"
        " is linear, or off.",
        "compare the gate's weights, bias and the norm before it with the source's" if loud else "",
        {
            "open": sum(x.open for x in found),
            "shut": sum(x.shut for x in found),
            "tokens": trial.tokens,
        },
    )


@rule(
    "deep.activation_overflow",
    "Activations stay within float16's range",
    needs=["headers", "trial"],
)
def activation_overflow(context: Context) -> Iterable[Finding]:
    """float16 ends at 65,504. What leaves it first is h = act(gate) ⊙ up, which down_proj reads,
    and down_proj's output: products of two large numbers, on the first token of a text most of
    all. An infinity there is a NaN in the next norm, and one token for ever on the screen.

        SmolLM2-135M, layer 11    largest |h| 2,824, largest |output| 22,500: 2.9 times to spare

    Where float16 is declared, asked for with --quant f16, or set in the trainer (fp16: true), a
    value beyond it is an error and one within a factor of two a warning. In bfloat16, which ends at
    3.4e38, it is a note.

    h can be made smaller exactly: row j of up divided by a power of two, column j of down
    multiplied by it. No output changes.
    """
    trial = context.trial
    assert trial is not None
    lost = next((x for x in trial.layers if not isfinite(x.h_max + x.out_max)), None)
    if lost is not None:
        if context.scan is None or not context.scan.not_finite:  # else they are the cause
            yield _not_finite(context, lost)
        return
    why = _float16(context)
    over = [x for x in trial.layers if _top(x) >= (FLOAT16_MAX / 8 if why else FLOAT16_MAX)]
    if not over:
        return
    worst = max(over, key=_top)
    top = _top(worst)
    severity: Severity = "note"
    if why and top >= FLOAT16_MAX / 2:
        severity = "warning" if top < FLOAT16_MAX else "error"
    out = worst.out_max >= worst.h_max
    what = "output of down_proj" if out else "input of down_proj"
    margin = FLOAT16_MAX / top
    yield Finding(
        "deep.activation_overflow",
        severity,
        f"layer {worst.layer}: the {what} reaches {_said(top)}; float16 ends at 65,504"
        + (f" ({margin:.2g} times to spare)" if margin > 1 else ""),
        tuple(
            Evidence(
                f"layer {x.layer}",
                f"largest |h| {_said(x.h_max)} (neuron {x.h_at}), largest |output|"
                f" {_said(x.out_max)} (channel {x.out_at})",
                "below 65,504",
                why or "float16, were it used",
            )
            for x in sorted(over, key=_top, reverse=True)
        ),
        f"Measured over {trial.tokens} tokens; another text may reach further. Beyond the limit a"
        " value is infinite, the next norm makes NaN of it, and every logit is NaN.",
        _rescaled(over) if severity != "note" else "",
        {
            "layer": worst.layer,
            "h_max": worst.h_max,
            "out_max": worst.out_max,
            "margin": margin,
        },
    )


def _not_finite(context: Context, run: LayerRun) -> Finding:
    """Even float32 did not hold them."""
    return Finding(
        "deep.activation_overflow",
        "error",
        f"layer {run.layer}: activations are no numbers, and every weight is one",
        (
            Evidence(
                f"layer {run.layer}",
                f"largest |h| {written(run.h_max)} (neuron {run.h_at}), largest |output|"
                f" {written(run.out_max)} (channel {run.out_at})",
                "finite numbers",
                "computed in float32",
            ),
        ),
        "Values grew beyond 3.4e38 in this layer or the one before: weights of another scale, or a"
        " norm that is not the model's.",
        "compare the layer's weights and norms with the source's",
        {"layer": run.layer},
    )


def _top(run: LayerRun) -> float:
    """The larger of the two."""
    return max(run.h_max, run.out_max)


def _said(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _rescaled(over: Sequence[LayerRun]) -> str:
    """Another dtype; or, where h alone is too large, the power of two that brings it down."""
    words = "compute in bfloat16 (vLLM: --dtype bfloat16; trainers: bf16: true), or in float32"
    large = [x for x in over if x.h_max >= FLOAT16_MAX / 2]
    if large and all(x.out_max < FLOAT16_MAX / 2 for x in over):
        power = 2 ** max(1, ceil(log2(max(x.h_max for x in large) / (FLOAT16_MAX / 8))))
        where = listed([f"{x.h_at} of layer {x.layer}" for x in large], 3)
        words += (
            f"; or divide row {where} of up by {power:,} and multiply the same column of down by"
            " it: exact, no output changes"
        )
    return words


def _float16(context: Context) -> str | None:
    """What says that the model is to be computed in float16; None where nothing does."""
    if (context.quant or "").lower().removeprefix("gguf:") == "f16":
        return f"--quant {context.quant}"
    if context.trainer is not None and context.trainer.get("fp16") is True:
        return f"{context.source('trainer')}, field fp16"
    if context.spec.dtype == "f16":
        return f"{context.source('config')}, field torch_dtype"
    if context.checkpoint.label.lower().startswith("f16 "):
        return f"the file: {context.checkpoint.label}"
    return None
