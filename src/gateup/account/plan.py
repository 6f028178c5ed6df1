"""One question answered whole: where a model's parameters, bytes and FLOPs go, and does it fit.

`plan` opens the model, decides what the options leave open (and says so in the notes), and asks
the ledger, the memory model and the fit. Every figure of the answer is in `Plan.figures`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gateup.account.adapters import adapter_figures, adapter_notes, continuing, with_adapter
from gateup.account.command import Asked, with_commands
from gateup.account.compatible import check_host, check_run, check_weights
from gateup.account.crossover import Crossover, crossover
from gateup.account.figure import Figure, worst
from gateup.account.file_size import file_figures
from gateup.account.fit import Verdict, fit, roofline
from gateup.account.flops import Flops, decode_flops, prefill_flops, train_flops
from gateup.account.flow import causal
from gateup.account.kv import kv_nbytes
from gateup.account.ledger import Ledger, make_ledger, share
from gateup.account.lora import adapter_nbytes, adapter_rows
from gateup.account.machine import Device, parse_device
from gateup.account.measure import Measurements, measure
from gateup.account.memory import MemoryPlan
from gateup.account.options import COMPUTE_DTYPES, PlanOptions
from gateup.account.scenario import Scenario, stored_in
from gateup.account.traffic import bytes_per_token, intensity
from gateup.account.workload import Engine, Workload
from gateup.errors import UsageError
from gateup.files.adapter_match import AdaptedModule, adapted_modules
from gateup.files.checkpoint import Checkpoint, open_model
from gateup.model.quant.hf_formats import declared
from gateup.model.quant.mix import kind_of
from gateup.model.spec import ModelSpec

DEFAULT_CTX = 4096

# Tokens per physical batch: llama.cpp's n_ubatch, and the least that vLLM takes by itself.
UBATCH, UBATCH_VLLM = 512, 2048


@dataclass(frozen=True)
class Plan:
    """The answer of `plan`.

    checkpoint  what was opened
    options     what was asked
    scenario    the run as decided: format, engine, context, device
    ledger      parameters, bytes and FLOPs by tensor, in the scenario's format
    memory      bytes on the fullest device, by phase
    verdict     None where no device was named
    flops       "decode" and "prefill", or "training"
    figures     every figure, by its path in the JSON document ("params.total", "kv.total", …)
    notes       what was decided for the user, and what a reader should know
    """

    checkpoint: Checkpoint
    options: PlanOptions
    scenario: Scenario
    label: str
    ledger: Ledger
    memory: MemoryPlan
    crossover: Crossover
    flops: Mapping[str, Flops]
    verdict: Verdict | None = None
    roofline: Mapping[str, Figure] = field(default_factory=dict)
    measured: Measurements | None = None
    figures: Mapping[str, Figure] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def spec(self) -> ModelSpec:
        return self.scenario.spec

    @property
    def workload(self) -> Workload:
        return self.scenario.workload

    @property
    def device(self) -> Device | None:
        return self.scenario.device

    def __repr__(self) -> str:
        total, peak = self.figures["params.total"], self.figures["memory.peak"]
        fits = "" if self.verdict is None else f", fits={self.verdict.fits}"
        return (
            f"<Plan {self.spec.name}: {total.value:,} params, weights {self.label}, "
            f"ctx {self.workload.ctx:,}, peak {peak.value / 2**30:.2f} GiB ({peak.kind}) "
            f"in {self.memory.peak_phase}{fits}>"
        )


def plan(
    ref: str | Path,
    options: PlanOptions | None = None,
    *,
    base: str | None = None,
    **changes: Any,
) -> Plan:
    """Where `ref`'s parameters, bytes and FLOPs go, whether it fits, what would make it fit.

    ref      folder, config.json, .safetensors, .gguf, adapter folder, preset name, "smollm2"
    base     the model that an adapter folder belongs to, where the folder does not say
    changes  fields of PlanOptions: plan("llama-3-8b", quant="q4_k_m", ctx=32768, device="8GB")

    Raises GateupError: UsageError for options that cannot be, InputError for what cannot be read.
    """
    options = replace(options or PlanOptions(), **changes)
    checkpoint = open_model(ref, base=base)
    refuse_stray_base(checkpoint, ref, base)
    return plan_opened(checkpoint, options, ref, base)


def plan_opened(
    checkpoint: Checkpoint,
    options: PlanOptions,
    ref: str | Path | None = None,
    base: str | None = None,
) -> Plan:
    """`plan` of a model that is open already. Raises GateupError.

    ref, base  what it was opened by, for the commands of the remedies; without, they have none
    """
    asked = options
    scenario, label, notes, adapted, options = _decided(checkpoint, asked)
    ledger = make_ledger(scenario.spec, scenario.stored, label)
    flops, adapter = _flops(scenario)
    memory = scenario.memory()
    verdict = fit(scenario) if scenario.device else None
    if verdict is not None and ref is not None:

        def again(options: PlanOptions, preset: str | None) -> Scenario:
            return _decided(open_model(preset) if preset else checkpoint, options)[0]

        verdict = with_commands(verdict, Asked(str(ref), base, asked), again)
    roof = roofline(scenario) if scenario.device else {}
    measured = measure(scenario, checkpoint.path) if options.measure else None
    points = crossover(scenario.spec)
    figures = {
        **ledger.figures(),
        **file_figures(checkpoint, scenario.fmt, scenario.stored),
        **(adapter or adapter_figures(checkpoint.adapter, adapted)),
        **_flops_figures(flops),
        **_run_figures(scenario, ledger),
        **_crossover_figures(points),
        **_memory_figures(scenario, memory, verdict),
        **{f"roofline.{k}": v for k, v in roof.items()},
        **{f"measured.{k}": v for k, v in (measured.figures() if measured else {}).items()},
    }
    return Plan(
        checkpoint=checkpoint,
        options=options,
        scenario=scenario,
        label=label,
        ledger=ledger,
        memory=memory,
        crossover=points,
        flops=flops,
        verdict=verdict,
        roofline=roof,
        measured=measured,
        figures=figures,
        notes=(
            *notes,
            *scenario.notes,
            *_expanded_cache(scenario, figures),
            *adapter_notes(checkpoint.adapter, adapted, options),
            *_encoder(scenario.spec),
            *checkpoint.spec.notes,
            *checkpoint.problems,
        ),
    )


def refuse_stray_base(checkpoint: Checkpoint, ref: str | Path, base: str | None) -> None:
    """Raise UsageError for a base that goes with no adapter."""
    if base is not None and checkpoint.adapter is None:
        raise UsageError(
            f"--base {base}, but {ref} is a model of its own",
            expected="--base beside an adapter's folder only",
        )


def _decided(
    checkpoint: Checkpoint, asked: PlanOptions
) -> tuple[Scenario, str, tuple[str, ...], tuple[AdaptedModule, ...], PlanOptions]:
    """`_scenario` with the adapter that was opened; what it adapts, the options as it has them."""
    adapted = adapted_modules(checkpoint.spec, checkpoint.adapter) if checkpoint.adapter else ()
    lora, options = continuing(asked, checkpoint.adapter, adapted)
    scenario, label, notes = _scenario(checkpoint, options)
    return with_adapter(scenario, checkpoint.adapter, adapted, lora), label, notes, adapted, options


def _scenario(
    checkpoint: Checkpoint, options: PlanOptions
) -> tuple[Scenario, str, tuple[str, ...]]:
    """The run as decided, the name of its weights' format, and what was decided."""
    spec, notes = checkpoint.spec, list[str]()
    fmt, label = choose_format(checkpoint, options, notes)
    engine = _engine(checkpoint, options, fmt, notes)
    dtype = options.dtype or compute_dtype(spec)
    kv = options.kv
    if kv is None:
        kv = "f16" if engine == "llama.cpp" else dtype
    limit = spec.max_position_embeddings
    ctx = options.ctx
    if ctx is None:
        ctx = min(DEFAULT_CTX, limit or DEFAULT_CTX)
        notes.append(f"context {ctx:,}: no --ctx was given")
    elif limit and ctx > limit:
        notes.append(f"context {ctx:,} is past the {limit:,} positions the model was made for")
    workload = Workload(
        ctx=ctx,
        batch=options.batch,
        compute_dtype=dtype,
        kv_type=kv.lower(),
        engine=engine,
        ubatch=_ubatch(options, engine),
        execution=options.execution,  # type: ignore[arg-type]  # checked in PlanOptions
        tile=options.tile,
        last_logits=not options.all_logits,
        flash=options.flash,
        training=options.training(),
        parallel=options.parallel(),
    )
    check_weights(engine, _kind(checkpoint, fmt), label, options.train is not None)
    check_run(spec, options, workload)
    stored = checkpoint.stored if fmt is None else None
    scenario = Scenario(
        spec,
        fmt,
        stored if stored is not None else stored_in(spec, fmt or "bf16"),
        workload,
        parse_device(options.device) if options.device is not None else None,
        options.gpu_layers,
        options.cpu_moe_layers or 0,
    )
    check_host(scenario, options)
    return scenario.spread(), label, tuple(notes)


def _ubatch(options: PlanOptions, engine: Engine) -> int:
    if options.ubatch is not None:
        return options.ubatch
    return UBATCH_VLLM if engine == "vllm" else UBATCH


def choose_format(
    checkpoint: Checkpoint, options: PlanOptions, notes: list[str]
) -> tuple[str | None, str]:
    """(format, its name for people); None: as the checkpoint's files store it."""
    fmt = _asked_format(checkpoint, options, notes)
    if options.engine == "llama.cpp" and options.train is None:
        plain = _kind(checkpoint, fmt) == "dtype"
        fp8 = fmt is not None and options.quant is None and fmt.startswith("fp8")
        if plain or fp8:
            fmt = _for_llama_cpp(fmt or checkpoint.spec.dtype or "bf16", notes)
    if fmt is None:
        return None, checkpoint.label
    gguf = kind_of(fmt) == "gguf" and not fmt.startswith("gguf:")
    return fmt, f"{fmt} GGUF" if gguf else fmt


def _asked_format(checkpoint: Checkpoint, options: PlanOptions, notes: list[str]) -> str | None:
    if options.quant is not None:
        fmt = options.quant.lower()
        if kind_of(fmt) == "dtype" and options.train == "qlora":
            raise UsageError(
                f"--train qlora with {fmt} weights",
                expected="quantised weights: nf4, which it takes by itself",
                remedy=f"--train lora --quant {fmt} keeps them in {fmt}",
            )
        return fmt
    if options.train == "qlora":
        notes.append("weights in nf4: QLoRA's format, no --quant was given")
        return "nf4"
    if options.train == "full" and options.autocast:
        notes.append("weights in f32: --autocast casts copies for compute")
        return "f32"
    if options.dtype is not None and not _quantised(checkpoint):
        return options.dtype
    if checkpoint.stored is not None:
        return None
    native = native_format(checkpoint.spec)
    if declared(checkpoint.spec.config) == "":
        notes.append(
            "the config declares a quantisation gateup cannot size without the files: the figures "
            f"are those of the weights in {native or 'bf16'}"
        )
    if native == "mxfp4" and options.train is not None:
        notes.append("weights in bf16: transformers trains none in mxfp4")
        return "bf16"
    if declared(checkpoint.spec.config) and options.train == "full":
        notes.append(f"weights in bf16: full training takes none in {native}")
        return "bf16"
    if declared(checkpoint.spec.config):
        notes.append(
            f"weights in {native}, as the config declares and the Hub has them; --quant bf16 plans "
            "for them in bf16"
        )
    if native is None:
        notes.append("weights in bf16: the config declares no dtype")
    return native or "bf16"


def _kind(checkpoint: Checkpoint, fmt: str | None) -> str:
    """mix.kind_of of the weights, also where they lie as the files store them."""
    if fmt is not None:
        return kind_of(fmt)
    if checkpoint.kind == "gguf":
        return "gguf"
    return "hf" if _quantised(checkpoint) else "dtype"


def _for_llama_cpp(fmt: str, notes: list[str]) -> str:
    """The GGUF that llama.cpp's converter writes of weights in a plain dtype, or in FP8."""
    fmt = f"gguf:{fmt if fmt in COMPUTE_DTYPES else 'bf16'}"
    notes.append(f"weights in {fmt}: llama.cpp runs GGUFs, and its converter writes this one")
    return fmt


def compute_dtype(spec: ModelSpec) -> str:
    """The declared dtype where it is one that is computed in, else bf16."""
    return spec.dtype if spec.dtype and spec.dtype in COMPUTE_DTYPES else "bf16"


def _quantised(checkpoint: Checkpoint) -> bool:
    """Whether --dtype leaves the weights alone: they are stored, or declared, in blocks or FP8."""
    if checkpoint.stored is not None:
        types = {t.type for t in checkpoint.stored if t.row is not None and t.row.matmul}
        return not types <= set(COMPUTE_DTYPES)
    return (native_format(checkpoint.spec) or "bf16") not in COMPUTE_DTYPES


def native_format(spec: ModelSpec) -> str | None:
    """The format the config itself declares: its quantisation, else its dtype."""
    return declared(spec.config) or spec.dtype


def _engine(
    checkpoint: Checkpoint, options: PlanOptions, fmt: str | None, notes: list[str]
) -> Engine:
    gguf = _kind(checkpoint, fmt) == "gguf"
    if options.train is not None:
        if gguf:
            raise UsageError(
                "a GGUF's weights cannot be trained",
                expected="safetensors in bf16 or f32, or nf4 with --train qlora",
                remedy="add --quant bf16 (or --train qlora) to plan for the same model in it",
            )
        if options.engine in ("llama.cpp", "vllm"):
            raise UsageError(
                f"--engine {options.engine} does not train", expected="transformers or gateup"
            )
    if options.engine is not None:
        return options.engine  # type: ignore[return-value]  # checked in PlanOptions
    engine: Engine = "llama.cpp" if gguf else "transformers"
    why = "the weights are a GGUF" if gguf else "the default where the weights are no GGUF"
    notes.append(f"engine {engine}: {why}")
    return engine


def _flops(scenario: Scenario) -> tuple[dict[str, Flops], dict[str, Figure]]:
    """FLOPs of the run, and the figures of the adapter that is trained (if one is)."""
    spec, work = scenario.spec, scenario.workload
    if work.training is None:
        return {
            "decode": decode_flops(spec, work.ctx),
            "prefill": prefill_flops(
                spec,
                work.ctx,
                batch=work.batch,
                causal=causal(spec),
                last_logits=work.last_logits,
            ),
        }, {}
    if work.training.method == "full":
        return {"training": train_flops(spec, work)}, {}
    lora = work.training.lora
    rows = adapter_rows(spec, lora)
    total = sum(r.params for r in rows)
    mlp = sum(r.params for r in rows if r.row.part == "mlp")
    used = sum(r.active_params for r in rows)
    source = "PEFT: A [r, in] and B [out, r] for every matrix"
    sums: dict[tuple[int, int, int], int] = {}
    for r in rows:
        sums[r.rank, r.inp, r.out] = sums.get((r.rank, r.inp, r.out), 0) + r.copies
    numbers = " + ".join(f"{n}·{rank}·({i} + {o})" for (rank, i, o), n in sums.items())
    if extra := sum(r.extra for r in rows):
        numbers += f" + {extra} magnitudes"
    nbytes = adapter_nbytes(rows, lora.dtype)
    return {"training": train_flops(spec, work, adapter_params=used)}, {
        "adapter.params": Figure(total, "params", "exact", "Σ r·(in + out)", numbers, source),
        "adapter.bytes": Figure(
            nbytes, "B", "exact", "params·bytes", f"{total}·{nbytes // max(total, 1)}", source
        ),
        "adapter.mlp_share": share(mlp, total, "the adapter's parameters"),
    }


def _flops_figures(flops: Mapping[str, Flops]) -> dict[str, Figure]:
    return {f"flops.{run}.{k}": v for run, f in flops.items() for k, v in f.figures().items()}


def _run_figures(scenario: Scenario, ledger: Ledger) -> dict[str, Figure]:
    """KV cache, bytes moved and intensity: of inference only."""
    spec, work = scenario.spec, scenario.workload
    if work.training is not None:
        return {}
    return {
        "kv.total": kv_nbytes(spec, work.ctx, work.kv_type, work.batch),
        "kv.per_token": replace(kv_nbytes(spec, 1, work.kv_type), unit="B/token"),
        **{
            f"traffic.{k}": v
            for k, v in bytes_per_token(ledger, work.ctx, work.kv_type, work.batch).items()
        },
        **{
            f"intensity.{k}": v
            for k, v in intensity(ledger, work.ctx, work.kv_type, work.batch).items()
        },
    }


def _expanded_cache(scenario: Scenario, figures: Mapping[str, Figure]) -> tuple[str, ...]:
    """Why memory's KV cache is larger than the model's own, where it is."""
    mla = any(x.attention and x.attention.mla for x in scenario.spec.layers)
    if not mla or scenario.workload.engine != "transformers" or "kv.total" not in figures:
        return ()
    return (
        "transformers caches MLA's keys and values expanded per head, as counted under memory; "
        f"the latent alone, as other engines cache it, is {figures['kv.total'].value:,} bytes",
    )


def _encoder(spec: ModelSpec) -> tuple[str, ...]:
    if causal(spec):
        return ()
    return ("an encoder: every token sees the whole context, and nothing is decoded from a cache",)


def _crossover_figures(points: Crossover) -> dict[str, Figure]:
    return {f"crossover.{k}": v for k, v in points.model.figures().items()}


def phase_figure(memory: MemoryPlan, phase: str) -> Figure:
    """A phase's sum, as good as its weakest item."""
    alive = memory.alive(phase)
    return Figure(
        memory.peaks[phase],
        "B",
        worst(*(i.figure.kind for i in alive)),
        " + ".join(i.label for i in alive),
        " + ".join(str(i.nbytes) for i in alive),
        "the items alive in the phase",
    )


def _memory_figures(
    scenario: Scenario, memory: MemoryPlan, verdict: Verdict | None
) -> dict[str, Figure]:
    peak = phase_figure(memory, memory.peak_phase)
    out = {"memory.peak": replace(peak, formula=f"{memory.peak_phase}: {peak.formula}")}
    host = scenario.host()
    if host.value:
        out["memory.host"] = host
    if scenario.device is not None and verdict is not None:
        reserve = scenario.device.reserve(scenario.workload.engine)
        out["device.memory"] = Figure(
            scenario.device.memory, "B", "exact", "of each device", "", scenario.device.source
        )
        out["device.reserve"] = reserve
        out["device.capacity"] = Figure(
            verdict.capacity,
            "B",
            worst(reserve.kind),
            "memory − reserve",
            f"{scenario.device.memory} − {reserve.value}",
            reserve.source,
        )
    return out
