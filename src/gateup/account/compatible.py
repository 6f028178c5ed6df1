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
from gateup.account.workload import Engine, Workload
from gateup.errors import UsageError

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


def check_run(options: PlanOptions, workload: Workload) -> None:
    """Raise UsageError for options that do not go together, or that this run would pass over."""
    engine = workload.engine
    default = {f.name: f.default for f in fields(PlanOptions)}
    if workload.tile != default["tile"] and workload.execution != "tiled":
        raise UsageError("--tile without --exec tiled", remedy="add --exec tiled, or leave it out")
    if workload.training is not None:
        for name, given in (
            ("kv", options.kv is not None),
            ("all-logits", options.all_logits),
            ("ubatch", workload.ubatch != default["ubatch"]),
        ):
            if given:
                raise UsageError(
                    f"--{name} is about inference",
                    expected="no such option with --train: nothing is cached or cut, and the loss "
                    "reads every position's logits",
                )
        return
    if workload.ubatch != default["ubatch"] and engine not in _CHUNKED:
        raise _unused("ubatch", engine, _CHUNKED, "the whole prompt is one pass")
    if workload.execution != "eager" and engine in _CHUNKED:
        raise _unused(
            f"exec {workload.execution}", engine, ("transformers", "gateup"), "its MLP is its own"
        )
    if engine == "vllm" and not workload.flash:
        raise UsageError("--no-flash with --engine vllm", expected="flash: it has nothing else")
    _check_cache(workload)
    _check_split(workload)


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


def _check_split(workload: Workload) -> None:
    parallel = workload.parallel
    if workload.engine == "llama.cpp":
        for name in ("tp", "ep", "fsdp"):
            if getattr(parallel, name) > 1:
                raise UsageError(
                    f"--{name} {getattr(parallel, name)} with --engine llama.cpp",
                    expected="--pp: llama.cpp splits by layers (-sm layer)",
                )
    if workload.engine == "vllm" and parallel.fsdp > 1:
        raise UsageError(
            f"--fsdp {parallel.fsdp} with --engine vllm", expected="--tp, --pp or --ep"
        )
