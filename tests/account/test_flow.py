"""One layer's flow: every weight in exactly one step, sums equal to the ledger's, known shapes."""

from __future__ import annotations

import pytest

from gateup.account.flops import prefill_flops
from gateup.account.flow import causal, layer_flow, uses_rope
from gateup.account.ledger import Totals, make_ledger
from gateup.errors import UsageError
from gateup.model import presets
from gateup.model.families import FAMILIES, build_spec
from gateup.model.quant.formats import stored_as
from gateup.model.quant.mix import stored
from gateup.model.spec import ModelSpec

# One preset of every family, and both the dense and the sparse kind of layer.
ONE_EACH = {p.config["architectures"][0]: name for name, p in presets.PRESETS.items()}


def flow_of(name: str, layer: int = 0, *, batch: int = 2, seq: int = 100):  # type: ignore[no-untyped-def]
    spec = presets.spec(name)
    return layer_flow(spec, layer, stored_as(spec.rows, "bf16"), batch=batch, seq=seq, dtype="bf16")


def shapes(name: str, layer: int = 0) -> dict[str, tuple[int, ...]]:
    return {s.name: s.shape for s in flow_of(name, layer).steps}


@pytest.mark.parametrize("name", sorted(ONE_EACH.values()))
def test_steps_add_up_to_the_ledger(name: str) -> None:
    spec = presets.spec(name)
    tensors = stored_as(spec.rows, "bf16")
    ledger = make_ledger(spec, tensors, "bf16")
    batch, seq = 3, 70
    scores = 0
    for layer in {0, 1, 3, spec.num_layers // 2, spec.num_layers - 1}:
        flow = layer_flow(spec, layer, tensors, batch=batch, seq=seq, dtype="bf16")
        total = Totals.of(r for r in ledger.rows if r.layer == layer)
        assert flow.params == total.params
        assert flow.weight_nbytes == total.nbytes
        assert flow.gemm_flops == total.flops * batch * seq
        assert flow.flops == flow.gemm_flops + flow.attention_flops
    for x in spec.layers:
        scores += layer_flow(spec, x.index, (), batch=batch, seq=seq, dtype="bf16").attention_flops
    expected = prefill_flops(spec, seq, batch=batch, causal=causal(spec)).attention
    assert scores == expected


def test_every_family_is_covered() -> None:
    assert len({presets.spec(n).family for n in ONE_EACH.values()}) >= len(FAMILIES) - 4


def test_bytes_follow_the_file_type() -> None:
    spec = presets.spec("llama-3-8b")
    tensors = stored(spec, "q4_k_m")
    steps = {s.name: s for s in layer_flow(spec, 0, tensors, batch=1, seq=1, dtype="f16").steps}
    assert steps["gate_proj"].weight_nbytes == 4096 * 14336 // 256 * 144  # q4_k
    assert steps["down_proj"].weight_nbytes == 4096 * 14336 // 256 * 210  # q6_k: layer 0 gets more


def test_dense_llama() -> None:
    flow = flow_of("llama-3-8b")
    assert [s.name for s in flow.steps] == [
        "input_layernorm",
        "q_proj",
        "k_proj",
        "v_proj",
        "rope",
        "scores",
        "softmax",
        "values",
        "o_proj",
        "residual",
        "post_attention_layernorm",
        "gate_proj",
        "up_proj",
        "silu(gate) ⊙ up",
        "down_proj",
        "residual",
    ]
    by_name = {s.name: s for s in flow.steps}
    gate = by_name["gate_proj"]
    assert gate.shape == (2, 100, 14336)
    assert gate.nbytes == 2 * 100 * 14336 * 2
    assert gate.flops == 2 * 200 * 4096 * 14336
    assert gate.formula == "2·B·T·in·out = 2·2·100·4096·14336"
    # one token sees one key, the next two: T(T+1)/2 pairs a sequence
    assert by_name["scores"].flops == 2 * 2 * 32 * 128 * 5050
    assert by_name["softmax"].flops == 0


def test_one_gate_output_at_2048_tokens_is_58_7_mb() -> None:
    flow = flow_of("llama-3-8b", batch=1, seq=2048)
    gate = next(s for s in flow.steps if s.name == "gate_proj")
    assert gate.nbytes == 58_720_256


def test_experts_see_k_copies_of_each_token() -> None:
    got = shapes("qwen1.5-moe-a2.7b")
    assert got["router"] == (2, 100, 60)
    assert got["top-k"] == (2, 100, 4)
    assert got["experts.gate_proj"] == (800, 1408)
    assert got["experts.silu(gate) ⊙ up"] == (800, 1408)
    assert got["experts.down_proj"] == (800, 2048)
    assert got["shared_expert.gate_proj"] == (2, 100, 5632)
    assert got["shared_expert_gate"] == (2, 100, 1)
    assert got["combine"] == (2, 100, 2048)


def test_stacked_input_major_experts() -> None:
    got = shapes("gpt-oss-20b")
    assert got["experts.gate_up_proj"] == (800, 5760)
    assert got["experts.gpt_oss(gate) ⊙ up"] == (800, 2880)
    assert got["experts.down_proj"] == (800, 2880)


def test_latent_attention() -> None:
    got = shapes("deepseek-v3", 5)
    assert got["q_a_proj"] == (2, 100, 1536)
    assert got["kv_a_proj_with_mqa"] == (2, 100, 576)
    assert got["kv_b_proj"] == (2, 100, 128 * 256)
    assert got["values"] == (2, 100, 128 * 128)


def test_conv1d_weights_are_stored_input_major() -> None:
    got = shapes("gpt2")
    assert got["qkv_proj"] == (2, 100, 2304)
    assert got["up_proj"] == (2, 100, 3072)
    assert got["down_proj"] == (2, 100, 768)
    assert "rope" not in got


def order(name: str) -> list[str]:
    return [s.name for s in flow_of(name).steps]


def test_where_the_norms_stand() -> None:
    gemma = order("gemma-2-2b")
    assert gemma.index("post_attention_layernorm") < gemma.index("residual")
    assert gemma[-2:] == ["post_feedforward_layernorm", "residual"]
    olmo = order("olmo-2-7b")
    assert olmo[0] == "q_proj"
    assert olmo.index("post_attention_layernorm") < olmo.index("residual")
    bert = order("bert-base")
    assert bert.index("residual") < bert.index("post_attention_layernorm")
    assert bert[-2:] == ["residual", "post_feedforward_layernorm"]


def test_a_window_bounds_what_a_token_sees() -> None:
    spec = presets.spec("mistral-7b-v0.1")
    flow = layer_flow(spec, 0, (), batch=1, seq=8192, dtype="bf16")
    got = {s.name: s.shape for s in flow.steps}
    assert got["scores"] == (1, 32, 8192, 4096)


def test_layers_without_rope() -> None:
    spec = presets.spec("smollm3-3b")
    assert [uses_rope(spec, i) for i in range(8)] == [True, True, True, False] * 2


def test_bert_sees_both_ways() -> None:
    assert not causal(presets.spec("bert-base"))
    scores = next(s for s in flow_of("bert-base").steps if s.name == "scores")
    assert scores.flops == 2 * 2 * 12 * 64 * 100 * 100


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


def test_layers_without_a_part() -> None:
    spec = deci()
    for index, missing in ((0, "scores"), (1, "down_proj")):
        flow = layer_flow(spec, index, stored_as(spec.rows, "bf16"), batch=1, seq=4, dtype="bf16")
        names = [s.name for s in flow.steps]
        assert flow.params == sum(r.params for r in spec.layer_rows(index)) > 0
        assert missing not in names
        assert names.count("residual") == 1
    assert layer_flow(spec, 0, (), batch=1, seq=4, dtype="bf16").attention_flops == 0


@pytest.mark.parametrize("layer", [-1, 32, 10**9])
def test_a_layer_that_is_not_there(layer: int) -> None:
    with pytest.raises(UsageError, match=rf"--layer is {layer}\n  expected: 0 to 31"):
        flow_of("llama-3-8b", layer)
