"""The command printed under a remedy, pasted, plans for the remedy's bytes."""

from __future__ import annotations

import shlex
from random import Random

import pytest

from gateup.account.command import UNSAID, Asked, command, with_commands
from gateup.account.machine import parse_device
from gateup.account.options import PlanOptions
from gateup.account.plan import Plan, plan
from gateup.account.remedies import Remedy
from gateup.errors import GateupError, UsageError
from tests.account.pasting import pasted

MODELS = ["llama-3-8b", "qwen3-0.6b", "gemma-3-4b", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b"]


def asked_of(rng: Random) -> dict[str, object]:
    """A workload at random: inference or training, on a card that is most likely too small."""
    out: dict[str, object] = {
        "device": rng.choice(["6GB", "8GB", "rtx4090", "2x16GB", "2 x h100", "24000000000B"]),
        "ctx": rng.choice([777, 4096, 8192, 40_000]),
        "batch": rng.choice([1, 1, 3, 8]),
    }
    if rng.random() < 0.5:
        out |= {"train": rng.choice(["full", "lora", "qlora"])}
        out |= {
            "autocast": rng.random() < 0.3,
            "execution": rng.choice(["eager", "fused", "tiled"]),
        }
        out |= {"checkpointing": rng.choice([None, "layer"]), "loss": rng.choice([None, "chunked"])}
        out |= {"optimizer": rng.choice([None, "adamw8bit", "sgd"])}
        out |= {"accumulation": rng.choice([None, 4])}
        if out["train"] != "full":
            out |= {"rank": rng.choice([None, 64]), "targets": rng.choice([None, "mlp", "all"])}
            out |= {"alpha": rng.choice([None, 32.0])}
        return out
    engine = rng.choice(["transformers", "llama.cpp", "vllm", "gateup", None])
    out |= {"engine": engine, "dtype": rng.choice([None, "f16"])}
    if engine in ("llama.cpp", None):
        out |= {"quant": rng.choice(["q8_0", "q4_k_m", "f16"])}
        out |= {"kv": rng.choice([None, "q8_0"]), "ubatch": rng.choice([None, 1024])}
        out |= {"gpu_layers": rng.choice([None, 20])} if engine == "llama.cpp" else {}
    return out


def test_a_pasted_command_gives_the_printed_bytes() -> None:
    rng, said, unsaid, workloads = Random(1), 0, 0, 0
    while workloads < 40:
        asked = asked_of(rng)
        try:
            one = plan(rng.choice(MODELS), **asked)
        except GateupError:  # options that do not go together
            continue
        if one.verdict is None or not one.verdict.remedies:
            continue
        workloads += 1
        for r in one.verdict.remedies:
            if r.command:
                said += 1
                answer = pasted(r.command)
                assert answer.memory.peak == r.peak, (asked, r.command)
                assert answer.verdict is not None
                assert answer.verdict.fits
                assert answer.verdict.host.value == r.host
            else:
                unsaid += 1
                assert r.unsaid == UNSAID
    assert said > 100
    assert unsaid * 20 <= said, (said, unsaid)


def only(one: Plan, change: str) -> Remedy:
    assert one.verdict is not None
    return next(r for r in one.verdict.remedies if any(c.startswith(change) for c in r.changes))


def test_what_changed_and_what_was_asked_are_both_said() -> None:
    asked = plan("llama-3-8b", train="lora", rank=32, alpha=8.0, ctx=2048, device="16 GB")
    qlora = only(asked, "QLoRA")
    for words in ("--train qlora", "--rank 32", "--alpha 8.0", "--ctx 2048", "'16 GB'"):
        assert words in qlora.command, words
    layers = only(
        plan("llama-3-8b", quant="q4_k_m", ctx=32768, device="8GB"), "28 of 33 layers"
    ).command
    assert layers == (
        "gateup plan llama-3-8b --quant q4_k_m --ctx 32768 --device 8GB --gpu-layers 28"
    )
    moe = only(plan("qwen3-30b-a3b", quant="q4_k_m", device="rtx4060", ctx=16384), "experts of")
    assert f"--cpu-moe-layers {moe.scenario.cpu_moe_layers}" in moe.command


def test_another_model_is_named_and_another_run_is_not() -> None:
    here = plan("llama-3-8b", train="lora", device="8GB")
    sibling = only(here, "the smaller sibling")
    assert sibling.command.startswith("gateup plan llama-3.2-1b ")
    assert here.verdict is not None

    def refuse(options: PlanOptions, preset: str | None) -> object:
        raise UsageError("no such run")

    told = with_commands(here.verdict, Asked("x", None, here.options), refuse)  # type: ignore[arg-type]
    assert {(r.command, r.unsaid) for r in told.remedies} == {("", UNSAID)}
    # another run than the remedy's is not printed
    told = with_commands(
        here.verdict, Asked("x", None, here.options), lambda options, preset: here.scenario
    )
    assert {r.command for r in told.remedies} == {""}


def test_words_are_quoted() -> None:
    asked = PlanOptions(ctx=1, flash=False, device="2x8 GB")
    assert command("my model/$x", "b'", asked) == (
        """gateup plan 'my model/$x' --base 'b'"'"'' --ctx 1 --no-flash --device '2x8 GB'"""
    )
    assert command("-x", None, PlanOptions()) == "gateup plan ./-x"


def test_layers_left_with_the_host_can_be_asked_for() -> None:
    whole = plan("llama-3-8b", quant="q4_k_m", ctx=4096, device="8GB")
    part = plan("llama-3-8b", quant="q4_k_m", ctx=4096, device="8GB", gpu_layers=20)
    assert part.memory.peak < whole.memory.peak
    assert part.verdict is not None
    assert "-ngl 20" in part.verdict.flags["llama.cpp"]
    for asked in ({"device": "8GB"}, {"quant": "q4_k_m"}):
        with pytest.raises(UsageError, match=r"--gpu-layers is about llama\.cpp"):
            plan("llama-3-8b", gpu_layers=20, **asked)
    with pytest.raises(UsageError, match="has no experts"):
        plan("llama-3-8b", quant="q4_k_m", device="8GB", cpu_moe_layers=2)
    with pytest.raises(UsageError, match="--gpu-layers is -1"):
        PlanOptions(gpu_layers=-1)
    with pytest.raises(UsageError, match="--accumulation is 0"):
        PlanOptions(train="lora", accumulation=0)


def test_a_chunked_loss_holds_no_logits() -> None:
    full = plan("llama-3-8b", train="lora", checkpointing="layer")
    chunked = plan("llama-3-8b", train="lora", checkpointing="layer", loss="chunked")
    assert chunked.memory.peak < full.memory.peak / 1.2
    with pytest.raises(UsageError, match="--loss is 'liger'"):
        PlanOptions(train="lora", loss="liger")


def test_parse_of_the_printed_device() -> None:
    two = plan("llama-3-8b", train="lora", device="2x8GB")
    assert two.verdict is not None
    for r in two.verdict.remedies:
        assert parse_device(shlex.split(r.command)[shlex.split(r.command).index("--device") + 1])
