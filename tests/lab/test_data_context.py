"""The Context page's lines against the document of `gateup plan`."""

from __future__ import annotations

from math import ceil

import pytest

from gateup.account.plan import plan
from gateup.account.report.json_report import to_json
from gateup.lab.data_context import (
    contexts,
    flops_over_context,
    memory_at,
    memory_over_context,
    share_at,
    work_of,
)
from gateup.model import presets


# Dense, windowed (its crossings have other formulas), experts, and sinks with windows.
@pytest.mark.parametrize("name", ["llama-3-8b", "gemma-3-27b", "qwen3-30b-a3b", "gpt-oss-20b"])
def test_the_lines_are_the_plans_figures(name: str) -> None:
    spec = presets.spec(name)
    over = flops_over_context(spec)
    memory = memory_over_context(spec, 2, "bf16")
    assert memory.contexts == over.contexts
    for i in (0, len(over.contexts) // 2):
        ctx = over.contexts[i]
        document = to_json(plan(name, quant="bf16", ctx=ctx, batch=2, kv="bf16"))
        flops = document["flops"]
        assert over.token[i] == flops["decode"]["attention_scores"]["value"]
        assert over.mean[i] * ctx * 2 == pytest.approx(
            flops["prefill"]["attention_scores"]["value"], rel=1e-12
        )
        assert over.mlp == flops["mlp"]["value"]
        assert memory.series["kv"][i] == document["kv"]["total"]["value"]
        mlp = [x for x in document["memory"]["items"] if x["label"] == "MLP"]
        assert memory.series["mlp"][i] == mlp[0]["bytes"]["value"]
        logits = [x for x in document["memory"]["items"] if x["label"] == "logits"]
        assert memory.series["logits_last"][i] == logits[0]["bytes"]["value"]
        for path, figure in share_at(spec, ctx).items():
            node = document
            for key in path.split("."):
                node = node[key]
            assert figure.value == node["value"]


def test_both_crossings_are_where_the_lines_meet() -> None:
    over = flops_over_context(presets.spec("llama-3-8b"))
    figures = over.figures()
    assert figures["crossover.token"].value == 21_504
    assert figures["crossover.prefill"].value == 43_008
    for key, line in (("token", over.token), ("prefill", over.mean)):
        at = ceil(getattr(over.crossing, key))
        below = [y for t, y in zip(over.contexts, line, strict=True) if t < at]
        above = [y for t, y in zip(over.contexts, line, strict=True) if t > at + 1]
        assert max(below) < over.mlp < min(above)


def test_the_axis_reaches_past_the_crossings_and_the_models_own_limit() -> None:
    for name in ("llama-3-8b", "gpt2", "deepseek-v3"):
        spec = presets.spec(name)
        at = contexts(spec)
        assert list(at) == sorted(set(at))
        assert at[0] == 64
        assert at[-1] >= 2 * (spec.max_position_embeddings or 0)


def test_logits_of_every_position_grow_and_those_of_the_last_do_not() -> None:
    spec = presets.spec("llama-3-8b")
    short, long = (memory_at(spec, work_of(spec, t, 1, "bf16")) for t in (1024, 4096))
    assert short["logits_last"].value == long["logits_last"].value
    assert long["logits_all"].value > 3.9 * short["logits_all"].value


def test_an_encoders_tokens_see_everything() -> None:
    over = flops_over_context(presets.spec("bert-base"))
    assert over.mean == over.token
    assert list(over.figures()) == ["crossover.token"]
