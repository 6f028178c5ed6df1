"""DDP and FSDP2 with two gloo processes: one process's results, each weight's hook fired once."""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard

from gateup.ops.gated_mlp import Weights, gated_mlp
from gateup.ops.modular import gated_mlp_modules
from gateup.ops.options import MLPOptions
from tests.ops.inputs import H, tensors

RANKS, TOKENS = 2, 40
OPTIONS = (
    MLPOptions(save="gate_up"),
    MLPOptions(save="input", tile=7),
    MLPOptions(rounding="wide", save="input", tile=7),
)


class Direct(nn.Module):
    """Its own parameters, through the op."""

    def __init__(self, options):
        super().__init__()
        _, weights, _ = tensors(0, torch.float32)
        for name, weight in weights._asdict().items():
            self.register_parameter(name, nn.Parameter(weight.clone()))
        self.options = options

    def forward(self, x):
        weights = Weights(*(getattr(self, name) for name in Weights._fields))
        return gated_mlp(x, weights, options=self.options)


class Modular(nn.Module):
    """Linear modules, called as modules."""

    def __init__(self, options):
        super().__init__()
        _, w, _ = tensors(0, torch.float32)
        for name in ("gate", "up", "down"):
            weight, bias = getattr(w, name), getattr(w, f"{name}_bias")
            linear = nn.Linear(weight.shape[1], weight.shape[0])
            linear.load_state_dict({"weight": weight, "bias": bias})
            self.add_module(name, linear)
        self.options = options

    def forward(self, x):
        return gated_mlp_modules(x, self.gate, self.up, self.down, options=self.options)


def batch():
    x, _, dy = tensors(1, torch.float32, (RANKS, TOKENS, H))
    return x, dy


def train(model, x, dy):
    """Two steps of two micro-batches each; the losses sum over tokens, as gradients do."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(2):
        for half in range(2):
            rows = slice(half * TOKENS // 2, (half + 1) * TOKENS // 2)
            (model(x[..., rows, :]) * dy[..., rows, :]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def count_hooks(model):
    fired = {name: 0 for name, _ in model.named_parameters()}
    for name, p in model.named_parameters():

        def hook(p, name=name):
            fired[name] += 1

        p.register_post_accumulate_grad_hook(hook)
    return fired


def whole(p):
    return p.full_tensor() if hasattr(p, "full_tensor") else p


def work(rank, port, folder):
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    x, dy = batch()
    wrappers = {"ddp": nn.parallel.DistributedDataParallel, "fsdp": fully_shard}
    for kind, module, (number, options) in itertools.product(
        wrappers, (Direct, Modular), enumerate(OPTIONS)
    ):
        model = module(options)
        wrapped = wrappers[kind](model)
        fired = count_hooks(model)
        # Both average over ranks; the single process sums.
        train(wrapped, x[rank], dy[rank] * RANKS)
        assert set(fired.values()) == {4}, fired
        state = {n: whole(p.detach()).clone() for n, p in model.named_parameters()}
        if rank == 0:
            torch.save(state, Path(folder) / f"{kind}{module.__name__}{number}.pt")
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_two_processes_train_as_one(tmp_path):
    mp.spawn(work, (free_port(), str(tmp_path)), nprocs=RANKS)
    x, dy = batch()
    for module, (number, options) in itertools.product((Direct, Modular), enumerate(OPTIONS)):
        model = module(options)
        train(model, x, dy)
        start = dict(module(options).named_parameters())
        for kind in ("ddp", "fsdp"):
            state = torch.load(tmp_path / f"{kind}{module.__name__}{number}.pt")
            for name, p in model.named_parameters():
                # Float32 sums over 40 tokens in another order: 1e-4 of what training moved.
                moved = (p - start[name]).norm()
                assert moved > 0
                assert (state[name] - p).norm() <= 1e-4 * moved, (kind, name)
