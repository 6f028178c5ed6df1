from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateup.errors import ConfigError, InputError
from gateup.files.adapter import read_adapter

CONFIG = {
    "peft_type": "LORA",
    "base_model_name_or_path": "llama-3-8b",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj", "down_proj"],
}


def write(folder: Path, config: dict[str, Any], weights: bytes | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    if weights is not None:
        (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


@pytest.fixture
def weights(safetensors_bytes: Callable[..., bytes]) -> bytes:
    return safetensors_bytes(
        [
            ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", "F32", [4, 64],
             1024),
            ("base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", "BF16", [64, 4],
             512),
        ]
    )  # fmt: skip


def test_reads_what_peft_says(tmp_path: Path, weights: bytes) -> None:
    config = CONFIG | {
        "use_rslora": True,
        "use_dora": True,
        "rank_pattern": {"q_proj": 2},
        "alpha_pattern": {"q_proj": 4},
        "modules_to_save": ["embed_tokens"],
    }
    adapter = read_adapter(write(tmp_path, config, weights))
    assert (adapter.rank, adapter.alpha, adapter.use_rslora, adapter.use_dora) == (4, 8, True, True)
    assert adapter.base == "llama-3-8b"
    assert adapter.target_modules == ("q_proj", "down_proj")
    assert adapter.rank_pattern == {"q_proj": 2}
    assert adapter.alpha_pattern == {"q_proj": 4.0}
    assert adapter.modules_to_save == ("embed_tokens",)
    assert (adapter.params, adapter.nbytes) == (512, 1536)
    assert adapter.types == {"f32": 256, "bf16": 256}
    assert [t.canonical for t in adapter.tensors] == [
        "model.layers.0.self_attn.q_proj.lora_A.weight",
        "model.layers.0.self_attn.q_proj.lora_B.weight",
    ]


# transformers warns of a name that peft still uses
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_reads_what_peft_writes(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=64,
    )  # fmt: skip
    model = peft.get_peft_model(
        transformers.LlamaForCausalLM(config),
        peft.LoraConfig(r=3, lora_alpha=6, target_modules=r".*\.mlp\.(gate|up)_proj"),
    )
    expected = sum(p.numel() for p in model.parameters() if p.requires_grad)
    model.save_pretrained(tmp_path)
    adapter = read_adapter(tmp_path)
    assert adapter.params == expected == 2 * 2 * 3 * (32 + 48)
    assert adapter.nbytes == 4 * expected
    assert adapter.target_modules == r".*\.mlp\.(gate|up)_proj"
    assert adapter.rank == 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"r": 0}, "r is 0"),
        ({"r": -4}, "r is -4"),
        ({"r": "4"}, "r is '4'"),
        ({"r": None}, "r is missing"),
        ({"lora_alpha": None}, "lora_alpha is missing"),
        ({"lora_alpha": -1}, "lora_alpha is -1"),
        ({"target_modules": 3}, "target_modules is 3"),
        ({"target_modules": [3]}, "target_modules is [3]"),
        ({"rank_pattern": []}, "rank_pattern is []"),
        ({"rank_pattern": {"q": "x"}}, "rank_pattern['q'] is 'x'"),
        ({"alpha_pattern": {"q": "x"}}, "q is 'x'"),
        ({"use_rslora": 1}, "use_rslora is 1"),
        ({"base_model_name_or_path": 3}, "base_model_name_or_path is 3"),
    ],
)
def test_refuses(tmp_path: Path, weights: bytes, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as e:
        read_adapter(write(tmp_path, CONFIG | changes, weights))
    assert says in e.value.what
    assert "adapter_config.json" in (e.value.where or "")


def test_a_pickled_adapter(tmp_path: Path) -> None:
    folder = write(tmp_path, CONFIG)
    (folder / "adapter_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(InputError) as e:
        read_adapter(folder)
    assert e.value.what == "adapter_model.bin is a pickle, which gateup never opens"
    assert "save_pretrained" in (e.value.remedy or "")


def test_an_adapter_without_weights(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no adapter_model\.safetensors"):
        read_adapter(write(tmp_path, CONFIG))
