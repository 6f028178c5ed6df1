"""What is patched, what is left and why, and that everything but the forward stays as it was."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
)
from transformers.models.llama.modeling_llama import LlamaMLP

import gateup
from gateup.errors import UsageError
from gateup.hf.forward import Forward
from gateup.hf.report import Left
from gateup.ops.options import MLPOptions
from tests.hf.families import FAMILIES, TINY, build, tokens


def forwards(model: nn.Module) -> list[Forward]:
    found = (m.__dict__.get("forward") for m in model.modules())
    return [f for f in found if isinstance(f, Forward)]


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=tokens()).logits


# ---- the report -------------------------------------------------------------------------------


def test_the_report_names_what_was_patched(capsys: pytest.CaptureFixture[str]) -> None:
    report = gateup.patch(build("llama"), options=MLPOptions(save="gate_up", tile=8))
    assert [p.name for p in report.patched] == ["model.layers.0.mlp", "model.layers.1.mlp"]
    assert {(p.cls, p.act, p.layout) for p in report.patched} == {
        ("LlamaMLP", "silu", "gate and up apart")
    }
    assert capsys.readouterr().out == (
        "gateup: patched 2 (rounding hf, save gate_up, tile 8 tokens)\n"
        "     2 × model.layers.*.mlp: LlamaMLP (silu, gate and up apart)\n"
    )


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    gateup.patch(build("llama"), quiet=True)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("family", "act"), [("gemma", "gelu_tanh"), ("gemma2", "gelu_tanh"), ("gpt_oss", "gpt_oss")]
)
def test_the_activation_is_the_modules_own(family: str, act: str) -> None:
    assert {p.act for p in gateup.patch(build(family), quiet=True).patched} == {act}


def test_gemma_means_the_tanh_form_whatever_hidden_act_says() -> None:
    model = build("gemma", hidden_act="gelu")
    before = logits(model)
    assert {p.act for p in gateup.patch(model, quiet=True).patched} == {"gelu_tanh"}
    assert torch.equal(logits(model), before)


def test_the_erf_form_where_the_module_has_it() -> None:
    model = build("llama", hidden_act="gelu")
    before = logits(model)
    assert {p.act for p in gateup.patch(model, quiet=True).patched} == {"gelu"}
    assert torch.equal(logits(model), before)


def test_what_is_left_is_listed_with_the_reason() -> None:
    vision = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = Gemma3Config(
        text_config={**TINY, "head_dim": 8}, vision_config=vision, mm_tokens_per_image=4
    )
    report = gateup.patch(Gemma3ForConditionalGeneration(config), quiet=True)
    assert {p.cls for p in report.patched} == {"Gemma3MLP"}
    assert {(x.cls, x.why) for x in report.left} == {("SiglipMLP", "it has no gate")}
    assert "SiglipMLP: it has no gate" in str(report)


def test_an_unlisted_gated_mlp_is_left() -> None:
    class HomemadeMLP(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_proj = nn.Linear(4, 8)

    model = nn.ModuleDict({"known": build("llama"), "own": HomemadeMLP()})
    report = gateup.patch(model, quiet=True)
    why = f"{__name__} is not in gateup's table of gated MLPs"
    assert report.left == (Left("own", "HomemadeMLP", why),)


@pytest.mark.parametrize(
    ("act", "why"),
    [
        ("tanh", "its activation Tanh is not one that gateup knows"),
        (
            "gelu_new",
            'its activation NewGELUActivation rounds each step of gelu_tanh; only rounding="wide"'
            " can stand for it",
        ),
        (
            "gelu_python",
            'its activation GELUActivation rounds each step of gelu; only rounding="wide" can'
            " stand for it",
        ),
    ],
)
def test_an_activation_gateup_has_no_equal_of_is_left(act: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        gateup.patch(build("llama", hidden_act=act))
    assert why in str(caught.value)


def test_wide_rounding_stands_for_a_formula_in_python() -> None:
    model = build("llama", hidden_act="gelu_new")
    before = logits(model)
    report = gateup.patch(model, options=MLPOptions(rounding="wide"), quiet=True)
    assert {p.act for p in report.patched} == {"gelu_tanh"}
    torch.testing.assert_close(logits(model), before)


def test_gpt_oss_with_another_limit_is_left() -> None:
    with pytest.raises(UsageError, match=r"its swiglu limit is 5\.0 and alpha 1\.702"):
        gateup.patch(build("gpt_oss", swiglu_limit=5.0))


def test_a_forward_replaced_by_others_is_left() -> None:
    model = build("llama")
    model.model.layers[0].mlp.forward = lambda x: x
    report = gateup.patch(model, quiet=True)
    assert [p.name for p in report.patched] == ["model.layers.1.mlp"]
    assert "its forward was replaced by" in report.left[0].why
    assert "<lambda>" in report.left[0].why


def test_a_subclass_with_its_own_forward_is_left() -> None:
    class OwnMLP(LlamaMLP):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    class SameMLP(LlamaMLP):
        pass

    model = build("llama")
    model.model.layers[0].mlp.__class__ = OwnMLP
    model.model.layers[1].mlp.__class__ = SameMLP
    report = gateup.patch(model, quiet=True)
    assert [p.name for p in report.patched] == ["model.layers.1.mlp"]
    assert [x.cls for x in report.left] == ["OwnMLP"]


def test_a_subclass_is_left_whatever_it_is_called() -> None:
    """Three classes, none of whose names looks like an MLP's."""

    class S(LlamaMLP):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 2

    class Deeper(S):
        pass

    class Block(Deeper):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return -x

    for cls in (S, Deeper, Block):
        model = build("llama")
        model.model.layers[0].mlp.__class__ = cls
        before = logits(model)
        report = gateup.patch(model, quiet=True)
        why = "it is a LlamaMLP with another forward"
        assert report.left == (Left("model.layers.0.mlp", cls.__name__, why),)
        assert [p.name for p in report.patched] == ["model.layers.1.mlp"]
        assert torch.equal(logits(model), before)


def test_a_shared_mlp_is_meant_by_each_of_its_names() -> None:
    model = build("llama")
    model.model.layers[1].mlp = model.model.layers[0].mlp
    for include in ("model.layers.1.mlp", "model.layers.0.mlp"):
        report = gateup.patch(model, include=include, quiet=True)
        assert [p.name for p in report.patched] == [include]
        assert len(forwards(model)) == 1
        gateup.unpatch(model)
    assert [p.name for p in gateup.patch(model, quiet=True).patched] == ["model.layers.0.mlp"]
    with pytest.raises(UsageError, match="is the name of none of the 2 MLPs"):
        gateup.patch(model, include="model.layers.2.mlp")


def test_include_chooses_by_name() -> None:
    model = build("llama")
    report = gateup.patch(model, include="*.1.mlp", quiet=True)
    assert [p.name for p in report.patched] == ["model.layers.1.mlp"]
    assert report.left == (Left("model.layers.0.mlp", "LlamaMLP", "include does not name it"),)


def test_one_mlp_alone_can_be_patched() -> None:
    mlp = build("llama").model.layers[0].mlp
    report = gateup.patch(mlp, quiet=True)
    assert [p.name for p in report.patched] == [""]
    assert "1 × (the model itself): LlamaMLP" in str(report)


# ---- errors -----------------------------------------------------------------------------------


def test_a_model_without_a_gated_mlp_is_an_error() -> None:
    model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=16))
    with pytest.raises(UsageError) as caught:
        gateup.patch(model)
    assert str(caught.value).startswith(
        "no gated MLP was patched in GPT2LMHeadModel\n"
        "  where: transformer.h.0.mlp (GPT2MLP: it has no gate)\n"
        "  expected: one of transformers' LlamaMLP, MistralMLP, "
    )


def test_nothing_that_looks_like_an_mlp() -> None:
    with pytest.raises(UsageError, match="nothing in it looks like one"):
        gateup.patch(nn.Linear(2, 2))


@pytest.mark.parametrize("include", ["mlp", ["model.layers.0.mlp", "mlp"]])
def test_a_pattern_that_names_nothing_is_an_error_with_the_nearest(include: object) -> None:
    model = build("llama")
    with pytest.raises(UsageError) as caught:
        gateup.patch(model, include=include)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "include 'mlp' is the name of none of the 2 MLPs\n"
        "  where: the nearest: model.layers.0.mlp, model.layers.1.mlp\n"
        "  expected: a module's full name, as named_modules() gives it; * stands for any"
        " characters, dots too, and ? for one\n"
        '  remedy: include="model.layers.*.mlp"'
    )
    assert not gateup.patched(model)


def test_a_pattern_on_a_module_without_a_name() -> None:
    with pytest.raises(UsageError, match="leave include out"):
        gateup.patch(build("llama").model.layers[0].mlp, include="mlp")


def test_a_pattern_that_names_only_what_cannot_be_patched_says_why() -> None:
    model = build("llama")
    model.model.layers[0].mlp.forward = lambda x: x
    with pytest.raises(UsageError) as caught:
        gateup.patch(model, include="*.0.mlp")
    assert "under *.0.mlp" in str(caught.value)
    assert "its forward was replaced by" in str(caught.value)
    assert "does not name it" not in str(caught.value)


# I of TINY's families, gate and up apart, in one, stacked and interleaved.
@pytest.mark.parametrize("family", ["llama", "phi3", "qwen3_moe", "gpt_oss"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_budget_below_one_token_is_refused_while_patching(
    family: str, dtype: torch.dtype
) -> None:
    model = build(family).to(dtype)
    with pytest.raises(UsageError, match=r"budget is 1 bytes, one token needs (\d+)") as caught:
        gateup.patch(model, options=MLPOptions(budget=1))
    assert not gateup.patched(model)
    assert str(caught.value.where).startswith("model.layers.")
    least = int(str(caught.value.what).split()[-1])
    with pytest.raises(UsageError, match="one token needs"):
        gateup.patch(model, options=MLPOptions(budget=least - 1))
    gateup.patch(model, options=MLPOptions(budget=least), quiet=True)
    logits(model)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("SmolLM2",), "the model is of type str"),
        (({},), "the model is of type dict"),
    ],
)
def test_what_is_not_a_module_is_refused(arguments: tuple[object], message: str) -> None:
    for function in (gateup.patch, gateup.unpatch):
        with pytest.raises(UsageError, match=message):
            function(*arguments)


def test_wrong_options_are_refused_before_anything_changes() -> None:
    model = build("llama")
    with pytest.raises(UsageError, match="options is of type dict"):
        gateup.patch(model, options={"save": "input"})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="include is 3"):
        gateup.patch(model, include=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"include is \[\]"):
        gateup.patch(model, include=[])
    assert not forwards(model)


# ---- nothing else changes ---------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_state_dict_and_modules_stay_and_come_back(family: str) -> None:
    model = build(family)
    state = {n: (t.data_ptr(), t.shape, t.dtype) for n, t in model.state_dict().items()}
    modules = [(n, id(m), type(m)) for n, m in model.named_modules()]
    attributes = [set(m.__dict__) for m in model.modules()]

    gateup.patch(model, quiet=True)
    after = {n: (t.data_ptr(), t.shape, t.dtype) for n, t in model.state_dict().items()}
    assert list(after.items()) == list(state.items())
    assert [(n, id(m), type(m)) for n, m in model.named_modules()] == modules

    names = gateup.unpatch(model)
    assert names
    assert [set(m.__dict__) for m in model.modules()] == attributes
    assert gateup.unpatch(model) == ()


def test_patching_again_changes_the_options() -> None:
    model = build("llama")
    gateup.patch(model, quiet=True)
    second = gateup.patch(model, options=MLPOptions(save="input"), quiet=True)
    assert len(second.patched) == 2
    assert [f.options.save for f in forwards(model)] == ["input", "input"]
    gateup.unpatch(model)
    assert not forwards(model)


def test_patched_tells_what_runs_now() -> None:
    model = build("llama")
    names = ["model.layers.0.mlp", "model.layers.1.mlp"]
    assert gateup.patched(model) == {}
    options = MLPOptions(save="input", tile=4)
    gateup.patch(model, options=options, quiet=True)
    other = copy.deepcopy(model)
    other.load_state_dict(build("llama").state_dict())
    assert gateup.patched(model) == gateup.patched(other) == dict.fromkeys(names, options)
    gateup.patch(other, include="*.0.mlp", quiet=True)
    assert gateup.patched(other) == {names[0]: MLPOptions(), names[1]: options}
    assert gateup.unpatch(other.model.layers[0]) == ("mlp",)
    assert gateup.patched(other) == {names[1]: options}
    assert list(gateup.patched(model)) == names
    assert gateup.unpatch(model) == tuple(names)
    assert not gateup.patched(model)
    with pytest.raises(UsageError, match="the model is of type str"):
        gateup.patched("SmolLM2")


def test_hooks_on_the_mlp_and_on_its_projections_fire() -> None:
    model = build("llama")
    mlp = model.model.layers[0].mlp
    before = logits(model)
    gateup.patch(model, quiet=True)
    seen = []
    mlp.register_forward_hook(lambda m, args, out: seen.append("mlp"))
    mlp.gate_proj.register_forward_hook(lambda m, args, out: seen.append("gate"))
    assert torch.equal(logits(model), before)
    assert seen == ["gate", "mlp"]


@pytest.mark.parametrize("family", ["llama", "phi3", "qwen3_moe"])
def test_a_copy_runs_its_own_weights(family: str) -> None:
    model = build(family)
    gateup.patch(model, quiet=True)
    before = logits(model)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    copies = {
        "deepcopy": copy.deepcopy(model),
        "pickle": pickle.loads(pickle.dumps(model)),
        "torch.load": torch.load(buffer, weights_only=False),
    }
    for how, other in copies.items():
        assert torch.equal(logits(other), before), how
        assert [f.module for f in forwards(other)] == [
            m for m in other.modules() if isinstance(m.__dict__.get("forward"), Forward)
        ], how
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        assert not logits(other).any(), how
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_save_pretrained_writes_the_same_and_reads_back(family: str, tmp_path: Path) -> None:
    model = build(family)
    model.save_pretrained(tmp_path / "stock")
    before = logits(model)
    gateup.patch(model, quiet=True)
    model.save_pretrained(tmp_path / "ours")
    stock, ours = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("stock", "ours")
    )
    assert stock == ours
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    torch.testing.assert_close(logits(again), before)
    gateup.patch(again, quiet=True)
    torch.testing.assert_close(logits(again), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_generate_gives_the_same_tokens(family: str) -> None:
    model = build(family)
    ids = tokens(shape=(1, 6))
    settings = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    stock = model.generate(ids, **settings)
    gateup.patch(model, quiet=True)
    assert torch.equal(model.generate(ids, **settings), stock)


def test_meta_models_are_patched_and_carry_shapes() -> None:
    model = build("llama").to("meta")
    assert len(gateup.patch(model, quiet=True).patched) == 2
    assert model.model.layers[0].mlp(torch.empty(2, 3, 32, device="meta")).shape == (2, 3, 32)


def test_importing_gateup_does_not_import_torch() -> None:
    code = "import gateup, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
