"""The timeline's steps against the library's peaks, and against torch's own storages."""

from __future__ import annotations

import pytest
import torch

from gateup.account.activations import as_run, mlp_transient
from gateup.account.workload import Execution, Workload
from gateup.lab.data_timeline import timeline, widest
from gateup.model import presets
from gateup.model.spec import GatedMLPSpec
from gateup.ops.tally import LiveBytes

MODES: tuple[Execution, ...] = ("eager", "fused", "tiled")


@pytest.mark.parametrize("execution", MODES)
def test_the_largest_step_is_the_librarys_peak_for_every_preset(execution: Execution) -> None:
    work = Workload(ctx=4096, execution=execution, tile=1000, engine="gateup")
    for name in presets.PRESETS:
        spec = as_run(presets.spec(name), work)
        lines = [
            timeline(m, spec.hidden_size, 4096, 2, execution, 1000)
            for m in {x.mlp for x in spec.layers if x.mlp}
        ]
        peak = max(line.total(line.peak) for line in lines)
        assert peak == mlp_transient(spec, work, 4096).value, name


@pytest.mark.parametrize(("form", "widths"), [("split", 3), ("concat", 4)])
def test_every_step_of_a_dense_mlp_is_what_torch_holds(form: str, widths: int) -> None:
    """transformers' own forward, live storages after each operation that makes one."""
    H, I, T = 8, 24, 5
    mlp = presets.spec("llama-3-8b" if form == "split" else "phi-3-mini").layers[0].mlp
    assert isinstance(mlp, GatedMLPSpec)
    assert mlp.layout.form == form
    small = GatedMLPSpec(I, layout=mlp.layout)
    gate, up, gate_up, down = (torch.rand(*s) for s in ((H, I), (H, I), (H, 2 * I), (I, H)))
    x = torch.rand(T, H)
    seen: list[int] = []

    class Steps(LiveBytes):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            before = self.live
            out = super().__torch_dispatch__(func, types, args, kwargs)
            if self.live > before:
                seen.append(self.live)
            return out

    with torch.no_grad(), Steps():
        if form == "split":
            ((torch.nn.functional.silu(x @ gate)) * (x @ up)) @ down
        else:
            first, second = (x @ gate_up).chunk(2, dim=-1)
            product = second * torch.nn.functional.silu(first)
            del first, second
            product @ down
    line = timeline(small, H, T, 4, "eager", T)
    assert [line.total(s) for s in line.steps] == seen
    assert max(seen) == widths * I * T * 4


def test_tiles_hold_one_tile_and_the_whole_output() -> None:
    mlp = GatedMLPSpec(100)
    line = timeline(mlp, 10, 4096, 2, "tiled", 512)
    assert line.tokens == 512
    assert line.kept == 4096 * 10 * 2
    assert line.total(line.peak) == 512 * 300 * 2 + line.kept
    assert timeline(mlp, 10, 400, 2, "tiled", 512) == timeline(mlp, 10, 400, 2, "eager", 512)


def test_the_widest_mlp_is_the_one_with_the_largest_peak() -> None:
    spec = presets.spec("deepseek-v3")  # dense at first, 8 of 256 narrow experts after
    mlps = [x.mlp for x in spec.layers if x.mlp]
    assert isinstance(mlps[0], GatedMLPSpec)
    assert widest(mlps, spec.hidden_size) is mlps[-1]
    assert widest([], 8) is None
