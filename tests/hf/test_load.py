"""Models loaded in place from GGUFs: every family against transformers, and what one does with
them."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import gguf
import peft
import pytest
import torch
from torch import Tensor, nn

import gateup
from gateup.errors import GateupError, InputError, UsageError
from gateup.hf.load import load_gguf
from gateup.nn import QuantEmbedding, QuantLinear
from gateup.nn.quant_experts import QuantExperts
from gateup.ops.options import MLPOptions
from tests.hf.families import build, tokens
from tests.hf.gguf_models import write

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 500.0,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.5],
    "long_factor": [2.0, 9.0],
    "original_max_position_embeddings": 8,
    "partial_rotary_factor": 0.5,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "rope_theta": 1e4,
    "original_max_position_embeddings": 16,
}
LINEAR = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"attention_bias": True}),
    "llama, tied, llama3": ("llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "qwen2": ("qwen2", {"rope_parameters": YARN}),
    "qwen3": ("qwen3", {}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 4, "num_hidden_layers": 4}),
    "gemma": ("gemma", {"query_pre_attn_scalar": 8}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 8, "sliding_window": 8}),
    "gemma3": (
        "gemma3_text",
        {
            "query_pre_attn_scalar": 8,
            "sliding_window": 8,
            "num_hidden_layers": 6,
            "rope_parameters": LINEAR,
        },
    ),
    "phi3": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 8}),
    "mixtral": ("mixtral", {}),
    "qwen2_moe": ("qwen2_moe", {"norm_topk_prob": False, "mlp_only_layers": []}),
    "qwen3_moe": ("qwen3_moe", {"norm_topk_prob": True, "mlp_only_layers": []}),
}


def logits(model: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(input_ids=ids).logits
    return result


def relative(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize("name", CASES)
def test_every_family(name: str, tmp_path: Path) -> None:
    """A file of float32 holds what transformers' model holds: the same logits, bar roundings."""
    kind, config = CASES[name]
    model = build(kind, **config)
    loaded = load_gguf(write(model, tmp_path))
    assert type(loaded) is type(model)
    ids = tokens()
    assert relative(logits(loaded, ids), logits(model, ids)) < 2e-5
    linears = [m for m in loaded.modules() if isinstance(m, nn.Linear)]
    assert linears
    assert all(isinstance(m, QuantLinear) for m in linears)
    assert isinstance(loaded.get_input_embeddings(), QuantEmbedding)
    experts = [m for m in loaded.modules() if isinstance(m, QuantExperts)]
    assert bool(experts) == (kind in ("mixtral", "qwen2_moe", "qwen3_moe"))
    if loaded.config.tie_word_embeddings:
        assert loaded.lm_head.blocks is loaded.get_input_embeddings().blocks
    assert not any(p.is_meta for p in [*loaded.parameters(), *loaded.buffers()])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """(GGUF in Q8_0, the model of transformers with the weights that its blocks stand for)."""
    model = build("llama", intermediate_size=64, num_hidden_layers=2)
    path = write(model, tmp_path_factory.mktemp("small"), "Q8_0")
    loaded = load_gguf(path, native=False)
    for name, module in loaded.named_modules():
        if isinstance(module, QuantLinear | QuantEmbedding):
            model.get_submodule(name).weight.data = module.weight.dequantize()
    return path, model


@pytest.mark.parametrize("native", [False, None])
@pytest.mark.parametrize("dtype", ["float32", torch.bfloat16])
def test_blocks(small: tuple[Path, Any], native: bool | None, dtype: Any) -> None:
    path, reference = small
    model = load_gguf(path, native=native, dtype=dtype)
    ids = tokens()
    packed = model.lm_head.packed.native
    most = 3e-2 if packed or dtype != "float32" else 1e-5
    found = logits(model, ids)
    assert found.dtype == (torch.float32 if dtype == "float32" else dtype)
    assert relative(found, logits(reference, ids)) < most
    assert relative(logits(model.to(torch.float32), ids), logits(reference, ids)) < most
    assert model.lm_head.blocks.dtype == torch.uint8


def test_generates_like_transformers(small: tuple[Path, Any]) -> None:
    path, reference = small
    model = load_gguf(path, native=False)
    ids = tokens(shape=(1, 6))
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    assert torch.equal(model.generate(ids, **options), reference.generate(ids, **options))
    assert model.generation_config.eos_token_id == [2, 3]
    assert model.config.pad_token_id is None


def _lora(model: nn.Module) -> Any:
    torch.manual_seed(0)
    config = peft.LoraConfig(
        r=4, target_modules=["q_proj", "up_proj", "down_proj"], init_lora_weights=False
    )
    with warnings.catch_warnings():
        # transformers 5.24 warns of a name that PEFT 0.21 asks it for.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        return peft.get_peft_model(model, config)  # type: ignore[arg-type]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_lora(small: tuple[Path, Any], tmp_path: Path, checkpointing: bool) -> None:
    """Loss and every adapter gradient as over the dequantised model; the adapter is saved."""
    path, reference = small
    model = load_gguf(path, native=False)
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
        model.train()
    ours, theirs = _lora(model), _lora(copy.deepcopy(reference))
    ids = tokens()
    losses = [m(input_ids=ids, labels=ids).loss for m in (ours, theirs)]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-6)
    for loss in losses:
        loss.backward()
    wanted = {n: p.grad for n, p in theirs.named_parameters() if "lora" in n}
    found = {n: p.grad for n, p in ours.named_parameters() if p.requires_grad}
    assert len(found) == len(wanted) == 12
    for name, grad in found.items():
        assert grad is not None
        assert grad.norm() > 0
        assert relative(grad, wanted[name]) < 1e-4
    ours.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        again = peft.PeftModel.from_pretrained(load_gguf(path, native=False), tmp_path).eval()
    assert torch.equal(logits(again, ids), logits(ours.eval(), ids))
    assert relative(logits(again, ids), logits(again.get_base_model(), ids)) == 0.0
    with again.disable_adapter():
        assert relative(logits(again, ids), logits(ours, ids)) > 1e-3


def test_what_would_need_numbers_is_refused(small: tuple[Path, Any], tmp_path: Path) -> None:
    path, _ = small
    model = load_gguf(path)
    with pytest.raises(UsageError, match="cannot be saved as safetensors"):
        model.save_pretrained(tmp_path)
    adapted = _lora(model)
    for merge in (adapted.merge_adapter, adapted.merge_and_unload):
        with pytest.raises(UsageError, match="the weight of this layer is q8_0 blocks"):
            merge()


def test_patch_and_hooks(small: tuple[Path, Any]) -> None:
    """Loaded, the MLPs run through gateup; unpatched they are transformers' own."""
    path, reference = small
    model = load_gguf(path, native=False)
    ids = tokens()
    expected = logits(reference, ids)
    seen: list[str] = []
    hook = model.model.layers[0].mlp.gate_proj.register_forward_hook(lambda *_: seen.append("gate"))
    assert relative(logits(model, ids), expected) < 1e-5
    assert seen == ["gate"]
    hook.remove()
    report = gateup.patch(model, options=MLPOptions(rounding="wide", tile=4), quiet=True)
    assert len(report.patched) == 2
    assert relative(logits(model, ids), expected) < 1e-5
    assert len(gateup.unpatch(model)) == 2
    assert relative(logits(model, ids), expected) < 1e-5


def _edited(path: Path, tmp_path: Path, change: Any) -> Path:
    """A copy of the GGUF with `change(name, tensor)` deciding what becomes of each tensor."""
    reader = gguf.GGUFReader(path)
    out = tmp_path / "edited.gguf"
    writer = gguf.GGUFWriter(out, "llama")
    for field in reader.fields.values():
        if field.name.startswith(("llama.", "tokenizer.")):
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for tensor in reader.tensors:
        for name, data, kind in change(tensor.name, tensor.data, tensor.tensor_type):
            writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def test_bad_files(small: tuple[Path, Any], tmp_path: Path) -> None:
    path, _ = small
    up = "blk.1.ffn_up.weight"

    def refused(change: Any) -> str:
        with pytest.raises(InputError) as caught:
            load_gguf(_edited(path, tmp_path, change))
        return str(caught.value)

    assert up in refused(lambda n, d, t: [] if n == up else [(n, d, t)])
    assert "another shape" in refused(lambda n, d, t: [(n, d[:32] if n == up else d, t)])
    assert "that the description does not have" in refused(
        lambda n, d, t: [(n, d, t)] + ([("blk.0.extra.weight", d, t)] if n == up else [])
    )
    f32 = gguf.GGMLQuantizationType.F32

    def broken(n: str, d: Any, t: Any) -> Any:
        return [(n, d * float("nan") if n == "output_norm.weight" else d, t)]

    assert "output_norm.weight holds values that are not finite" in refused(broken)

    def odd(n: str, d: Any, t: Any) -> Any:
        kind = gguf.GGMLQuantizationType.I32
        return [(n, d.view("i4"), kind)] if t == f32 else [(n, d, t)]

    assert "of type i32, which cannot be read" in refused(odd)
    whole = path.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[:-100])
    with pytest.raises(GateupError, match="truncated"):
        load_gguf(cut)


def test_experts_one_by_one(tmp_path: Path) -> None:
    """Mixtral files of before April 2024 have a tensor for each expert."""
    model = build("mixtral")
    path = write(model, tmp_path)

    def singles(name: str, data: Any, kind: Any) -> list[tuple[str, Any, Any]]:
        if "_exps" not in name:
            return [(name, data, kind)]
        one = name.replace("_exps.", ".{}.")
        return [(one.format(e), part, kind) for e, part in enumerate(data)]

    loaded = load_gguf(_edited(path, tmp_path, singles))
    assert relative(logits(loaded, tokens()), logits(model, tokens())) < 2e-5


def test_progress_on_a_terminal(
    small: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = small
    load_gguf(path)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("gateup.hf.load.SHOW_PROGRESS_FROM", 0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    load_gguf(path)
    assert "weights" in capsys.readouterr().err


def test_what_is_no_gguf_to_load(tmp_path: Path) -> None:
    model = build("llama")
    model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="it is no GGUF but"):
        load_gguf(tmp_path)
    with pytest.raises(UsageError, match="dtype is float8"):
        load_gguf(tmp_path, dtype="float8")
    with pytest.raises(InputError, match="neither a file or folder here nor a preset"):
        load_gguf(tmp_path / "none.gguf")
