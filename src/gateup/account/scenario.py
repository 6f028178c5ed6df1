"""A model, in a format, put to a use, on a device: the thing whose memory is asked for.

What llama.cpp leaves in host memory is decided here [source: `src/llama-model.cpp`,
`common/arg.cpp`, as in llama-cpp-python 0.3.36]:

- token_embd always; a tied model's output is a second copy of it, on the device;
- with `-ngl N` the output and the last N - 1 layers are on the device, their KV cache with them;
- with `--n-cpu-moe N` the experts of the first N layers stay with the host.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

from gateup.account.activations import dtype_bytes, prefill_tokens
from gateup.account.figure import Figure, Kind
from gateup.account.kv import kv_nbytes
from gateup.account.machine import Device
from gateup.account.memory import MemoryItem, MemoryPlan, memory
from gateup.account.memory_items import plan_of
from gateup.account.parallel import faults
from gateup.account.workload import Parallel, Workload
from gateup.errors import UsageError
from gateup.model.quant import mix
from gateup.model.quant.formats import FORMATS, StoredTensor
from gateup.model.quant.hf_formats import declared
from gateup.model.spec import LayerSpec, ModelSpec, TensorSpec

_WORKLOAD = frozenset(f.name for f in fields(Workload))
_PARALLEL = frozenset(f.name for f in fields(Parallel))


PASSING = "operations of PEFT 0.21's Linear.forward with fp32 adapters"


@lru_cache(maxsize=64)
def stored_in(spec: ModelSpec, fmt: str) -> tuple[StoredTensor, ...]:
    """The model's tensors in `fmt`. A fit asks for the same formats again and again."""
    return tuple(mix.stored(spec, fmt))


def condense(
    stored: tuple[StoredTensor, ...], spec: ModelSpec, by: Literal["layer", "role"]
) -> tuple[StoredTensor, ...]:
    """Tensors of which a rank holds the same share, as one; a fit asks for a hundred memory plans,
    and their time goes into the list of tensors, which for DeepSeek-V3 is 1,100 long.

    "layer": a layer's of one part, experts apart; where no tensor is cut.
    "role": those of one role in every layer with the same attention; where layers stay together.
    """
    groups: dict[tuple[object, ...], StoredTensor] = {}
    sizes: dict[tuple[object, ...], int] = {}
    for t in stored:
        row = t.row
        key: tuple[object, ...] = (None,)
        if row is not None:
            padded = row.part in ("embedding", "head") and row.shape[0] == spec.vocab_size
            place: object = (row.part, row.layer)
            if by == "role":
                place = (row.role, None if row.layer is None else spec.layers[row.layer].attention)
            key = (place, padded, row.experts, t.type in FORMATS)
        groups.setdefault(key, t)
        sizes[key] = sizes.get(key, 0) + t.nbytes
    return tuple(replace(t, nbytes=sizes[key]) for key, t in groups.items())


@dataclass(frozen=True)
class Unmerged:
    """An adapter beside its base at inference.

    params  of its A and B (and magnitudes);  whole: bytes of the modules it stores whole
    sides   (in, out) of the matrices it adapts
    """

    params: int
    whole: int
    sides: frozenset[tuple[int, int]]


@dataclass(frozen=True)
class Scenario:
    """One question: does `spec`, stored so, fit `device` under `workload`?

    fmt             the format `stored` is in; None: as it lies on disk
    device          None: no verdict is asked for
    gpu_layers      llama.cpp's -ngl; None: all layers and the output (num_layers + 1)
    cpu_moe_layers  llama.cpp's --n-cpu-moe
    notes           what was decided on the user's behalf
    adapter         one that runs beside the model, not merged into it
    """

    spec: ModelSpec
    fmt: str | None
    stored: tuple[StoredTensor, ...]
    workload: Workload
    device: Device | None = None
    gpu_layers: int | None = None
    cpu_moe_layers: int = 0
    notes: tuple[str, ...] = ()
    adapter: Unmerged | None = None

    def with_(self, **changes: Any) -> Scenario:
        """A changed copy. Takes this class's fields, Workload's and Parallel's (tp, pp, ep, fsdp).

        A new fmt or spec stores the weights anew, in `fmt`; an as-on-disk scenario whose spec
        changes takes the format its first matrix is stored in. Raises TypeError for other names.
        """
        own = {k: v for k, v in changes.items() if k not in _WORKLOAD and k not in _PARALLEL}
        work = {k: v for k, v in changes.items() if k in _WORKLOAD}
        split = {k: v for k, v in changes.items() if k in _PARALLEL}
        if split:
            work["parallel"] = replace(work.get("parallel", self.workload.parallel), **split)
        if work:
            own["workload"] = replace(self.workload, **work)
        if "stored" not in own and ("fmt" in own or "spec" in own):
            fmt = own["fmt"] if own.get("fmt") else self.fmt or self._disk_fmt()
            own["fmt"] = fmt
            own["stored"] = stored_in(own.get("spec", self.spec), fmt)
        changed = replace(self, **own)
        if changed.stored is self.stored:
            for name in ("_by_layer", "_by_role"):
                if name in self.__dict__:
                    changed.__dict__[name] = self.__dict__[name]
        return changed

    def _disk_fmt(self) -> str:
        """The format that comes nearest to what lies on disk: that of most MLP bytes.

        A type of llama.cpp's blocks names its file type: q4_k tensors lie in a q4_k_m file.
        """
        sizes: dict[str, int] = {}
        for tensor in self.stored:
            if tensor.row is not None and tensor.row.part == "mlp" and tensor.row.matmul:
                sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.nbytes
        gguf = self.workload.engine == "llama.cpp"
        for kind in sorted(sizes, key=lambda t: -sizes[t]):
            for name in (kind, f"{kind}_m"):
                if mix.is_known(name):
                    return f"gguf:{name}" if gguf and mix.kind_of(name) == "dtype" else name
        return "gguf:bf16" if gguf else declared(self.spec.config) or self.spec.dtype or "bf16"

    @property
    def splits_host(self) -> bool:
        """Whether part of the model stays in host memory (llama.cpp on a card)."""
        on_card = self.device is not None and self.device.kind == "gpu"
        return on_card and self.workload.engine == "llama.cpp"

    @property
    def first_gpu_layer(self) -> int:
        """Layers below this one stay with the host."""
        if not self.splits_host or self.gpu_layers is None:
            return 0
        return max(0, self.spec.num_layers + 1 - self.gpu_layers)

    def on_device(self, row: TensorSpec | None) -> bool:
        """Whether the row's tensors lie in the device's memory (rope tables: yes)."""
        if row is None or not self.splits_host:
            return True
        if row.layer is not None:
            if row.experts and row.layer < self.cpu_moe_layers:
                return False
            return row.layer >= self.first_gpu_layer
        if row.part == "embedding":
            return self.spec.tie_word_embeddings and self.gpu_layers != 0
        return self.gpu_layers != 0

    def _placed(self, row: TensorSpec, shift: int) -> TensorSpec:
        """The row as the device's model has it."""
        if row.part == "embedding":  # the tied output's copy, with the last layers
            return replace(row, part="head", role="lm_head", matmul=True)
        return replace(row, layer=row.layer - shift) if shift and row.layer is not None else row

    def _resident(
        self, rows: tuple[TensorSpec, ...], tensors: tuple[StoredTensor, ...]
    ) -> tuple[ModelSpec, tuple[StoredTensor, ...]]:
        """What of `rows` and `tensors` is on the device."""
        first = self.first_gpu_layer
        shift = first if self.workload.parallel.pp > 1 else 0
        stored = []
        for t in tensors:
            if self.on_device(t.row):
                row = t.row and self._placed(t.row, shift)
                stored.append(t if row is t.row else replace(t, row=row))
        layers = self.spec.layers[first:]
        if shift:
            layers = tuple(replace(x, index=x.index - shift) for x in layers)
        else:
            layers = tuple(LayerSpec(i, None, None) for i in range(first)) + layers
        spec = replace(
            self.spec,
            layers=layers,
            rows=tuple(self._placed(r, shift) for r in rows if self.on_device(r)),
            tie_word_embeddings=False,  # the output is a tensor of its own here
        )
        return spec, tuple(stored)

    @property
    def resident(self) -> tuple[ModelSpec, tuple[StoredTensor, ...]]:
        """The part on the device as a model of its own.

        Layers left with the host stay in it without attention and MLP; where pipeline stages
        share the rest out, they are left out and the others numbered from 0.
        """
        if not self.splits_host:
            return self.spec, self.stored
        return self._resident(self.spec.rows, self.stored)

    @cached_property
    def _by_layer(self) -> tuple[StoredTensor, ...]:
        return condense(self.stored, self.spec, "layer")

    @cached_property
    def _by_role(self) -> tuple[StoredTensor, ...]:
        return condense(self.stored, self.spec, "role")

    @cached_property
    def _plan(self) -> MemoryPlan:
        plan = self._own_plan()
        if self.adapter is None:
            return plan
        items = (*plan.items, *self._adapter_items(self.adapter, tuple(plan.peaks)))
        return plan_of(items, tuple(plan.peaks), plan.stage)

    def _adapter_items(self, adapter: Unmerged, phases: tuple[str, ...]) -> list[MemoryItem]:
        """The adapter's tensors, and in transformers what PEFT makes in passing per module: x in
        fp32, B·A·x and its scaled copy in fp32; less the module's own output, counted elsewhere.
        """
        work = self.workload
        size = dtype_bytes(work.compute_dtype, "--dtype") if work.engine == "vllm" else 4
        split: Kind = "exact" if work.parallel.world == 1 else "bound"
        kind: Kind = "estimate" if work.engine == "vllm" else split
        how = {
            "vllm": "vLLM keeps adapters in the model's dtype, in slots of --max-lora-rank",
            "llama.cpp": "convert_lora_to_gguf.py writes f32 by default",
        }.get(work.engine, "PEFT loads adapters in fp32 (autocast_adapter_dtype)")
        figure = Figure(
            adapter.params * size + adapter.whole,
            "B",
            kind,
            f"params·{size} + modules stored whole",
            f"{adapter.params}·{size} + {adapter.whole}",
            how + ("" if work.parallel.world == 1 else "; at most all of it on one rank"),
        )
        items = [MemoryItem("adapter, not merged", "adapter", phases, figure)]
        if work.engine in ("transformers", "gateup") and adapter.sides:
            b = dtype_bytes(work.compute_dtype, "--dtype")
            wide = max(adapter.sides, key=lambda s: 4 * s[0] + (8 - b) * s[1])
            T = prefill_tokens(work)
            passing = Figure(
                T * (4 * wide[0] + (8 - b) * wide[1]),
                "B",
                "estimate",
                f"T·(4·in + {8 - b}·out)",
                f"{T}·(4·{wide[0]} + {8 - b}·{wide[1]})",
                PASSING,
            )
            items.append(
                MemoryItem("adapter, in passing", "adapter", ("attention", "mlp"), passing)
            )
        return items

    def _own_plan(self) -> MemoryPlan:
        parallel = self.workload.parallel
        if self.workload.training is None and parallel.fsdp == 1:
            if parallel.tp == parallel.ep == 1:
                if self.splits_host:
                    return memory(*self._resident((), self._by_layer), self.workload)
                return memory(self.spec, self._by_layer, self.workload)
            if parallel.pp == 1 and not self.splits_host:
                return memory(self.spec, self._by_role, self.workload)
        return memory(*self.resident, self.workload)

    def memory(self) -> MemoryPlan:
        """Bytes on the fullest device (rank). What stays with the host is not in it.

        Raises UsageError for a split that the shapes forbid.
        """
        return self._plan

    def host(self) -> Figure:
        """Bytes of weights and KV cache that llama.cpp keeps in host memory; 0 elsewhere."""
        first = self.first_gpu_layer
        weights = sum(t.nbytes for t in self.stored if not self.on_device(t.row))
        if self.splits_host and self.spec.tie_word_embeddings and self.gpu_layers != 0:
            weights += sum(  # the host's copy; the device's is the output
                t.nbytes for t in self.stored if t.row is not None and t.row.part == "embedding"
            )
        kv = 0
        if first:
            w, below = self.workload, replace(self.spec, layers=self.spec.layers[:first])
            kv = int(kv_nbytes(below, w.ctx, w.kv_type, w.batch).value)
        return Figure(
            weights + kv,
            "bytes",
            "exact",
            "weights + KV cache of what is not offloaded",
            f"{weights} + {kv}",
            "llama.cpp src/llama-model.cpp, load_tensors",
        )

    def spread(self) -> Scenario:
        """The same over all of the device's cards, where the user gave no split.

        llama.cpp: layers (pp). Training: FSDP. Else tensor parallel, or pipeline stages where
        heads or widths do not divide. A split the user gave stands, and must fit the cards.

        Raises UsageError for a split over more cards than there are.
        """
        device, parallel = self.device, self.workload.parallel
        if device is None:
            return self
        used = max(parallel.world, parallel.ep)
        if used > device.count:
            if device.count == 1:  # "--tp 2 --device 24GB": two of that device are meant
                return replace(
                    self,
                    device=replace(device, count=used),
                    notes=(*self.notes, f"the split takes {used} of {device.name}"),
                )
            raise UsageError(
                f"the split takes {used} devices and --device names {device.label}",
                expected=f"tp·pp·fsdp up to {device.count}",
            )
        if device.count == 1 or used == device.count:
            return self
        if used > 1:
            idle = f"the split takes {used} of {device.label}; the others have nothing to do"
            return replace(self, notes=tuple(dict.fromkeys((*self.notes, idle))))
        n = device.count
        how, why = self._default_split(n)
        return replace(
            self.with_(**{how: n}), notes=(*self.notes, f"{device.label}: {how} {n}, {why}")
        )

    def _default_split(self, n: int) -> tuple[str, str]:
        if self.workload.training is not None:
            return "fsdp", "weights, gradients and optimizer states sharded (FSDP)"
        if self.workload.engine == "llama.cpp":
            return "pp", "llama.cpp splits by layers"
        wrong = faults(self.spec, self.stored, Parallel(tp=n))
        if not wrong:
            return "tp", "tensor parallel"
        return "pp", "pipeline stages, because " + "; ".join(wrong)
