"""Names that gateup reads through and loaders do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateup.checks.name_rules import found_as
from gateup.checks.runner import check

Config = dict[str, Any]
Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("prefix", "whose"),
    [
        ("_orig_mod.", "torch.compile's"),
        ("module.", "DataParallel's or DeepSpeed's"),
        ("base_model.model.", "PEFT's"),
        ("module._orig_mod.", "'_orig_mod.' (torch.compile's)"),
    ],
)
def test_a_wrapper_was_saved(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make, prefix: str, whose: str
) -> None:
    tensors = {prefix + n: s for n, s in tensors_of(tiny).items()}
    found = only(check(write(tmp_path / "m", tiny, tensors)).findings, "tensors.names")
    assert found.severity == "error"
    assert whose in found.title
    assert found.numbers["tensors"] == len(tensors)
    assert found.evidence[0].expected == "model.embed_tokens.weight"
    assert f"'{prefix.split('.')[0]}" in found.remedy.partition(" from the names")[0]
    # transformers, by its own word, finds none of them.
    from transformers import LlamaForCausalLM

    _, info = LlamaForCausalLM.from_pretrained(
        tmp_path / "m", output_loading_info=True, ignore_mismatched_sizes=True
    )
    assert len(info["missing_keys"]) == len(tensors)


def test_names_of_the_backbone_alone_are_no_fault(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config
) -> None:
    config = {**tiny, "tie_word_embeddings": True}
    tensors = {n.removeprefix("model."): s for n, s in tensors_of(config).items()}
    assert check(write(tmp_path / "m", config, tensors)).findings == ()
    assert check(write(tmp_path / "n", config)).findings == ()


def test_meta_s_names_beside_a_config(
    tmp_path: Path, write: Make, tensors_of: Make, tiny: Config, only: Make
) -> None:
    ours = {
        "model.": "",
        "embed_tokens": "tok_embeddings",
        "lm_head": "output",
        "self_attn.q_proj": "attention.wq",
        "self_attn.k_proj": "attention.wk",
        "self_attn.v_proj": "attention.wv",
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
        "post_attention_layernorm": "ffn_norm",
        "input_layernorm": "attention_norm",
    }

    def meta(name: str) -> str:
        for a, b in ours.items():
            name = name.replace(a, b)
        return name

    tensors = {meta(n): s for n, s in tensors_of(tiny).items()}
    found = only(check(write(tmp_path / "m", tiny, tensors)).findings, "tensors.names")
    assert found.severity == "warning"
    assert "w1 is gate, w3 up, w2 down" in found.remedy


def test_nothing_is_found_where_nothing_is_alike() -> None:
    assert found_as([], []) is None
    assert found_as(["module.module.module.", "a." * 50], []) is None
