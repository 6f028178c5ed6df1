"""Models of transformers over two processes of torchrun: one process's logits and gradients."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.hf.families import MOE, build, step, tokens
from tests.parallel.transformers_ranks import CASES

ROOT = Path(__file__).parents[2]
GENERATED = ("llama", "phi3", "gpt_oss")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """What each rank kept."""
    folder = tmp_path_factory.mktemp("torchrun")
    module = ["-m", "tests.parallel.transformers_ranks", str(folder)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [*command, "2", *module],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("family", CASES)
def test_logits_and_gradients(kept, family):
    """In float64, but for the routers of Mixtral and DeepSeek, which compute in float32: hence
    1e-6. A gradient that is one rank's part, or counted twice, is off by half."""
    extra = {"experts_implementation": "eager"} if family in MOE else {}
    truth = step(build(family, torch.float64, **extra), tokens())
    for part in kept:
        assert part[family].keys() == truth.keys()
        for name, ours in part[family].items():
            assert (ours - truth[name]).norm() <= 1e-6 * truth[name].norm(), name
            assert torch.equal(ours, kept[0][family][name]), f"{name} differs between ranks"


@pytest.mark.parametrize("family", GENERATED)
def test_generates_what_one_process_generates(kept, family):
    ids = tokens()[:, :5]
    model = build(family)
    alone = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert all(torch.equal(part["generated", family], alone) for part in kept)


@pytest.mark.parametrize("family", GENERATED)
def test_one_all_reduce_per_layer(kept, family):
    assert kept[0]["collectives", family] == {"all_reduce": 2}


@pytest.mark.parametrize("family", GENERATED)
def test_saves_what_one_process_loads(kept, family):
    state = build(family).state_dict()
    for part in kept:
        assert part["saved", family].keys() == state.keys()
        for name, tensor in state.items():
            assert torch.equal(part["saved", family][name], tensor), name
        assert part["unpatched", family] == ()


def test_sequence_parallel_is_refused_in_words(kept):
    assert kept[0]["refusal"].startswith(
        "model.layers.0.mlp is transformers' LlamaMLP, whose model has all tokens on every rank"
    )
