"""Whole answers of a tiny model: streams, stops, sessions, batches, and what is refused before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import gateup
from gateup.engine.generate import Engine, load
from gateup.errors import InputError, UsageError
from tests.engine.models import random_model, saved
from tests.engine.test_tokenizer import write_tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }}|{% endfor %}"
    "{% if tools %}{{ tools | length }}{% endif %}{% if add_generation_prompt %}a{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = saved(random_model("llama"), tmp_path_factory.mktemp("hub"))
    (folder / "generation_config.json").unlink(missing_ok=True)
    write_tokenizer(folder, chat_template=TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    loaded = gateup.load(folder)
    assert isinstance(loaded, Engine)
    return loaded


def test_greedy_text_is_the_argmax_of_the_logits(engine: Engine) -> None:
    stream = engine.stream("once upon", max_tokens=12)
    text = "".join(stream)
    ids = engine.tokens("once upon")
    for token in stream.ids:
        assert token == int(engine.logits(ids)[-1].argmax())
        ids.append(token)
    assert (
        text == engine.tokenizer.decode(stream.ids) == engine.generate("once upon", max_tokens=12)
    )
    assert stream.reason == ("end" if stream.ids[-1] in engine.tokenizer.stop_ids else "length")
    assert (stream.stats.prompt_tokens, stream.stats.new_tokens) == (9, len(stream.ids))


def test_an_end_token_ends_the_answer(engine: Engine) -> None:
    whole = engine.stream("xyz", max_tokens=8, temperature=1.0, seed=4)
    text = "".join(whole)
    stop = whole.ids[3]
    ended = Engine(
        engine.checkpoint,
        engine.decoder,
        type(engine.tokenizer)(engine.tokenizer.core, frozenset({stop})),
        engine.context,
    ).stream("xyz", max_tokens=8, temperature=1.0, seed=4)
    assert "".join(ended) == text[: whole.ids.index(stop)]
    assert ended.reason == "end"


def test_a_stop_text_ends_it_and_is_left_out(engine: Engine) -> None:
    text = engine.generate("xyz", max_tokens=12, temperature=1.0, seed=4)
    stop = text[5:8]
    stream = engine.stream("xyz", max_tokens=12, temperature=1.0, seed=4, stop=stop)
    assert "".join(stream) == text[: text.index(stop)]
    assert stream.reason == "stop"


def test_messages_go_through_the_template(engine: Engine) -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert engine.tokenizer.decode(engine.tokens(messages)) == "uhi|a"
    assert engine.tokenizer.decode(engine.tokens(messages, tools=[{}, {}])) == "uhi|2a"


def test_a_session_reuses_what_is_the_same(engine: Engine) -> None:
    session = engine.session()
    first = engine.stream("abcdefgh", max_tokens=4, session=session)
    said = "".join(first)
    follow = "abcdefgh" + said + "ij"
    again = engine.stream(follow, max_tokens=4, session=session)
    assert "".join(again) == engine.generate(follow, max_tokens=4)
    assert again.stats.reused == 8 + len(first.ids) - 1  # the last token was never computed
    other = engine.stream("abX", max_tokens=4, session=session)
    assert "".join(other) == engine.generate("abX", max_tokens=4)
    assert other.stats.reused == 2


def test_an_answer_that_was_broken_off_leaves_a_whole_session(engine: Engine) -> None:
    session = engine.session()
    stream = engine.stream("abc", max_tokens=9, session=session)
    next(stream)
    del stream
    assert "".join(engine.stream("abc", max_tokens=9, session=session)) == engine.generate(
        "abc", max_tokens=9
    )


def test_a_batch_is_its_answers_one_by_one(engine: Engine) -> None:
    prompts = ["a", "bcdefg hij", "kl"]
    for options in ({}, {"temperature": 0.8, "seed": 5}, {"stop": ["e", "a"]}):
        together = engine.generate_many(prompts, max_tokens=7, **options)
        assert together == [engine.generate(p, max_tokens=7, **options) for p in prompts]
    assert engine.generate_many([]) == []


def test_logits_of_a_text(engine: Engine) -> None:
    ids = engine.tokens("abcdef")
    found = engine.logits(ids)
    assert found.shape == (6, 96)
    torch.testing.assert_close(found[:3], engine.logits(ids[:3]), rtol=1e-3, atol=1e-3)
    with pytest.raises(UsageError, match="0 tokens"):
        engine.logits([])


# ---- refused before anything is computed ---------------------------------------------------------


class _NoDecoder:
    """Fails the test where a refusal comes too late."""

    name = "none"

    def __init__(self, engine: Engine) -> None:
        self.config, self.weights = engine.decoder.config, engine.decoder.weights

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        raise AssertionError("work has started")


@pytest.mark.parametrize(
    ("prompt", "options", "says"),
    [
        ("x" * 64, {}, "the prompt has 64 tokens; the context is 64"),
        ("x" * 60, {"max_tokens": 5}, "the prompt has 60 tokens and 5 for the answer"),
        ("x", {"max_tokens": 0}, "max_tokens is 0"),
        ("", {}, "the prompt has no tokens"),
        ("x", {"temprature": 1.0}, "unknown option 'temprature'"),
        ("x", {"top_p": 2.0}, "top_p is 2.0"),
    ],
)
def test_requests_that_cannot_be_met(
    engine: Engine, prompt: str, options: dict[str, Any], says: str
) -> None:
    idle = Engine(engine.checkpoint, _NoDecoder(engine), engine.tokenizer, engine.context)
    with pytest.raises(UsageError) as raised:
        idle.stream(prompt, **options)
    assert says in str(raised.value)


def test_no_template_is_said_so(engine: Engine) -> None:
    bare = type(engine.tokenizer)(engine.tokenizer.core, frozenset())
    idle = Engine(engine.checkpoint, _NoDecoder(engine), bare, 64)
    with pytest.raises(InputError, match="the model has no chat template"):
        idle.generate([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(("ctx", "says"), [(0, "a context of 0 tokens"), (65, "from 1 to 64")])
def test_contexts_that_the_model_was_not_made_for(folder: Path, ctx: int, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        load(folder, ctx=ctx)
    assert says in str(raised.value)


def test_a_model_larger_than_the_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateup.account.machine import Machine

    monkeypatch.setattr("gateup.engine.generate.probe", lambda: Machine("small", 1, 10_000, 10_000))
    with pytest.raises(UsageError) as raised:
        load(folder)
    assert "does not fit: its weights take" in str(raised.value)
    assert "a smaller --ctx" in str(raised.value)


def test_weights_that_are_no_numbers_are_named(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    state = load_file(tmp_path / "model.safetensors")
    state["model.layers.1.mlp.down_proj.weight"][3, 5] = float("nan")
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(InputError) as raised:
        load(tmp_path).generate("abc")
    assert "model.layers.1.mlp.down_proj has values that are not finite" in str(raised.value)


def test_a_tokenizer_that_gives_tokens_the_model_has_not(engine: Engine) -> None:
    """Added tokens may lie beyond the embeddings, as long as no text has them."""
    import tokenizers

    core = tokenizers.Tokenizer.from_str(engine.tokenizer.core.to_str())
    core.add_tokens(["[new]"])
    wider = type(engine.tokenizer)(core, frozenset())
    idle = Engine(engine.checkpoint, _NoDecoder(engine), wider, 64)
    with pytest.raises(InputError) as raised:
        idle.generate("a[new]")
    assert "the tokenizer gives token 96, the model embeds 96" in str(raised.value)
