"""The runner: healthy models stay clean, a rule that stumbles harms no other, options are read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import gateup
from gateup.checks import runner
from gateup.checks.context import NEEDS, Context
from gateup.checks.finding import Finding
from gateup.checks.rule import Rule, rule, rules_of
from gateup.checks.runner import RULES, STUMBLES, check, find_rule, run_rules
from gateup.errors import InputError, UsageError
from gateup.model.presets import PRESETS

Config = dict[str, Any]
Make = Callable[..., Any]


def loud(report: runner.CheckReport) -> list[str]:
    """Findings above a note, and rules that stumbled."""
    found = [f"{f.rule}: {f.title}" for f in report.findings if f.severity != "note"]
    return found + [f"{k}: {v}" for k, v in report.failed.items()]


# ---- healthy models ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_are_healthy(name: str) -> None:
    assert loud(check(name)) == []


def test_the_demo_model_is_clean(smollm2_gguf: Path) -> None:
    report = check(smollm2_gguf)
    assert loud(report) == []
    assert report.exit_code == 0
    assert check("smollm2").findings == report.findings


SAVED = [
    "llama",
    "llama-biased",
    "mistral",
    "smollm3",
    "granite",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
    "phi3",
    "olmo2",
    "gpt2",
    "bert",
    "mixtral",
    "mixtral-one-expert",
    "qwen2_moe",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
    "gpt_oss",
    "llama4_text",
    "llama4",
    "olmoe",
]


# Special tokens and positions whose defaults are those of the models at full size.
WITHIN = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
FULL_SIZE = {"gpt_oss": {"max_position_embeddings": 131072}}


def save(config: Config, folder: Path, **how: Any) -> Path:
    """The folder that transformers' own class saves, with random weights."""
    import torch
    import transformers

    cls = getattr(transformers, config["architectures"][0])
    values = {k: v for k, v in config.items() if k != "architectures"}
    theirs = cls.config_class.from_dict(values | WITHIN | FULL_SIZE.get(config["model_type"], {}))
    if hasattr(theirs, "vision_config"):
        vision = theirs.vision_config
        vision.num_hidden_layers, vision.num_attention_heads = 1, 2
        vision.hidden_size = vision.intermediate_size = 16
    with torch.no_grad():
        model = cls(theirs)
    model.save_pretrained(folder, **how)
    return folder


@pytest.mark.parametrize("name", SAVED)
def test_what_transformers_saves_is_healthy(converted: Config, tmp_path: Path, name: str) -> None:
    """Of every family it has a class for; with several shards and their index."""
    folder = save(converted[name]["config"], tmp_path, max_shard_size="100KB")
    report = check(folder)
    assert report.context is not None
    assert report.context.checkpoint.headers
    assert loud(report) == []
    assert "files.index" in report.ran


@pytest.mark.parametrize("name", ["openelm", "deci"])
def test_families_of_remote_code_are_healthy(
    converted: Config, tmp_path: Path, write: Make, name: str
) -> None:
    assert loud(check(write(tmp_path / "m", converted[name]["config"]))) == []


def test_ggufs_of_every_family_are_healthy(
    converted: Config, tmp_path: Path, write_gguf: Make
) -> None:
    """As llama.cpp's converter writes them."""
    for name, model in converted.items():
        tensors = {n: ("f16" if len(ne) > 1 else "f32", ne) for n, ne in model["tensors"].items()}
        path = write_gguf(tmp_path / f"{name}.gguf", model["metadata"], tensors)
        assert (name, loud(check(path))) == (name, [])


# ---- rules that stumble --------------------------------------------------------------------------


@rule("test.stumbles", "Raises on every input")
def stumbling(context: Context) -> Iterable[Finding]:
    """A rule that cannot cope."""
    yield Finding("test.stumbles", "error", "said before it fell")
    raise KeyError(context.spec.name)


@rule("test.sound", "Finds something")
def sound(context: Context) -> Iterable[Finding]:
    """A rule that works."""
    yield Finding("test.sound", "warning", context.spec.name)


@pytest.mark.parametrize("error", STUMBLES)
def test_a_rule_that_stumbles_reports_itself_and_lets_the_others_run(
    described: Make, tiny: Config, error: type[Exception]
) -> None:
    def run(context: Context) -> Iterable[Finding]:
        raise error("odd input")

    broken = Rule("test.broken", "t", "t", frozenset(), run)
    report = run_rules(described(tiny), [broken, stumbling, sound])
    assert report.failed["test.broken"] == f"{error.__name__}: odd input"
    assert report.failed["test.stumbles"] == "KeyError: 'test'"
    assert report.ran == ("test.sound",)
    assert [f.rule for f in report.findings] == ["test.sound"]  # nothing of the half-run one
    assert report.exit_code == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_the_program_s_own_ends_pass_through(
    described: Make, tiny: Config, error: type[BaseException]
) -> None:
    def run(context: Context) -> Iterable[Finding]:
        raise error

    with pytest.raises(error):
        run_rules(described(tiny), [Rule("test.end", "t", "t", frozenset(), run)])


def test_findings_come_worst_first(described: Make, tiny: Config) -> None:
    def run(context: Context) -> Iterable[Finding]:
        yield Finding("b.b", "note", "n")
        yield Finding("b.b", "error", "e")

    report = run_rules(described(tiny), [Rule("b.b", "t", "t", frozenset(), run), sound])
    assert [f.severity for f in report.findings] == ["error", "warning", "note"]
    assert report.exit_code == 1


def test_a_rule_without_its_input_is_skipped_and_says_why(described: Make, tiny: Config) -> None:
    needy = rule("test.needy", "t", needs=["adapter", "tp"])(stumbling.run)
    report = run_rules(described(tiny), [needy])
    assert report.skipped == {"test.needy": "no --adapter was given; no --tp was given"}
    assert report.ran == ()
    assert run_rules(described(tiny, tp=2), [needy]).skipped["test.needy"] == NEEDS["adapter"]


def test_rules_are_unique_taught_and_in_order() -> None:
    ids = [r.id for r in RULES]
    assert ids == sorted(set(ids))
    assert len(ids) > 15
    for r in RULES:
        assert len(r.teaches.split()) > 25, r.id
    with pytest.raises(AssertionError, match="two rules"):
        rules_of([sys.modules[__name__], sys.modules[__name__]])


def test_rules_need_a_docstring_and_known_needs() -> None:
    with pytest.raises(AssertionError, match="docstring"):
        rule("test.bare", "t")(lambda context: ())
    with pytest.raises(AssertionError, match="crystal"):
        rule("test.needs", "t", needs=["crystal ball"])  # type: ignore[list-item]


def test_find_rule() -> None:
    assert find_rule("config.widths").id == "config.widths"
    with pytest.raises(UsageError) as e:
        find_rule("config.width")
    for asked, near in (("nothing", None), ("gates", None), ("tied", "config.tied or semantics.")):
        with pytest.raises(UsageError) as f:
            find_rule(asked)
        said = str(f.value).partition("did you mean ")[2]
        assert said.startswith(near) if near else not said, asked
    assert "did you mean config.widths" in str(e.value)


def spoil(random: Random, config: Config, tensors: dict[str, tuple[int, ...]]) -> None:
    """One change that an edit, a writer or an accident could have made."""
    kind = random.randrange(5)
    name, field = random.choice(list(tensors)), random.choice(list(config))
    shape, value = tensors[name], config[field]
    if kind == 0:
        sizes = (0, 1, 3, *shape, *(2 * d for d in shape), *(d // 2 for d in shape))
        length = random.choice((len(shape), len(shape), 0, 1, 2, 3))
        tensors[name] = tuple(random.choice(sizes) for _ in range(length))
    elif kind == 1:
        del tensors[name]
    elif kind == 2:
        tensors[random.choice(("module.", "x.", "model.")) + name] = tensors.pop(name)
    elif kind == 3:
        stray = ("lm_head.weight", "layers.0.mlp.linear_fc1.weight", "model.layers.9.a", "a.bias")
        tensors[random.choice(stray)] = (4, 4)
    elif isinstance(value, bool):
        config[field] = not value
    elif isinstance(value, int):
        config[field] = random.choice((2 * value, max(value // 2, 1), value + 1))
    else:
        config[field] = random.choice((None, -1, "x", [1], {}, 1.5, True, 2**70))


@pytest.mark.parametrize("seed", range(8))
def test_no_rule_stumbles_over_spoiled_models(
    converted: Config, tmp_path: Path, write: Make, tensors_of: Make, seed: int
) -> None:
    random = Random(seed)
    for _ in range(12):
        name = random.choice(sorted(converted))
        config = json.loads(json.dumps(converted[name]["config"]))
        tensors = tensors_of(config)
        for _ in range(random.randint(1, 4)):
            spoil(random, config, tensors)
        quant = random.choice((None, "q4_k_m", "awq:128"))
        report = check(write(tmp_path / "m", config, tensors), tp=2, quant=quant)
        assert not report.failed, (name, config)
        json.dumps(report.to_dict(), allow_nan=False)
        assert str(report)


# ---- what is asked -------------------------------------------------------------------------------


def test_the_function_is_public_and_lazy() -> None:
    assert gateup.check.__module__ == "gateup.deep.check"
    code = "import gateup, sys; assert 'gateup.checks' not in sys.modules; gateup.check"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})


def test_no_torch_for_a_check(tmp_path: Path, write: Make, tiny: Config) -> None:
    folder = write(tmp_path / "m", tiny)
    code = (
        "import gateup, sys; r = gateup.check(sys.argv[1]); assert not r.failed;"
        "assert not {'torch', 'transformers', 'peft'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, env={**os.environ})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp": 0}, "--tp is 0"),
        ({"quant": "q4_k_x"}, "q4_k_x"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check("llama-3-8b", **options)


def test_what_is_not_there_is_an_error_and_what_cannot_be_read_a_finding(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a file or folder"):
        check(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="no such adapter"):
        check("llama-3-8b", adapter=tmp_path / "nowhere")
    for named in ({"trainer": "no.yaml"}, {"generation": "no.json"}, {"base": "no-model"}):
        with pytest.raises(InputError):
            check("smollm2", **named)  # type: ignore[arg-type]
    report = check(tmp_path)
    assert (report.readable, report.exit_code) == (False, 2)
    assert [f.rule for f in report.findings] == ["files.readable"]
    (tmp_path / "config.json").write_text("{")
    assert "not JSON" in check(tmp_path).findings[0].title


def test_adapters_and_bases(tmp_path: Path, write: Make, tiny: Config) -> None:
    from safetensors.numpy import save_file

    numpy = pytest.importorskip("numpy")
    base = write(tmp_path / "base", tiny)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(
        json.dumps(
            {
                "peft_type": "LORA",
                "r": 2,
                "lora_alpha": 4,
                "target_modules": ["up_proj"],
                "base_model_name_or_path": "base",
            }
        )
    )
    prefix = "base_model.model.model.layers.0.mlp.up_proj.lora_"
    save_file(
        {
            prefix + "A.weight": numpy.zeros((2, 64), "float32"),
            prefix + "B.weight": numpy.ones((96, 2), "float32"),
        },
        adapter / "adapter_model.safetensors",
    )
    for report in (
        check(base, adapter=adapter),
        check(adapter),
        check(adapter, base=base),
        check(base, adapter=adapter / "adapter_config.json"),
    ):
        assert report.context is not None
        assert report.context.adapter is not None
        assert report.context.adapter_config is not None
        assert report.context.base is None
        assert report.context.spec.hidden_size == 64
    config = json.loads((adapter / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "someone/elsewhere"
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    assert check(adapter).exit_code == 2
    assert check(adapter, base=base).readable
    both = check(base, base="llama-3-8b").context
    assert both is not None
    assert both.base is not None
    with pytest.raises(UsageError, match="--adapter names another"):
        check(adapter, adapter=adapter, base=base)


# ---- the command line ----------------------------------------------------------------------------


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateup", "check", *argv],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )


def test_exit_codes(tmp_path: Path, write: Make, tiny: Config) -> None:
    clean = write(tmp_path / "clean", tiny)
    done = run(str(clean))
    assert done.returncode == 0
    assert "nothing found" in done.stdout
    wrong = write(tmp_path / "wrong", tiny)
    (wrong / "config.json").write_text(json.dumps({**tiny, "vocab_size": 100}))
    done = run(str(wrong), "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["counts"]["error"] == 1
    (wrong / "config.json").write_text("{}")
    done = run(str(wrong), "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["readable"] is False


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no MODEL was given"),
        (["--list", "llama-3-8b"], "about the rules"),
        (["--explain", "no.rule"], "there is no rule 'no.rule'"),
        (["--explain"], "gateup check --list prints all ids"),
        (["--explain", "--json"], "gateup check --list prints all ids"),
        (["llama-3-8b", "--tp", "0"], "--tp is 0"),
        (["llama-3-9z"], "neither a file or folder"),
    ],
)
def test_bad_usage(argv: list[str], message: str) -> None:
    done = run(*argv)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout
