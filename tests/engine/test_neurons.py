"""Neurons against transformers with hooks on small random models; float64 is the truth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gateup.engine.loading import load
from gateup.engine.neurons import NeuronDecoder
from gateup.errors import UsageError
from gateup.files.checkpoint import open_model
from tests.engine.models import TINY, ids_of, random_model, saved

LENGTH = 12
OFF = {0: [3, 17], 2: [40]}


def neurons(folder: Path) -> NeuronDecoder:
    decoded = load(open_model(folder), LENGTH, terms=2)
    return NeuronDecoder(decoded.config, decoded.weights)


@contextmanager
def inputs_of(model: PreTrainedModel, ending: str) -> Iterator[list[Tensor]]:
    """What every module whose name ends so is given, in order."""
    seen: list[Tensor] = []
    hooks = [
        m.register_forward_pre_hook(lambda _, args: seen.append(args[0][0].detach()))
        for name, m in model.named_modules()
        if name.endswith(ending)
    ]
    yield seen
    for hook in hooks:
        hook.remove()


def theirs(model: PreTrainedModel, ids: Tensor) -> tuple[list[Tensor], Tensor]:
    """(h of each layer [T, I], logits [T, V]): h is what down_proj is given."""
    with torch.no_grad(), inputs_of(model, "down_proj") as hidden:
        logits = model(ids[None]).logits[0]
    return hidden, logits


def near(ours: Tensor, plain: Tensor, exact: Tensor) -> bool:
    """No further from float64 than twice transformers' own float32 (and its last bit)."""
    least = 2**-23 * float(exact.norm())
    return float((ours - exact).norm()) <= 2 * float((plain - exact).norm()) + least


def agree(made: NeuronDecoder, model: PreTrainedModel, off: dict[int, list[int]]) -> bool:
    """Whether h in every layer and the logits are transformers', columns of down zeroed for off."""
    ids = ids_of(LENGTH)[0]
    with torch.no_grad():
        for layer, columns in off.items():
            model.model.layers[layer].mlp.down_proj.weight[:, columns] = 0
    plain, plain_logits = theirs(model, ids)
    exact, exact_logits = theirs(model.double(), ids)
    model.float()
    trace = made.trace(ids.tolist(), off)
    same = near(trace.logits, plain_logits, exact_logits)
    for i, (h, p, e) in enumerate(zip(trace.hidden, plain, exact, strict=True)):
        kept = torch.ones(h.shape[-1], dtype=torch.bool)
        kept[off.get(i, [])] = False
        assert not h[:, ~kept].any()
        same = same and near(h[:, kept], p[:, kept], e[:, kept])
    return same


@pytest.mark.parametrize("name", ["llama", "gemma2", "granite", "phi3, short"])
def test_h_is_what_down_reads_and_off_is_a_zero_column(name: str, tmp_path: Path) -> None:
    """Biases; norms behind the MLP, softcap and GELU; multipliers; one fused gate_up."""
    model = random_model(name)
    made = neurons(saved(model, tmp_path))
    whole = made.trace(ids_of(LENGTH)[0].tolist())
    assert agree(made, model, {})
    assert agree(made, model, OFF)
    without = made.trace(ids_of(LENGTH)[0].tolist(), OFF)
    assert float((whole.logits - without.logits).norm()) > 1e-2  # they do something


@pytest.mark.parametrize("mutant", ["relu", "swapped", "zeros"])
def test_another_activation_or_exchanged_rows_do_not_agree(mutant: str, tmp_path: Path) -> None:
    model = random_model("llama")
    made = neurons(saved(model, tmp_path))
    if mutant == "relu":
        layers = tuple(replace(x, act="relu") for x in made.config.layers)
        made.config = replace(made.config, layers=layers)
    else:
        layer = made.weights.layers[1]
        mlp: Any = layer.mlp
        other = {"gate": mlp.up, "up": mlp.gate, "gate_bias": mlp.up_bias, "up_bias": mlp.gate_bias}
        if mutant == "zeros":
            zero = replace(mlp.up, data=torch.zeros_like(mlp.up.data))
            other = {"up": zero, "up_bias": torch.zeros_like(mlp.up_bias)}
        changed = replace(layer, mlp=replace(mlp, **other))
        layers_ = (made.weights.layers[0], changed, made.weights.layers[2])
        made.weights = replace(made.weights, layers=layers_)
    assert not agree(made, model, {})


@pytest.mark.parametrize("name", ["llama", "granite"])
def test_writes_are_the_logits_gradient_with_the_norm_held(name: str, tmp_path: Path) -> None:
    """In the last layer d logits / d h_j is ours less what the final norm's divisor takes back:
    logits · (x·d) / (H · size²)."""
    model = random_model(name)
    made = neurons(saved(model, tmp_path))
    ids, last, j = ids_of(LENGTH)[0], TINY["num_hidden_layers"] - 1, 11
    trace = made.trace(ids.tolist())
    model.double()
    step = torch.zeros(1, dtype=torch.float64, requires_grad=True)

    def nudge(_: object, args: tuple[Tensor]) -> tuple[Tensor]:
        (h,) = args
        return (h + step * (torch.arange(h.shape[-1]) == j),)

    hook = model.model.layers[last].mlp.down_proj.register_forward_pre_hook(nudge)
    with inputs_of(model, "model.norm") as stream:
        logits = model(ids[None]).logits[0, -1]
    gradient = torch.stack([torch.autograd.grad(x, step, retain_graph=True)[0][0] for x in logits])
    hook.remove()
    x = stream[0][-1]
    square = x.pow(2).mean() + model.config.rms_norm_eps
    d = model.model.layers[last].mlp.down_proj.weight[:, j].detach()
    d = d * getattr(model.config, "residual_multiplier", 1.0)
    expected = gradient + logits.detach() * (x @ d) / (len(x) * square)
    ours = made.writes(last, [j])[0] / trace.size[-1]
    assert torch.allclose(ours.double(), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    h = trace.hidden[last][-1, j]
    here = made.direct(trace, last, -1)[j] * made.writes(last, [j])[0]
    assert torch.allclose(here, h * ours, rtol=1e-5, atol=0)
    assert torch.allclose(made.lengths(last)[j].double(), d.norm(), rtol=1e-6)


def test_all_neurons_together_write_the_mlp_s_share_of_the_logits(tmp_path: Path) -> None:
    """With a norm behind the MLP: Σ_j direct_j · writes_j is what its normed output adds."""
    model = random_model("gemma2")
    model.config.final_logit_softcapping = None
    made = neurons(saved(model, tmp_path))
    ids, layer = ids_of(LENGTH)[0], 1
    trace = made.trace(ids.tolist())
    branch: list[Tensor] = []
    norm = model.model.layers[layer].post_feedforward_layernorm
    hook = norm.register_forward_hook(lambda *a: branch.append(a[2][0].detach()))
    with torch.no_grad(), inputs_of(model, "model.norm") as stream:
        model(ids[None])
        hook.remove()
        size = (stream[0].pow(2).mean(-1, keepdim=True) + model.config.rms_norm_eps).sqrt()
        scaled = branch[0] / size * (1 + model.model.norm.weight)
        expected = (scaled @ model.lm_head.weight.T)[-1]
    width = made.config.layers[layer].width
    writes = made.writes(layer, range(width))
    ours = made.direct(trace, layer, LENGTH - 1) @ writes
    assert torch.allclose(ours, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_reads_are_gate_and_up_of_a_stream_that_nothing_wrote_to(name: str, tmp_path: Path) -> None:
    model = random_model(name)
    made = neurons(saved(model, tmp_path))
    layer, j = 2, 7
    with torch.no_grad():
        for i, block in enumerate(model.model.layers):
            silent = [block.self_attn.o_proj] + ([block.mlp.down_proj] if i < layer else [])
            for linear in silent:
                linear.weight.zero_()
                if linear.bias is not None:
                    linear.bias.zero_()
    ids = torch.arange(TINY["vocab_size"]).view(-1, 1)  # a text for each token
    mlp, outputs = model.model.layers[layer].mlp, []
    for part in (mlp.gate_proj, mlp.up_proj):
        part.register_forward_hook(lambda *a: outputs.append(a[2][:, 0, j].detach()))
    with torch.no_grad():
        model(ids)
    for ours, expected in zip(made.reads(layer, j), outputs, strict=True):
        assert torch.allclose(ours, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_what_a_neuron_computes_is_h(tmp_path: Path) -> None:
    made = neurons(saved(random_model("llama"), tmp_path))
    trace = made.trace(ids_of(LENGTH)[0].tolist())
    for i, x in enumerate(trace.inputs):
        a, act, b = made.parts(i, x)
        assert torch.allclose(act, torch.nn.functional.silu(a), atol=1e-6)
        assert torch.allclose(act * b, trace.hidden[i], rtol=0, atol=1e-5)


def test_neurons_that_there_are_not_and_experts_are_refused(tmp_path: Path) -> None:
    made = neurons(saved(random_model("llama"), tmp_path / "llama"))
    for off in ({3: [0]}, {0: [48]}, {0: [-1]}):
        with pytest.raises(UsageError, match="no neuron"):
            made.trace([3, 4], off)
    with pytest.raises(UsageError, match="outside the model's vocabulary"):
        made.trace([96])
    assert len(made.trace([3, 4]).hidden) == 3  # nothing is left of what was refused
    with pytest.raises(UsageError, match="layer 0 has experts"):
        neurons(saved(random_model("mixtral"), tmp_path / "mixtral"))
