"""The command line: true figures, exit codes, one clear message, nothing but JSON with --json."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateup import __version__
from gateup.cli import app

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def run(*args: str) -> Any:
    """Exit code, stdout and stderr of one call; a fault of ours is raised, not hidden."""
    result = CliRunner().invoke(app, list(args), env={"COLUMNS": "120"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def test_version_is_printed() -> None:
    assert run("--version").stdout.strip() == f"gateup {__version__}"


def test_no_command_shows_help() -> None:
    result = run()
    assert "plan" in result.output
    assert "show" in result.output


def test_plan_of_the_real_demo_file(smollm2_gguf: Path) -> None:
    result = run("plan", str(smollm2_gguf), "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["params"]["total"]["value"] == 134_515_008
    assert document["model"]["source"]["file_bytes"] == 98_362_432
    assert document["model"]["source"]["kind"] == "gguf"
    assert document["run"]["engine"] == "llama.cpp"
    assert document["run"]["quantised_to"] is None
    assert document["params"]["mlp_share"]["value"] == pytest.approx(79_626_240 / 134_515_008)


def test_plan_in_a_file_type_on_a_device_it_does_not_fit() -> None:
    result = run("plan", "llama-3-8b", "--quant", "q4_k_m", "--ctx", "32768", "--device", "8GB")
    assert result.exit_code == 1
    text = result.stdout
    assert "DOES NOT FIT 8 GB" in text
    assert "= 8,030,261,248" in text
    assert "= 5,637,144,576" in text
    assert "70.2 %" in text
    assert "engine llama.cpp: the weights are a GGUF" in text
    assert "= 4.00 GiB" in text  # KV: 2·32·8·128·32768·2 B
    assert "What would make it fit" in text
    assert text.index("DOES NOT FIT") < text.index("What would make it fit")
    assert text.index("What would make it fit") < text.index("Where it goes")
    assert "llama.cpp: " in text


def test_plan_of_experts_over_two_ranks_as_json() -> None:
    result = run("plan", "qwen3-30b-a3b", "--tp", "2", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["params"]["total"]["value"] == 30_532_122_624
    assert document["run"]["parallel"]["tp"] == 2
    whole = document["bytes"]["total"]["value"]
    rank = sum(i["bytes"]["value"] for i in document["memory"]["items"] if i["group"] == "weights")
    assert whole / 2 < rank < 0.51 * whole  # norms and routers are on both


def test_plan_to_a_page(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    result = run("plan", "deepseek-v3", "--html", str(page))
    assert result.exit_code == 0
    text = page.read_text()
    assert "= 671,026,419,200" in text
    assert "9,677" in text
    assert [p.name for p in tmp_path.iterdir()] == ["plan.html"]  # no temporary file stays


def test_plan_of_lora_training() -> None:
    result = run(
        "plan", "llama-3-8b", "--train", "lora", "--rank", "16", "--targets", "all",
        "--seq", "8192", "--device", "24GB", "--json",
    )  # fmt: skip
    document = json.loads(result.stdout)
    assert result.exit_code == (0 if document["verdict"]["fits"] else 1)
    assert document["adapter"]["params"]["value"] == 81_920 * 16 * 32
    assert document["adapter"]["mlp_share"]["value"] == pytest.approx(0.675)
    assert document["run"]["ctx"] == 8192
    assert document["run"]["training"] == {
        "method": "lora",
        "rank": 16,
        "alpha": None,
        "targets": ["all"],
        "optimizer": "adamw",
        "save": "hf",
        "checkpointing": "none",
        "autocast": False,
        "loss": "full",
        "accumulation": 1,
    }
    assert document["kv"] is None


def test_several_models_stand_side_by_side() -> None:
    result = run("plan", "llama-3-8b", "qwen3-0.6b", "--ctx", "1024")
    assert result.exit_code == 0
    lines = {line[:24].strip(): line for line in result.stdout.splitlines()}
    assert "= 70.2 %" in lines["MLP share of parameters"]
    assert "= 44.3 %" in lines["MLP share of parameters"]
    assert "= 21,504 tokens" in lines["attention overtakes at T*"[:24].strip()]
    assert "= 2,304 tokens" in lines["attention overtakes at T*"[:24].strip()]


def test_several_models_as_json_are_a_list() -> None:
    documents = json.loads(run("plan", "llama-2-7b", "gpt2", "--json").stdout)
    assert [d["params"]["total"]["value"] for d in documents] == [6_738_415_616, 124_439_808]


def test_one_of_several_that_does_not_fit_is_a_no() -> None:
    args = ("plan", "qwen3-0.6b", "llama-2-70b", "--ctx", "64", "--device", "8GB")
    assert run(*args).exit_code == 1


def test_a_model_that_fits_is_fine() -> None:
    result = run("plan", "qwen3-0.6b", "--ctx", "64", "--device", "24GB")
    assert result.exit_code == 0
    assert "FITS 24 GB" in result.stdout


def test_explain_prints_formula_numbers_and_source() -> None:
    text = run("plan", "llama-3-8b", "--explain").stdout
    assert "params.mlp = 5,637,144,576 params  (5,637,144,576 params, exact)" in text
    assert "3·H·I·L" in text
    assert "3·4096·14336·32" in text
    assert "source: " in text


def test_show_follows_a_layer() -> None:
    result = run("show", "llama-3-8b", "--batch", "2", "--seq", "100", "--quant", "q4_k_m")
    assert result.exit_code == 0
    assert "= 4,912,898,048" in result.stdout
    assert "[2,100,14336]" in result.stdout
    assert "silu(gate) ⊙ up" in result.stdout


def test_show_lists_every_tensor_when_asked(tiny: Path) -> None:
    text = run("show", str(tiny), "--tensors").stdout
    assert text.count("mlp.gate_proj.weight") == 2
    assert run("show", str(tiny)).stdout.count("mlp.gate_proj.weight") == 1


def test_show_as_json(tiny: Path) -> None:
    document = json.loads(run("show", str(tiny), "--json", "--layer", "1").stdout)
    assert document["schema"] == "gateup.show/1"
    assert document["flow"]["layer"] == 1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--ctx", "0"], "--ctx is 0"),
        (["--batch", "-1"], "--batch is -1"),
        (["--ubatch", "0"], "--ubatch is 0"),
        (["--tile", "0"], "--tile is 0"),
        (["--tp", "0"], "--tp is 0"),
        (["--fsdp", "99999999"], "--fsdp is 99999999"),
        (["--quant", "q9_z"], "'q9_z' is not known"),
        (["--kv", "q3"], "'q3' is not known"),
        (["--dtype", "fp16"], "--dtype is 'fp16'"),
        (["--engine", "lama.cpp"], "did you mean llama.cpp?"),
        (["--exec", "lazy"], "one of eager, fused, tiled"),
        (["--train", "lore"], "did you mean lora?"),
        (["--train", "lora", "--rank", "0"], "--rank is 0"),
        (["--train", "lora", "--alpha", "nan"], "--alpha is nan"),
        (["--train", "lora", "--alpha", "inf"], "--alpha is inf"),
        (["--train", "lora", "--targets", "q_proj,,"], "--targets is 'q_proj,,'"),
        (["--train", "lora", "--targets", "nope"], "LoRA target 'nope' matches no linear"),
        (["--train", "full", "--rank", "4"], "--train full has no adapter"),
        (["--train", "lora", "--engine", "vllm"], "--engine vllm does not train"),
        (["--train", "lora", "--quant", "q4_k_m"], "a GGUF's weights cannot be trained"),
        (["--rank", "4"], "--rank is about training"),
        (["--autocast"], "--autocast is about training"),
        (["--device", "0GB"], "0 bytes of memory"),
        (["--device", "rtx9999"], "not a device gateup knows"),
        (["--json", "--explain"], "--json has every formula"),
    ],
)
def test_values_that_cannot_be_are_refused(tiny: Path, args: list[str], said: str) -> None:
    result = run("plan", str(tiny), *args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert said in result.stderr
    assert result.stderr.startswith("gateup: ")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("args", [["--ctx", "many"], ["--no-such-option"], ["--batch", "1.5"]])
def test_bad_usage_is_exit_code_2(tiny: Path, args: list[str]) -> None:
    result = run("plan", str(tiny), *args)
    assert result.exit_code == 2
    assert "Usage" in result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--layer", "2"], "0 to 1"),
        (["--layer", "-1"], "0 to 1"),
        (["--seq", "0"], "--seq is 0"),
        (["--batch", "0"], "--batch is 0"),
    ],
)
def test_show_refuses_too(tiny: Path, args: list[str], said: str) -> None:
    result = run("show", str(tiny), *args)
    assert result.exit_code == 2
    assert said in result.stderr


def test_an_unknown_model_names_the_nearest() -> None:
    result = run("plan", "llama-3-9b")
    assert result.exit_code == 2
    assert "did you mean" in result.stderr
    assert "llama-3-8b" in result.stderr


def test_the_page_is_not_written_into_a_folder_that_is_not_there(tiny: Path) -> None:
    result = run("plan", str(tiny), "--html", str(tiny / "no" / "p.html"))
    assert result.exit_code == 2
    assert "does not exist" in result.stderr
    assert "mkdir -p" in result.stderr


def test_markup_and_escapes_in_names_are_only_text(tmp_path: Path) -> None:
    folder = tmp_path / "[bold red]x\x1b[31m"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for verb in ("plan", "show"):
        result = run(verb, str(folder))
        assert result.exit_code == 0
        assert "[bold red]x\\x1b[31m" in result.stdout
        assert "\x1b" not in result.stdout
    (folder / "config.json").write_text('{"architectures": ["[/red]\\u001b[2JX"]}')
    result = run("plan", str(folder))
    assert result.exit_code == 2
    assert "\x1b" not in result.stderr


@pytest.mark.parametrize(
    "args",
    [["show", "deepseek-v3", "--json"], ["plan", "gpt2", "deepseek-v3", "gemma-2-9b", "--explain"]],
)
def test_a_reader_that_leaves_ends_it_quietly(args: list[str]) -> None:
    """Both are far larger than a pipe holds. Rich by itself would exit with 1, a "no"."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gateup", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


def test_python_m_gateup_imports_no_deep_learning_library() -> None:
    script = (
        "import sys; sys.argv = ['gateup', 'plan', 'qwen3-0.6b', '--device', '24GB']\n"
        "from gateup.cli import main\n"
        "try: main()\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        "heavy = {'torch', 'transformers', 'numpy', 'gguf', 'safetensors'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "FITS" in done.stdout


def test_no_colour_and_no_boxes_in_a_pipe() -> None:
    text = run("plan", "qwen3-0.6b").stdout
    assert "\x1b" not in text
    assert not set("│─╭╰┃━") & set(text)


def test_a_terminal_without_utf8_gets_ascii() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gateup", "plan", "qwen3-0.6b"],
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii", "COLUMNS": "120"},
    )
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode("ascii")
    assert "<= bound" in text
    assert "##" in text


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full here")
@pytest.mark.parametrize("args", [[], ["--json"]])
def test_a_full_disk_is_no_no(tiny: Path, args: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gateup", "plan", str(tiny), *args],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr == "gateup: the output cannot be written: No space left on device\n"


def test_without_an_output_the_exit_code_answers(tiny: Path) -> None:
    line = f"{shlex.quote(sys.executable)} -m gateup plan {shlex.quote(str(tiny))} >&-"
    done = subprocess.run(line, shell=True, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("columns", ["0", "1", "20"])
def test_any_width_shows_something(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for verb in ("plan", "show"):
        assert "LlamaForCausalLM" in run(verb, str(tiny)).stdout


def test_presets_are_listed() -> None:
    result = run("presets")
    assert result.exit_code == 0
    (row,) = [x.split() for x in result.stdout.splitlines() if x.startswith("llama-3-8b ")]
    assert row[1:] == ["meta-llama/Meta-Llama-3-8B", "=", "8.03", "B", "70.2", "%"]
    document = json.loads(run("presets", "--json").stdout)
    assert document["schema"] == "gateup.presets/1"
    (known,) = [p for p in document["presets"] if p["name"] == "llama-3-8b"]
    assert (known["params"], known["mlp_params"]) == (8_030_261_248, 5_637_144_576)
    assert "`gateup presets` lists" in run("plan", "no-model-at-all-xyzzy").stderr


@pytest.mark.parametrize(("given", "tokens"), [("32k", 32768), ("2K", 2048), ("4096", 4096)])
def test_k_means_1024_tokens(tiny: Path, given: str, tokens: int) -> None:
    document = json.loads(run("plan", str(tiny), "--ctx", given, "--json").stdout)
    assert document["run"]["ctx"] == tokens
    assert (
        json.loads(run("show", str(tiny), "--seq", given, "--json").stdout)["flow"]["seq"] == tokens
    )


@pytest.mark.parametrize("given", ["32m", "k", "1.5k", "many", ""])
def test_what_is_no_count_of_tokens(tiny: Path, given: str) -> None:
    result = run("plan", str(tiny), "--ctx", given)
    assert result.exit_code == 2
    assert "is no count of tokens: 32768, or 32k" in result.stderr


@pytest.mark.parametrize("typed", ["q4km", "Q4-K-M", "q4_km"])
def test_an_unknown_format_names_the_nearest(tiny: Path, typed: str) -> None:
    result = run("plan", str(tiny), "--quant", typed)
    assert result.exit_code == 2
    assert "did you mean q4_k_m" in result.stderr
    assert max(map(len, result.stderr.splitlines())) <= 100


@pytest.mark.parametrize(
    "twice", [["--quant=q8_0", "--quant", "f16"], ["--ctx", "1k", "--seq", "2k"]]
)
def test_an_option_given_twice_is_refused(tiny: Path, twice: list[str]) -> None:
    result = run("plan", str(tiny), *twice)
    assert result.exit_code == 2
    assert "is given 2 times" in result.stderr


def test_a_comparison_says_what_differs(tiny: Path) -> None:
    assert "the contexts differ" in run("plan", str(tiny), "gpt2").stdout
    assert "context 4,096 for all: no --ctx" in run("plan", "llama-3-8b", "qwen3-8b").stdout
    same = run("plan", str(tiny), "gpt2", "--ctx", "64").stdout
    assert "the contexts differ" not in same


def test_explain_names_no_path_twice_and_writes_no_exponent() -> None:
    lines = run("plan", "llama-3-8b", "--explain").stdout.splitlines()
    paths = [x.split("]")[0] for x in lines if x.startswith("memory.items[")]
    assert len(paths) == len(set(paths)) > 5
    assert not any("e+" in x for x in lines if x.endswith(", exact)"))


@pytest.mark.parametrize(("end", "code"), [(">&-", 0), ("> /dev/full", 2)])
@pytest.mark.parametrize("verb", ["check llama-3-8b", "check llama-3-8b --json", "check --list"])
def test_stdout_that_takes_nothing(verb: str, end: str, code: int) -> None:
    if "full" in end and not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    command = f"'{sys.executable}' -m gateup {verb} {end}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert ("cannot be written" in done.stderr) is (code == 2)


def test_memory_that_is_gone_is_one_message(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("gateup.account.show.show", none)
    result = run("show", str(tiny))
    assert result.exit_code == 2
    assert "not enough memory" in result.stderr
