"""`plan`: what it decides, what it refuses, and figures that are true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateup.account.options import PlanOptions
from gateup.account.plan import Plan, native_format, plan
from gateup.errors import GateupError, UsageError
from gateup.model import presets

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "tie_word_embeddings": True,
}


def value(p: Plan, path: str) -> float:
    return p.figures[path].value


def config(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | changes))
    return path


@pytest.mark.parametrize(
    ("name", "nbytes"),
    [
        ("llama-2-7b", 4_080_263_168),
        ("llama-3-8b", 4_912_898_048),
        ("qwen3-0.6b", 390_753_280),
        ("mixtral-8x7b", 28_447_727_616),
        ("qwen3-30b-a3b", 18_550_716_416),
    ],
)
def test_a_gguf_is_known_before_it_is_made(name: str, nbytes: int) -> None:
    p = plan(name, quant="q4_k_m", ctx=128)
    assert value(p, "bytes.total") == nbytes
    assert p.workload.engine == "llama.cpp"
    assert p.workload.kv_type == "f16"
    assert p.figures["bytes.total"].kind == "exact"


def test_every_known_total(known_models: dict[str, dict[str, Any]]) -> None:
    checked = 0
    for name, facts in known_models.items():
        preset = presets.find(name)
        if preset is None or preset.hub_id != name:
            continue
        p = plan(preset.name, ctx=64)
        assert value(p, "params.total") == facts["total_params_computed"], name
        if "active_params_computed" in facts:
            assert value(p, "params.active") == facts["active_params_computed"], name
        checked += 1
    assert checked >= 15


@pytest.mark.parametrize(
    ("name", "token", "prefill"),
    [
        ("llama-2-7b", 16_512, 33_024),
        ("llama-3-8b", 21_504, 43_008),
        ("qwen3-0.6b", 2_304, 4_608),
    ],
)
def test_crossover_in_both_conventions(name: str, token: int, prefill: int) -> None:
    p = plan(name)
    assert value(p, "crossover.token") == token
    assert value(p, "crossover.prefill") == prefill


def test_shares_of_llama_3_8b() -> None:
    p = plan("llama-3-8b", ctx=8192)
    assert value(p, "params.mlp") == 5_637_144_576
    assert round(100 * value(p, "params.mlp_share"), 1) == 70.2
    assert round(100 * value(p, "layers.0-31.params.mlp_share"), 1) == 80.8
    assert value(p, "kv.total") == 1 << 30
    assert value(p, "kv.per_token") == 2 * 32 * 8 * 128 * 2
    assert value(p, "flops.decode.gemm.mlp") == 2 * 5_637_144_576


def test_the_engine_is_chosen_and_said(tmp_path: Path, smollm2_gguf: Path) -> None:
    as_config = plan(config(tmp_path))
    assert as_config.workload.engine == "transformers"
    assert "engine transformers: the default where the weights are no GGUF" in as_config.notes
    as_gguf = plan(smollm2_gguf)
    assert as_gguf.workload.engine == "llama.cpp"
    assert "engine llama.cpp: the weights are a GGUF" in as_gguf.notes
    assert plan(smollm2_gguf, quant="bf16").workload.engine == "transformers"
    assert plan("qwen3-0.6b", engine="vllm").workload.engine == "vllm"


def test_the_context_is_chosen_and_said(tmp_path: Path) -> None:
    p = plan(config(tmp_path, max_position_embeddings=1024))
    assert p.workload.ctx == 1024
    assert "context 1,024: no --ctx was given" in p.notes
    past = plan(config(tmp_path, max_position_embeddings=1024), ctx=2000)
    assert "context 2,000 is past the 1,024 positions the model was made for" in past.notes


def test_the_format_is_chosen_and_said(tmp_path: Path) -> None:
    silent = plan(config(tmp_path))
    assert silent.label == "bf16"
    assert "weights in bf16: the config declares no dtype" in silent.notes
    assert plan(config(tmp_path, torch_dtype="float16")).label == "f16"
    assert plan(config(tmp_path), dtype="f32").label == "f32"
    assert plan(config(tmp_path), train="qlora").label == "nf4"
    assert plan(config(tmp_path), train="full", autocast=True).label == "f32"


def test_a_dtype_changes_only_weights_that_are_not_quantised(smollm2_gguf: Path) -> None:
    p = plan(smollm2_gguf, dtype="f32")
    assert p.label == "Q4_1 GGUF"
    assert p.workload.engine == "llama.cpp"
    assert value(plan("qwen3-0.6b", dtype="f32"), "bytes.total") == 4 * 596_049_920


def test_a_quantisation_the_config_declares(tmp_path: Path) -> None:
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    path = config(tmp_path, torch_dtype="bfloat16", quantization_config=fp8)
    assert plan(path).label == "fp8:128"
    assert native_format(presets.spec("llama-3-8b")) == "bf16"


def test_without_a_device_there_is_no_verdict() -> None:
    p = plan("qwen3-0.6b")
    assert p.verdict is None
    assert p.roofline == {}
    assert "device.capacity" not in p.figures


def test_the_peak_is_a_phase_and_its_items_sum() -> None:
    p = plan("llama-3-8b", ctx=32768)
    alive = p.memory.alive(p.memory.peak_phase)
    assert value(p, "memory.peak") == sum(i.nbytes for i in alive)
    assert p.figures["memory.peak"].numbers == " + ".join(str(i.nbytes) for i in alive)


def test_more_context_never_needs_less() -> None:
    peaks = [value(plan("llama-3-8b", ctx=n), "memory.peak") for n in (256, 4096, 65536)]
    assert peaks == sorted(peaks)


def test_latent_and_expanded_cache_are_told_apart() -> None:
    expanded = plan("deepseek-v3", ctx=4096)
    assert value(expanded, "kv.total") == 61 * 576 * 4096 * 2
    assert any("expanded per head" in n for n in expanded.notes)
    assert not any("expanded" in n for n in plan("deepseek-v3", ctx=4096, engine="vllm").notes)


def test_an_encoder_says_so() -> None:
    p = plan("bert-base", ctx=512)
    assert any("an encoder" in n for n in p.notes)
    assert value(p, "flops.prefill.attention_scores") == 12 * 2 * 12 * 128 * 512 * 512


def test_training_has_one_step_and_no_cache() -> None:
    p = plan("llama-3-8b", ctx=512, train="full")
    assert "flops.training.total" in p.figures
    assert "flops.decode.total" not in p.figures
    assert "kv.total" not in p.figures
    forward = plan("llama-3-8b", ctx=512, all_logits=True)
    mlp = value(forward, "flops.prefill.gemm.mlp")
    assert value(p, "flops.training.gemm.mlp") == 3 * mlp


@pytest.mark.parametrize(
    ("targets", "params"), [("all", 81_920), ("mlp", 3 * (4096 + 14336)), ("q_proj", 8192)]
)
def test_adapter_parameters(targets: str, params: int) -> None:
    p = plan("llama-3-8b", ctx=64, train="lora", rank=4, targets=targets)
    assert value(p, "adapter.params") == 4 * 32 * params


def test_an_adapter_folder_brings_its_rank_and_targets(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    base = tmp_path / "base"
    base.mkdir()
    config(base, torch_dtype="bfloat16")
    folder = tmp_path / "adapter"
    folder.mkdir()
    about = {
        "peft_type": "LORA",
        "base_model_name_or_path": str(base),
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["down_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(about))
    np = pytest.importorskip("numpy")
    head = "base_model.model.model.layers"
    tensors = {}
    for i in range(2):
        tensors[f"{head}.{i}.mlp.down_proj.lora_A.weight"] = np.zeros((2, 192), np.float32)
        tensors[f"{head}.{i}.mlp.down_proj.lora_B.weight"] = np.zeros((64, 2), np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    opened = plan(folder)
    assert value(opened, "adapter.params") == 2 * 2 * (192 + 64)
    assert value(opened, "adapter.bytes") == 4 * 2 * 2 * (192 + 64)
    assert value(opened, "adapter.mlp_share") == 1.0
    assert any("the adapter adapter (rank 2) is counted apart" in n for n in opened.notes)
    trained = plan(folder, train="lora", ctx=16)
    assert trained.workload.training is not None
    assert trained.workload.training.lora.rank == 2
    assert trained.workload.training.lora.targets == ("down_proj",)
    assert value(trained, "adapter.params") == 2 * 2 * (192 + 64)
    assert value(plan(folder, train="lora", rank=8, ctx=16), "adapter.params") == 8 * 2 * 256
    other = plan(folder, base=str(base / "config.json"))
    assert value(other, "params.total") == value(opened, "params.total")


def test_ranks_share_the_weights() -> None:
    one = plan("llama-3-8b", ctx=64)
    two = plan("llama-3-8b", ctx=64, tp=2)

    def weights(p: Plan) -> int:
        return sum(i.nbytes for i in p.memory.items if i.group == "weights")

    assert weights(one) / 2 < weights(two) < weights(one) / 2 * 1.001
    assert value(one, "bytes.total") == value(two, "bytes.total")


def test_options_and_changes_together() -> None:
    options = PlanOptions(ctx=128, batch=2)
    p = plan("qwen3-0.6b", options, batch=3)
    assert (p.workload.ctx, p.workload.batch) == (128, 3)
    with pytest.raises(TypeError, match="contxt"):
        plan("qwen3-0.6b", contxt=3)


def test_a_model_that_does_not_fit_says_what_would() -> None:
    p = plan("llama-3-8b", quant="q4_k_m", ctx=32768, device="8GB")
    assert p.verdict is not None
    assert not p.verdict.fits
    assert p.verdict.remedies
    capacity = p.verdict.capacity
    for remedy in p.verdict.remedies:
        assert remedy.peak <= capacity
        assert remedy.scenario.memory().peak == remedy.peak
    assert value(p, "device.memory") == 8 * 10**9
    assert value(p, "device.capacity") == capacity
    assert value(p, "device.memory") - value(p, "device.reserve") == capacity


def test_repr_says_the_essentials() -> None:
    text = repr(plan("llama-3-8b", ctx=64))
    assert text.startswith("<Plan llama-3-8b: 8,030,261,248 params, weights bf16, ctx 64, peak ")


def test_what_cannot_be_opened() -> None:
    with pytest.raises(GateupError, match="neither a file or folder"):
        plan("no-such-model-9b")


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm"])
def test_engines_that_do_not_train(engine: str) -> None:
    with pytest.raises(UsageError, match=f"--engine {engine} does not train"):
        plan("qwen3-0.6b", train="full", engine=engine)


@pytest.mark.parametrize(
    ("quant", "label"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, "awq:64"),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 32}, "awq:32"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "gptq:32"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            "nf4",
        ),
    ],
)
def test_declared_quantisations_are_planned_for(
    tmp_path: Path, quant: dict[str, Any], label: str
) -> None:
    path = config(tmp_path, torch_dtype="float16", quantization_config=quant)
    assert plan(path).label == label


@pytest.mark.parametrize(
    "quant",
    [
        {"quant_method": "gptq", "bits": 3, "group_size": 128},
        {"quant_method": "gptq", "bits": 4, "group_size": -1},
        {"quant_method": "compressed-tensors"},
        {"quant_method": 7},
        {"quant_method": "fp8", "weight_block_size": ["x"]},
        {"bits": 4},
    ],
)
def test_a_quantisation_that_cannot_be_sized_is_said(tmp_path: Path, quant: dict[str, Any]) -> None:
    p = plan(config(tmp_path, torch_dtype="float16", quantization_config=quant))
    assert p.label == "f16"
    assert any("the figures are those of the weights in f16" in n for n in p.notes)


def test_gpt_oss_as_it_is_published() -> None:
    """Experts 19,110,297,600 parameters in blocks of 32 (17 bytes), the rest in bf16."""
    p = plan("gpt-oss-20b", ctx=64)
    experts = 24 * 32 * (2880 * 5760 + 2880 * 2880)
    assert p.label == "mxfp4"
    rest = value(p, "params.total") - experts
    assert value(p, "bytes.total") == experts * 17 // 32 + 2 * rest
    assert plan("gpt-oss-20b", ctx=64, train="lora").label == "bf16"


def test_autocast_leaves_the_base_of_an_adapter_as_it_is(tmp_path: Path) -> None:
    """The usual recipe: a bf16 base, fp32 adapters, products in bf16."""
    path = config(tmp_path, torch_dtype="bfloat16")
    mixed, plain = (plan(path, train="lora", autocast=a, ctx=64) for a in (True, False))
    assert mixed.label == plain.label == "bf16"
    assert not any("autocast copies of the weights" in i.label for i in mixed.memory.items)
    assert any("autocast copies of the adapters" in i.label for i in mixed.memory.items)
    assert plan(path, train="lora", autocast=True, quant="f32").label == "f32"


def test_a_fused_mlp_keeps_less() -> None:
    one = {"ctx": 64, "train": "lora"}
    assert (
        plan("llama-3-8b", execution="fused", **one).memory
        == plan("llama-3-8b", save="all", execution="fused", **one).memory
    )
    phi = [
        sum(i.nbytes for i in plan("phi-3-mini", execution=e).memory.items if i.label == "MLP")
        for e in ("eager", "fused")
    ]
    assert phi[0] * 3 == phi[1] * 4


def test_cards_that_a_split_leaves_idle_are_said() -> None:
    p = plan("llama-3-8b", tp=2, device="4xh100", ctx=64)
    assert "the split takes 2 of 4x H100 SXM; the others have nothing to do" in p.notes
    assert p.verdict is not None
    assert p.notes.count("the split takes 2 of 4x H100 SXM; the others have nothing to do") == 1
