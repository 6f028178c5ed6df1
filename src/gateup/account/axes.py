"""The changes that can make a scenario smaller, as axes of the search.

Costs rank changes within a loss; they order answers and claim no more. Quality by format follows
llama.cpp's published perplexities: q8_0 to q5_k_m are within a fraction of a percent of 16 bits,
q4_k_m and iq4_xs within about one, q3_k_m and q2_k several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gateup.account.machine import MAX_COUNT
from gateup.account.scenario import Scenario, stored_in
from gateup.account.search import LOSSES, Axis, Option
from gateup.account.workload import Parallel
from gateup.errors import GateupError
from gateup.model import presets
from gateup.model.quant import mix
from gateup.model.spec import ModelSpec

NONE, TINY, SOME, HARDWARE, CAPABILITY = range(len(LOSSES))

# (format, loss, cost) from the largest down
GGUF_LADDER: tuple[tuple[str, int, float], ...] = (
    ("q8_0", TINY, 1),
    ("q6_k", TINY, 2),
    ("q5_k_m", TINY, 3),
    ("q4_k_m", SOME, 4),
    ("q4_k_s", SOME, 4.5),
    ("iq4_xs", SOME, 5),
    ("q3_k_m", SOME, 8),
    ("q2_k", SOME, 16),
)
HF_LADDERS: Mapping[str, tuple[tuple[str, int, int], ...]] = {
    "vllm": (("fp8", TINY, 1), ("awq:128", SOME, 4)),
    "transformers": (("int8", TINY, 1), ("nf4", SOME, 4)),
}
KV_LADDERS: Mapping[str, tuple[tuple[str, int, int], ...]] = {
    "llama.cpp": (("q8_0", TINY, 1), ("q4_0", SOME, 6)),
    "vllm": (("f8_e4m3", TINY, 2),),
}


# More of the layers than this on the host, and the run is slow enough to rank with lost quality.
SLOW_SHARE = 0.1


COUNTS = (2, 4, 8, 16, 32, 64)  # times as many devices


def _set(**changes: Any) -> Callable[[Scenario], Scenario]:
    return lambda s: s.with_(**changes)


def train(**changes: Any) -> Callable[[Scenario], Scenario]:
    def apply(s: Scenario) -> Scenario:
        assert s.workload.training is not None
        return s.with_(training=replace(s.workload.training, **changes))

    return apply


def _weights(s: Scenario) -> Axis | None:
    """Smaller formats than the present one, by their bytes."""
    gguf = s.workload.engine in ("llama.cpp", "gateup")
    gguf = gguf or (s.fmt is not None and mix.kind_of(s.fmt) == "gguf")
    ladder = GGUF_LADDER if gguf else HF_LADDERS.get(s.workload.engine, ())
    now, options, label = sum(t.nbytes for t in s.stored), [], s.fmt or "the file's format"
    for fmt, loss, cost in ladder:
        if _smaller(s.spec, fmt, now):
            text = f"weights in {fmt} instead of {label}" + stacked_note(s, fmt)
            if fmt.startswith("awq"):
                text += " (takes a checkpoint quantised so: MODEL-AWQ)"
            options.append(Option(text, _set(fmt=fmt), loss, cost, 0.0))
    return Axis("weights", tuple(options))


def _smaller(spec: ModelSpec, fmt: str, nbytes: int) -> bool:
    """Whether the format can hold the model in fewer bytes."""
    try:
        return sum(t.nbytes for t in stored_in(spec, fmt)) < nbytes
    except GateupError:  # no GGUF architecture, or widths the format cannot hold
        return False


def stacked_note(s: Scenario, fmt: str) -> str:
    """bitsandbytes converts linear layers; transformers 5 holds experts as stacked parameters."""
    if fmt in ("int8", "nf4") and any(r.experts for r in s.spec.rows):
        return " (experts too: transformers 4, where each is a linear layer)"
    return ""


def _to_llama_cpp(s: Scenario, fmt: str, kv: str = "f16") -> Callable[[Scenario], Scenario]:
    parallel = Parallel(pp=s.device.count if s.device else 1)
    return _set(fmt=fmt, engine="llama.cpp", kv_type=kv, flash=True, parallel=parallel)


def _engine(s: Scenario) -> Axis | None:
    """A GGUF in llama.cpp instead of transformers."""
    return _gguf(s, "engine", "f16", "")


def _engine_and_kv(s: Scenario) -> Axis | None:
    """The same with the KV cache in q8_0."""
    return _gguf(s, "engine, kv", "q8_0", ", KV cache in q8_0")


def _gguf(s: Scenario, name: str, kv: str, and_so: str) -> Axis | None:
    if s.workload.engine != "transformers":
        return None
    now, more = sum(t.nbytes for t in s.stored), 1 if and_so else 0
    return Axis(
        name,
        tuple(
            Option(
                f"a {fmt} GGUF in llama.cpp instead of transformers{and_so}",
                _to_llama_cpp(s, fmt, kv),
                max(loss, TINY),
                cost + 0.5 + more,
            )
            for fmt, loss, cost in GGUF_LADDER
            if _smaller(s.spec, fmt, now)
        ),
        alone=True,
        keep=True,
    )


def _engine_and_host(s: Scenario) -> Axis | None:
    """The same with q4_k_m, and what does not fit left with the host."""
    fmt, loss, cost = GGUF_LADDER[3]
    now = sum(t.nbytes for t in s.stored)
    if s.workload.engine != "transformers" or not _smaller(s.spec, fmt, now):
        return None
    swap = _to_llama_cpp(s, fmt)
    there = swap(s)
    inner = _experts(there) or _layers(there)
    if inner is None or inner.at is None or s.device is None:
        return None
    try:
        if there.memory().peak <= s.device.capacity("llama.cpp"):  # nothing need be left
            return None
    except GateupError:  # more cards than layers
        return None
    inner_at = inner.at

    def at(step: int) -> Option:
        option = inner_at(step)
        return Option(
            f"a {fmt} GGUF in llama.cpp instead of transformers, {option.label}",
            lambda x: option.apply(swap(x)),
            loss,
            cost + 0.5,
            option.slow,
            step,
            option.place,
        )

    return Axis("engine, host", tuple(at(o.step) for o in inner.options), at, alone=True)


def _kv(s: Scenario) -> Axis | None:
    ladder = KV_LADDERS.get(s.workload.engine, ())
    names = [s.workload.kv_type, *(t for t, _, _ in ladder)]
    after = names[names.index(s.workload.kv_type, 1) if s.workload.kv_type in names[1:] else 0 :]
    return Axis(
        "kv",
        tuple(
            Option(
                f"KV cache in {t} instead of {s.workload.kv_type}",
                _set(kv_type=t, flash=True),
                loss,
                cost,
                0.1,
            )
            for t, loss, cost in ladder
            if t in after[1:]
        ),
    )


def _ubatch(s: Scenario) -> Axis | None:
    if s.workload.engine not in ("llama.cpp", "vllm"):
        return None
    floor = max(64 if s.workload.engine == "llama.cpp" else 512, s.workload.batch)
    sizes = [u for u in (2048, 1024, 512, 256, 128, 64) if floor <= u < s.workload.ubatch]
    return Axis(
        "ubatch",
        tuple(
            Option(
                f"{u} tokens per physical batch instead of {s.workload.ubatch}",
                _set(ubatch=u),
                NONE,
                0,
                0.3 * (i + 1),
            )
            for i, u in enumerate(sizes)
        ),
    )


def execution_axis(s: Scenario) -> Axis | None:
    """The MLP over tiles of tokens: our own execution."""
    work = s.workload
    if work.engine not in ("transformers", "gateup"):
        return None
    tokens = work.ctx * work.batch
    now = min(work.tile, tokens) if work.execution == "tiled" else tokens
    return Axis(
        "execution",
        tuple(
            Option(
                f"MLP in tiles of {t:,} tokens", _set(execution="tiled", tile=t), NONE, 0, 0.2 + i
            )
            for i, t in enumerate((4096, 1024, 256))
            if t < now
        ),
    )


def batch_axis(s: Scenario) -> Axis | None:
    """Fewer sequences at once; training makes up for it by accumulating gradients."""
    batch, n = s.workload.batch, s.workload.batch // 2
    training = s.workload.training
    options: list[Option] = []
    while n >= 1 and len(options) < 6:
        label, changes = f"batch {n} instead of {batch}", dict[str, Any](batch=n)
        if training is not None:
            times = -(-batch // n)
            label += f", accumulated {times} times"
            changes |= {"accumulation": training.accumulation * times}
        slow = (1.0 if training is None else 0.2) * (len(options) + 1)
        options.append(Option(label, _batch_set(**changes), NONE, 0, slow))
        n //= 2
    return Axis("batch", tuple(options))


def _batch_set(batch: int, accumulation: int | None = None) -> Callable[[Scenario], Scenario]:
    def apply(s: Scenario) -> Scenario:
        if accumulation is not None:
            s = train(accumulation=accumulation)(s)
        return s.with_(batch=batch)

    return apply


def _layers(s: Scenario) -> Axis | None:
    """llama.cpp's -ngl: layers left with the host, until each card has one left."""
    n = s.spec.num_layers
    if not s.splits_host:
        return None
    now = n + 1 if s.gpu_layers is None else min(s.gpu_layers, n + 1)

    def at(step: int) -> Option:
        left = now - step
        return Option(
            f"{left} of {n + 1} layers on the device (output included); slower: {n + 1 - left} "
            "run on the host",
            _set(gpu_layers=left),
            NONE,
            0,
            4 + 10 * step / (n + 1),
            step,
            SOME if n + 1 - left >= SLOW_SHARE * (n + 1) else None,
        )

    last = now - 1 - s.workload.parallel.pp
    steps = sorted({now * k // 8 for k in (1, 2, 3, 4, 5, 6, 7)} | {last})
    return Axis("layers", tuple(at(k) for k in steps if 0 < k <= last), at, rival="host")


def _experts(s: Scenario) -> Axis | None:
    """llama.cpp's --n-cpu-moe."""
    n = s.spec.num_layers
    if not s.splits_host or not any(r.experts for r in s.spec.rows):
        return None

    def at(step: int) -> Option:
        count = s.cpu_moe_layers + step
        return Option(
            f"experts of the first {count} of {n} layers with the host; slower: they run there",
            _set(cpu_moe_layers=count),
            NONE,
            0,
            2 + 5 * step / n,
            step,
        )

    left = n - s.cpu_moe_layers
    steps = sorted({left * k // 4 for k in (1, 2, 3, 4)})
    return Axis("experts", tuple(at(k) for k in steps if k > 0), at, rival="host")


def context_axis(s: Scenario) -> Axis | None:
    """A shorter context, by halves, then to the longest multiple of 256 that fits."""
    now = s.workload.ctx
    unit = 256 if now > 512 else 1

    def at(step: int) -> Option:
        ctx = (now - 1) // unit * unit - (step - 1) * unit if step else now
        return Option(
            f"context {ctx:,} instead of {now:,}",
            _set(ctx=ctx),
            CAPABILITY,
            10 * now / ctx,
            0,
            step,
        )

    top = (now - 1) // unit  # the last step leaves one unit
    steps: list[int] = []
    left = top
    while left > 1 and len(steps) < 8:
        left //= 2
        steps.append(top - left + 1)
    return Axis("context", tuple(at(k) for k in steps), at)


def devices_axis(s: Scenario) -> Axis | None:
    """Twice, four and eight times as many of the same cards; for full training also more, for its
    16 bytes a parameter are sharded over all of them.
    """
    device = s.device
    if device is None or device.kind != "gpu":
        return None
    work, training = s.workload, s.workload.training is not None
    engine, parallel = work.engine, work.parallel
    full = work.training is not None and work.training.method == "full"

    def more(k: int) -> Callable[[Scenario], Scenario]:
        def apply(x: Scenario) -> Scenario:
            wider = x.with_(device=replace(device, count=device.count * k))
            if training:
                return wider.with_(fsdp=parallel.fsdp * k)
            if engine == "llama.cpp":
                return wider.with_(pp=parallel.pp * k)
            by_tp = wider.with_(tp=parallel.tp * k)
            try:
                by_tp.memory()
            except GateupError:  # heads or widths do not divide
                return wider.with_(pp=parallel.pp * k)
            return by_tp

        return apply

    return Axis(
        "devices",
        tuple(
            Option(
                f"{device.count * k} devices of {device.name} instead of {device.count}",
                more(k),
                HARDWARE,
                k,
            )
            for k in (COUNTS if full else COUNTS[:3])
            if device.count * k <= MAX_COUNT
        ),
    )


def sibling_axis(s: Scenario) -> Axis | None:
    """A smaller model of the same line: same architecture, vocabulary within 1% (padding)."""
    smaller: list[tuple[int, str, ModelSpec]] = []
    config = s.spec.config
    for name, preset in presets.PRESETS.items():
        if preset.config.get("architectures") != config.get("architectures"):
            continue
        vocab = preset.config.get("vocab_size", 0)
        if abs(vocab - s.spec.vocab_size) * 100 > s.spec.vocab_size:
            continue
        spec = presets.spec(name)
        if spec.params < s.spec.params:
            smaller.append((spec.params, name, spec))
    limit = s.spec.max_position_embeddings
    smaller.sort(key=lambda x: (-x[0], x[2].max_position_embeddings != limit))

    def swap(spec: ModelSpec) -> Callable[[Scenario], Scenario]:
        def apply(x: Scenario) -> Scenario:
            there = x.with_(spec=spec, gpu_layers=None, cpu_moe_layers=0, adapter=None)
            if there.workload.training is None:
                return there
            return train(lora=replace(there.workload.training.lora, modules=()))(there)

        return apply

    return Axis(
        "model",
        tuple(
            Option(
                f"the smaller sibling {presets.PRESETS[name].hub_id}, {params / 1e9:.2f} B"
                " parameters",
                swap(spec),
                CAPABILITY,
                40 * s.spec.params / params,
            )
            for params, name, spec in smaller[:6]
        ),
        alone=True,
    )


INFERENCE_AXES: tuple[Callable[[Scenario], Axis | None], ...] = (
    _weights,
    _engine,
    _engine_and_kv,
    _engine_and_host,
    _kv,
    _ubatch,
    execution_axis,
    batch_axis,
    _layers,
    _experts,
    context_axis,
    devices_axis,
    sibling_axis,
)
