"""Which halves of an adapter hold zeros only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gateup.files.adapter import read_adapter
from gateup.files.adapter_zero import BLOCK, FIRST, zero_halves

PREFIX = "base_model.model.model.layers.0.mlp."


def written(folder: Path, **tensors: torch.Tensor) -> tuple[str, ...]:
    """Short names of the zero halves of an adapter of these tensors ("__" for ".")."""
    names = {PREFIX + k.replace("__", ".") + ".weight": v for k, v in tensors.items()}
    save_file(names, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["up_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    found = zero_halves(read_adapter(folder))
    return tuple(n.removeprefix(PREFIX).removesuffix(".weight") for n in found)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn]
)
def test_only_the_halves_that_start_at_zero_and_stayed_there(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    one = torch.zeros(8, 4)
    one[7, 3] = 1e-2
    found = written(
        tmp_path,
        up_proj__lora_A=torch.zeros(4, 8, dtype=dtype),  # an A: no half that starts at zero
        up_proj__lora_B=torch.zeros(8, 4, dtype=dtype),
        down_proj__lora_B=one.to(dtype),
        gate_proj__lora_B=torch.full((8, 4), -0.0).to(dtype),
        embed__lora_embedding_A=torch.zeros(4, 8, dtype=dtype),
        embed__lora_embedding_B=torch.zeros(8, 4, dtype=dtype),
    )
    assert sorted(found) == ["embed.lora_embedding_A", "gate_proj.lora_B", "up_proj.lora_B"]


@pytest.mark.parametrize("at", [0, FIRST // 4 - 1, FIRST // 4, (FIRST + BLOCK) // 4, -1])
def test_one_value_anywhere_in_a_large_tensor(tmp_path: Path, at: int) -> None:
    wide = torch.zeros(2 * BLOCK // 16 + 100, 4)
    wide.view(-1)[at] = 1e-38
    assert written(tmp_path, up_proj__lora_B=wide) == ()


def test_a_large_tensor_of_zeros(tmp_path: Path) -> None:
    found = written(tmp_path, up_proj__lora_B=torch.zeros(2 * BLOCK // 16 + 100, 4))
    assert found == ("up_proj.lora_B",)


def test_the_sign_of_no_other_byte_counts(tmp_path: Path) -> None:
    """Bytes 80 00 are the bf16 1.2e-38, not a zero."""
    small = torch.full((8, 4), 0x0080, dtype=torch.int16).view(torch.bfloat16)
    assert written(tmp_path, up_proj__lora_B=small) == ()


@pytest.mark.parametrize(
    "tensor", [torch.zeros(0, 4), torch.zeros(8, 4, dtype=torch.int8)], ids=["empty", "int8"]
)
def test_what_is_no_tensor_of_zeros(tmp_path: Path, tensor: torch.Tensor) -> None:
    assert written(tmp_path, up_proj__lora_B=tensor) == ()


def test_a_file_cut_after_it_was_opened(tmp_path: Path) -> None:
    written(tmp_path, up_proj__lora_B=torch.zeros(2000, 4))
    adapter = read_adapter(tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-20_000])
    assert zero_halves(adapter) == ()
