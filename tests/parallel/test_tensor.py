"""Tensor parallel on two and four gloo processes against one: values, gradients, collectives,
placements, checkpoints. The processes run once (`ranks.py`); each test looks at what they kept.
"""

from __future__ import annotations

import functools
import multiprocessing
import socket

import pytest
import torch
import torch.multiprocessing as mp

from gateup.ops import reference
from gateup.ops.moe import ExpertWeights, moe
from gateup.ops.moe import reference as moe_reference
from tests.numerics import SEEDS, assert_as_good
from tests.ops.inputs import H, I, exact, gradients, plain, tensors
from tests.parallel import ranks
from tests.parallel.ranks import CASES, DTYPES, EXPERT_CASES, EXPERTS, RANKS, TOKENS, E

# The axis along which each gradient is cut, and None for what is whole on every rank.
AXES = {
    "d_gate_proj.weight": 0,
    "d_gate_proj.bias": 0,
    "d_up_proj.weight": 0,
    "d_up_proj.bias": 0,
    "d_down_proj.weight": 1,
    "d_down_proj.bias": None,
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """What each rank kept."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    # One import of torch for all ranks: four at a time take half a minute on two busy cores.
    multiprocessing.set_forkserver_preload(["tests.parallel.ranks"])
    mp.start_processes(
        ranks.work, (port, str(folder)), nprocs=RANKS, start_method="forkserver", join=True
    )
    return [torch.load(folder / f"{r}.pt", weights_only=False) for r in range(RANKS)]


def joined(parts, axes):
    """One process's results from its ranks': cut along `axes`, or the same on every rank."""
    whole = {}
    for name in parts[0]:
        ours = [part[name] for part in parts]
        if axes[name] is None:
            assert all(torch.equal(ours[0], other) for other in ours), f"{name} differs"
            whole[name] = ours[0]
        else:
            whole[name] = torch.cat(ours, axes[name])
    return whole


def dense_results(kept, key, tp, seed, sequence=False):
    rows = 0 if sequence else None
    parts = [kept[r][(*key, seed)] for r in range(tp)]
    return joined(parts, AXES | {"y": rows, "d_x": rows})


def renamed(results):
    """tests.ops.inputs' names -> GatedMLP's."""
    return {
        name
        if name in ("y", "d_x")
        else name.replace("_bias", "_proj.bias")
        if name.endswith("_bias")
        else f"{name}_proj.weight": t
        for name, t in results.items()
    }


def one_process(run, dtype):
    def results(seed):
        return renamed(run(plain, *tensors(seed, dtype, (TOKENS, H))))

    return results


@pytest.mark.parametrize("word", DTYPES)
@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize(
    ("case", "name"), [(case, name) for case, names in CASES.items() for name in names]
)
def test_dense(kept, case, name, tp, word):
    dtype = DTYPES[word]
    assert_as_good(
        lambda seed: dense_results(kept, (case, tp, word, name), tp, seed, case == "sequence"),
        one_process(gradients, dtype),
        one_process(exact, dtype),
    )


def expert_axes(kind, sequence):
    rows, in_out = 0 if sequence else None, EXPERTS[kind].layout.orientation == "in_out"
    pair = EXPERTS[kind].layout.form != "interleaved"
    return {
        "y": rows,
        "d_x": rows,
        "d_input1": rows,
        "d_gate_up_proj": (3 if in_out else 2) if pair else 2,
        "d_down_proj": 1 if in_out else 2,
        "d_gate_up_proj_bias": 2 if pair else 1,
        "d_down_proj_bias": None,
    }


def expert_results(kept, kind, key, tp, seed, sequence=False):
    whole = joined([kept[r][(*key, seed)] for r in range(tp)], expert_axes(kind, sequence))
    axis = 2 if EXPERTS[kind].layout.orientation == "in_out" else 1
    for name, where in (("d_gate_up_proj", axis), ("d_gate_up_proj_bias", 1)):
        if name in whole and EXPERTS[kind].layout.form != "interleaved":
            whole[name] = whole[name].flatten(where, where + 1)
    return whole


@functools.cache
def one_process_experts(kind, dtype, compute, function):
    """y and gradients of moe or its reference, computed in `compute`."""
    layout = ranks.Experts(H, E, EXPERTS[kind]).layout

    @functools.cache
    def results(seed):
        state = {
            n: t.to(compute).requires_grad_()
            for n, t in ranks.experts_state(kind, seed, dtype).items()
        }
        x, _, dy = tensors(seed, dtype, (TOKENS, H))
        index, weights = ranks.routed(seed, dtype)
        x, weights = (t.to(compute).requires_grad_() for t in (x, weights))
        names = ("gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias")
        experts = ExpertWeights(*(state.get(n) for n in names), layout)
        y = function(x, index, weights, experts, act=EXPERTS[kind].act)
        y.backward(dy.to(compute))
        found = {"y": y.detach(), "d_x": x.grad, "d_input1": weights.grad}
        return found | {f"d_{n}": t.grad for n, t in state.items()}

    return results


@pytest.mark.parametrize("name", ["hf", "tiled"])
@pytest.mark.parametrize(("tp", "kind", "word", "sequence"), EXPERT_CASES)
def test_experts(kept, tp, kind, word, sequence, name):
    dtype = DTYPES[word]
    key = ("experts", tp, kind, word, name)
    assert_as_good(
        lambda seed: expert_results(kept, kind, key, tp, seed, sequence),
        one_process_experts(kind, dtype, dtype, moe),
        one_process_experts(kind, dtype, torch.float64, moe_reference),
    )


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("make", [ranks.moe, ranks.sublayer])
def test_whole_modules_have_one_process_s_gradients(kept, make, tp, sequence):
    x, _, dy = tensors(3, torch.float32, (2, TOKENS, H))
    model = make()
    truth = ranks.step(model, x, dy)
    for rank in range(tp):
        ours = kept[rank][make.__name__, tp, sequence]
        assert ours.keys() == truth.keys()
        for name, theirs in truth.items():
            got = ours[name]
            if name in ("y", "d_x"):
                theirs = theirs.chunk(tp, dim=1)[rank] if sequence else theirs
            elif got.shape != theirs.shape:
                axis = 2 if name == "d_experts.down_proj" else 1
                if "gate_up" in name:
                    got = got.flatten(1, 2)
                    theirs = torch.cat(
                        [half.chunk(tp, dim=1)[rank] for half in theirs.chunk(2, dim=1)], 1
                    )
                else:
                    axis = axis if "down" in name else 0
                    theirs = theirs.chunk(tp, dim=axis)[rank]
            # Sums of float32 in another order; a gradient that was not summed is off by half.
            assert (got - theirs).norm() <= 1e-5 * theirs.norm(), name


def test_one_all_reduce_each_way(kept):
    once = {"all_reduce": 1}
    assert kept[0]["counts", False] == [once, once]
    around = {"all_gather_into_tensor": 1, "reduce_scatter_tensor": 1}
    assert kept[0]["counts", True] == [around, around]
    assert kept[0]["counts of a frozen x"] == {}
    # Routed and shared experts apart; backward sends the routing weights' gradient too.
    assert kept[0]["counts of experts"] == [{"all_reduce": 2}, {"all_reduce": 3}]


def test_placements(kept):
    assert kept[0]["placements", "dense"] == {
        "gate_proj.weight": ("S(0)", (I, H)),
        "gate_proj.bias": ("S(0)", (I,)),
        "up_proj.weight": ("S(0)", (I, H)),
        "up_proj.bias": ("S(0)", (I,)),
        "down_proj.weight": ("S(1)", (H, I)),
        "down_proj.bias": ("R", (H,)),
    }
    W = ranks.WIDTH
    assert kept[0]["placements", "concat"] == {
        "gate_up_proj": ("S(2)", (E, 2, W, H)),
        "down_proj": ("S(2)", (E, H, W)),
    }
    assert kept[0]["placements", "gpt_oss"] == {
        "gate_up_proj": ("S(2)", (E, H, 2 * W)),
        "down_proj": ("S(1)", (E, W, H)),
        "gate_up_proj_bias": ("S(1)", (E, 2 * W)),
        "down_proj_bias": ("R", (E, H)),
    }
    assert kept[0]["placements", "in_out"]["gate_up_proj"] == ("S(3)", (E, H, 2, W))
    assert kept[0]["placements", "moe"]["gate.weight"] == "plain"


@pytest.mark.parametrize("tp", [2, 4])
def test_a_merged_module_stays_one_matrix(kept, tp):
    x, weights, _ = tensors(1, torch.float32, (TOKENS, H))
    for rank in range(tp):
        found = kept[rank]["merged", tp]
        assert found["form"] == ("S(1)", (2, I, H), (2, I // tp, H))
        state = ranks.dense(weights)
        assert list(found["state"]) == list(state)
        assert all(torch.equal(found["state"][n], t) for n, t in state.items())
        assert found["still"]
        twice = [2 * w for w in weights]
        for y, w in ((found["y"], weights), (found["y of twice"], twice)):
            gate, up, down, *biases = (t.double() for t in w)
            named = dict(zip(("gate_bias", "up_bias", "down_bias"), biases, strict=True))
            truth = reference.gated_mlp(x.double(), gate, up, down, **named)
            assert (y - truth).norm() <= 1e-6 * truth.norm()
        # Cast one by one, the parameters have left the matrix.
        assert (found["y of float64"] - truth).norm() <= 1e-14 * truth.norm()


@pytest.mark.parametrize("make", [ranks.moe, ranks.sublayer, ranks.experts])
def test_checkpoints_reshard_without_loss(kept, make):
    """1 -> 2 -> 4 -> 1 ranks, as whole tensors and through torch.distributed.checkpoint."""
    keys = [("whole", make.__name__)] + [("checkpoint", make.__name__, n) for n in (1, 2, 3)]
    for rank in range(RANKS):
        for key in keys:
            first, last = kept[rank][key]
            assert list(first) == list(last)
            for name, t in first.items():
                assert torch.equal(t, last[name]), (key, name)
                assert t.abs().sum() > 0 or name.endswith("bias")


@pytest.mark.parametrize("name", ranks.MUTATIONS)
def test_a_wrong_dense_split_is_seen(kept, name):
    results = [renamed({}) | kept[0][name, seed] for seed in SEEDS]
    truth = one_process(exact, torch.float32)
    low = one_process(gradients, torch.float32)
    shown = {"y", "d_x"}
    with pytest.raises(AssertionError, match="error"):
        assert_as_good(
            lambda seed: {n: t for n, t in results[seed].items() if n in shown},
            lambda seed: {n: t for n, t in low(seed).items() if n in shown},
            lambda seed: {n: t for n, t in truth(seed).items() if n in shown},
        )


def test_cutting_gate_up_in_two_halves_is_seen(kept):
    low = one_process_experts("concat", torch.float32, torch.float32, moe)
    truth = one_process_experts("concat", torch.float32, torch.float64, moe_reference)
    with pytest.raises(AssertionError, match="error"):
        assert_as_good(
            lambda seed: {"y": kept[0]["cut in two", seed]["y"]},
            lambda seed: {"y": low(seed)["y"]},
            lambda seed: {"y": truth(seed)["y"]},
        )


REFUSALS = {
    "width": (
        "cannot be split over 4 tensor-parallel ranks: intermediate_size 18 of b does not divide"
        " by 4; the nearest width is 20 (zero rows of gate and up, zero columns of down)\n"
        "  expected: widths to divide by the number of ranks\n"
        "  remedy: use tp 3, the largest that divides"
    ),
    "axes": "the mesh has 2 axes",
    "mesh": "mesh is of type int",
    "twice": "the module is tensor-parallel already",
    "hooked": "0.up_proj cannot be cut: it has hooks",
    "changed": (
        "up_proj of a tensor-parallel MLP was changed: it is a"
        " torch.nn.modules.container.Sequential, not a plain nn.Linear"
    ),
    "x": f"x has shape (3, {H + 1})\n  expected: [..., H] with H = {H}",
    "missing": "3 tensors are missing: down_proj.weight, gate_proj.weight, up_proj.weight",
    "shape": f"gate_proj.weight has shape (5, {H})\n  expected: ({I}, {H}), as in the module",
    "nothing": "no gated MLP was patched in Sequential",
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_is_refused_in_words(kept, name):
    for rank in range(RANKS):
        assert kept[rank]["refusal", name].startswith(REFUSALS[name])
        assert kept[rank]["untouched"], "a refusal must leave the module as it was"
