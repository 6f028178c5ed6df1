"""Which options go together: what an engine cannot do, or would pass over, is refused.

A plan for a run that no engine makes is a wrong number. What each engine takes [source]: llama.cpp
`common/arg.cpp` (KV types as in engines.py; a quantised V cache wants flash attention; it runs
GGUFs and splits by layers), vLLM's engine arguments (its kernels never hold a score matrix),
transformers' gguf integration (it dequantises a GGUF while it loads) and its dynamic cache, which
holds keys and values in the compute dtype.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from gateup.account.engines import KV_TYPES
from gateup.account.options import COMPUTE_DTYPES, PlanOptions
from gateup.account.parallel import faults
from gateup.account.scenario import Scenario
from gateup.account.workload import Engine, Parallel, Workload
from gateup.errors import UsageError
from gateup.model.quant.formats import stored_as
from gateup.model.spec import ModelSpec

# Tensor parallelism stays within a node; 16 is the largest in use.
MAX_TP = 16

# Engines whose prefill is cut into physical batches of --ubatch tokens.
_CHUNKED = ("llama.cpp", "vllm")


def check_weights(engine: Engine, kind: str, label: str, training: bool) -> None:
    """Raise UsageError where `engine` does not run weights of this kind.

    kind  "dtype", "gguf" or "hf", as mix.kind_of gives it;  label  their name for people
    """
    if engine == "llama.cpp" and kind == "hf":
        raise UsageError(
            f"--engine llama.cpp with {label} weights",
            expected="a GGUF: llama.cpp runs nothing else",
            remedy="--quant q4_k_m, or another GGUF type",
        )
    if engine == "transformers" and kind == "gguf" and not training:
        raise UsageError(
            f"--engine transformers with {label} weights",
            expected="weights it computes with: transformers dequantises a GGUF while it loads",
            remedy="--quant bf16 for what it then holds, or --engine llama.cpp",
        )


def check_run(spec: ModelSpec, options: PlanOptions, workload: Workload) -> None:
    """Raise UsageError for options that do not go together, or that this run would pass over."""
    engine = workload.engine
    default = {f.name: f.default for f in fields(PlanOptions)}
    if workload.tile != default["tile"] and workload.execution != "tiled":
        raise UsageError("--tile without --exec tiled", remedy="add --exec tiled, or leave it out")
    if workload.training is not None:
        for name, given in (
            ("kv", options.kv is not None),
            ("all-logits", options.all_logits),
            ("ubatch", options.ubatch is not None),
        ):
            if given:
                raise UsageError(
                    f"--{name} is about inference",
                    expected="no such option with --train: nothing is cached or cut, and the loss "
                    "reads every position's logits",
                )
        return
    if options.ubatch is not None and engine not in _CHUNKED:
        raise _unused("ubatch", engine, _CHUNKED, "the whole prompt is one pass")
    if workload.execution != "eager" and engine in _CHUNKED:
        raise _unused(
            f"exec {workload.execution}", engine, ("transformers", "gateup"), "its MLP is its own"
        )
    if engine == "vllm" and not workload.flash:
        raise UsageError("--no-flash with --engine vllm", expected="flash: it has nothing else")
    _check_cache(workload)
    _check_split(spec, workload)


def check_host(scenario: Scenario, options: PlanOptions) -> None:
    """Raise UsageError where layers or experts are to stay with a host that holds none."""
    for name, given in (
        ("gpu-layers", options.gpu_layers),
        ("cpu-moe-layers", options.cpu_moe_layers),
    ):
        if given is not None and not scenario.splits_host:
            raise UsageError(
                f"--{name} is about llama.cpp on a card",
                expected="--device with a card, and --engine llama.cpp or a GGUF",
            )
    if options.cpu_moe_layers and not any(r.experts for r in scenario.spec.rows):
        raise UsageError(f"--cpu-moe-layers, and {scenario.spec.name} has no experts")


def _unused(option: str, engine: str, takers: Iterable[str], why: str) -> UsageError:
    return UsageError(
        f"--{option} has no effect with --engine {engine}: {why}",
        expected=f"--engine {' or '.join(takers)}",
    )


def kv_types(workload: Workload) -> tuple[str, ...]:
    """Formats of the KV cache that the run's engine has."""
    if workload.engine == "transformers":
        return COMPUTE_DTYPES
    if workload.engine == "vllm":
        return (*KV_TYPES["vllm"], *(["f32"] if workload.compute_dtype == "f32" else []))
    return tuple(KV_TYPES["llama.cpp"])


def _check_cache(workload: Workload) -> None:
    kv, engine = workload.kv_type, workload.engine
    known = kv_types(workload)
    if kv not in known:
        raise UsageError(
            f"--kv {kv!r} is not known to {engine}", expected=f"one of {', '.join(known)}"
        )
    if engine == "llama.cpp" and not workload.flash and kv not in COMPUTE_DTYPES:
        raise UsageError(
            f"--kv {kv} with --no-flash",
            expected="f32, f16 or bf16: llama.cpp quantises V only with flash attention",
        )


def _no_llamacpp_split(spec: ModelSpec, name: str, degree: int) -> UsageError:
    """llama.cpp takes whole layers; where tp is meant, say which degrees another engine could."""
    others = ""
    if name == "tp":
        degrees = tensor_parallel_degrees(spec)
        listed = ", ".join(map(str, degrees)) or "1 alone"
        others = f"; {spec.name} divides by --tp {listed} (up to {MAX_TP} tried)"
    elsewhere = f", or --engine vllm --quant bf16 --{name} N" if name != "fsdp" else ""
    return UsageError(
        f"--{name} {degree} with --engine llama.cpp, which splits a model by layers only",
        expected=f"--pp N for llama.cpp (-sm layer){others}",
        remedy=f"--pp {degree}{elsewhere}",
    )


def tensor_parallel_degrees(spec: ModelSpec) -> list[int]:
    """The degrees from 2 to MAX_TP that split the model's heads and widths."""
    stored = stored_as(spec.rows, "bf16")
    return [n for n in range(2, MAX_TP + 1) if not faults(spec, stored, Parallel(tp=n))]


def _check_split(spec: ModelSpec, workload: Workload) -> None:
    parallel = workload.parallel
    if workload.engine == "llama.cpp":
        for name in ("tp", "ep", "fsdp"):
            if getattr(parallel, name) > 1:
                raise _no_llamacpp_split(spec, name, getattr(parallel, name))
    if workload.engine == "vllm" and parallel.fsdp > 1:
        raise UsageError(
            f"--fsdp {parallel.fsdp} with --engine vllm", expected="--tp, --pp or --ep"
        )
