"""An engine used in ways that it was not: by several threads, with others' sessions, with values
that its cache cannot hold, with arguments of other types."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from gateup.engine.generate import Engine, load
from gateup.errors import InputError, UsageError
from tests.engine.models import random_model, saved
from tests.engine.test_tokenizer import write_tokenizer

TEXTS = ["abcdef", "the quick", "zyx", "once upon a time"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = saved(random_model("llama"), tmp_path_factory.mktemp("hub"))
    (folder / "generation_config.json").unlink(missing_ok=True)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return load(folder)


def test_threads_get_the_texts_that_they_would_get_alone(engine: Engine) -> None:
    alone = [engine.generate(t, max_tokens=24) for t in TEXTS]
    with ThreadPoolExecutor(len(TEXTS)) as pool:
        for _ in range(8):
            assert list(pool.map(lambda t: engine.generate(t, max_tokens=24), TEXTS)) == alone


def test_two_answers_at_once_from_one_session(engine: Engine) -> None:
    session = engine.session()
    first = engine.stream("abcdef", max_tokens=9, session=session)
    next(first)
    assert "".join(engine.stream("zyx", max_tokens=3, session=session)) == engine.generate(
        "zyx", max_tokens=3
    )
    with pytest.raises(UsageError, match="another answer was begun with this session"):
        list(first)


def test_the_session_of_another_model(engine: Engine, folder: Path) -> None:
    with pytest.raises(UsageError, match="the session is another model's"):
        engine.stream("abc", session=load(folder).session())


def copy_of(folder: Path, to: Path) -> Path:
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def test_values_that_float16_cannot_hold(folder: Path, tmp_path: Path) -> None:
    """v is 10^6 times as large, o as much smaller: the same model in exact numbers."""
    big = copy_of(folder, tmp_path)
    state = load_file(big / "model.safetensors")
    for i in range(3):
        state[f"model.layers.{i}.self_attn.v_proj.weight"] *= 1e6
        state[f"model.layers.{i}.self_attn.v_proj.bias"] *= 1e6
        state[f"model.layers.{i}.self_attn.o_proj.weight"] /= 1e6
    save_file(state, big / "model.safetensors")
    with pytest.raises(InputError) as raised:
        load(big).generate("abcdef", max_tokens=3)
    assert "beyond 65,504, where float16 ends" in str(raised.value)
    assert "--cache-type float32" in str(raised.value)
    with pytest.raises(InputError, match="float16 ends"):
        load(big).logits([5, 6, 7])
    exact = load(folder, cache_type="float32").generate("abcdef", max_tokens=12)
    assert load(big, cache_type="float32").generate("abcdef", max_tokens=12) == exact


def test_layers_that_the_config_does_not_count(folder: Path, tmp_path: Path) -> None:
    cut = copy_of(folder, tmp_path)
    config = json.loads((cut / "config.json").read_text())
    (cut / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(InputError, match="layers beyond"):
        load(cut)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("ctx", 2.5),
        ("ctx", True),
        ("ctx", "5"),
        ("threads", 1.5),
        ("cache_type", "int8"),
        ("activations", []),
    ],
)
def test_options_of_load(folder: Path, option: str, value: Any) -> None:
    with pytest.raises(UsageError, match=re.escape(repr(value))):
        load(folder, **{option: value})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_tokens", 2.5),
        ("max_tokens", "5"),
        ("seed", 1.5),
        ("top_k", 1.5),
        ("top_p", None),
        ("temperature", "hot"),
        ("stop", None),
        ("stop", 5),
        ("stop", [5]),
    ],
)
def test_options_of_an_answer(engine: Engine, option: str, value: Any) -> None:
    with pytest.raises(UsageError, match=option) as raised:
        engine.generate("abc", **{option: value})
    assert repr(value).strip("[]") in str(raised.value)


@pytest.mark.parametrize("prompt", [b"abc", ["hi"], {"role": "user"}, [{"role": "user"}], 5])
def test_prompts_that_are_none(engine: Engine, prompt: Any) -> None:
    with pytest.raises(UsageError, match="prompt"):
        engine.generate(prompt)


def test_logits_of_what_are_no_tokens(engine: Engine) -> None:
    with pytest.raises(UsageError, match="whole numbers"):
        engine.logits([1.5])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="whole numbers"):
        engine.logits(["a"])  # type: ignore[list-item]


def test_infinities_that_were_never_written(engine: Engine) -> None:
    cache = engine.decoder.new_cache(20, batch=2)
    for part in cache.keys + cache.values:
        part.fill_(float("inf"))
    assert not cache.overflows()
    cache.lengths[1] = 1
    assert cache.overflows()
