"""`show`: tensors in groups that lose none, a layer that has both halves, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateup.account.ledger import LedgerRow, make_ledger
from gateup.account.show import ShowOptions, first_whole_layer, pattern, show, tensor_groups
from gateup.errors import UsageError
from gateup.model import presets
from gateup.model.families import build_spec
from gateup.model.quant.formats import stored_as
from gateup.model.quant.mix import stored
from gateup.model.spec import ModelSpec


@pytest.mark.parametrize("name", ["llama-3-8b", "deepseek-v3", "gpt-oss-20b", "openelm-270m"])
@pytest.mark.parametrize("fmt", ["bf16", "q4_k_m"])
def test_groups_add_up(name: str, fmt: str) -> None:
    spec = presets.spec(name)
    ledger = make_ledger(spec, stored(spec, fmt), fmt)
    groups = tensor_groups(ledger)
    assert sum(g.params for g in groups) == spec.params
    assert sum(g.nbytes for g in groups) == ledger.total.nbytes
    assert sum(g.count for g in groups) == sum(r.copies for r in ledger.rows)


def test_like_layers_are_one_line() -> None:
    spec = presets.spec("llama-3-8b")
    groups = tensor_groups(make_ledger(spec, stored_as(spec.rows, "bf16"), "bf16"))
    assert len(groups) == 12  # 9 of a layer, embedding, final norm, head
    gate = next(g for g in groups if "gate_proj" in g.name)
    assert gate.name == "model.layers.{i}.mlp.gate_proj.weight"
    assert gate.layers == "0-31"
    assert gate.count == 32


def test_a_mixed_file_type_splits_them() -> None:
    spec = presets.spec("llama-3-8b")
    groups = tensor_groups(make_ledger(spec, stored(spec, "q4_k_m"), "q4_k_m"))
    down = [g for g in groups if "ffn_down" in g.name]
    assert [(g.type, g.count) for g in down] == [("q6_k", 16), ("q4_k", 16)]
    assert down[0].layers == "0-3,6,9,12,15,18,21,24,27-31"
    assert groups.index(down[1]) == groups.index(down[0]) + 1


def test_experts_read_one_by_one_are_one_line_too() -> None:
    rows = [
        LedgerRow(
            f"model.layers.3.mlp.experts.{e}.up_proj.weight",
            3, "mlp", "experts.up_proj", (8, 4), 1, "bf16", 32, 16, 64, 32, 32,
        )
        for e in range(12)
    ]  # fmt: skip
    assert {pattern(r) for r in rows} == {"model.layers.{i}.mlp.experts.{e}.up_proj.weight"}


def test_the_demo_file_as_it_is(smollm2_gguf: Path) -> None:
    shown = show(smollm2_gguf)
    assert shown.label == "Q4_1 GGUF"
    assert shown.ledger.total.params == 134_515_008
    assert shown.flow.seq == 2048
    assert sum(r.nbytes > 0 for r in shown.ledger.rows) == 272


def test_the_demo_file_as_it_would_be(smollm2_gguf: Path) -> None:
    shown = show(smollm2_gguf, ShowOptions(quant="f16"))
    assert shown.ledger.total.nbytes == 2 * 134_515_008


def deci() -> ModelSpec:
    """Three layers: without attention, without an MLP, whole."""
    heads, width = {"n_heads_in_group": 3}, {"ffn_mult": 2.625}
    blocks = [
        {"attention": {"no_op": True}, "ffn": width},
        {"attention": heads, "ffn": {"no_op": True}},
        {"attention": heads, "ffn": width},
    ]
    config = {
        "architectures": ["DeciLMForCausalLM"],
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "vocab_size": 97,
        "block_configs": blocks,
    }
    return build_spec(config, where="config.json", name="deci")


def test_the_first_layer_with_both_halves() -> None:
    assert first_whole_layer(deci()) == 2
    assert first_whole_layer(presets.spec("deepseek-v3")) == 0


@pytest.mark.parametrize("field", ["batch", "seq"])
@pytest.mark.parametrize("value", [0, -1, (1 << 40) + 1])
def test_sizes_that_no_run_has(field: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"--{field} is {value}"):
        ShowOptions(**{field: value})
