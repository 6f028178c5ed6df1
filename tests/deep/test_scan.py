"""Every tensor read once: blocks, stacked experts, tensors that are turned."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import gateup
from gateup.deep import scan as scanning
from gateup.deep.scan import scan
from gateup.files.checkpoint import open_model
from gateup.files.tensors import TensorFiles
from tests.deep.models import Tensors, edited


def test_a_block_s_scale_that_is_no_number(smollm2_gguf: Path, tmp_path: Path) -> None:
    """Two bytes of a Q4_1 block, its f16 scale, in a file of 94 MB."""
    path = tmp_path / "damaged.gguf"
    shutil.copyfile(smollm2_gguf, path)
    checkpoint = open_model(path)
    header = next(h for h in checkpoint.headers if h.name == "blk.7.ffn_down.weight")
    assert header.type == "q4_1"
    row = header.shape[1] // 32 * 20
    with path.open("r+b") as file:
        file.seek(header.offset + 9 * row + 2 * 20)  # row 9, block 2: columns 64 to 95
        file.write(b"\x00\x7e")
    steps: list[tuple[int, int]] = []
    with TensorFiles() as files:
        found = scan(checkpoint, files, lambda done, total: steps.append((done, total)))
    assert steps == sorted(steps)
    assert len(steps) == len(checkpoint.headers)
    assert steps[-1][0] == steps[-1][1] == sum(h.nbytes for h in checkpoint.headers)
    assert [(b.name, b.nans, b.infinities, b.first) for b in found.not_finite] == [
        (header.name, 32, 0, (9, 64))
    ]
    assert found.quiet == ()
    assert found.tensors == len(checkpoint.headers)


@pytest.mark.parametrize("step", [1 << 22, 100])
def test_stacked_and_turned_experts(
    converted: dict[str, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
) -> None:
    """Llama 4 keeps experts as [E, H, 2I] and [E, I, H]; parts of a few rows change no count."""
    import transformers

    monkeypatch.setattr(scanning, "STEP", step)
    config = {k: v for k, v in converted["llama4_text"]["config"].items() if k != "architectures"}
    cls = transformers.Llama4ForCausalLM
    whole = tmp_path / "whole"
    cls(cls.config_class.from_dict(config)).save_pretrained(whole)
    assert gateup.check(whole, deep=True).context.scan.quiet == ()  # type: ignore[union-attr]
    shapes: dict[str, tuple[int, ...]] = {}

    def spoil(tensors: Tensors) -> None:
        fused = next(k for k in tensors if k.endswith("experts.gate_up_proj"))
        down = fused.replace("gate_up_proj", "down_proj")
        shapes.update({"gate": tuple(tensors[fused].shape), "down": tuple(tensors[down].shape)})
        tensors[fused][1, :, 3] = 0  # a column of gate, in one expert
        tensors[fused][:, :, -1] = 0  # and of up, in all
        tensors[down][0, 5] = 0  # what a column is elsewhere
        tensors[down][0, 6, 0] = float("inf")

    report = gateup.check(edited(whole, tmp_path / "m", spoil), deep=True)
    assert report.context is not None
    found = report.context.scan
    assert found is not None
    experts, _, double = shapes["gate"]
    assert double == 2 * shapes["down"][1]
    neurons = experts * double // 2 + config["intermediate_size"]  # and the shared expert's
    assert {q.role: (q.zero, q.of) for q in found.quiet} == {
        "gate": (1, neurons),
        "up": (experts, neurons),
        "down": (1, neurons),
    }
    assert [b.first for b in found.not_finite] == [(0, 6, 0)]
    assert "no decoder" in report.skipped["deep.gate_up_order"]


def test_memory_is_that_of_a_part(smollm2_gguf: Path) -> None:
    """What torch allocates at once, whatever the tensors' sizes."""
    checkpoint = open_model(smollm2_gguf)
    largest = max(h.shape[0] * h.shape[1] for h in checkpoint.headers if len(h.shape) == 2)
    assert largest > 4 * scanning.STEP
    sizes = []
    for header in checkpoint.headers:
        if header.name == "token_embd.weight":
            with TensorFiles() as files:
                sizes = [v.numel() for _, v in scanning._parts(header, files)]
    assert sum(sizes) == largest
    assert max(sizes) <= scanning.STEP


def test_eight_bit_floats_and_integers() -> None:
    header = open_model("smollm2").headers[0]
    for kind, read in (("f8_e4m3", True), ("i32", False), ("u8", False), ("bf16", True)):
        assert scanning.readable(header._replace(type=kind, shape=(4, 32))) is read
    nan = torch.tensor([[0.0, float("nan")]]).to(torch.float8_e4m3fn).view(torch.uint8)
    assert bool(torch.isnan(nan.view(scanning._FLOAT8["f8_e4m3"]).to(torch.float32))[0, 1])


@pytest.mark.parametrize(("spoilt", "unequal"), [((), 0), ((3,), 1), ((0, 9, 10), 3)])
def test_a_second_head_is_compared_with_the_embedding(
    tied: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoilt: tuple[int, ...],
    unequal: int,
) -> None:
    monkeypatch.setattr(scanning, "STEP", 200)  # parts of four rows

    def spoil(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        for row in spoilt:
            tensors["lm_head.weight"][row, 1] += 0.25

    folder = edited(tied, tmp_path / "m", spoil)
    report = gateup.check(folder, deep=True)
    found = next(f for f in report.findings if f.rule == "config.tied")
    assert found.numbers["unequal_rows"] == unequal
    assert found.severity == ("error" if unequal else "warning")
    if unequal:
        assert "by 0.25 at most" in found.evidence[1].found
    # What transformers makes of it, by its own word.
    import transformers

    model = transformers.LlamaForCausalLM.from_pretrained(folder)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is (unequal == 0)


def test_a_head_that_is_no_number(tied: Path, tmp_path: Path) -> None:
    def spoil(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors["lm_head.weight"][2, 2] = float("nan")
        tensors["lm_head.weight"][-1] += 1

    context = gateup.check(edited(tied, tmp_path / "m", spoil), deep=True).context
    assert context is not None
    assert context.scan is not None
    assert context.scan.head is not None
    assert context.scan.head.unequal == 2
    assert context.scan.head.largest != context.scan.head.largest  # NaN


def test_a_tied_model_without_a_head_has_nothing_to_compare(tied: Path) -> None:
    report = gateup.check(tied, deep=True)
    assert report.context is not None
    assert report.context.scan is not None
    assert report.context.scan.head is None
    assert not [f for f in report.findings if f.rule == "config.tied"]
