"""The fastest a device could go: tokens per second from its bandwidth and peak FLOPs alone.

A step takes at least max(bytes / bandwidth, FLOPs / peak) [source: Williams et al. 2009, the
roofline model]. Bytes are every active weight and visible cache entry once, FLOPs the GEMMs and
attention scores; real kernels move and compute more, so the tokens per second are a bound. The
peak is the data sheet's, at its boost clock; a card that clocks higher passes it by as much.
"""

from __future__ import annotations

from gateup.account.figure import Figure, Kind, worst
from gateup.account.flops import decode_flops, prefill_flops, train_flops
from gateup.account.kv import kv_nbytes
from gateup.account.ledger import make_ledger
from gateup.account.lora import adapter_rows
from gateup.account.machine import Device
from gateup.account.scenario import Scenario
from gateup.account.traffic import weights_read
from gateup.model.quant.formats import FORMATS

# dtypes whose peak a GEMM with such weights may reach; the fastest of them is the bound.
_BLOCKS = ("i8", "f16")  # llama.cpp multiplies int8 blocks, or dequantises to f16
_PEAKS = {"int8": ("i8", "f16"), "fp8": ("f8_e4m3", "f16")}


def roofline(scenario: Scenario) -> dict[str, Figure]:
    """Tokens per second, over all devices: "decode" and "prefill", or "train".

    Empty without a device or where its bandwidth is not known; without a known peak there is no
    "prefill", and "decode" is bandwidth's alone.
    """
    device = scenario.device
    if device is None or not device.bandwidth:
        return {}
    if scenario.workload.training is not None:
        return _train(scenario, device)
    out = {"decode": _decode(scenario, device)}
    prefill = _prefill(scenario, device)
    return out if prefill is None else {**out, "prefill": prefill}


def peak_flops(scenario: Scenario, device: Device) -> tuple[float, str] | None:
    """(FLOPs per second of one device, dtype): the fastest its GEMMs could run in."""
    fmt = scenario.fmt or (scenario.stored[0].type if scenario.stored else "bf16")
    compute = scenario.workload.compute_dtype
    names: tuple[str, ...] = (compute,)
    if any(t.type in FORMATS and FORMATS[t.type].block_size > 1 for t in scenario.stored):
        names = _BLOCKS
    elif fmt.startswith(("fp8", "f8")):
        names = (*_PEAKS["fp8"], compute)
    elif fmt == "int8":
        names = (*_PEAKS["int8"], compute)
    found = [(peak, n) for n in names if (peak := device.peak_flops(n)) is not None]
    return max(found, default=None)


def _shares(scenario: Scenario) -> tuple[int, int]:
    """(ranks that work on one step at once, pipeline stages)."""
    parallel = scenario.workload.parallel
    return max(parallel.tp * parallel.fsdp, parallel.ep), parallel.pp


def _decode(scenario: Scenario, device: Device) -> Figure:
    """One step of `batch` sequences. Pipeline stages work one after another on a sequence, and at
    once on different ones, each reading its own part of the cache.
    """
    work = scenario.workload
    spec, stored = scenario.resident
    ranks, stages = _shares(scenario)
    weights = weights_read(make_ledger(spec, stored, ""), work.batch)
    cache = kv_nbytes(spec, work.ctx, work.kv_type, work.batch)
    overlap = min(stages, work.batch)
    nbytes = int(weights.value) + int(cache.value) // overlap
    flops = decode_flops(spec, work.ctx).total * work.batch
    kind: Kind = worst("bound", weights.kind)
    return _bound("decode", work.batch, nbytes, flops, ranks, kind, scenario, device)


def _prefill(scenario: Scenario, device: Device) -> Figure | None:
    if peak_flops(scenario, device) is None:
        return None
    work = scenario.workload
    spec, stored = scenario.resident
    ranks, stages = _shares(scenario)
    tokens = work.ctx * work.batch
    flops = prefill_flops(spec, work.ctx, batch=work.batch, last_logits=work.last_logits).total
    weights = weights_read(make_ledger(spec, stored, ""), 1)  # the least any routing reads
    cache = kv_nbytes(spec, work.ctx, work.kv_type, work.batch)
    nbytes = int(weights.value) + int(cache.value)
    return _bound("prefill", tokens, nbytes, flops, ranks * stages, "bound", scenario, device)


def _train(scenario: Scenario, device: Device) -> dict[str, Figure]:
    """Forward and backward of one step; the optimizer's traffic is left out."""
    work = scenario.workload
    if work.training is None or peak_flops(scenario, device) is None:
        return {}
    params = 0
    if work.training.method != "full":
        params = sum(r.active_params for r in adapter_rows(scenario.spec, work.training.lora))
    flops = train_flops(scenario.spec, work, adapter_params=params)
    weights = int(weights_read(make_ledger(scenario.spec, scenario.stored, ""), 1).value)
    ranks, stages = _shares(scenario)
    tokens = work.ctx * work.batch * work.parallel.fsdp  # every shard has its own batch
    total = flops.total * work.parallel.fsdp
    nbytes = 2 * weights  # read forward, read again backward
    n = ranks * stages
    return {"train": _bound("train", tokens, nbytes, total, n, "bound", scenario, device)}


def _bound(
    what: str,
    tokens: int,
    nbytes: int,
    flops: int,
    ranks: int,
    kind: Kind,
    scenario: Scenario,
    device: Device,
) -> Figure:
    """tokens / max(bytes / bandwidth, FLOPs / peak) over `ranks` devices."""
    bandwidth = (device.bandwidth or 0.0) * ranks
    peak = peak_flops(scenario, device)
    moving = nbytes / bandwidth
    computing = flops / (peak[0] * ranks) if peak else 0.0
    binds = "compute" if computing > moving else "memory bandwidth"
    letters = f"{'B' if what == 'decode' else 'B·T'} / max(bytes / bandwidth, FLOPs / peak)"
    numbers = f"{tokens} / max({nbytes} / {bandwidth:.4g}, "
    numbers += f"{flops} / {peak[0] * ranks:.4g} {peak[1]})" if peak else "no known peak)"
    notes = [f"{binds} binds", device.source]
    if scenario.first_gpu_layer or (scenario.splits_host and scenario.cpu_moe_layers):
        notes.append("the device's part only: the host's share takes time on top")
    return Figure(
        tokens / max(moving, computing, 1e-12),
        "tokens/s",
        kind,
        letters,
        numbers,
        "; ".join(notes),
    )
