"""LoRA targets against modules, by PEFT's rule."""

from __future__ import annotations

import re

import pytest
import torch

from gateup.checks.lora_targets import (
    MAX_OPEN,
    fused_in,
    leaves,
    linear_modules,
    lora_params,
    match_targets,
    nearest,
    split_in,
)
from gateup.model import presets

LLAMA = presets.spec("llama-3-8b")


@pytest.mark.parametrize(
    "targets",
    [
        ("q_proj",),
        ("mlp.gate_proj", "o_proj"),
        ("model.layers.3.mlp.down_proj",),
        ("proj",),
        ("layers.0.self_attn.q_proj", "lm_head"),
        r".*\.layers\.(0|31)\.mlp\..*_proj",
        r"model\.layers\.\d+\.self_attn\.(q|v)_proj",
        "q_proj",
    ],
)
def test_the_same_modules_as_peft(targets: tuple[str, ...] | str) -> None:
    from peft import LoraConfig
    from peft.tuners.tuners_utils import check_target_module_exists

    config = LoraConfig(target_modules=list(targets) if isinstance(targets, tuple) else targets)
    names = linear_modules(LLAMA)
    wanted = {n for n in names if check_target_module_exists(config, n)}
    got = sum(m.modules for m in match_targets(LLAMA, targets))
    assert got == len(wanted)


def test_every_linear_module_of_a_real_model() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    preset = presets.PRESETS["llama-3-8b"].config
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**{**preset, "num_hidden_layers": 2}))
    linear = (torch.nn.Linear, torch.nn.Embedding)
    real = {n for n, m in model.named_modules() if isinstance(m, linear)}
    ours = {n for n in linear_modules(LLAMA) if not re.search(r"layers\.(?![01]\.)", n)}
    assert ours == real


@pytest.mark.parametrize("word", ["all-linear", "ALL-LINEAR"])
def test_all_is_every_linear_module_of_the_layers(word: str) -> None:
    (m,) = match_targets(LLAMA, word)
    assert m.modules == 32 * 7
    assert m.leaves == tuple(leaves(LLAMA))


def test_all_is_a_trainers_word_and_matches_nothing_in_peft() -> None:
    (m,) = match_targets(LLAMA, "all")
    assert (m.modules, m.near) == (0, ('"all-linear"',))


def test_one_name_as_a_string_is_a_regular_expression_and_matches_nothing() -> None:
    (m,) = match_targets(LLAMA, "q_proj")
    assert (m.modules, m.near) == (0, ('["q_proj"]',))


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+b",
        r"(.*?x*)*",
        r"(.|.)*X",
        r"((a|b)+){2}",
        ".{0,60}" * (MAX_OPEN + 1) + "X",
        ".*" * (MAX_OPEN + 1) + "X",
        ".?" * (MAX_OPEN + 1) + "X",
        "x" * 2000,
    ],
)
def test_patterns_that_could_run_for_ever_are_not_run(pattern: str) -> None:
    assert match_targets(LLAMA, pattern) == []


@pytest.mark.parametrize("pattern", ["(", "[a", "*", r"(?P<x>a)(?P<x>b)"])
def test_patterns_that_are_none_match_nothing(pattern: str) -> None:
    (m,) = match_targets(LLAMA, pattern)
    assert m.modules == 0


def test_the_longest_allowed_pattern_ends() -> None:
    assert match_targets(LLAMA, ".*" * MAX_OPEN + "!")[0].modules == 0


def test_a_pattern_in_use() -> None:
    """What Unsloth writes for a language model's attention and MLP."""
    pattern = (
        r"(?:.*?(?:language|text).*?(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense)"
        r".*?(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj).*?)|"
        r"(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense)"
        r"\.(?:(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)))"
    )
    assert match_targets(LLAMA, pattern)[0].modules == 32 * 7


@pytest.mark.parametrize(
    ("base", "name", "near"),
    [
        ("phi-3-mini", "gate_proj", ("gate_up_proj",)),
        ("phi-3-mini", "k_proj", ("qkv_proj",)),
        ("llama-3-8b", "gate_up_proj", ("gate_proj", "up_proj")),
        ("llama-3-8b", "w2", ("down_proj",)),
        ("llama-3-8b", "qkv_proj", ("q_proj", "k_proj", "v_proj")),
        ("gpt2", "q_proj", ("c_attn",)),
        ("gpt2", "gate_proj", ()),  # it has none
        ("mixtral-8x7b", "down_proj", ("w2",)),
        ("llama-3-8b", "donw_proj", ("down_proj",)),
        ("llama-3-8b", "xyzzy", ()),
    ],
)
def test_nearest(base: str, name: str, near: tuple[str, ...]) -> None:
    assert nearest(presets.spec(base), name) == near


def test_fused_and_split_forms() -> None:
    phi = presets.spec("phi-3-mini")
    assert fused_in(phi, "up_proj") == "gate_up_proj"
    assert fused_in(phi, "down_proj") is None
    assert fused_in(LLAMA, "up_proj") is None
    assert split_in(LLAMA, "gate_up_proj") == ("gate_proj", "up_proj")
    assert split_in(phi, "gate_up_proj") == ()
    assert split_in(presets.spec("gpt2"), "gate_up_proj") == ()


def test_parameters_of_named_modules() -> None:
    assert lora_params(LLAMA, ["gate_proj", "up_proj", "down_proj"], 8) == 32 * 8 * 3 * 18432
    assert lora_params(LLAMA, ["nothing"], 8) == 0
    assert lora_params(presets.spec("mixtral-8x7b"), ["w1"], 8) == 0  # gate without up
    assert lora_params(presets.spec("mixtral-8x7b"), ["w1", "w3"], 8) > 0
