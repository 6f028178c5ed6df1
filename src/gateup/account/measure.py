"""What this machine can run of a plan, run, and put beside what was predicted.

Every measurement runs in a fresh process of its own, from a script kept here as text: this package
imports no deep-learning library, and a peak belongs to one process. Each says what it needs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gateup.account.activations import Term, dtype_bytes, mlp_transient, sum_of
from gateup.account.figure import Figure
from gateup.account.machine import probe
from gateup.account.saved import Precision, saved_mlp
from gateup.account.scenario import Scenario
from gateup.account.workload import Training, Workload
from gateup.model.spec import ClassicFFNSpec, GatedMLPSpec, LayerSpec, MoESpec, active_width

# Everything together ends within a minute; one child may take most of it.
SECONDS = 55.0
# Work for one child: 3·10^11 FLOPs take about 6 s on two AVX-512 cores in bf16.
MAX_FLOPS = 3 * 10**11
# Below this an allocator's own noise (arenas, thread stacks: up to 10 MB) would count.
MIN_BYTES = 32 << 20
MIB = 1 << 20

_ACTS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}

_HEADERS = """
import json, resource, sys
from pathlib import Path
from gateup.files.checkpoint import open_model
open_model(sys.argv[1])
try:  # ru_maxrss of a forked child starts at its parent's: 425 MB seen for a 20 MB process
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
except OSError:
    scale = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
print(json.dumps({"rss": peak}))
"""

# transformers' own LlamaMLP, as its eager path runs it: the peak over the resting set in one
# forward pass, and what autograd saves.
_MLP = """
import importlib.util, json, sys
missing = [m for m in ("torch", "transformers") if importlib.util.find_spec(m) is None]
if missing:
    print(json.dumps({"missing": missing}))
    raise SystemExit
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP
a = json.loads(sys.argv[1])
dtype = getattr(torch, a["dtype"])
config = LlamaConfig(hidden_size=a["H"], intermediate_size=a["I"], hidden_act=a["act"],
                     mlp_bias=a["bias"], num_attention_heads=1, num_hidden_layers=1)
with torch.device("meta"):
    mlp = LlamaMLP(config).to(dtype)
mlp = mlp.to_empty(device="cpu")
for p in mlp.parameters():
    torch.nn.init.constant_(p, 1e-3)
def status(key):
    with open("/proc/self/status") as f:
        return next(int(x.split()[1]) * 1024 for x in f if x.startswith(key))
out = {}
x = torch.full((a["T"], a["H"]), 1e-3, dtype=dtype)
with torch.no_grad():
    mlp(x[:2])
    try:
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
        before = status("VmRSS")
        mlp(x)
        out["peak"] = status("VmHWM") - before
    except OSError:
        pass
own = {p.data_ptr() for p in mlp.parameters()}
seen = {}
def pack(t):
    if t.data_ptr() not in own:
        seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
    return t
T = min(a["T"], 64)
with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
    y = mlp(x[:T].clone().requires_grad_(True))
out["saved"], out["saved_T"] = sum(seen.values()), T
out["versions"] = "torch " + torch.__version__ + ", " + str(torch.get_num_threads()) + " threads"
print(json.dumps(out))
"""

_LLAMA = """
import importlib.util, json, sys
if importlib.util.find_spec("llama_cpp") is None:
    print(json.dumps({"missing": ["llama-cpp-python"]}))
    raise SystemExit
import llama_cpp
a = json.loads(sys.argv[1])
kv = {"type_k": a["kv"], "type_v": a["kv"]}
m = llama_cpp.Llama(a["path"], n_ctx=a["ctx"], n_batch=max(a["ubatch"], 512), n_ubatch=a["ubatch"],
                    n_gpu_layers=0, flash_attn=a["flash"], verbose=True, **kv)
print(json.dumps({"version": llama_cpp.__version__}))
"""

_BUFFER = re.compile(r"(\S+) +(model|KV|compute) buffer size = +(\d{1,12}(?:\.\d{1,6})?) MiB")

# ggml_type numbers [source: ggml.h] for the KV cache
_GGML = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30}


@dataclass(frozen=True)
class Measured:
    """One observation. key: short, for JSON; predicted: None where there is no prediction;
    how: what ran, at which size, in which versions.
    """

    key: str
    what: str
    predicted: Figure | None
    observed: int
    unit: str
    how: str

    @property
    def error(self) -> float | None:
        """(predicted − observed) / observed."""
        if self.predicted is None or not self.observed:
            return None
        return (float(self.predicted.value) - self.observed) / self.observed


@dataclass(frozen=True)
class Measurements:
    """rows, and notes on what could not be measured and why."""

    rows: tuple[Measured, ...]
    notes: tuple[str, ...] = ()

    def figures(self) -> dict[str, Figure]:
        """ "<key>.observed" and "<key>.predicted"; an observation is exact, of one run."""
        out = {}
        for row in self.rows:
            source = f"observed here: {row.how}"
            out[f"{row.key}.observed"] = Figure(
                row.observed, row.unit, "exact", row.what, source=source
            )
            if row.predicted is not None:
                out[f"{row.key}.predicted"] = row.predicted
        return out


class UnmeasuredError(Exception):
    """Why a measurement did not come about, as a sentence."""


def measure(
    scenario: Scenario,
    path: Path | None = None,
    *,
    seconds: float = SECONDS,
    python: str = sys.executable,
) -> Measurements:
    """Run what can be run here, within `seconds`.

    path    the model's folder or file; None (a preset): nothing is read or loaded
    python  the interpreter of the children
    """
    end = time.monotonic() + seconds
    rows: list[Measured] = []
    notes: list[str] = []

    def run(script: str, argument: str) -> dict[str, Any]:
        return _child(python, script, argument, end - time.monotonic())

    for part in (_headers, _mlp, _llama):
        try:
            rows += part(scenario, path, run)
        except UnmeasuredError as why:
            if str(why):
                notes.append(str(why))
    return Measurements(tuple(rows), tuple(notes))


Run = Callable[[str, str], dict[str, Any]]


def _child(python: str, script: str, argument: str, seconds: float) -> dict[str, Any]:
    """The JSON object that a script prints last, and its standard error under "log".

    glibc's threshold is fixed, for else it grows with what is freed, freed tensors stay with the
    heap, and the peak of 3·I reads up to 1.3 times that.

    Raises UnmeasuredError: out of time, failed, or a package is missing.
    """
    if seconds < 1:
        raise UnmeasuredError("no time left to measure more")
    try:
        done = subprocess.run(
            [python, "-c", script, argument],
            capture_output=True,
            timeout=seconds,
            check=False,
            env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
        )
    except subprocess.TimeoutExpired:
        raise UnmeasuredError(
            f"a measurement took longer than {seconds:.0f} s and was stopped"
        ) from None
    except OSError as error:
        raise UnmeasuredError(f"{python} does not start: {error.strerror}") from None
    log = done.stderr.decode("utf-8", "replace")
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    if done.returncode or not lines:
        last = log.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise UnmeasuredError(f"a measurement failed: {last[0][:200]}")
    try:
        out = json.loads(lines[-1])
    except ValueError:
        raise UnmeasuredError(f"a measurement printed no result: {lines[-1][:200]}") from None
    if not isinstance(out, dict):
        raise UnmeasuredError(f"a measurement printed no result: {lines[-1][:200]}")
    if "missing" in out:
        raise UnmeasuredError(f"to measure more: pip install {' '.join(out['missing'])}")
    return {**out, "log": log}


def _headers(scenario: Scenario, path: Path | None, run: Run) -> list[Measured]:
    """Peak resident memory of a process that opens the model."""
    if path is None:
        return []
    out = run(_HEADERS, str(path))
    limit = Figure(
        150 * 10**6,
        "B",
        "bound",
        "under 150 MB for any model",
        source="headers only, never weights",
    )
    how = "a fresh Python process that opens the model, imports included"
    return [Measured("headers_rss", "peak memory, reading headers", limit, out["rss"], "B", how)]


def block_of(scenario: Scenario) -> tuple[GatedMLPSpec, str]:
    """The gated MLP to run, and what it is: the widest layer's, or one expert's.

    Raises UnmeasuredError where the model has none that transformers' LlamaMLP computes.
    """
    mlps = {layer.mlp for layer in scenario.spec.layers if layer.mlp is not None}
    widest: GatedMLPSpec | None = None
    what = "the widest layer's MLP"
    for mlp in mlps:
        if isinstance(mlp, ClassicFFNSpec):
            raise UnmeasuredError("the MLP was not run: only gated MLPs are measured")
        gated = mlp.expert if isinstance(mlp, MoESpec) else mlp
        if widest is None or gated.intermediate_size > widest.intermediate_size:
            widest = gated
            what = "one expert's MLP" if isinstance(mlp, MoESpec) else "the widest layer's MLP"
    if widest is None or widest.act not in _ACTS:
        raise UnmeasuredError("the MLP was not run: transformers' LlamaMLP has no such activation")
    return widest, what


def tokens_to_run(wanted: int, hidden: int, width: int, size: int, free: int) -> int:
    """T that shows above noise, takes seconds, and fits into half of the free memory.

    Raises UnmeasuredError where the weights alone would not.
    """
    weights = 3 * hidden * width * size
    per_token = (3 * width + 2 * hidden) * size * 2
    room = free // 2 - 2 * weights
    if room < per_token * 16:
        raise UnmeasuredError(
            f"the MLP was not run: its weights take {weights:,} bytes and {free:,} are free"
        )
    return max(16, min(wanted, room // per_token, MAX_FLOPS // (6 * hidden * width)))


def _mlp(scenario: Scenario, path: Path | None, run: Run) -> list[Measured]:
    """Peak of one eager forward pass, and bytes saved for backward, of one MLP."""
    mlp, what = block_of(scenario)
    work, H, width = scenario.workload, scenario.spec.hidden_size, mlp.intermediate_size
    dtype = work.compute_dtype
    wanted = work.ctx * work.batch
    size = dtype_bytes(dtype, "--dtype")
    T = tokens_to_run(wanted, H, width, size, probe().available)
    names = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
    asked = {"H": H, "I": width, "T": T, "dtype": names[dtype], "act": _ACTS[mlp.act]}
    out = run(_MLP, json.dumps({**asked, "bias": mlp.bias}))
    scaled = "" if wanted == T else f", scaled down from T {wanted:,}"
    how = f"transformers' LlamaMLP, H {H}, I {width}, T {T:,}{scaled}, {dtype}, CPU"
    how = f"{how}; {out['versions']}"
    layer = next(x for x in scenario.spec.layers if x.mlp is not None)
    block = replace(layer, attention=None, mlp=mlp)
    rows = []
    peak = _peak(scenario, block, T)
    if "peak" in out and float(peak.value) >= MIN_BYTES:
        rows.append(Measured("mlp_peak", f"peak of {what}, forward", peak, out["peak"], "B", how))
    saved = _saved(scenario, block, out["saved_T"])
    how = how.replace(f"T {T:,}{scaled}", f"T {out['saved_T']}")
    label = f"saved for backward by {what}, weights trained"
    rows.append(Measured("mlp_saved", label, saved, out["saved"], "B", how))
    return rows


def _peak(scenario: Scenario, block: LayerSpec, tokens: int) -> Figure:
    """The prediction of the peak: the MLP's transient, or product and output where those are more
    (narrow experts).
    """
    spec = replace(scenario.spec, layers=(block,))
    work = Workload(ctx=tokens, compute_dtype=scenario.workload.compute_dtype)
    inner = mlp_transient(spec, work, tokens)
    H, width, size = spec.hidden_size, active_width(block.mlp), dtype_bytes(work.compute_dtype, "")
    if inner.value >= tokens * (width + H) * size:
        return inner
    return replace(
        inner,
        value=tokens * (width + H) * size,
        formula="T·(I + H)·b",
        numbers=f"{tokens}·({width} + {H})·{size}",
    )


def _saved(scenario: Scenario, block: LayerSpec, tokens: int) -> Figure:
    plan = Training(method="full", save="hf")
    work = Workload(compute_dtype=scenario.workload.compute_dtype, training=plan)
    terms = saved_mlp(block, scenario.spec.hidden_size, "hf", Precision((), work, plan))
    return sum_of(terms, "exact", "tensor by tensor", Term(tokens, "T", str(tokens)))


def _llama(scenario: Scenario, path: Path | None, run: Run) -> list[Measured]:
    """Load the GGUF with llama.cpp and read the sizes of its buffers."""
    if path is None or path.suffix != ".gguf":
        raise UnmeasuredError("")
    if scenario.fmt is not None:
        raise UnmeasuredError("llama.cpp was not run: the file is not in the format asked for")
    here = replace(scenario, device=None, gpu_layers=None, cpu_moe_layers=0).with_(
        engine="llama.cpp", batch=1, training=None, pp=1, tp=1, ep=1, fsdp=1
    )
    if here.workload.kv_type not in _GGML:
        raise UnmeasuredError(f"llama.cpp was not run: no KV cache in {here.workload.kv_type}")
    free = probe().available
    while here.memory().peak > free // 2 and here.workload.ctx > 256:
        here = here.with_(ctx=here.workload.ctx // 2)
    if here.memory().peak > free // 2:
        raise UnmeasuredError(f"llama.cpp was not run: {free:,} bytes are free")
    work = here.workload
    asked = {"path": str(path), "ctx": work.ctx, "ubatch": work.ubatch, "flash": work.flash}
    out = run(_LLAMA, json.dumps({**asked, "kv": _GGML[work.kv_type]}))
    how = f"llama-cpp-python {out['version']}, CPU, n_ctx {work.ctx:,}, n_ubatch {work.ubatch}"
    sizes = buffer_sizes(out["log"])
    groups = (("weights", "model"), ("kv", "KV"), ("buffers", "compute"))
    rows: list[Measured] = []
    for group, name in groups:
        if name in sizes:
            predicted = sum_group(here, group)
            what = f"llama.cpp's {name} buffer"
            rows.append(Measured(f"llamacpp_{group}", what, predicted, sizes[name], "B", how))
    if "repacked" in sizes:
        what = "llama.cpp's copy of the weights in its CPU kernels' order, beside the mapped file"
        rows.append(Measured("llamacpp_repacked", what, None, sizes["repacked"], "B", how))
    if not rows:
        raise UnmeasuredError("llama.cpp ran, but its log names no buffer sizes")
    return rows


def sum_group(scenario: Scenario, group: str) -> Figure:
    """The plan's items of a group, as one figure of the weakest kind among them."""
    plan = scenario.memory()
    items = [i for i in plan.items if i.group == group]
    kinds = {i.figure.kind for i in items}
    kind = next((k for k in ("estimate", "bound") if k in kinds), "exact")
    return Figure(
        sum(i.nbytes for i in items),
        "B",
        kind,  # type: ignore[arg-type]
        " + ".join(i.label for i in items),
        " + ".join(str(i.nbytes) for i in items),
        items[0].figure.source if items else "",
    )


def buffer_sizes(log: str) -> Mapping[str, int]:
    """Bytes by kind from llama.cpp's lines "... CPU KV buffer size = 12.00 MiB".

    Kinds: "model", "KV", "compute", and "repacked" for the model buffers (CPU_REPACK, AMX) that
    hold copies of tensors which the mapped file holds too.
    """
    out: dict[str, int] = {}
    for line in log.splitlines():
        found = _BUFFER.search(line)
        if found:
            kind = "repacked" if found[1] in ("CPU_REPACK", "AMX") else found[2]
            out[kind] = out.get(kind, 0) + round(float(found[3]) * MIB)
    return out
