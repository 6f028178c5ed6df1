"""An MLP under the names of each kind of file: there and back, bit for bit."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config

from gateup.errors import InputError, UsageError
from gateup.nn import GatedMLP
from gateup.nn.names import LEAVES, Leaves, read, write

H, WIDTH = 16, 40
SIZES = {
    "hidden_size": H,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 32,
}


def test_the_names_are_those_of_the_files():
    assert dict(LEAVES) == {
        "hf": Leaves("gate_proj", "up_proj", "down_proj"),
        "meta": Leaves("w1", "w3", "w2"),
        "gguf": Leaves("ffn_gate", "ffn_up", "ffn_down"),
        "phi3": Leaves("gate_up_proj", None, "down_proj"),
        "megatron": Leaves("linear_fc1", None, "linear_fc2"),
    }


def mlp(*, bias=False, dtype=torch.float32):
    torch.manual_seed(0)
    return GatedMLP(H, WIDTH, bias=bias, dtype=dtype)


@pytest.mark.parametrize("prefix", ["", "model.layers.3.mlp", "blk.3."])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dialect", LEAVES)
def test_there_and_back(dialect, dtype, bias, prefix):
    first = mlp(bias=bias, dtype=dtype)
    tensors = first.to_state_dict(dialect, prefix)
    dotted = prefix if prefix in ("", "blk.3.") else prefix + "."
    leaves = LEAVES[dialect]
    assert {n.removesuffix(".weight").removesuffix(".bias") for n in tensors} == {
        dotted + leaf for leaf in leaves.all()
    }
    second = GatedMLP.from_state_dict({"other": torch.zeros(1), **tensors}, prefix, dialect)
    assert list(second.state_dict()) == list(first.state_dict())
    for name, tensor in first.state_dict().items():
        assert second.state_dict()[name].dtype == tensor.dtype
        assert torch.equal(second.state_dict()[name], tensor), name
    again = second.to_state_dict(dialect, prefix)
    assert list(again) == list(tensors)
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())


def test_meta_calls_gate_w1_and_up_w3():
    tensors = mlp().to_state_dict("meta")
    assert list(tensors) == ["w1.weight", "w3.weight", "w2.weight"]
    assert torch.equal(tensors["w1.weight"], mlp().gate_proj.weight)
    assert torch.equal(tensors["w3.weight"], mlp().up_proj.weight)


@pytest.mark.parametrize("merged", [False, True])
def test_merging_changes_no_name_and_no_value(merged):
    module = mlp().requires_grad_(False)
    expected = {d: module.to_state_dict(d) for d in LEAVES}
    if merged:
        module.merge()
    for dialect, tensors in expected.items():
        found = module.to_state_dict(dialect)
        assert list(found) == list(tensors)
        assert all(torch.equal(found[n], t) for n, t in tensors.items())


@pytest.mark.parametrize("config", [LlamaConfig, Phi3Config])
def test_real_models_of_transformers(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config(**SIZES, pad_token_id=0))
    stock = model.model.layers[1].mlp
    dialect = "phi3" if config is Phi3Config else "hf"
    ours = GatedMLP.from_state_dict(model.state_dict(), "model.layers.1.mlp", dialect)
    x = torch.randn(5, H)
    # One fused GEMM or two: equal to float32's last digits, not to the bit.
    torch.testing.assert_close(ours(x), stock(x))
    swapped = torch.nn.functional.linear(
        torch.nn.functional.silu(ours.up_proj(x)) * ours.gate_proj(x), ours.down_proj.weight
    )
    assert not torch.allclose(swapped, stock(x))
    back = ours.to_state_dict(dialect, "model.layers.1.mlp")
    model.load_state_dict(back, strict=False)
    assert set(back) <= set(model.state_dict())


def test_the_real_gguf_file(smollm2_gguf):
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(smollm2_gguf)
    tensors = {
        t.name: torch.from_numpy(gguf.dequantize(t.data, t.tensor_type).copy())
        for t in reader.tensors
        if t.name.startswith("blk.7.")
    }
    module = GatedMLP.from_state_dict(tensors, "blk.7", "gguf")
    assert (module.hidden_size, module.intermediate_size) == (576, 1536)
    assert torch.equal(module.down_proj.weight, tensors["blk.7.ffn_down.weight"])
    raw = {t.name: torch.from_numpy(t.data.copy()) for t in reader.tensors if "blk.7.ffn" in t.name}
    with pytest.raises(InputError, match=r"blk\.7\.ffn_gate\.weight is uint8"):
        GatedMLP.from_state_dict(raw, "blk.7", "gguf")


def test_a_bias_on_some_projections_only():
    tensors = mlp(bias=True).to_state_dict("hf")
    del tensors["down_proj.bias"]
    module = GatedMLP.from_state_dict(tensors)
    assert module.down_proj.bias is None
    assert list(module.to_state_dict("phi3")) == [
        "gate_up_proj.weight",
        "gate_up_proj.bias",
        "down_proj.weight",
    ]
    assert module(torch.randn(2, H)).shape == (2, H)


def drop(name):
    return lambda tensors: tensors.pop(name)


def put(name, change):
    def apply(tensors):
        tensors[name] = change(tensors[name])

    return apply


BAD = {
    "missing": (
        "hf",
        drop("m.up_proj.weight"),
        "m.up_proj.weight is missing\n  where: under 'm.': m.down_proj.weight, m.gate_proj.weight",
    ),
    "another dialect": (
        "meta",
        lambda t: t.update({k.replace("w1", "gate"): t.pop(k) for k in list(t)}),
        "m.w1.weight is missing",
    ),
    "odd rows": (
        "phi3",
        put("m.gate_up_proj.weight", lambda t: t[:-1]),
        "m.gate_up_proj.weight has shape (79, 16)\n  expected: an even number of rows",
    ),
    "narrow up": (
        "gguf",
        put("m.ffn_up.weight", lambda t: t[:-1]),
        "up_proj.weight has shape (39, 16)",
    ),
    "transposed": (
        "hf",
        put("m.down_proj.weight", lambda t: t.t()),
        "down_proj.weight has shape (40, 16)\n  where: under 'm.', where gate_proj.weight is"
        " [I, H] = (40, 16)\n  expected: (16, 40)",
    ),
    "one axis": ("hf", put("m.gate_proj.weight", lambda t: t[0]), "has shape (16,)"),
    "two dtypes": (
        "hf",
        put("m.down_proj.weight", lambda t: t.half()),
        "down_proj.weight is torch.float16, gate_proj.weight torch.float32",
    ),
    "quantised": (
        "hf",
        put("m.gate_proj.weight", lambda t: t.to(torch.uint8)),
        "m.gate_proj.weight is uint8, shape (40, 16)",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_tensors_are_refused_by_name(bad):
    dialect, spoil, text = BAD[bad]
    tensors = mlp().to_state_dict(dialect, "m")
    spoil(tensors)
    with pytest.raises(InputError) as caught:
        GatedMLP.from_state_dict(tensors, "m", dialect)
    assert text in str(caught.value)


def test_other_bad_input_is_refused():
    with pytest.raises(UsageError, match="'onnx' is not a dialect of names"):
        mlp().to_state_dict("onnx")
    with pytest.raises(UsageError, match="'onnx' is not a dialect of names"):
        read({}, "", "onnx")
    with pytest.raises(InputError, match="under '': nothing"):
        read({}, "", "hf")
    module = mlp(bias=True)
    module.up_proj.bias = None
    with pytest.raises(UsageError, match="one of gate_proj and up_proj has a bias"):
        write(module.state_dict(), "", "phi3")
    with pytest.raises(InputError, match=r"gate_up_proj.weight has shape \(\)"):
        read({"gate_up_proj.weight": torch.tensor(1.0)}, "", "phi3")
