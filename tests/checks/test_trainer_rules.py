"""Trainers' files: faults found, healthy twins silent."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from gateup.checks import trainer_rules
from gateup.checks.finding import Finding
from gateup.checks.runner import CheckReport, check
from gateup.checks.trainer_keys import LLAMAFACTORY

# LLaMA-Factory's own kind of file, for a LoRA run.
HEALTHY: dict[str, Any] = {
    "model_name_or_path": "meta-llama/Meta-Llama-3-8B-Instruct",
    "trust_remote_code": True,
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "lora",
    "lora_rank": 8,
    "lora_target": "all",
    "dataset": "identity,alpaca_en_demo",
    "template": "llama3",
    "cutoff_len": 2048,
    "max_samples": 1000,
    "preprocessing_num_workers": 16,
    "output_dir": "saves/llama3-8b/lora/sft",
    "logging_steps": 10,
    "save_steps": 500,
    "plot_loss": True,
    "overwrite_output_dir": True,
    "save_only_model": False,
    "report_to": "none",
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 8,
    "learning_rate": "1.0e-4",
    "num_train_epochs": 3.0,
    "lr_scheduler_type": "cosine",
    "warmup_ratio": 0.1,
    "bf16": True,
    "ddp_timeout": 180000000,
    "resume_from_checkpoint": None,
}
HEALTHY_FULL = {
    **{k: v for k, v in HEALTHY.items() if not k.startswith("lora_")},
    "finetuning_type": "full",
    "learning_rate": "1.0e-5",
    "deepspeed": "ds_z3_config.json",
}
HEALTHY_TRAINER: dict[str, Any] = {
    "per_device_train_batch_size": 1,
    "gradient_checkpointing": True,
    "gradient_checkpointing_kwargs": {"use_reentrant": False},
    "max_seq_length": 2048,
    "learning_rate": 2e-4,
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_target_modules": ["q_proj", "v_proj", "down_proj"],
    "max_steps": 1000,
    "warmup_steps": 50,
    "bf16": True,
}
HEALTHY_PEFT: dict[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 16,
    "lora_alpha": 32,
    "target_modules": ["q_proj", "gate_proj"],
    "lora_dropout": 0.05,
    "bias": "none",
}
TWINS = [HEALTHY, HEALTHY_FULL, HEALTHY_TRAINER, HEALTHY_PEFT]


def checked(values: dict[str, Any], base: str = "llama-3-8b", **asked: Any) -> CheckReport:
    report = check(base, trainer=values, **asked)
    assert not report.failed
    return report


def of(report: CheckReport, rule: str = "trainer.") -> list[Finding]:
    return [f for f in report.findings if f.rule.startswith(rule)]


def one(values: dict[str, Any], rule: str, base: str = "llama-3-8b", **asked: Any) -> Finding:
    found = of(checked(values, base, **asked), rule)
    assert len(found) == 1, [f.title for f in found]
    return found[0]


@pytest.mark.parametrize("values", TWINS, ids=["lora", "full", "trainer", "peft"])
def test_healthy_files_pass_clean(values: dict[str, Any]) -> None:
    report = checked(values)
    assert [f"{f.rule}: {f.title}" for f in of(report)] == []
    assert len([r for r in report.ran if r.startswith("trainer.")]) == 17


def test_a_yaml_file_as_it_lies_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text(
        "### model\nmodel_name_or_path: meta-llama/Meta-Llama-3-8B\n\n### method\nstage: sft\n"
        "finetuning_type: lora\nlora_target: q_proj,v_proj,gate\nlora_rank: 16\n"
        "learning_rate: 1e-4\ncutoff_len: 2048\nper_device_train_batch_size: 1\nbf16: true\n"
    )
    f = next(f for f in check("llama-3-8b", trainer=path).findings if f.rule == "trainer.targets")
    assert f.evidence[0].subject == "lora_target: gate"
    assert f.remedy.startswith(f"In {path}: ")


# --- values and keys -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "subject", "expected"),
    [
        ({"lora_rank": 0}, "lora_rank", "1 or more"),
        ({"cutoff_len": -1}, "cutoff_len", "1 or more"),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size", "1 or more"),
        ({"learning_rate": "fast"}, "learning_rate", "a number"),
        ({"num_train_epochs": 0}, "num_train_epochs", "more than 0"),
        ({"finetuning_type": "lorra"}, "finetuning_type", "lora, full, freeze or oft"),
    ],
)
def test_values(change: dict[str, Any], subject: str, expected: str) -> None:
    f = one(HEALTHY | change, "trainer.values")
    assert f.severity == "error"
    assert (f.evidence[0].subject, f.evidence[0].expected) == (subject, expected)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("learning_rte", "learning_rate"),
        ("lora_traget", "lora_target"),
        ("lora-rank", "lora_rank"),
        ("Cutoff_Len", "cutoff_len"),
        ("per_device_train_batchsize", "per_device_train_batch_size"),
        ("lora_r", "lora_rank"),
        ("max_seq_length", "cutoff_len"),
        ("load_in_4bit", "quantization_bit: 4"),
    ],
)
def test_slips_of_the_pen(key: str, meant: str) -> None:
    f = one(HEALTHY | {key: 1}, "trainer.keys")
    assert f.severity == "error"
    assert f.remedy == f"write {meant} for {key}."


def test_elsewhere_a_slip_is_a_warning() -> None:
    f = one(HEALTHY_PEFT | {"target_module": ["x"]}, "trainer.keys")
    assert (f.severity, f.evidence[0].expected) == ("warning", "target_modules?")
    g = one(HEALTHY_TRAINER | {"learning_rat": 1}, "trainer.keys")
    assert (g.severity, g.evidence[0].expected) == ("warning", "learning_rate?")


@pytest.mark.parametrize("key", ["my_own_setting", "dataset_text_field", "x", "completion_only"])
def test_unknown_keys_that_are_near_to_none_are_silent(key: str) -> None:
    assert of(checked(HEALTHY_TRAINER | {key: 1})) == []
    assert of(checked(HEALTHY | {key: 1})) == []


# --- conflicts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "severity", "text"),
    [
        (HEALTHY | {"fp16": True}, "error", "fp16 and bf16 are both true"),
        (HEALTHY_TRAINER | {"fp16": True}, "error", "fp16 and bf16 are both true"),
        (HEALTHY_FULL | {"lora_rank": 8}, "warning", "LoRA settings in a run that trains"),
        (HEALTHY_FULL | {"lora_target": "all"}, "warning", "LoRA settings in a run"),
        (HEALTHY_FULL | {"quantization_bit": 4}, "error", "quantised weights cannot be trained"),
        (HEALTHY_FULL | {"adapter_name_or_path": "a"}, "error", "an adapter is continued"),
        (HEALTHY | {"use_galore": True}, "error", "a low-rank optimizer for full training"),
        (HEALTHY | {"pissa_init": True, "quantization_bit": 4}, "error", "PiSSA starts from"),
        (HEALTHY | {"mask_history": True, "train_on_prompt": True}, "error", "mask_history and"),
        (HEALTHY | {"eval_dataset": "x", "val_size": 0.1}, "error", "eval_dataset and val_size"),
        (
            HEALTHY | {"gradient_checkpointing": True, "disable_gradient_checkpointing": True},
            "warning",
            "gradient checkpointing is turned on and off",
        ),
        (HEALTHY | {"warmup_steps": 10}, "note", "warmup_steps and warmup_ratio are both set"),
        (HEALTHY | {"max_steps": 5000}, "note", "max_steps and num_train_epochs are both set"),
    ],
)
def test_conflicts(values: dict[str, Any], severity: str, text: str) -> None:
    f = one(values, "trainer.conflicts")
    assert f.severity == severity
    assert f.title.startswith(text)
    assert f.remedy
    assert f.evidence


def test_a_streaming_run() -> None:
    found = of(checked(HEALTHY | {"streaming": True}), "trainer.conflicts")
    assert [f.title for f in found] == [
        "max_samples in a streaming run",
        "a streaming run without max_steps",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"quantization_bit": 4},
        {"fp16": False},
        {"val_size": 0.1},
        {"gradient_checkpointing": True},
        {"adapter_name_or_path": "a"},
        {"warmup_steps": 0},
        {"max_steps": -1},
    ],
)
def test_pairs_that_go_together(change: dict[str, Any]) -> None:
    assert of(checked(HEALTHY | change), "trainer.conflicts") == []


# --- targets, rank, scale --------------------------------------------------------------------


def test_targets_of_llama_on_phi3() -> None:
    """The other half of e1: on the native Phi-3 the target gate_proj matches nothing."""
    values = HEALTHY | {"lora_target": "o_proj,gate_proj,up_proj,down_proj"}
    f = one(values, "trainer.targets", "phi-3-mini")
    assert f.severity == "warning"
    assert [e.expected for e in f.evidence] == ["gate_up_proj", "gate_up_proj"]
    assert "a target without" not in f.title
    assert f.numbers["params_now"] == 32 * 8 * (2 * 3072 + 8192 + 3072)
    assert f.numbers["params_then"] == 32 * 8 * (2 * 3072 + 8192 + 3072 + 3072 + 16384)


@pytest.mark.parametrize(
    ("values", "base", "severity"),
    [
        (HEALTHY | {"lora_target": "q_proj,w2"}, "llama-3-8b", "warning"),
        (HEALTHY | {"lora_target": ["c_attn"]}, "llama-3-8b", "error"),
        (HEALTHY_PEFT | {"target_modules": "q_proj"}, "llama-3-8b", "error"),
        (HEALTHY_TRAINER, "gpt2", "error"),
    ],
)
def test_other_targets_without_a_match(values: dict[str, Any], base: str, severity: str) -> None:
    assert one(values, "trainer.targets", base).severity == severity


def test_one_string_in_target_modules_is_an_expression() -> None:
    f = one(HEALTHY_PEFT | {"target_modules": "q_proj"}, "trainer.targets")
    assert f.evidence[0].expected == '["q_proj"]'


@pytest.mark.parametrize("target", ["q_proj,v_proj", "q_proj,k_proj,v_proj,o_proj"])
def test_attention_only(target: str) -> None:
    f = one(HEALTHY | {"lora_target": target}, "trainer.attention_only")
    assert f.severity == "note"
    assert f.numbers["params"] == 3 * 8 * (4096 + 14336) * 32
    assert "216 MiB while training" in f.remedy


def test_attention_only_in_another_dialect() -> None:
    f = one(HEALTHY_PEFT | {"target_modules": ["q_proj"]}, "trainer.attention_only")
    assert f.numbers["params"] == 3 * 16 * (4096 + 14336) * 32


def test_rank_against_the_matrix() -> None:
    values = HEALTHY | {"lora_rank": 256, "lora_alpha": 256, "template": "qwen"}
    f = one(values, "trainer.rank", "qwen2.5-0.5b")
    assert f.severity == "note"
    assert f.numbers == {"over": 48, "break_even": 112}
    assert f.evidence[0].found == "rank 256: 262,144 parameters"
    assert "114,688" in f.evidence[0].expected
    assert of(checked(values | {"lora_rank": 64}, "qwen2.5-0.5b"), "trainer.rank") == []


def test_rank_above_everything() -> None:
    values = HEALTHY_PEFT | {"r": 4096, "lora_alpha": 4096, "target_modules": ["q_proj"]}
    assert one(values, "trainer.rank").severity == "warning"


@pytest.mark.parametrize(
    ("change", "scale"),
    [({"lora_rank": 256, "lora_alpha": 16}, 0.0625), ({"lora_alpha": 512}, 64)],
)
def test_scale(change: dict[str, Any], scale: float) -> None:
    assert one(HEALTHY | change, "trainer.scale").numbers["scale"] == scale


# --- checkpointing ---------------------------------------------------------------------------


def test_e4_reentrant_without_input_gradients() -> None:
    f = one(
        HEALTHY_TRAINER | {"gradient_checkpointing_kwargs": {"use_reentrant": True}},
        "trainer.checkpointing",
    )
    assert f.severity == "warning"
    assert "every lora_B in the layers stays zero" in f.cause
    assert "enable_input_require_grads()" in f.remedy


def test_e4_with_the_newer_names_and_in_pefts_neighbourhood() -> None:
    values = {
        "activation_checkpointing": True,
        "activation_checkpointing_kwargs": {"use_reentrant": True},
        "r": 8,
        "lora_alpha": 16,
    }
    assert one(values, "trainer.checkpointing").severity == "warning"


def test_e4_unsaid_is_a_note() -> None:
    values = {k: v for k, v in HEALTHY_TRAINER.items() if not k.endswith("kwargs")}
    assert one(values, "trainer.checkpointing").severity == "note"


@pytest.mark.parametrize(
    "values",
    [
        HEALTHY_TRAINER
        | {
            "gradient_checkpointing_kwargs": {"use_reentrant": True},
            "enable_input_require_grads": True,
        },
        HEALTHY | {"use_reentrant_gc": True},  # LLaMA-Factory gives the input a gradient itself
        HEALTHY_FULL,
        HEALTHY_TRAINER | {"gradient_checkpointing": False},
    ],
)
def test_e4_where_it_cannot_happen(values: dict[str, Any]) -> None:
    assert of(checked(values), "trainer.checkpointing") == []


# --- odd input -------------------------------------------------------------------------------

ODD: list[Any] = [
    *(None, True, 0, -1, 2.5, 10**30, 10**400, float("nan"), float("inf"), 1e308, 1 << 39, 1 << 41),
    *("", "all", "lora", "full", "1e-4", "x" * 5000, "(", "\0", "llama3"),
    *([], {}, [1], ["q_proj"], [["a"]], {"use_reentrant": True}),
]


@pytest.mark.parametrize("seed", range(40))
def test_no_rule_stumbles(seed: int) -> None:
    chance = random.Random(seed)
    for base in ("llama-3-8b", "gpt-oss-20b", "mixtral-8x7b", "phi-3-mini", "gpt2"):
        keys = [*chance.sample([*HEALTHY, *HEALTHY_TRAINER, *HEALTHY_PEFT], 6)]
        keys += chance.sample(sorted(LLAMAFACTORY), 2)
        report = checked({k: chance.choice(ODD) for k in keys}, base)
        for f in report.findings:
            json.dumps(dict(f.numbers), allow_nan=False)
            assert f.title.isprintable()


# --- files that are fine ---------------------------------------------------------------------

EVAL: dict[str, Any] = {
    "model_name_or_path": "meta-llama/Meta-Llama-3-8B-Instruct",
    "adapter_name_or_path": "saves/llama3-8b/lora/sft",
    "finetuning_type": "lora",
    "task": "mmlu_test",
    "template": "fewshot",
    "lang": "en",
    "n_shot": 5,
    "save_dir": "saves/eval",
    "batch_size": 4,
}
AXOLOTL: dict[str, Any] = {
    "base_model": "NousResearch/Meta-Llama-3-8B",
    "load_in_8bit": True,
    "sequence_len": 4096,
    "adapter": "lora",
    "lora_r": 32,
    "lora_alpha": 16,
    "lora_target_linear": True,
    "micro_batch_size": 2,
    "num_epochs": 4,
    "learning_rate": 0.0002,
    "gradient_checkpointing": True,
    "gradient_checkpointing_kwargs": {"use_reentrant": True},
}
PLACEHOLDERS = HEALTHY | {"lora_rank": "${oc.env:RANK,8}", "lora_target": "${targets}"}


@pytest.mark.parametrize("trainer", [EVAL, AXOLOTL, PLACEHOLDERS])
def test_other_programs_files_of_these_trainers_pass(trainer: dict[str, Any]) -> None:
    report = check("llama-3-8b", trainer=trainer)
    assert not report.failed
    assert [f for f in report.findings if f.severity != "note"] == []


def test_batch_size_outside_an_evaluation_is_a_slip() -> None:
    report = check("llama-3-8b", trainer=HEALTHY | {"batch_size": 4})
    assert "batch_size" in next(f for f in report.findings if f.rule == "trainer.keys").title


def test_a_model_on_the_host_is_not_held_against_a_card() -> None:
    def memory(**more: Any) -> list[str]:
        found = check("deepseek-v3", trainer=HEALTHY | {"template": "deepseek3"} | more).findings
        return [f.severity for f in found if f.rule == "trainer.memory" and f.severity != "note"]

    assert memory() == ["warning"]
    assert memory(use_kt=True) == []


def test_thousands_of_unknown_keys_are_not_all_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(trainer_rules, "_near", lambda key, known: asked.append(key))
    check("llama-3-8b", trainer=HEALTHY | {f"lora_ran{i}": 1 for i in range(12_000)})
    assert len(asked) == trainer_rules.MAX_UNKNOWN


LOOP: dict[str, Any] = {"a": {}}
LOOP["a"]["b"] = LOOP["a"]


@pytest.mark.parametrize(
    "values", [{"foo": 1}, LOOP, {}, {"training": {"learning_rate": 1e-4}}, {"jobs": [], "on": "x"}]
)
def test_a_file_without_a_trainers_setting(values: dict[str, Any]) -> None:
    report = checked(values)
    found = next(f for f in report.findings if f.rule == "trainer.settings")
    assert found.severity == "warning"
    assert "no setting of a trainer was recognised" in found.title
    assert [r for r in report.ran if r.startswith("trainer.")] == ["trainer.settings"]
    assert "holds no setting that is known" in report.skipped["trainer.values"]


@pytest.mark.parametrize(
    "values", [{"lr": 1e-4}, {"learning_rte": 1e-4}, {"base_model": "x", "foo": 1}, {"r": 8}]
)
def test_one_setting_or_a_slip_is_enough(values: dict[str, Any]) -> None:
    report = checked(values)
    assert [f for f in report.findings if f.rule == "trainer.settings"] == []
    assert "trainer.values" in report.ran


def test_an_anchor_in_itself_is_a_file_without_settings(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("a: &a\n  b: *a\n")
    report = check("llama-3-8b", trainer=path)
    assert "trainer.settings" in {f.rule for f in report.findings}
    assert report.failed == {}
