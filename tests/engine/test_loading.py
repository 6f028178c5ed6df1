"""A GGUF gives the decoder that the safetensors give; what cannot be loaded is refused clearly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gateup.engine.loading import Decoded, load
from gateup.engine.model import TorchDecoder
from gateup.errors import InputError, UnknownArchitectureError
from gateup.files.checkpoint import open_model
from tests.engine.gguf_models import factors_of, write_gguf
from tests.engine.models import ids_of, random_model, saved
from tests.engine.test_model import LENGTH, logits_of

# model -> metadata that the config's keys do not give
GGUF: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, linear rope": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    "granite": {
        "embedding_scale": 3.0,
        "attention.scale": 0.2,
        "residual_scale": 0.5,
        "logit_scale": 4.0,
    },
    "qwen3": {},
    "qwen2": {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 16,
    },
    "gemma2": {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3": {
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
        "attention.sliding_window_pattern": 3,
    },
    "smollm3": {},
    "mixtral": {},
    "qwen3_moe, normalised": {},
}


def both(name: str, tmp_path: Path, context: int = LENGTH, **gguf: Any) -> tuple[Decoded, Decoded]:
    """The model loaded from safetensors and from a GGUF."""
    model = random_model(name)
    if name == "qwen3_moe, normalised":
        model.config.mlp_only_layers = []
    hub = open_model(saved(model, tmp_path))
    path = write_gguf(tmp_path / "model.gguf", hub, model, **gguf)
    return load(hub, context), load(open_model(path), context)


def same_logits(a: Decoded, b: Decoded, length: int = LENGTH) -> float:
    """The largest difference, in units of the logits' own spread."""
    ids = ids_of(length)
    x, y = (logits_of(TorchDecoder(d.config, d.weights), ids) for d in (a, b))
    return float((x - y).abs().max() / x.std())


@pytest.mark.parametrize("name", GGUF)
def test_a_gguf_computes_what_the_safetensors_do(name: str, tmp_path: Path) -> None:
    """To rounding: theta and eps of a GGUF are float32."""
    hub, gguf = both(name, tmp_path, extra=GGUF[name])
    if name == "gemma2":  # 24 in the Hub's config; a GGUF has no key for it
        layers = [replace(x, scale=24**-0.5) for x in gguf.config.layers]
        gguf = Decoded(replace(gguf.config, layers=tuple(layers)), gguf.weights)
    if name == "qwen2":  # 8 in the Hub's; llama.cpp knows no windows in Qwen 2
        layers = [replace(x, window=None) for x in hub.config.layers]
        hub = Decoded(replace(hub.config, layers=tuple(layers)), hub.weights)
    if name == "smollm3":  # 2 in the Hub's config; llama.cpp has always 4
        layers = [
            replace(x, rope=y.rope)
            for x, y in zip(gguf.config.layers, hub.config.layers, strict=True)
        ]
        gguf = Decoded(replace(gguf.config, layers=tuple(layers)), gguf.weights)
    assert same_logits(hub, gguf) < 1e-4


def test_factor_tables_of_llama_3_and_phi_3(tmp_path: Path) -> None:
    hub, _ = both("llama, llama3 rope", tmp_path)
    rope = hub.config.layers[0].rope
    assert rope is not None
    table = factors_of(torch.tensor(rope.inv_freq), 500.0, 8)
    assert table.max() > 4  # the scaling is there
    hub, gguf = both("llama, llama3 rope", tmp_path, tables={"rope_freqs.weight": table})
    assert same_logits(hub, gguf) < 1e-4
    extra = {
        "rope.dimension_count": 4,
        "rope.scaling.original_context_length": 16,
        "rope.scaling.attn_factor": (1 + torch.tensor(4.0).log() / torch.tensor(16.0).log())
        .sqrt()
        .item(),
    }
    tables = {
        "rope_factors_short.weight": torch.tensor([1.0, 1.5]).numpy(),
        "rope_factors_long.weight": torch.tensor([2.0, 9.0]).numpy(),
    }
    for context in (12, LENGTH):
        hub, gguf = both("phi3, long", tmp_path, context, extra=extra, tables=tables)
        assert same_logits(hub, gguf, context) < 1e-4


def test_a_wrong_factor_table_is_refused(tmp_path: Path) -> None:
    table = torch.tensor([1.0, 1.0, 0.0, 1.0]).numpy()
    with pytest.raises(InputError, match="has 4 factors"):
        both("llama", tmp_path, tables={"rope_freqs.weight": table})


def test_an_architecture_without_a_decoder(tmp_path: Path) -> None:
    config = {"architectures": ["Olmo2ForCausalLM"], "hidden_size": 64, "vocab_size": 96}
    config |= {"num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 96}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnknownArchitectureError) as raised:
        load(open_model(tmp_path))
    assert "no decoder for Olmo2ForCausalLM" in str(raised.value)
    assert "gemma2, gemma3, gemma3_text, granite, llama" in str(raised.value).replace("\n    ", " ")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(random_model("llama"), tmp_path)


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as raised:
        load(open_model(folder))
    return str(raised.value)


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Replace tensors by their name's end; None removes."""
    file = folder / "model.safetensors"
    state = load_file(file)
    for end, value in tensors.items():
        name = next(n for n in state if n.endswith(end.replace("__", ".")))
        if value is None:
            del state[name]
        else:
            state[name] = value
    save_file(state, file)


def test_weights_that_are_not_there(folder: Path) -> None:
    change(folder, layers__1__mlp__up_proj__weight=None)
    assert "in no file: model.layers.1.mlp.up_proj.weight" in refusal(folder)


def test_a_tensor_of_another_shape(folder: Path) -> None:
    change(folder, layers__1__mlp__up_proj__weight=torch.zeros(47, 32))
    assert "1 tensor of another shape than described" in refusal(folder)


def test_tensors_that_the_decoder_would_leave_out(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    state["model.layers.0.self_attn.q_norm.weight"] = torch.ones(8)
    save_file(state, folder / "model.safetensors")
    assert "that the description does not have: model.layers.0.self_attn.q_norm" in refusal(folder)


def test_no_weights_at_all(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "there are no weights to run" in refusal(folder)


def test_a_norm_that_is_not_a_number(folder: Path) -> None:
    change(folder, layers__2__input_layernorm__weight=torch.full((32,), float("nan")))
    said = refusal(folder)
    assert "model.layers.2.input_layernorm.weight has values that are not finite" in said
    assert "the file is damaged" in said


def test_a_quantiser_s_own_format(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "awq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    assert "the weights are quantised by 'awq'" in refusal(folder)


def test_a_type_that_cannot_be_multiplied(folder: Path) -> None:
    change(folder, layers__1__mlp__up_proj__weight=torch.zeros(48, 32, dtype=torch.int16))
    said = refusal(folder)
    assert "weights of type i16 cannot be read" in said
    assert "model.layers.1.mlp.up_proj.weight" in said


def test_a_file_that_shrank_after_it_was_opened(folder: Path) -> None:
    checkpoint = open_model(folder)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InputError, match="is truncated: the tensor ends at byte"):
        load(checkpoint)
