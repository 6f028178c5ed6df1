"""What each of four gloo processes does for test_tensor.py: run it all once, keep the results.

Nothing is judged here. A rank saves what it has, its shards as plain tensors, under keys; the
tests put the shards together by themselves and compare.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from gateup.errors import GateupError
from gateup.model.layout import GateUpLayout
from gateup.model.spec import GatedMLPSpec, MoESpec
from gateup.nn import FeedForward, GatedMLP, MoE, RMSNorm
from gateup.nn.moe import Experts
from gateup.ops.options import MLPOptions
from gateup.ops.routing import Routing
from gateup.parallel import forward as forwards
from gateup.parallel import full_state_dict, load_full_state_dict, tensor_parallel
from gateup.parallel.collectives import Region
from tests.numerics import SEEDS, poisoned
from tests.ops.inputs import H, I, tensors

RANKS, TOKENS = 4, 24
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
OPTIONS = {
    "hf": MLPOptions(),
    "gate_up": MLPOptions(save="gate_up"),
    "tiled": MLPOptions(rounding="wide", save="input", tile=7),
}
E, K, WIDTH = 4, 2, 24
EXPERTS = {
    "concat": GatedMLPSpec(WIDTH),
    "gpt_oss": GatedMLPSpec(
        WIDTH, "gpt_oss", bias=True, layout=GateUpLayout("interleaved", orientation="in_out")
    ),
    "in_out": GatedMLPSpec(WIDTH, bias=True, layout=GateUpLayout("concat", orientation="in_out")),
}
MOE = MoESpec(E, K, GatedMLPSpec(WIDTH), shared=GatedMLPSpec(32), shared_gate=True)
CASES = {"dense": tuple(OPTIONS), "sequence": ("hf", "tiled")}
# tp, kind, dtype, sequence-parallel?
EXPERT_CASES = (
    (2, "concat", "bf16", False),
    (4, "concat", "f32", False),
    (2, "gpt_oss", "f32", False),
    (2, "gpt_oss", "bf16", True),
    (4, "gpt_oss", "bf16", False),
    (2, "in_out", "bf16", False),
)


def local(t):
    """This rank's part, as a plain tensor of its own."""
    return (t.to_local() if isinstance(t, DTensor) else t).detach().clone()


def step(module, x, dy, *rest):
    """y and every gradient of this rank; x's too."""
    x = x.clone().requires_grad_()
    rest = [r.clone().requires_grad_() if r.is_floating_point() else r for r in rest]
    module.zero_grad()
    with poisoned():
        y = module(x, *rest)
        y.backward(dy)
    results = {"y": y.detach(), "d_x": x.grad}
    results |= {f"d_input{i}": r.grad for i, r in enumerate(rest) if r.grad is not None}
    return results | {f"d_{n}": local(p.grad) for n, p in module.named_parameters()}


def own_rows(t, mesh):
    """This rank's tokens [..., T/tp, ·]."""
    return t.chunk(mesh.size(), dim=-2)[mesh.get_local_rank()]


def dense(weights):
    """Weights of tests.ops.inputs as GatedMLP's state dict."""
    return {
        f"{name}_proj.{kind}": getattr(weights, name if kind == "weight" else f"{name}_bias")
        for name in ("gate", "up", "down")
        for kind in ("weight", "bias")
    }


def run_dense(meshes, keep):
    for tp, (word, dtype), case in itertools.product((2, 4), DTYPES.items(), CASES):
        module, sequence = GatedMLP(H, I, bias=True, dtype=dtype), case == "sequence"
        tensor_parallel(module, meshes[tp], sequence_parallel=sequence)
        for seed in SEEDS:
            x, weights, dy = tensors(seed, dtype, (TOKENS, H))
            load_full_state_dict(module, dense(weights))
            if sequence:
                x, dy = own_rows(x, meshes[tp]), own_rows(dy, meshes[tp])
            for name in CASES[case]:
                module.options = OPTIONS[name]
                keep[case, tp, word, name, seed] = step(module, x, dy)


def routed(seed, dtype):
    """index and weights [T, k]: some experts have no tokens at seed 0."""
    generator = torch.Generator().manual_seed(100 + seed)
    scores = torch.rand((TOKENS, E if seed else E - 1), generator=generator)
    weights, index = scores.topk(K)
    return index, weights.to(dtype)


def experts_state(kind, seed, dtype):
    """Random tensors for Experts(EXPERTS[kind]), of a trained model's scale."""
    generator = torch.Generator().manual_seed(200 + seed)
    shapes = Experts(H, E, EXPERTS[kind]).state_dict()
    return {
        name: (torch.randn(t.shape, generator=generator) * (H**-0.5 if t.dim() > 2 else 1)).to(
            dtype
        )
        for name, t in shapes.items()
    }


def run_experts(meshes, keep):
    for tp, kind, word, sequence in EXPERT_CASES:
        dtype = DTYPES[word]
        module = Experts(H, E, EXPERTS[kind], place=mock.Mock(device="cpu", dtype=dtype))
        tensor_parallel(module, meshes[tp], sequence_parallel=sequence)
        for seed in SEEDS:
            load_full_state_dict(module, experts_state(kind, seed, dtype))
            x, _, dy = tensors(seed, dtype, (TOKENS, H))
            index, weights = routed(seed, dtype)
            inputs = (x, dy, index, weights)
            if sequence:
                inputs = tuple(own_rows(t, meshes[tp]) for t in inputs)
            for name in ("hf", "tiled"):
                module.options = OPTIONS[name]
                keep["experts", tp, kind, word, name, seed] = step(module, *inputs)


def moe():
    torch.manual_seed(5)
    return MoE(H, MOE, Routing(K, norm_topk_prob=True))


def sublayer():
    torch.manual_seed(6)
    model = FeedForward(GatedMLP(H, I, bias=True), RMSNorm(H, style="gemma"))
    nn.init.uniform_(model.norm.weight)
    return model


def experts():
    torch.manual_seed(7)
    return Experts(H, E, EXPERTS["gpt_oss"])


def run_modules(meshes, keep):
    """A whole MoE and a whole sublayer; ranks start with values of their own."""
    x, _, dy = tensors(3, torch.float32, (2, TOKENS, H))
    for tp, make, sequence in itertools.product((2, 4), (moe, sublayer), (False, True)):
        model = make()
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 + meshes[tp].get_local_rank())
        for p in model.parameters():
            p.requires_grad_(False)  # thawed after: the sums of gradients must be there
        tensor_parallel(model, meshes[tp], sequence_parallel=sequence)
        for p in model.parameters():
            p.requires_grad_(True)
        cut = [own_rows(t, meshes[tp]) if sequence else t for t in (x, dy)]
        keep[make.__name__, tp, sequence] = step(model, *cut)


def counted(module, x):
    """Collectives of forward and of backward, by name."""
    x = x.clone().requires_grad_()
    with CommDebugMode() as forward:
        y = module(x)
    return [names(forward), backward_counts(y)]


def backward_counts(y):
    with CommDebugMode() as mode:
        y.sum().backward()
    return names(mode)


def names(mode):
    return {str(op).rpartition(".")[2]: n for op, n in mode.get_comm_counts().items()}


def run_counts(meshes, keep):
    x, _, _ = tensors(0, torch.float32, (TOKENS, H))
    for sequence in (True, False):
        module = tensor_parallel(GatedMLP(H, I), meshes[4], sequence_parallel=sequence)
        keep["counts", sequence] = counted(module, x)
    keep["counts of a frozen x"] = backward_counts(module(x))
    model = tensor_parallel(moe(), meshes[4])
    keep["counts of experts"] = counted(model, x)


def run_placements(meshes, keep):
    kinds = {"dense": GatedMLP(H, I, bias=True), "moe": moe()}
    kinds |= {kind: Experts(H, E, spec) for kind, spec in EXPERTS.items()}
    for kind, module in kinds.items():
        tensor_parallel(module, meshes[2])
        keep["placements", kind] = {
            name: (str(p.placements[0]), tuple(p.shape)) if isinstance(p, DTensor) else "plain"
            for name, p in module.named_parameters()
        }


def run_merged(meshes, keep):
    x, weights, _ = tensors(1, torch.float32, (TOKENS, H))
    for tp in (2, 4):
        module = GatedMLP(H, I, bias=True).requires_grad_(False)
        module.load_state_dict(dense(weights))
        module.merge()
        tensor_parallel(module, meshes[tp])
        pair = module.forward.merged
        keep["merged", tp] = {
            "y": module(x),
            "form": (str(pair.placements[0]), tuple(pair.shape), tuple(pair.to_local().shape)),
            "state": {n: t.clone() for n, t in full_state_dict(module).items()},
        }
        # What is loaded is what the merged matrix holds.
        load_full_state_dict(module, {n: 2 * t for n, t in dense(weights).items()})
        keep["merged", tp]["y of twice"] = module(x)
        keep["merged", tp]["still"] = module.forward.merged is not None
        module.double()
        keep["merged", tp]["y of float64"] = module(x.double())


def run_checkpoints(meshes, keep, folder):
    """tp 1 -> 2 -> 4 -> 1, through torch.distributed.checkpoint and through whole tensors."""
    for make in (moe, sublayer, experts):
        name, whole, saved = make.__name__, make().state_dict(), None
        first = {n: t.clone() for n, t in whole.items()}
        for number, tp in enumerate((1, 2, 4, 1)):
            model = tensor_parallel(make(), meshes[tp])
            other = tensor_parallel(make(), meshes[tp])
            for m in (model, other):
                for p in m.parameters():
                    p.detach().zero_()
            load_full_state_dict(model, whole)
            if saved is not None:
                state = other.state_dict()
                dcp.load(state, checkpoint_id=saved)
                other.load_state_dict(state)
                keep["checkpoint", name, number] = (first, full_state_dict(other))
            whole = full_state_dict(model)
            saved = Path(folder) / f"{name}{number}"
            dcp.save(model.state_dict(), checkpoint_id=saved)
        keep["whole", name] = (first, whole)


@contextlib.contextmanager
def cut_in_two():
    """[gate; up] cut in its middle: gate on one rank, up on the other."""
    real = forwards.expert_pieces

    def wrong(*args):
        return tuple(replace(piece, pair=False) for piece in real(*args))

    with mock.patch.object(forwards, "expert_pieces", wrong):
        yield


def mutation(name):
    whole = lambda self, t, **_: t  # noqa: E731
    if name == "bias on each rank":
        return mock.patch.object(
            forwards.Sharded,
            "_out",
            lambda self, y, b: self.region.leave(y if b is None else y + b),
        )
    return mock.patch.object(Region, {"y unsummed": "leave", "dx unsummed": "enter"}[name], whole)


MUTATIONS = ("bias on each rank", "y unsummed", "dx unsummed")


def run_mutations(meshes, keep):
    for name in MUTATIONS:
        module = tensor_parallel(GatedMLP(H, I, bias=True), meshes[2])
        with mutation(name):
            for seed in SEEDS:
                x, weights, dy = tensors(seed, torch.float32, (TOKENS, H))
                load_full_state_dict(module, dense(weights))
                keep[name, seed] = step(module, x, dy)
    with cut_in_two():
        module = tensor_parallel(Experts(H, E, EXPERTS["concat"]), meshes[2])
        for seed in SEEDS:
            load_full_state_dict(module, experts_state("concat", seed, torch.float32))
            x, _, dy = tensors(seed, torch.float32, (TOKENS, H))
            keep["cut in two", seed] = step(module, x, dy, *routed(seed, torch.float32))


def run_refusals(meshes, keep):
    grid = init_device_mesh("cpu", (2, 2))
    once = tensor_parallel(GatedMLP(H, I), meshes[2])
    hooked = GatedMLP(H, I)
    hooked.up_proj.register_forward_hook(lambda *_: None)
    changed = tensor_parallel(GatedMLP(H, I), meshes[2])
    changed.up_proj = nn.Sequential(changed.up_proj)
    two = nn.ModuleDict({"a": GatedMLP(8, 12), "b": GatedMLP(8, 18), "c": GatedMLP(8, 24)})
    calls = {
        "width": lambda: tensor_parallel(two, meshes[4]),
        "axes": lambda: tensor_parallel(GatedMLP(H, I), grid),
        "mesh": lambda: tensor_parallel(GatedMLP(H, I), 2),
        "twice": lambda: tensor_parallel(once, meshes[2]),
        "hooked": lambda: tensor_parallel(nn.Sequential(hooked), meshes[2]),
        "changed": lambda: changed(torch.zeros(3, H)),
        "x": lambda: once(torch.zeros(3, H + 1)),
        "missing": lambda: load_full_state_dict(once, {}),
        "shape": lambda: load_full_state_dict(
            once, {n: t[:5] for n, t in GatedMLP(H, I).state_dict().items()}
        ),
        "nothing": lambda: tensor_parallel(nn.Sequential(nn.Linear(3, 3)), meshes[2]),
    }
    for name, call in calls.items():
        try:
            call()
        except GateupError as error:
            keep["refusal", name] = str(error)
    keep["untouched"] = not any(isinstance(p, DTensor) for p in two.parameters())


def work(rank, port, folder):
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    meshes = {
        tp: init_device_mesh("cpu", (RANKS // tp, tp), mesh_dim_names=("dp", "tp"))["tp"]
        for tp in (1, 2, 4)
    }
    keep = {}
    for run in (
        run_dense,
        run_experts,
        run_modules,
        run_counts,
        run_placements,
        run_merged,
        run_mutations,
        run_refusals,
    ):
        run(meshes, keep)
    run_checkpoints(meshes, keep, folder)
    torch.save(keep, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()
