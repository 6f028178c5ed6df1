"""Targets: names without a match, and what the file holds beside them or without them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateup.checks.adapter_target_rules import targets as rule
from gateup.checks.context import Context
from gateup.checks.finding import Finding
from gateup.checks.runner import check
from gateup.files.adapter import Adapter
from gateup.model import presets
from gateup.model.spec import LayerSpec, ModelSpec, TensorSpec

PARAMETERS = {
    "target_modules": ["q_proj"],
    "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
}
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def llada(hidden: int = 4096, width: int = 12288, layers: int = 32) -> ModelSpec:
    """LLaDA-8B's linears: attn_out, ff_proj (gate), up_proj, ff_out."""
    shapes = {
        "q_proj": (hidden, hidden),
        "k_proj": (hidden, hidden),
        "v_proj": (hidden, hidden),
        "attn_out": (hidden, hidden),
        "ff_proj": (width, hidden),
        "up_proj": (width, hidden),
        "ff_out": (hidden, width),
    }
    rows = tuple(
        TensorSpec(
            f"model.transformer.blocks.{i}.{n}.weight",
            s,
            "attention" if n in ("q_proj", "k_proj", "v_proj", "attn_out") else "mlp",
            n,
            i,
        )
        for i in range(layers)
        for n, s in shapes.items()
    )
    spec = presets.spec("llama-2-7b")
    return replace(
        spec,
        family="llada",
        name="llada",
        rows=rows,
        layers=tuple(LayerSpec(i, None, None) for i in range(layers)),
    )


def with_targets(
    described: Callable[..., Context], spec: ModelSpec, targets: tuple[str, ...] | str
) -> Context:
    adapter = Adapter(Path("a"), None, 8, 16.0, False, targets, (), 0, 0)
    context = described({**presets.PRESETS["llama-2-7b"].config}, adapter=adapter)
    return replace(context, checkpoint=replace(context.checkpoint, spec=spec))


def test_e2_llamas_names_on_llada(described: Callable[..., Context]) -> None:
    (f,) = rule(with_targets(described, llada(), ALL))
    assert f.severity == "warning"
    assert f.title == ("3 of 7 LoRA targets without a match in llada: o_proj, gate_proj, down_proj")
    assert [(e.subject, e.expected) for e in f.evidence] == [
        ("target_modules: o_proj", "attn_out"),
        ("target_modules: gate_proj", "ff_proj"),
        ("target_modules: down_proj", "ff_out"),
    ]
    # q, k, v: 3·8·8192; up: 8·16384; the right names add attn_out, ff_proj and ff_out.
    assert f.numbers["params_now"] == 32 * 8 * (3 * 8192 + 16384)
    assert f.numbers["params_then"] == 32 * 8 * (4 * 8192 + 3 * 16384)
    assert "attn_out for o_proj, ff_proj for gate_proj, ff_out for down_proj" in f.remedy


@pytest.mark.parametrize(
    ("base", "targets", "near"),
    [
        ("phi-3-mini", ("q_proj", "v_proj", "o_proj"), ["qkv_proj", "qkv_proj"]),
        ("openelm-270m", ("qkv_proj", "gate_proj", "down_proj"), ["proj_1", "proj_2"]),
        ("llama-3-8b", ("q_proj", "up_porj"), ["up_proj"]),
        ("mixtral-8x7b", ("q_proj", "gate_proj", "up_proj"), ["w1", "w3"]),
    ],
)
def test_targets_that_match_nothing(
    described: Callable[..., Context], base: str, targets: tuple[str, ...], near: list[str]
) -> None:
    (f,) = rule(with_targets(described, presets.spec(base), targets))
    assert f.severity == "warning"
    assert [e.expected for e in f.evidence] == near


def test_no_target_matches_at_all(described: Callable[..., Context]) -> None:
    (f,) = rule(with_targets(described, presets.spec("phi-3-mini"), ("gate_proj", "q_proj")))
    assert f.severity == "error"
    assert "PEFT refuses" in f.cause


@pytest.mark.parametrize(
    ("base", "targets"),
    [
        ("llada", ("q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj", "ff_out")),
        ("llama-3-8b", ALL),
        ("llama-3-8b", "all-linear"),
        ("llama-3-8b", r".*\.mlp\.(gate|up|down)_proj"),
        ("llama-3-8b", ("mlp.gate_proj", "lm_head", "embed_tokens")),
        ("llama-3.2-1b", ("q_proj", "lm_head")),  # tied: no tensor, and a module
        ("mixtral-8x7b", ("q_proj", "w1", "w2", "w3", "gate")),  # PEFT converts the old names
        ("phi-3-mini", ("qkv_proj", "gate_up_proj", "down_proj", "o_proj")),
        ("gpt2", ("c_attn", "c_proj", "c_fc")),
    ],
)
def test_targets_that_match(
    described: Callable[..., Context], base: str, targets: tuple[str, ...] | str
) -> None:
    spec = llada() if base == "llada" else presets.spec(base)
    assert rule(with_targets(described, spec, targets)) == []


@pytest.mark.parametrize("targets", [{"target_modules": "all-linear"}, PARAMETERS])
def test_a_mixtral_adapter_as_peft_saves_it_fits(tmp_path: Path, targets: dict[str, Any]) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import MixtralConfig, MixtralForCausalLM

    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 64}
    size |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4}
    model = MixtralForCausalLM(MixtralConfig(**size))
    model.save_pretrained(tmp_path / "base")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, LoraConfig(r=2, lora_alpha=4, **targets))
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.data.fill_(0.01)
        adapted.save_pretrained(tmp_path / "adapter")
    report = check(tmp_path / "base", adapter=tmp_path / "adapter")
    assert not report.failed
    assert [(f.rule, f.title) for f in report.findings if f.severity != "note"] == []


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r".*\.(q_proj|v_proj", "missing ), unterminated subpattern at character 4"),
        ("*_proj", "nothing to repeat"),
        (r".*\.[qv_proj", "unterminated character set at character 4"),
    ],
)
def test_a_string_that_is_no_regular_expression(
    described: Callable[..., Context], pattern: str, why: str
) -> None:
    """One that compiles and matches nothing is another matter."""
    (f,) = rule(with_targets(described, presets.spec("llama-2-7b"), pattern))
    assert f.severity == "error"
    assert f.title == f"target_modules is no regular expression: {why}"
    assert "write names as a list: q_proj, k_proj, v_proj, o_proj, gate_proj" in f.remedy
    (f,) = rule(with_targets(described, presets.spec("llama-2-7b"), r".*\.query"))
    assert "without a match" in f.title
    assert not list(rule(with_targets(described, presets.spec("llama-2-7b"), r".*\.q_proj")))


LEAVES = ("q_proj", "v_proj", "gate_proj", "up_proj")
# What each of them makes of four leaves in three layers, as PEFT 0.21.2 loads them.
OUTSIDE = [
    ({"target_modules": ["q_proj"]}, 9, "target_modules"),
    ({"target_modules": ["mlp.gate_proj", "q_proj", "up_proj"]}, 3, "target_modules"),
    ({"target_modules": r".*\.(q|v)_proj"}, 6, "target_modules"),
    ({"layers_to_transform": [0]}, 8, "layers_to_transform"),
    ({"layers_to_transform": 1}, 8, "layers_to_transform"),
    ({"exclude_modules": ["q_proj"]}, 3, "exclude_modules"),
    ({"exclude_modules": r".*\.mlp\..*"}, 6, "exclude_modules"),
    ({"modules_to_save": ["gate_proj"]}, 3, "modules_to_save"),
]
WHOLE: list[dict[str, Any]] = [
    {},
    {"target_modules": "all-linear"},
    {"target_modules": r".*\.(q|v|gate|up)_proj"},
    {"target_modules": r"model\.layers\.\d+\.(self_attn\.[qv]|mlp\.(gate|up))_proj"},
    {"layers_to_transform": [0, 1, 2]},
    {"layers_to_transform": [0, 1, 2], "layers_pattern": "layers"},
    {"layers_to_transform": []},
    {"exclude_modules": ["down_proj"]},
    {"target_modules": None},
]


def of(tmp_path: Path, tiny: dict[str, Any], adapter: Path, rule_id: str) -> list[Finding]:
    base = tmp_path / "base"
    base.mkdir(exist_ok=True)
    (base / "config.json").write_text(json.dumps(tiny))
    report = check(base, adapter=adapter)
    assert not report.failed
    return [f for f in report.findings if f.rule == rule_id]


@pytest.mark.parametrize(("settings", "lost", "key"), OUTSIDE)
def test_pairs_that_the_config_does_not_adapt(
    tmp_path: Path,
    tiny: dict[str, Any],
    write_adapter: Callable[..., Path],
    settings: dict[str, Any],
    lost: int,
    key: str,
) -> None:
    folder = write_adapter(tmp_path / "a", tiny, LEAVES, **settings)
    (f,) = of(tmp_path, tiny, folder, "adapter.outside")
    assert f.severity == "error"
    assert f.title.startswith(f"{lost} of 12 pairs in the file are of modules that")
    assert f.evidence[0].expected == f"named by {key}"
    assert key in f.remedy
    assert f.numbers == {"outside": lost, "pairs": 12}


def test_the_remedy_is_the_list_that_holds_them_all(
    tmp_path: Path, tiny: dict[str, Any], write_adapter: Callable[..., Path]
) -> None:
    folder = write_adapter(tmp_path / "a", tiny, LEAVES, target_modules=["q_proj"])
    (f,) = of(tmp_path, tiny, folder, "adapter.outside")
    assert f.title.endswith("does not adapt: v_proj, gate_proj, up_proj")
    assert 'target_modules: ["q_proj", "v_proj", "gate_proj", "up_proj"]' in f.remedy
    assert "layers 0-2" in f.cause


@pytest.mark.parametrize("settings", WHOLE)
def test_every_pair_is_adapted(
    tmp_path: Path,
    tiny: dict[str, Any],
    write_adapter: Callable[..., Path],
    settings: dict[str, Any],
) -> None:
    folder = write_adapter(tmp_path / "a", tiny, LEAVES, **settings)
    assert of(tmp_path, tiny, folder, "adapter.outside") == []
    assert of(tmp_path, tiny, folder, "adapter.targets") == []
    if settings.get("target_modules") != "all-linear":
        assert of(tmp_path, tiny, folder, "adapter.missing") == []


def test_what_peft_drops_is_what_is_reported(
    tmp_path: Path, tiny: dict[str, Any], write_adapter: Callable[..., Path]
) -> None:
    """The truth of OUTSIDE: pairs that are left in PEFT's model."""
    from peft import LoraConfig, inject_adapter_in_model
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {k: v for k, v in tiny.items() if k not in ("architectures", "torch_dtype")}
    for settings, lost, _ in OUTSIDE:
        known = {"r": 4, "target_modules": list(LEAVES)} | settings
        model = LlamaForCausalLM(LlamaConfig(**sizes))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = inject_adapter_in_model(LoraConfig(**known), model)
        assert sum(n.endswith("lora_A.default.weight") for n in made.state_dict()) == 12 - lost


@pytest.mark.parametrize(
    ("leaves", "layers", "settings", "absent", "wanted"),
    [
        (LEAVES, [0, 1], {}, 4, 12),
        (("q_proj",), None, {"target_modules": ["q_proj", "o_proj"]}, 3, 6),
        (LEAVES, None, {"target_modules": "all-linear"}, 9, 21),
        (LEAVES, [0], {"layers_to_transform": [0, 2]}, 4, 8),
        (LEAVES, None, {"target_modules": r".*_proj"}, 9, 21),
    ],
)
def test_modules_without_a_pair(
    tmp_path: Path,
    tiny: dict[str, Any],
    write_adapter: Callable[..., Path],
    leaves: tuple[str, ...],
    layers: list[int] | None,
    settings: dict[str, Any],
    absent: int,
    wanted: int,
) -> None:
    folder = write_adapter(tmp_path / "a", tiny, leaves, layers=layers, **settings)
    (f,) = of(tmp_path, tiny, folder, "adapter.missing")
    assert f.severity == "warning"
    assert f.numbers == {"absent": absent, "wanted": wanted}
    assert of(tmp_path, tiny, folder, "adapter.outside") == []


@pytest.mark.parametrize(
    ("targets", "near"),
    [
        ("q_proj", '["q_proj"]'),
        ("all", '"all-linear"'),
        (r"mlp\.gate_proj", ""),
        (r".*\.query", ""),
        ("layers.0", ""),
    ],
)
def test_one_string_that_matches_no_whole_name(
    tmp_path: Path,
    tiny: dict[str, Any],
    write_adapter: Callable[..., Path],
    targets: str,
    near: str,
) -> None:
    folder = write_adapter(tmp_path / "a", tiny, LEAVES, target_modules=targets)
    (f,) = of(tmp_path, tiny, folder, "adapter.targets")
    assert f.severity == "error"
    assert f.title.startswith("1 of 1 LoRA target without a match")
    assert near in f.remedy
    assert of(tmp_path, tiny, folder, "adapter.outside") == []  # said once


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"layers_to_transform": [7]}, "layers_to_transform leave nothing"),
        ({"layers_to_transform": [0], "layers_pattern": "h"}, "layers_pattern leave nothing"),
        ({"exclude_modules": list(LEAVES)}, "exclude_modules leave nothing"),
        ({"target_modules": []}, "target_modules is empty"),
    ],
)
def test_settings_that_leave_nothing_to_adapt(
    tmp_path: Path,
    tiny: dict[str, Any],
    write_adapter: Callable[..., Path],
    settings: dict[str, Any],
    words: str,
) -> None:
    folder = write_adapter(tmp_path / "a", tiny, LEAVES, **settings)
    (f,) = of(tmp_path, tiny, folder, "adapter.targets")
    assert f.severity == "error"
    assert words in f.title


def test_an_expression_that_is_not_run_is_said(
    tmp_path: Path, tiny: dict[str, Any], write_adapter: Callable[..., Path]
) -> None:
    folder = write_adapter(tmp_path / "a", tiny, LEAVES, target_modules=r"(a+)+b")
    (f,) = of(tmp_path, tiny, folder, "adapter.targets")
    assert f.severity == "note"
    assert "was not tried" in f.title
