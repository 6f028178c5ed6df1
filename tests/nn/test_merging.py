"""Merging gate and up for inference: what it must not change, when it is chosen, who refuses."""

from __future__ import annotations

import copy

import peft
import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

from gateup.errors import UsageError
from gateup.nn import GatedMLP, merging
from gateup.nn.merging import Merge

H, WIDTH = 48, 80


def frozen(dtype=torch.float32, *, bias=True):
    torch.manual_seed(0)
    return GatedMLP(H, WIDTH, bias=bias, dtype=dtype).requires_grad_(False)


def tokens(dtype=torch.float32):
    return torch.randn(19, H, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.fixture
def fused_calls(monkeypatch):
    """How often the fused op ran."""
    from gateup.nn import gated_mlp

    calls = []
    original = gated_mlp.gated_mlp_fused

    def counted(*args, **kwargs):
        calls.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(gated_mlp, "gated_mlp_fused", counted)
    return calls


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_state_dict_does_not_change(tmp_path, fused_calls, dtype, bias):
    mlp = frozen(dtype, bias=bias)
    before = {name: t.clone() for name, t in mlp.state_dict().items()}
    parameters = list(mlp.parameters())
    assert mlp.merge() == Merge(True)
    assert mlp.merged
    assert mlp.merge() == Merge(True)
    after = mlp.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[n], t) and after[n].dtype == t.dtype for n, t in before.items())
    assert all(a is b for a, b in zip(mlp.parameters(), parameters, strict=True))
    mlp(tokens(dtype))
    assert fused_calls == [1]
    safetensors.torch.save_file(after, tmp_path / "mlp.safetensors")
    loaded = safetensors.torch.load_file(tmp_path / "mlp.safetensors")
    assert all(torch.equal(loaded[n], t) for n, t in before.items())
    mlp.unmerge()
    assert not mlp.merged
    mlp.unmerge()
    for name, tensor in mlp.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_the_output_is_the_same_to_the_last_digits():
    mlp, x = frozen(torch.float64), tokens(torch.float64)
    apart = mlp(x)
    mlp.merge()
    torch.testing.assert_close(mlp(x), apart, rtol=1e-14, atol=1e-14)
    mlp._fused.weight.copy_(mlp._fused.weight.roll(WIDTH, 0))  # up first: must be seen
    assert not torch.allclose(mlp(x), apart)


def test_what_is_written_is_what_is_computed(fused_calls):
    mlp, other, x = frozen(), frozen(), tokens()
    mlp.merge()
    for p in other.parameters():
        p.mul_(1.5)
    mlp.load_state_dict(other.state_dict())
    other.merge()
    assert torch.equal(mlp(x), other(x))
    with torch.no_grad():
        mlp.up_proj.weight.zero_()
        mlp.up_proj.bias.zero_()
    assert torch.equal(mlp(x), mlp.down_proj.bias.expand(19, H))
    assert len(fused_calls) == 3


def test_parameters_that_went_elsewhere_are_not_overlooked(fused_calls):
    for change in ("data", "parameter"):
        mlp, x = frozen(), tokens()
        mlp.merge()
        new = torch.zeros(WIDTH, H)
        if change == "data":
            mlp.gate_proj.weight.data = new
        else:
            mlp.gate_proj.weight = nn.Parameter(new, requires_grad=False)
        expected = frozen()
        expected.gate_proj.weight.copy_(new)
        assert torch.equal(mlp(x), expected(x))
    assert not fused_calls


def test_casts_and_copies(fused_calls):
    mlp, x = frozen(), tokens()
    mlp.merge()
    mlp.to(torch.bfloat16)
    assert mlp.merged
    expected = frozen().to(torch.bfloat16)
    expected.merge()
    assert torch.equal(mlp(x.bfloat16()), expected(x.bfloat16()))
    assert len(fused_calls) == 2
    twin = copy.deepcopy(mlp)
    assert not twin.merged
    with torch.no_grad():
        twin.gate_proj.weight.zero_()
    assert mlp.gate_proj.weight.any()
    mlp.to("meta")
    assert not mlp.merged


def test_training_after_all_takes_the_separate_path(fused_calls):
    mlp, x = frozen(), tokens()
    mlp.merge()
    mlp.requires_grad_(True)
    mlp(x).sum().backward()
    expected = frozen().requires_grad_(True)
    expected(x).sum().backward()
    for p, q in zip(mlp.parameters(), expected.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)
    assert not fused_calls
    with torch.no_grad():
        mlp(x)
    assert fused_calls


def test_x_may_require_a_gradient(fused_calls):
    mlp, x = frozen(torch.float64), tokens(torch.float64).requires_grad_()
    mlp(x).sum().backward()
    apart, x.grad = x.grad, None
    mlp.merge()
    mlp(x).sum().backward()
    torch.testing.assert_close(x.grad, apart, rtol=1e-13, atol=1e-13)
    assert fused_calls


def test_merged_compiles_as_its_parts_are_now(fused_calls):
    """Also where .data was exchanged, which a tracer cannot see."""
    torch._dynamo.reset()
    mlp, x = frozen(), tokens()
    mlp.merge()
    mlp.gate_proj.weight.data = 2 * mlp.gate_proj.weight.data
    with torch.no_grad():
        compiled = torch.compile(mlp, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x), mlp(x))
    assert not fused_calls


# ---- chosen by measurement -----------------------------------------------------------------------


@pytest.mark.parametrize(("split", "fused", "merged"), [(2.0, 1.0, True), (1.0, 2.0, False)])
def test_auto_takes_what_was_faster_and_times_once(monkeypatch, split, fused, merged):
    timed = []

    def measure(first, second, like):
        assert first().shape == second().shape == (33, H)
        timed.append(1)
        return split, fused

    monkeypatch.setattr(merging, "_MEASURED", {})
    monkeypatch.setattr(merging, "_timed", measure)
    for _ in range(2):
        mlp = frozen()
        assert mlp.merge("auto", tokens=33) == Merge(merged, split, fused)
        assert mlp.merged == merged
    assert timed == [1]


def test_auto_really_measures(monkeypatch):
    monkeypatch.setattr(merging, "_MEASURED", {})
    mlp = frozen()
    choice = mlp.merge("auto", tokens=4)
    assert choice.split_seconds > 0
    assert choice.fused_seconds > 0
    assert choice.merged == mlp.merged == (choice.fused_seconds < choice.split_seconds)


# ---- refused -------------------------------------------------------------------------------------


def needs_gradient(mlp):
    mlp.up_proj.bias.requires_grad_()
    return "up_proj.bias requires a gradient: merging is for inference"


def optimizer(mlp):
    mlp.held = torch.optim.AdamW(mlp.parameters())
    return "gate_proj.weight is held by an optimizer (AdamW)"


def adapter(mlp):
    config = peft.LoraConfig(r=4, target_modules=["gate_proj"])
    peft.inject_adapter_in_model(config, nn.ModuleDict({"mlp": mlp}))
    return "gate_proj cannot be merged: it is a peft.tuners.lora.layer.Linear"


def quantised(mlp):
    weight = torch.zeros(WIDTH, H, dtype=torch.int8)
    mlp.up_proj.weight = nn.Parameter(weight, requires_grad=False)
    return "up_proj cannot be merged: its weight is torch.int8"


def meta(mlp):
    mlp.to("meta")
    return "gate_proj.weight is on the meta device"


def hooked(mlp):
    mlp.gate_proj.register_forward_hook(lambda *args: None)
    return "gate_proj cannot be merged: it has hooks"


def taken(mlp):
    """As FSDP1 does: the parameter is gone, a plain tensor lies in its place."""
    weight = mlp.gate_proj.weight.detach()
    del mlp.gate_proj.weight
    mlp.gate_proj.weight = weight
    return "gate_proj.weight is no parameter of its module: FSDP may hold it"


def one_bias(mlp):
    mlp.up_proj.bias = None
    return "one of gate_proj and up_proj has a bias, the other none"


def two_dtypes(mlp):
    mlp.up_proj.to(torch.bfloat16)
    return "gate_proj.weight is torch.float32 (80, 48) on cpu, up_proj.weight torch.bfloat16"


@pytest.mark.parametrize("when", ["always", "auto"])
@pytest.mark.parametrize(
    "hold",
    [
        needs_gradient,
        optimizer,
        adapter,
        quantised,
        meta,
        hooked,
        taken,
        one_bias,
        two_dtypes,
    ],
    ids=lambda f: f.__name__,
)
def test_refused_in_words(hold, when):
    mlp = frozen()
    text = hold(mlp)
    with pytest.raises(UsageError) as caught:
        mlp.merge(when)
    assert text in str(caught.value)
    assert not mlp.merged


@pytest.fixture
def one_rank(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_dtensor_is_refused_in_words(one_rank):
    mlp = frozen()
    sharded = distribute_tensor(mlp.gate_proj.weight, one_rank, [Shard(0)])
    mlp.gate_proj.weight = nn.Parameter(sharded, requires_grad=False)
    with pytest.raises(UsageError, match="gate_proj cannot be merged: its weight is a DTensor"):
        mlp.merge()


def test_fsdp_is_refused_in_words(one_rank):
    from torch.distributed.fsdp import fully_shard

    mlp = fully_shard(frozen(), mesh=one_rank)
    with pytest.raises(UsageError, match="gate_proj cannot be merged: its weight is a DTensor"):
        mlp.merge()


def test_bad_arguments_are_refused():
    with pytest.raises(UsageError, match="when is 'maybe'"):
        frozen().merge("maybe")
    with pytest.raises(UsageError, match="tokens is 0"):
        frozen().merge("auto", tokens=0)
