"""Adapters against their base. Real ones come from PEFT on small models, sizes from presets."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gateup.checks.finding import Finding
from gateup.checks.runner import CheckReport, check
from gateup.model import presets

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    folder: Path, shapes: Mapping[str, tuple[int, int]], *, rank: int = 2, **config: Any
) -> Path:
    """An adapter of rank `rank` on modules {name: (in, out)}, B filled with 0.01."""
    tensors = {}
    for name, (inp, out) in shapes.items():
        stem = f"base_model.model.{name}"
        tensors[f"{stem}.lora_A.weight"] = torch.full((rank, inp), 0.01, dtype=torch.bfloat16)
        tensors[f"{stem}.lora_B.weight"] = torch.full((out, rank), 0.01, dtype=torch.bfloat16)
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    leaves = list(dict.fromkeys(n.rpartition(".")[2] for n in shapes))
    values = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": leaves}
    layers = [int(n) for name in shapes for n in re.findall(r"layers\.(\d+)\.", name)]
    if layers:
        values["layers_to_transform"] = sorted(set(layers))
    (folder / "adapter_config.json").write_text(json.dumps(values | config))
    return folder


def shapes_of(name: str, leaves: tuple[str, ...] = ALL) -> dict[str, tuple[int, int]]:
    """{module: (in, out)} of a preset's first and last layer."""
    spec = presets.spec(name)
    ends = (0, spec.num_layers - 1)
    return {
        r.name.removesuffix(".weight"): (r.shape[1], r.shape[0])
        for r in spec.rows
        if r.layer in ends and r.name.removesuffix(".weight").rpartition(".")[2] in leaves
    }


def found(report: CheckReport, rule: str) -> list[Finding]:
    assert not report.failed
    return [f for f in report.findings if f.rule == rule]


def one(report: CheckReport, rule: str) -> Finding:
    hits = found(report, rule)
    assert len(hits) == 1, [f"{f.rule}: {f.title}" for f in report.findings]
    return hits[0]


def adapter_findings(report: CheckReport) -> list[str]:
    assert not report.failed
    return [f"{f.rule}: {f.title}" for f in report.findings if f.rule.startswith("adapter.")]


def wrapped(model: Any, **config: Any) -> Any:
    """PEFT's model; it still asks transformers by names that are on their way out."""
    from peft import LoraConfig, get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return get_peft_model(model, LoraConfig(**config))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small Llama and a small Phi-3 with PEFT adapters whose B's are not zero, as PEFT saves."""
    from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

    root = tmp_path_factory.mktemp("trained")
    size = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 160,
    }
    out = {}
    for name, config, model_type in (
        ("llama", LlamaConfig(**size), LlamaForCausalLM),
        (
            "phi3",
            Phi3Config(**size, pad_token_id=0, bos_token_id=1, eos_token_id=2),
            Phi3ForCausalLM,
        ),
    ):
        torch.manual_seed(0)
        model = model_type(config)
        model.save_pretrained(root / name)
        peft = wrapped(model, r=4, lora_alpha=8, target_modules="all-linear")
        with torch.no_grad():
            for key, value in peft.named_parameters():
                if "lora_B" in key:
                    value.normal_()
        peft.save_pretrained(root / f"{name}-adapter")
        out[name], out[f"{name}-adapter"] = root / name, root / f"{name}-adapter"
    return out


@pytest.mark.parametrize("name", ["llama", "phi3"])
def test_what_peft_saved_passes_clean(trained: dict[str, Path], name: str) -> None:
    report = check(trained[name], adapter=trained[f"{name}-adapter"])
    assert adapter_findings(report) == []
    ran = [r for r in report.ran if r.startswith("adapter.")]
    assert len(ran) == 19, ran


def test_phi3s_adapter_on_split_weights_and_the_other_way_round(trained: dict[str, Path]) -> None:
    gate_up, qkv = found(check(trained["llama"], adapter=trained["phi3-adapter"]), "adapter.fused")
    assert gate_up.title.endswith("llama keeps gate_proj, up_proj apart")
    assert "gate_proj's B is rows 0 to 95; up_proj's B is rows 96 to 191" in gate_up.remedy
    assert "v_proj's B is rows 96 to 127" in qkv.remedy
    f, g = found(check(trained["phi3"], adapter=trained["llama-adapter"]), "adapter.fused")
    assert "makes rank 8 and needs alpha 16" in (f.remedy if "gate_up" in f.title else g.remedy)
    assert "makes rank 12 and needs alpha 24" in (g.remedy if "gate_up" in f.title else f.remedy)


@pytest.fixture
def e1(tmp_path: Path) -> Path:
    """The thread's adapter: gate_up_proj, A [r, 3072], B [16384, r]."""
    names = ("gate_up_proj", "qkv_proj", "o_proj", "down_proj")
    return write_adapter(tmp_path / "a", shapes_of("phi-3-mini", names))


def test_e1_phi3_adapter_is_fine_on_phi3(e1: Path) -> None:
    assert adapter_findings(check("phi-3-mini", adapter=e1)) == []


def as_llama(tmp_path: Path, **changes: int) -> Path:
    """A split model of Phi-3-mini's sizes: Phi-3 run as Llama."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32064,
    }
    folder = tmp_path / "phi3-as-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def test_e1_phi3_adapter_against_split_names(e1: Path, tmp_path: Path) -> None:
    report = check(as_llama(tmp_path), adapter=e1)
    gate_up, qkv = found(report, "adapter.fused")
    if "qkv" in gate_up.title:
        gate_up, qkv = qkv, gate_up
    assert gate_up.severity == "error"
    assert gate_up.evidence[0].found == "A reads 3072, B writes 16384"
    assert "A is copied to each part" in gate_up.remedy
    assert "gate_proj's B is rows 0 to 8191; up_proj's B is rows 8192 to 16383" in gate_up.remedy
    assert "the rank, alpha and scale stay" in gate_up.remedy
    assert "gateup.model.lora_layout.split_gate_up" in gate_up.remedy
    assert "q_proj's B is rows 0 to 3071; k_proj's B is rows 3072 to 6143" in qkv.remedy
    # The base is right: nothing else is said of it.
    assert found(report, "adapter.base") == []
    assert found(report, "adapter.targets") == []


def test_e1_the_reverse_needs_twice_the_rank_and_alpha(tmp_path: Path) -> None:
    shapes = {
        f"model.layers.{i}.mlp.{n}": (3072, 8192) for i in (0, 31) for n in ("gate_proj", "up_proj")
    }
    adapter = write_adapter(tmp_path / "a", shapes, rank=4, lora_alpha=16)
    f = one(check("phi-3-mini", adapter=adapter), "adapter.fused")
    assert f.title == (
        "4 adapted modules (gate_proj, up_proj) have no place: phi-3-mini fuses them in "
        "gate_up_proj"
    )
    assert "match nothing and are dropped in silence" in f.cause
    assert "makes rank 8 and needs alpha 32 to keep the scale" in f.remedy
    assert f.numbers == {"modules": 4, "rank": 8, "alpha": 32.0}


def test_e1_with_rslora_alpha_grows_by_the_root(tmp_path: Path) -> None:
    shapes = {f"model.layers.0.mlp.{n}": (3072, 8192) for n in ("gate_proj", "up_proj")}
    adapter = write_adapter(tmp_path / "a", shapes, use_rslora=True)
    f = one(check("phi-3-mini", adapter=adapter), "adapter.fused")
    assert "√2·alpha (rsLoRA)" in f.remedy


def test_a_fused_adapter_of_another_width(e1: Path, tmp_path: Path) -> None:
    report = check(as_llama(tmp_path, intermediate_size=8448), adapter=e1)
    f = next(f for f in found(report, "adapter.fused") if "gate_up" in f.title)
    assert f.remedy == "B writes 16384 rows, the parts have 16896: another model's adapter."


@pytest.mark.parametrize(
    ("adapter_of", "base", "implied"),
    [
        ("llama-3-8b", "llama-2-7b", "llama-3-8b"),
        ("qwen2.5-7b", "llama-3-8b", "qwen2"),
        ("qwen3-4b", "qwen3-8b", "qwen3-4b"),
    ],
)
def test_an_adapter_of_another_base(
    tmp_path: Path, adapter_of: str, base: str, implied: str
) -> None:
    adapter = write_adapter(tmp_path / "a", shapes_of(adapter_of))
    f = one(check(base, adapter=adapter), "adapter.base")
    assert f.severity == "error"
    assert str(f.numbers["base"]).startswith(implied)
    assert implied in f.cause
    assert f"Load it on its own base: {f.numbers['base']}" in f.remedy


def test_base_evidence_says_both_sizes(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a", shapes_of("llama-3-8b", ("gate_proj",)))
    f = one(check("llama-2-7b", adapter=adapter), "adapter.base")
    e = f.evidence[0]
    assert (e.subject, e.found, e.expected, e.source) == (
        "model.layers.0.mlp.gate_proj",
        "A reads 4096, B writes 14336",
        "A reads 4096, B writes 11008",
        "model.layers.0.mlp.gate_proj.weight is [11008, 4096]",
    )


def test_an_unknown_base_is_described_by_its_sizes(tmp_path: Path) -> None:
    shapes = {f"model.layers.{i}.mlp.gate_proj": (1000, 3000) for i in (0, 40)}
    adapter = write_adapter(tmp_path / "a", shapes, base_model_name_or_path="acme/thing")
    f = one(check("llama-2-7b", adapter=adapter), "adapter.base")
    assert "hidden_size 1000, intermediate_size 3000, num_hidden_layers 41 or more" in f.cause
    assert f.evidence[1].expected == "layers 0 to 31"
    assert "Load it on its own base: acme/thing" in f.remedy


def test_mistrals_adapter_fits_llama3_by_shape_alone(tmp_path: Path) -> None:
    adapter = write_adapter(
        tmp_path / "a",
        shapes_of("mistral-7b"),
        base_model_name_or_path="mistralai/Mistral-7B-v0.3",
    )
    f = one(check("llama-3-8b", adapter=adapter), "adapter.base")
    assert f.severity == "warning"
    assert "trained on mistral-7b" in f.title
    assert "this is llama-3-8b" in f.title
    assert {e.subject for e in f.evidence} >= {"family", "vocab_size"}


@pytest.mark.parametrize(
    "named", ["meta-llama/Meta-Llama-3-8B-Instruct", "NousResearch/llama-3-8b", "acme/x", None]
)
def test_the_named_base_itself_an_unknown_one_and_none_are_fine(
    tmp_path: Path, named: str | None
) -> None:
    adapter = write_adapter(tmp_path / "a", shapes_of("llama-3-8b"), base_model_name_or_path=named)
    assert adapter_findings(check("llama-3-8b", adapter=adapter)) == []


def test_same_shapes_another_release(tmp_path: Path) -> None:
    adapter = write_adapter(
        tmp_path / "a",
        shapes_of("llama-3-8b"),
        base_model_name_or_path="meta-llama/Llama-3.1-8B",
    )
    f = one(check("llama-3-8b", adapter=adapter), "adapter.base")
    assert f.severity == "warning"
    assert "trained on llama-3.1-8b" in f.title


@pytest.mark.parametrize("vocab", [32_000, 32_016])
def test_a_fine_tune_of_the_named_base_may_have_more_tokens(tmp_path: Path, vocab: int) -> None:
    config = {**presets.PRESETS["llama-2-7b"].config, "vocab_size": vocab}
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "config.json").write_text(json.dumps(config))
    adapter = write_adapter(
        tmp_path / "a",
        shapes_of("llama-2-7b"),
        base_model_name_or_path="meta-llama/Llama-2-7b-hf",
    )
    assert adapter_findings(check(tmp_path / "tuned", adapter=adapter)) == []


def test_gpt2s_conv1d_is_stored_the_other_way_round(tmp_path: Path) -> None:
    shapes = {"transformer.h.0.attn.c_attn": (768, 2304), "transformer.h.0.mlp.c_fc": (768, 3072)}
    adapter = write_adapter(tmp_path / "a", shapes, fan_in_fan_out=True)
    assert found(check("gpt2", adapter=adapter), "adapter.base") == []
    wrong = write_adapter(tmp_path / "b", {"transformer.h.0.mlp.c_fc": (3072, 768)})
    assert one(check("gpt2", adapter=wrong), "adapter.base").numbers["wrong"] == 1


# --- what is left out ------------------------------------------------------------------------


def test_attention_only_says_what_the_mlp_would_cost(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a", shapes_of("llama-3-8b", ("q_proj", "v_proj")), rank=16)
    f = one(check("llama-3-8b", adapter=adapter), "adapter.attention_only")
    assert f.severity == "note"
    assert f.numbers["params"] == 3 * 16 * (4096 + 14336) * 32 == 28_311_552
    assert "28,311,552 parameters more" in f.remedy
    assert "432 MiB while training" in f.remedy
    assert "56.6 MB in a bf16 file" in f.remedy
    assert "the MLP, 70% of the weights" in f.title


@pytest.mark.parametrize(
    ("base", "leaves", "params"),
    [
        ("phi-3-mini", ("qkv_proj",), 2 * 32 * ((3072 + 16384) + (3072 + 8192))),
        ("qwen3-0.6b", ("q_proj", "o_proj"), 2 * 28 * 3 * (1024 + 3072)),
    ],
)
def test_attention_only_elsewhere(
    tmp_path: Path, base: str, leaves: tuple[str, ...], params: int
) -> None:
    adapter = write_adapter(tmp_path / "a", shapes_of(base, leaves))
    assert one(check(base, adapter=adapter), "adapter.attention_only").numbers["params"] == params


@pytest.mark.parametrize(
    ("base", "params"),
    [
        # experts alone: E·r·((H + 2I) + (I + H)) a layer
        ("gpt-oss-20b", 24 * 32 * 8 * ((2880 + 5760) + (2880 + 2880))),
        # PEFT gives the fused gate_up of converted experts twice the rank; the router is no MLP
        ("mixtral-8x7b", 32 * 8 * 8 * (2 * (4096 + 28672) + (14336 + 4096))),
    ],
)
def test_what_experts_would_cost(base: str, params: int) -> None:
    from gateup.checks.adapter_rules import mlp_cost

    cost = mlp_cost(presets.spec(base), 8)
    assert cost is not None
    assert cost[:2] == (params, 2 * params)


@pytest.mark.parametrize("leaves", [ALL, ("q_proj", "down_proj"), ("gate_proj", "up_proj")])
def test_attention_with_any_of_the_mlp_is_silent(tmp_path: Path, leaves: tuple[str, ...]) -> None:
    adapter = write_adapter(tmp_path / "a", shapes_of("llama-3-8b", leaves))
    assert adapter_findings(check("llama-3-8b", adapter=adapter)) == []


@pytest.mark.parametrize(
    ("base", "held"),
    [
        ("qwen1.5-moe-a2.7b", 24 * 60 * 3 * 2048 * 1408),
        ("deepseek-v2-lite", 26 * 64 * 3 * 2048 * 1408),
    ],
)
def test_targets_that_miss_the_experts(tmp_path: Path, base: str, held: int) -> None:
    spec = presets.spec(base)
    shared = {
        r.name.removesuffix(".weight"): (r.shape[1], r.shape[0])
        for r in spec.rows
        if "shared_expert" in r.name and len(r.shape) == 2 and r.shape[0] > 1 and r.layer == 3
    }
    assert len(shared) == 3
    adapter = write_adapter(tmp_path / "a", shared)
    f = one(check(base, adapter=adapter), "adapter.experts")
    assert f.severity == "warning"
    assert f.numbers["expert_params"] == held
    assert f"{held:,} of {spec.params:,}" in f.title
    assert "target_parameters" in f.remedy
    quiet = write_adapter(tmp_path / "b", shared, target_modules="all-linear")
    assert one(check(base, adapter=quiet), "adapter.experts").severity == "note"


def test_one_experts_own_adapter_has_its_shape_checked(tmp_path: Path) -> None:
    """Adapters from before transformers 5, where each expert was a module."""
    name = "model.layers.0.block_sparse_moe.experts.3.w1"
    right = write_adapter(tmp_path / "a", {name: (4096, 14336)}, target_modules=["w1"])
    assert adapter_findings(check("mixtral-8x7b", adapter=right)) == []
    wrong = write_adapter(tmp_path / "b", {name: (4096, 14000)}, target_modules=["w1"])
    assert one(check("mixtral-8x7b", adapter=wrong), "adapter.base").numbers["wrong"] == 1


def test_adapted_experts_are_silent(tmp_path: Path) -> None:
    """PEFT's target_parameters: A and B of all experts in one tensor each."""
    adapter = write_adapter(
        tmp_path / "a",
        {
            "model.layers.0.mlp.experts.base_layer": (2048, 2 * 1408),
            "model.layers.0.mlp.experts": (1408, 2048),
        },
        rank=60,
        target_modules=[],
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    )
    report = check("qwen1.5-moe-a2.7b", adapter=adapter)
    assert adapter_findings(report) == []


def test_a_moe_adapter_by_peft_itself(tmp_path: Path) -> None:
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    config = Qwen2MoeConfig(
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        vocab_size=64,
    )
    model = Qwen2MoeForCausalLM(config)
    model.save_pretrained(tmp_path / "base")
    peft = wrapped(
        model,
        r=2,
        target_modules=["q_proj"],
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    )
    peft.save_pretrained(tmp_path / "a")
    path = tmp_path / "a" / "adapter_model.safetensors"
    save_file({k: v + 0.01 for k, v in load_file(path).items()}, path)
    report = check(tmp_path / "base", adapter=tmp_path / "a")
    assert adapter_findings(report) == []
