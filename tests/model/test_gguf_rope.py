import math
from typing import Any

import pytest

from gateup.errors import ConfigError
from gateup.model.config import Config
from gateup.model.gguf_rope import gguf_rope_scaling

YARN: dict[str, Any] = {"type": "yarn", "factor": 4.0, "original_context_length": 4096}


def scaling(**keys: Any) -> object:
    metadata = {f"qwen2.rope.scaling.{key}": value for key, value in keys.items()}
    return gguf_rope_scaling(Config(metadata, "model.gguf"), "qwen2")


def test_nothing_is_scaled_where_nothing_says_so() -> None:
    assert scaling() is None
    assert scaling(type="none", factor=1.0) is None
    assert scaling(type="linear") is None
    assert scaling(type="longrope", factor=32.0) is None  # its tables are tensors


def test_linear_also_by_its_older_key() -> None:
    expected = {"rope_type": "linear", "factor": 8.0}
    assert scaling(type="linear", factor=8.0) == expected
    old = Config({"llama.rope.scale_linear": 8.0}, "model.gguf")
    assert gguf_rope_scaling(old, "llama") == expected


def test_attn_factor_multiplies_yarns_own() -> None:
    found = scaling(**YARN)
    assert found == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 4096,
    }
    found = scaling(**YARN, attn_factor=0.5, yarn_beta_fast=16.0)
    assert isinstance(found, dict)
    assert found["attention_factor"] == pytest.approx(0.5 * (1 + 0.1 * math.log(4)))
    assert found["beta_fast"] == 16.0


@pytest.mark.parametrize("keys", [{"type": "yarn"}, {"type": "spiral", "factor": 2.0}])
def test_what_cannot_be_computed_names_the_key(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="not one that can be computed") as error:
        scaling(**keys)
    assert "qwen2.rope.scaling.type" in str(error.value)
