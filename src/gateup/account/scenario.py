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
from typing import Any

from gateup.account.figure import Figure
from gateup.account.kv import kv_nbytes
from gateup.account.machine import Device
from gateup.account.memory import MemoryPlan, memory
from gateup.account.parallel import faults
from gateup.account.workload import Parallel, Workload
from gateup.errors import UsageError
from gateup.model.quant import mix
from gateup.model.quant.formats import StoredTensor
from gateup.model.spec import ModelSpec, TensorSpec

_WORKLOAD = frozenset(f.name for f in fields(Workload))
_PARALLEL = frozenset(f.name for f in fields(Parallel))


@lru_cache(maxsize=64)
def stored_in(spec: ModelSpec, fmt: str) -> tuple[StoredTensor, ...]:
    """The model's tensors in `fmt`. A fit asks for the same formats again and again."""
    return tuple(mix.stored(spec, fmt))


@dataclass(frozen=True)
class Scenario:
    """One question: does `spec`, stored so, fit `device` under `workload`?

    fmt             the format `stored` is in; None: as it lies on disk
    device          None: no verdict is asked for
    gpu_layers      llama.cpp's -ngl; None: all layers and the output (num_layers + 1)
    cpu_moe_layers  llama.cpp's --n-cpu-moe
    notes           what was decided on the user's behalf
    """

    spec: ModelSpec
    fmt: str | None
    stored: tuple[StoredTensor, ...]
    workload: Workload
    device: Device | None = None
    gpu_layers: int | None = None
    cpu_moe_layers: int = 0
    notes: tuple[str, ...] = ()

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
        return replace(self, **own)

    def _disk_fmt(self) -> str:
        """The format that comes nearest to what lies on disk: that of the first MLP matrix."""
        known = set(mix.known_formats())
        for tensor in self.stored:
            if tensor.row is not None and tensor.row.part == "mlp" and tensor.row.matmul:
                for name in (tensor.type, f"{tensor.type}_m"):  # q4_k tensors: a q4_k_m file
                    if name in known:
                        return name
                break
        return self.spec.dtype or "bf16"

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

    @cached_property
    def resident(self) -> tuple[ModelSpec, tuple[StoredTensor, ...]]:
        """The part on the device as a model of its own, its layers numbered from 0."""
        if not self.splits_host:
            return self.spec, self.stored
        first = self.first_gpu_layer
        moved: dict[int, TensorSpec] = {}

        def place(row: TensorSpec) -> TensorSpec:
            found = moved.get(id(row))
            if found is None:
                found = row
                if row.layer is not None and first:
                    found = replace(row, layer=row.layer - first)
                elif row.part == "embedding":  # the tied output's copy, with the last layers
                    found = replace(row, part="head", role="lm_head", matmul=True)
                moved[id(row)] = found
            return found

        rows = tuple(place(r) for r in self.spec.rows if self.on_device(r))
        layers = tuple(replace(x, index=x.index - first) for x in self.spec.layers[first:])
        stored = tuple(
            replace(t, row=place(t.row)) if t.row is not None else t
            for t in self.stored
            if self.on_device(t.row)
        )
        # the output is a tensor of its own here, not the embedding over again
        return replace(self.spec, layers=layers, rows=rows, tie_word_embeddings=False), stored

    @cached_property
    def _plan(self) -> MemoryPlan:
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
        if device.count == 1 or used > 1:
            return self
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
