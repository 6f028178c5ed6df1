"""Whatever is in a file, opening it ends in a Checkpoint or in one of our errors."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateup.errors import GateupError
from gateup.files.checkpoint import Checkpoint, open_model
from gateup.files.gguf import read_gguf
from gateup.model import presets

ANY = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))

# One preset for each family; the fields of every family are hit.
FAMILY_OF = {p.config["architectures"][0]: n for n, p in presets.PRESETS.items()}


def attempt(path: Path) -> Checkpoint | None:
    """The checkpoint, or None where it was refused; its figures must hang together."""
    try:
        opened = open_model(path)
    except GateupError as e:
        message = str(e)
    else:
        _check(opened)
        return opened
    message.encode()
    assert 0 < len(message) < 20_000
    return None


def _check(opened: Checkpoint) -> None:
    assert opened.spec.params == sum(prod(r.shape) * r.copies for r in opened.spec.rows)
    for problem in opened.problems:
        assert len(problem) < 2000
        problem.encode()
    if opened.stored is not None:
        assert sum(s.nbytes for s in opened.stored) == sum(t.nbytes for t in opened.headers)
        assert all(s.params >= 0 for s in opened.stored)


@pytest.fixture(scope="session")
def real_header(smollm2_gguf: Path) -> bytes:
    """SmolLM2's header without its vocabulary, so that flips hit every kind of field."""
    file = read_gguf(smollm2_gguf)
    content = smollm2_gguf.read_bytes()[: file.data_start]
    start = content.index(b"tokenizer.ggml.tokens") - 8
    end = content.index(b"tokenizer.ggml.bos_token_id") - 8
    keys = struct.unpack_from("<Q", content, 16)[0] - 3
    return content[:16] + struct.pack("<Q", keys) + content[24:start] + content[end:]


@ANY
@given(data=st.data())
def test_flips_of_a_real_gguf(tmp_path: Path, real_header: bytes, data: st.DataObject) -> None:
    content = bytearray(real_header)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "fuzz.gguf"
    with path.open("wb") as f:
        f.write(content)
        f.truncate(98_362_432)
    attempt(path)


def test_the_unflipped_header_opens(tmp_path: Path, real_header: bytes) -> None:
    path = tmp_path / "whole.gguf"
    with path.open("wb") as f:
        f.write(real_header)
        f.truncate(98_362_432)
    opened = attempt(path)
    assert opened is not None
    assert opened.spec.num_layers == 30


_ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 1 << 66),
    st.integers(0, 300),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from(["float16", "silu", "llama", "LlamaForCausalLM", "full_attention"]),
    st.lists(st.integers(-1, 70), max_size=4),
    st.lists(st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(-1, 9), max_size=3),
)


@pytest.mark.parametrize("architecture", sorted(FAMILY_OF))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_odd_values_in_every_family_s_config(
    tmp_path: Path, architecture: str, data: st.DataObject
) -> None:
    config: dict[str, Any] = dict(presets.PRESETS[FAMILY_OF[architecture]].config)
    keys = st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=2, unique=True)
    for key in data.draw(keys):
        if data.draw(st.integers(0, 3)):
            config[key] = data.draw(_ODD)
        else:
            del config[key]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    attempt(path)


@ANY
@given(data=st.data())
def test_flips_of_a_safetensors_model(
    tmp_path: Path,
    tiny_config: dict[str, Any],
    safetensors_bytes: Callable[..., bytes],
    data: st.DataObject,
) -> None:
    from gateup.model.families import build_spec

    spec = build_spec(tiny_config, where="test", name="test")
    entries = [(n, "U8", list(r.shape), prod(r.shape)) for n, r in spec.tensors()]
    content = bytearray(safetensors_bytes(entries))
    length = 8 + struct.unpack_from("<Q", content)[0]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, length - 1))
        content[at] ^= data.draw(st.integers(1, 255))
    (tmp_path / "config.json").write_text(json.dumps(tiny_config))
    (tmp_path / "model.safetensors").write_bytes(content)
    attempt(tmp_path)


@ANY
@given(
    weight_map=st.dictionaries(
        st.text(max_size=4) | st.sampled_from(["a", "b"]),
        st.sampled_from(["s.safetensors", "t.safetensors", "../s.safetensors", "s.bin", "", None])
        | st.integers()
        | st.text(max_size=4),
        max_size=4,
    )
)
def test_odd_indexes(
    tmp_path: Path,
    tiny_config: dict[str, Any],
    safetensors_bytes: Callable[..., bytes],
    weight_map: dict[str, Any],
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config))
    (tmp_path / "s.safetensors").write_bytes(safetensors_bytes([("a", "U8", [1], 1)]))
    (tmp_path / "t.safetensors").write_bytes(safetensors_bytes([("b", "U8", [1], 1)]))
    index = {"weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    attempt(tmp_path)


@ANY
@given(
    changes=st.dictionaries(
        st.sampled_from(
            ["peft_type", "r", "lora_alpha", "target_modules", "rank_pattern", "alpha_pattern",
             "modules_to_save", "use_rslora", "base_model_name_or_path"]
        ),
        _ODD,
        max_size=2,
    )
)  # fmt: skip
def test_odd_adapters(
    tmp_path: Path, safetensors_bytes: Callable[..., bytes], changes: dict[str, Any]
) -> None:
    config = {"r": 4, "lora_alpha": 8, "base_model_name_or_path": "llama-3-8b", **changes}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").write_bytes(
        safetensors_bytes([("base_model.model.model.norm.lora_A.weight", "F32", [4, 4], 64)])
    )
    attempt(tmp_path)
