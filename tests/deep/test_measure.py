"""gateup check --deep: each rule on a model spoilt for it, and on the healthy one."""

from __future__ import annotations

import shutil
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch

import gateup
from gateup.checks.finding import Finding
from gateup.checks.report import CheckReport
from gateup.deep import measure, trial
from gateup.files.checkpoint import open_model
from tests.deep.models import Tensors, edited

DEEP = {
    "deep.activation_overflow",
    "deep.dead_neurons",
    "deep.gate_saturation",
    "deep.gate_up_order",
    "deep.nan_weights",
    "deep.zero_rows",
}
MLP = "model.layers.{}.mlp.{}_proj.{}"


def name(layer: int, part: str, kind: str = "weight") -> str:
    return MLP.format(layer, part, kind)


def deep(report: CheckReport) -> dict[str, Finding]:
    """Findings of the deep rules, one of each at most; every one of them ran."""
    assert set(report.ran) >= DEEP, (report.skipped, report.failed)
    found = [f for f in report.findings if f.rule in DEEP]
    assert len({f.rule for f in found}) == len(found)
    return {f.rule: f for f in found}


def swap(tensors: Tensors, layers: int = 2) -> None:
    for i in range(layers):
        for kind in ("weight", "bias"):
            gate, up = name(i, "gate", kind), name(i, "up", kind)
            tensors[gate], tensors[up] = tensors[up], tensors[gate]


# ---- healthy -------------------------------------------------------------------------------------


def test_the_trained_models_are_clean(trained: Path, trained_fused: Path) -> None:
    for folder in (trained, trained_fused):
        report = gateup.check(folder, deep=True)
        assert deep(report) == {}
        assert report.exit_code == 0
        assert report.context is not None
        found = report.context.trial
        assert found is not None
        assert found.orders[0].loss < 2.5 < log(256) - 2
        assert len(found.layers) == 2


def test_the_loss_and_the_activations_are_transformers_own(trained: Path) -> None:
    from transformers import AutoModelForCausalLM

    context = gateup.check(trained, deep=True).context
    assert context is not None
    ours = context.trial
    assert ours is not None
    model = AutoModelForCausalLM.from_pretrained(trained, dtype=torch.float32)
    seen: dict[int, tuple[float, float]] = {}
    for i, layer in enumerate(model.model.layers):
        layer.mlp.down_proj.register_forward_hook(
            lambda m, x, y, i=i: seen.update({i: (float(x[0].abs().max()), float(y.abs().max()))})
        )
    core = trial._tokens(measure._tokenizer(context), context.spec)
    ids = torch.tensor([core])
    with torch.no_grad():
        loss = float(model(ids, labels=ids).loss)
    assert ours.tokens == len(core) == 256
    assert ours.orders[0].loss == pytest.approx(loss, rel=1e-5)
    for run in ours.layers:
        assert (run.h_max, run.out_max) == pytest.approx(seen[run.layer], rel=1e-4)


# ---- gate and up ---------------------------------------------------------------------------------


def test_gate_and_up_exchanged(trained: Path, tmp_path: Path) -> None:
    report = gateup.check(edited(trained, tmp_path / "m", swap), deep=True)
    found = deep(report)
    error = found.pop("deep.gate_up_order")
    assert found == {}
    assert error.severity == "error"
    assert report.exit_code == 1
    right, wrong = error.numbers["loss.swapped"], error.numbers["loss.declared"]
    assert isinstance(right, float)
    assert isinstance(wrong, float)
    assert right < 2.5 < wrong
    assert f"gate and up exchanged, a short text costs {right:.2f} nats" in error.title
    assert error.title.endswith(f"instead of {wrong:.2f}")
    assert "exchange model.layers.0.mlp.gate_proj.weight and model.layers.0.mlp.up" in error.remedy


def test_the_remedy_of_an_exchange_is_right(trained: Path, tmp_path: Path) -> None:
    broken = edited(trained, tmp_path / "a", swap)
    assert deep(gateup.check(edited(broken, tmp_path / "b", swap), deep=True)) == {}


def test_neighbours_where_halves_are_declared(trained_fused: Path, tmp_path: Path) -> None:
    """And the remedy, run as it is printed, mends it."""

    def spoil(tensors: Tensors) -> None:
        for key in tensors:
            if key.endswith("gate_up_proj.weight"):
                gate, up = tensors[key].chunk(2)
                tensors[key] = torch.stack([gate, up], 1).flatten(0, 1)

    broken = edited(trained_fused, tmp_path / "a", spoil)
    found = deep(gateup.check(broken, deep=True))
    error = found["deep.gate_up_order"]
    assert error.severity == "error"
    assert "as neighbours, even = gate, odd = up" in error.title
    assert len(error.evidence) == 4
    assert "W = torch.cat([W[::2], W[1::2]]) for model.layers.0.mlp.gate_up_proj" in error.remedy

    def mend(tensors: Tensors) -> None:
        for key in tensors:
            if key.endswith("gate_up_proj.weight"):
                w = tensors[key]
                tensors[key] = torch.cat([w[::2], w[1::2]])

    assert deep(gateup.check(edited(broken, tmp_path / "b", mend), deep=True)) == {}


def test_halves_exchanged(trained_fused: Path, tmp_path: Path) -> None:
    def spoil(tensors: Tensors) -> None:
        for key in tensors:
            if key.endswith("gate_up_proj.weight"):
                gate, up = tensors[key].chunk(2)
                tensors[key] = torch.cat([up, gate])

    report = gateup.check(edited(trained_fused, tmp_path / "m", spoil), deep=True)
    error = deep(report)["deep.gate_up_order"]
    assert "gate and up exchanged" in error.title
    assert "exchange the two halves of model.layers.0.mlp.gate_up_proj.weight" in error.remedy


def test_random_weights_cannot_tell(trained: Path, tmp_path: Path) -> None:
    def spoil(tensors: Tensors) -> None:
        generator = torch.Generator().manual_seed(1)
        for value in tensors.values():
            if value.ndim == 2:
                value.normal_(0, 0.02, generator=generator)

    report = gateup.check(edited(trained, tmp_path / "m", spoil), deep=True)
    note = deep(report)["deep.gate_up_order"]
    assert note.severity == "note"
    assert note.title.startswith("cannot tell gate from up")
    assert report.exit_code == 0
    assert note.numbers["guessing"] == pytest.approx(log(256))


def test_the_demo_model_exchanged(smollm2_gguf: Path, tmp_path: Path) -> None:
    """Its real weights, gate's bytes and up's exchanged in every layer; as it is, it is clean."""
    assert deep(gateup.check(smollm2_gguf, deep=True)) == {}
    path = tmp_path / "swapped.gguf"
    shutil.copyfile(smollm2_gguf, path)
    headers = {h.name: h for h in open_model(path).headers}
    with path.open("r+b") as file:
        for i in range(30):
            gate, up = headers[f"blk.{i}.ffn_gate.weight"], headers[f"blk.{i}.ffn_up.weight"]
            assert (gate.type, gate.nbytes) == (up.type, up.nbytes)
            held = []
            for h in (gate, up):
                file.seek(h.offset)
                held.append(file.read(h.nbytes))
            for h, data in zip((up, gate), held, strict=True):
                file.seek(h.offset)
                file.write(data)
    error = deep(gateup.check(path, deep=True))["deep.gate_up_order"]
    assert error.severity == "error"
    assert error.numbers["loss.swapped"] == pytest.approx(2.84, abs=0.02)
    assert error.numbers["loss.declared"] == pytest.approx(23.5, abs=0.5)
    assert "exchange blk.0.ffn_gate.weight and blk.0.ffn_up.weight" in error.remedy


# ---- weights -------------------------------------------------------------------------------------


def test_weights_that_are_no_numbers(trained: Path, tmp_path: Path) -> None:
    def spoil(tensors: Tensors) -> None:
        tensors[name(1, "down")][3, 17] = float("nan")
        tensors[name(1, "down")][5, 0] = float("-inf")
        tensors["model.norm.weight"][2] = float("inf")

    report = gateup.check(edited(trained, tmp_path / "m", spoil), deep=True)
    error = next(f for f in report.findings if f.rule == "deep.nan_weights")
    assert error.severity == "error"
    assert (error.numbers["nan"], error.numbers["infinite"]) == (1, 2)
    assert {e.subject: e.found for e in error.evidence} == {
        name(1, "down"): "1 NaN, 1 infinite, the first at [3, 17]",
        "model.norm.weight": "0 NaN, 1 infinite, the first at [2]",
    }
    # The decoder refuses such a norm: what needs it is skipped and says so.
    assert "not finite" in report.skipped["deep.gate_up_order"]


def test_a_nan_in_a_matrix_leaves_the_other_rules_running(trained: Path, tmp_path: Path) -> None:
    def spoil(tensors: Tensors) -> None:
        tensors[name(0, "up")][1, 1] = float("nan")

    found = deep(gateup.check(edited(trained, tmp_path / "m", spoil), deep=True))
    assert found["deep.nan_weights"].severity == "error"
    assert "no numbers" in found["deep.gate_up_order"].title
    assert found["deep.gate_up_order"].severity == "note"
    assert "deep.activation_overflow" not in found  # the weight is the cause, and named


def test_activations_that_float32_does_not_hold(trained: Path, tmp_path: Path) -> None:
    def spoil(tensors: Tensors) -> None:
        tensors[name(0, "up")] *= 1e30
        tensors[name(0, "gate")] *= 1e30

    found = deep(gateup.check(edited(trained, tmp_path / "m", spoil), deep=True))
    error = found["deep.activation_overflow"]
    assert error.severity == "error"
    assert error.title == "layer 0: activations are no numbers, and every weight is one"
    assert "deep.nan_weights" not in found


def test_zero_rows(trained: Path, tmp_path: Path) -> None:
    def spoil(tensors: Tensors) -> None:
        tensors[name(0, "gate")][4:24] = 0
        tensors[name(1, "up")][7] *= 1e-5
        tensors[name(1, "down")][:, :40] = 0

    found = deep(gateup.check(edited(trained, tmp_path / "m", spoil), deep=True))
    warning = found["deep.zero_rows"]
    assert warning.severity == "warning"
    assert (warning.numbers["quiet"], warning.numbers["zero"]) == (61, 60)
    assert {e.subject: e.found for e in warning.evidence} == {
        name(1, "down"): "40 of 80 columns next to zero, all exactly zero",
        name(0, "gate"): "20 of 80 rows next to zero, all exactly zero",
        name(1, "up"): "1 of 80 rows next to zero, 0 exactly zero",
    }


def test_padding_is_a_note(trained: Path, tmp_path: Path) -> None:
    """One neuron of 160 in zeros, in all three matrices: outputs stay, and nothing is wrong."""

    def pad(tensors: Tensors) -> None:
        for i in range(2):
            for part in ("gate", "up"):
                w, b = tensors[name(i, part)], tensors[name(i, part, "bias")]
                tensors[name(i, part)] = torch.cat([w, w.new_zeros(1, 48)])
                tensors[name(i, part, "bias")] = torch.cat([b, b.new_zeros(1)])
            w = tensors[name(i, "down")]
            tensors[name(i, "down")] = torch.cat([w, w.new_zeros(48, 1)], 1)

    before = gateup.check(trained, deep=True).context
    report = gateup.check(edited(trained, tmp_path / "m", pad, intermediate_size=81), deep=True)
    found = deep(report)
    assert {f.severity for f in found.values()} <= {"note", "warning"}
    assert found["deep.zero_rows"].numbers["zero"] == 6
    assert found["deep.dead_neurons"].severity == "note"
    assert found["deep.dead_neurons"].numbers["dead"] == 2
    assert before is not None
    assert before.trial is not None
    assert report.context is not None
    assert report.context.trial is not None
    assert report.context.trial.orders[0].loss == pytest.approx(before.trial.orders[0].loss)


# ---- activations ---------------------------------------------------------------------------------


def test_dead_neurons_and_gates_that_never_move(trained: Path, tmp_path: Path) -> None:
    def shut(tensors: Tensors) -> None:
        tensors[name(0, "gate", "bias")][:24] = -40.0

    found = deep(gateup.check(edited(trained, tmp_path / "shut", shut), deep=True))
    warning = found["deep.dead_neurons"]
    assert warning.severity == "warning"
    assert warning.evidence[0].found == "24 of 80 silent"
    assert "24 of 160 neurons stay silent over 256 tokens, in layer 0" in warning.title
    gates = found["deep.gate_saturation"]
    assert gates.severity == "warning"
    assert (gates.numbers["open"], gates.numbers["shut"]) == (0, 24)
    assert "deep.zero_rows" not in found

    def opened(tensors: Tensors) -> None:
        tensors[name(1, "gate", "bias")][:10] = 30.0

    found = deep(gateup.check(edited(trained, tmp_path / "open", opened), deep=True))
    gates = found["deep.gate_saturation"]
    assert gates.severity == "note"
    assert (gates.numbers["open"], gates.numbers["shut"]) == (10, 0)
    assert "deep.dead_neurons" not in found


def test_activations_beyond_float16(trained: Path, tmp_path: Path) -> None:
    """up's rows times 2^20, down's columns divided by it: the same outputs, and an h that float16
    cannot hold. bfloat16 can."""

    def grow(tensors: Tensors) -> None:
        for kind in ("weight", "bias"):
            tensors[name(1, "up", kind)] *= 2**20
        tensors[name(1, "down")] /= 2**20

    folder = edited(trained, tmp_path / "m", grow)
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({}, "note", "float16, were it used"),
        ({"quant": "f16"}, "error", "--quant f16"),
        ({"trainer": {"fp16": True}}, "error", "the trainer's settings, field fp16"),
    ]
    for options, severity, source in cases:
        found = deep(gateup.check(folder, deep=True, **options))
        finding = found["deep.activation_overflow"]
        assert (finding.severity, finding.evidence[0].source) == (severity, source)
        assert "layer 1: the input of down_proj reaches" in finding.title
        assert set(found) == {"deep.activation_overflow"}
    assert "divide row" in finding.remedy
    config = edited(trained, tmp_path / "f16", lambda t: None, dtype="float16")
    assert "deep.activation_overflow" not in deep(gateup.check(config, deep=True))
    config = edited(trained, tmp_path / "grown", grow, dtype="float16")
    finding = deep(gateup.check(config, deep=True))["deep.activation_overflow"]
    assert finding.severity == "error"
    assert finding.evidence[0].source == "config.json, field torch_dtype"


def test_experts_are_run_as_transformers_runs_them(tmp_path: Path, trained: Path) -> None:
    """Loss and the largest |h| of a Mixtral, exchanged in every expert of one layer or not."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from tests.deep.conftest import SIZES

    torch.manual_seed(0)
    sizes = {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}
    config = AutoConfig.for_model("mixtral", **sizes)
    config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4)
    model.save_pretrained(tmp_path / "m")
    shutil.copy(trained / "tokenizer.json", tmp_path / "m")
    context = gateup.check(tmp_path / "m", deep=True).context
    assert context is not None
    found = context.trial
    assert found is not None
    ids = torch.tensor([trial._tokens(measure._tokenizer(context), context.spec)])
    with torch.no_grad():
        for order in found.orders:
            loss = float(model(ids, labels=ids).loss)
            assert order.loss == pytest.approx(loss, rel=1e-4), order.key
            for layer in model.model.layers:
                gate, up = layer.mlp.experts.gate_up_proj.chunk(2, 1)
                layer.mlp.experts.gate_up_proj.copy_(torch.cat([up, gate], 1))
    assert all(x.width == 4 * 80 for x in found.layers)


# ---- what cannot be measured ---------------------------------------------------------------------


def test_without_weights_without_tokenizer_without_decoder(
    trained: Path, tmp_path: Path, converted: dict[str, dict[str, Any]]
) -> None:
    report = gateup.check("llama-3-8b", deep=True)
    reasons = {report.skipped[r] for r in DEEP}
    assert reasons == {"there are no weights beside the description"}
    folder = edited(trained, tmp_path / "m", swap)
    (folder / "tokenizer.json").unlink()
    report = gateup.check(folder, deep=True)
    assert report.skipped["deep.gate_up_order"] == "there is no tokenizer beside the model"
    assert "deep.zero_rows" in report.ran
    named = gateup.check(folder, deep=True, tokenizer=trained)
    assert deep(named)["deep.gate_up_order"].severity == "error"
    assert gateup.check(folder).skipped["deep.zero_rows"] == "no --deep was given"


def test_a_measurement_that_stumbles_is_reported_and_the_rest_runs(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def odd(*args: object) -> None:
        raise ValueError("odd input")

    monkeypatch.setattr(measure, "scan", odd)
    report = gateup.check(trained, deep=True)
    assert report.failed["deep.nan_weights"] == "ValueError: odd input"
    assert report.failed["deep.zero_rows"] == "ValueError: odd input"
    assert "deep.gate_up_order" in report.ran
    assert "config.shape" in report.ran
