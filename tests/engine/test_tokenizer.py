"""Token numbers and texts are those of transformers, for the real vocabulary and made-up ones."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from gateup.engine.gguf_tokenizer import from_metadata
from gateup.engine.tokenizer import Tokenizer, load_tokenizer
from gateup.errors import ConfigError, GateupError, HeaderError, InputError
from gateup.files.checkpoint import open_model
from tests.engine.models import random_model, saved

TRICKY = (
    "Hello world",
    "  two  spaces\n\n\tand a tab ",
    "émoji 😀👩‍👩‍👧 漢字かな 한국어 ɐʇ",
    "def f(x):\n    return x**2 + 12345.678  # 3rd\n",
    "<|im_start|>user\nHi<|im_end|>\n",
    "<|im_start|>  spaced  <|im_end|>x",
    "it's we'll I'M don't",
    "no\u00a0break zero\u200bwidth\r\n\r\nlines",
    "…“quotes” — dash, ﬁ Ünïcödé",
    "",
    "\n",
    "\ufffd\u0000\u0007",
)


@pytest.fixture(scope="module")
def demo(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(open_model(smollm2_gguf))


def test_the_demo_model_s_is_transformers_s(demo: Tokenizer, smollm2_gguf: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name)
    for text in TRICKY:
        ids = demo.encode(text)
        assert ids == theirs.encode(text), text
        for special in (False, True):
            assert demo.decode(ids, special=special) == theirs.decode(
                ids, skip_special_tokens=not special
            )
    assert demo.stop_ids == {0, 2}
    assert demo.special["bos_token"] == "<|im_start|>"


def test_half_characters_are_an_error(demo: Tokenizer) -> None:
    with pytest.raises(InputError) as raised:
        demo.encode("é\ud800")
    assert "the text has U+D800 at character 1, which is none" in str(raised.value)


def test_digits_stand_alone_as_in_the_model_s_own_file(demo: Tokenizer) -> None:
    """SmolLM2's tokenizer.json cuts off each digit, fractions too; transformers' conversion of the
    GGUF does not, llama.cpp does (\\p{N})."""
    assert [demo.decode([i]) for i in demo.encode(" ½ 12")] == [" ", "½", " ", "1", "2"]


@pytest.mark.parametrize("text", TRICKY)
def test_text_streams_in_whole_characters(demo: Tokenizer, text: str) -> None:
    ids = demo.encode(text)
    stream = demo.stream()
    parts = [stream.push(i) for i in ids]
    assert "".join(parts) + stream.finish() == demo.decode(ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in parts)


def test_a_character_cut_off_at_the_end_shows(demo: Tokenizer) -> None:
    ids = demo.encode("x 😀")
    stream = demo.stream()
    assert "".join(stream.push(i) for i in ids[:-1]).rstrip(" ") == "x"
    assert stream.finish().endswith("\ufffd")


# ---- SentencePiece -------------------------------------------------------------------------------


def sentencepiece(prefix: bool = True, **changes: Any) -> dict[str, Any]:
    """Metadata of a random vocabulary: bytes, letters, and 300 pieces that grow from pairs."""
    rng = random.Random(5)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    types = [2, 3, 3, *[6] * 256]
    pieces = [*"▁abcdefgh", *"éß漢"]
    while len(pieces) < 300:
        new = rng.choice(pieces) + rng.choice(pieces)
        if len(new) <= 8 and new not in pieces:
            pieces.append(new)
    tokens += pieces
    types += [1] * len(pieces)
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces))]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": prefix,
        **changes,
    }


def greedy(text: str, metadata: dict[str, Any]) -> list[int]:
    """SentencePiece's own rule, word for word: merge the adjacent pair of best score until none."""
    tokens = metadata["tokenizer.ggml.tokens"]
    scores = metadata["tokenizer.ggml.scores"]
    number = {t: i for i, t in enumerate(tokens)}
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [
            (-scores[number[a + b]], i)
            for i, (a, b) in enumerate(pairwise(parts))
            if a + b in number
        ]
        if not pairs:
            break
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    out: list[int] = []
    for part in parts:
        known = number.get(part)
        out += [known] if known is not None else [3 + b for b in part.encode()]
    return out


def test_sentencepiece_merges_by_score() -> None:
    metadata = sentencepiece()
    core, special, _, ends = from_metadata(metadata, "made up")
    rng = random.Random(6)
    for _ in range(200):
        text = "".join(rng.choice("abcdefgh  éß漢x😀") for _ in range(rng.randrange(1, 30)))
        assert core.encode(text).ids == [1, *greedy(text, metadata)], text
        assert core.decode(core.encode(text).ids, skip_special_tokens=True) == text
    assert (special["bos_token"], ends) == ("<s>", [2])


def test_no_space_in_front_where_the_file_says_so() -> None:
    core = from_metadata(sentencepiece(prefix=False), "made up")[0]
    assert core.encode("a").tokens == ["<s>", "a"]
    assert core.decode(core.encode(" a").ids, skip_special_tokens=True) == " a"


# ---- byte-level rules ----------------------------------------------------------------------------


def byte_level(pre: str | None, **changes: Any) -> dict[str, Any]:
    """Metadata with the 256 bytes and no merge but one."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, "ab", "<|x|>", "<custom>"]
    named = {} if pre is None else {"tokenizer.ggml.pre": pre}
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*[1] * 257, 3, 4],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 257,
        **named,
        **changes,
    }


def words(pre: str | None, text: str, **changes: Any) -> list[str]:
    core = from_metadata(byte_level(pre, **changes), "made up")[0]
    return [text[a:b] for _, (a, b) in core.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "cut"),
    [
        ("gpt-2", ["I", "'ll", " pay", " $", "1234", "\n", "\n", "OK"]),
        ("smollm", ["I", "'ll", " pay", " $", "1", "2", "3", "4", "\n", "\n", "OK"]),
        ("llama-bpe", ["I", "'ll", " pay", " $", "123", "4", "\n\n", "OK"]),
        ("qwen2", ["I", "'ll", " pay", " $", "1", "2", "3", "4", "\n\n", "OK"]),
        ("gpt-4o", ["I'll", " pay", " $", "123", "4", "\n\n", "OK"]),
        ("tekken", ["I", "'ll", " pay", " $", "1", "2", "3", "4", "\n\n", "OK"]),
    ],
)
def test_words_are_cut_by_the_rule_that_is_named(pre: str, cut: list[str]) -> None:
    assert words(pre, "I'll pay $1234\n\nOK") == cut


def test_a_file_that_names_no_rule() -> None:
    assert words(None, "12") == ["12"]
    assert words(None, "12", **{"general.architecture": "qwen2"}) == ["1", "2"]


def test_bos_where_the_file_or_the_rule_says_so() -> None:
    def ids(pre: str, **changes: Any) -> list[int]:
        found: list[int] = from_metadata(byte_level(pre, **changes), "made up")[0].encode("ab").ids
        return found

    flag = "tokenizer.ggml.add_bos_token"
    assert ids("gpt-2") == [256]
    assert ids("gpt-2", **{flag: True}) == [257, 256]
    assert ids("llama-bpe") == [257, 256]
    assert ids("llama-bpe", **{flag: False}) == [256]


def test_special_and_custom_tokens_are_taken_whole() -> None:
    core = from_metadata(byte_level("gpt-2"), "made up")[0]
    assert core.encode("ab<|x|>ab<custom>").ids == [256, 257, 256, 258]
    assert core.decode([256, 257, 258], skip_special_tokens=True) == "ab<custom>"


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"tokenizer.ggml.pre": "klingon"}, ConfigError, "tokenizer.ggml.pre is 'klingon'"),
        ({"tokenizer.ggml.model": "t5"}, ConfigError, "expected: gpt2 or llama"),
        ({"tokenizer.ggml.tokens": None}, HeaderError, "tokenizer.ggml.tokens is missing"),
        ({"tokenizer.ggml.token_type": [1]}, HeaderError, "has 1 elements"),
        ({"tokenizer.ggml.tokens": [5]}, HeaderError, "tokenizer.ggml.tokens[0] is 5"),
        ({"tokenizer.ggml.merges": ["a z9"]}, HeaderError, "merge 0 is 'a z9'"),
        ({"tokenizer.ggml.bos_token_id": 259}, ConfigError, "bos_token_id is 259"),
    ],
)
def test_metadata_that_makes_no_tokenizer(
    changes: dict[str, Any], error: type[GateupError], says: str
) -> None:
    with pytest.raises(error) as raised:
        from_metadata(byte_level("gpt-2", **changes), "made up")
    assert says in str(raised.value)


# ---- tokenizer.json ------------------------------------------------------------------------------


def write_tokenizer(folder: Path, extra: int = 0, **settings: Any) -> None:
    """95 printable characters and "</s>": 96 tokens, as the tiny models have."""
    vocab = {chr(32 + i): i for i in range(95)} | {"</s>": 95}
    vocab |= {f"extra{i}": 96 + i for i in range(extra)}
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    core.decoder = tokenizers.decoders.Fuse()
    core.add_special_tokens(["</s>"])
    PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", **settings).save_pretrained(
        folder
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(random_model("llama"), tmp_path_factory.mktemp("hub"))


def test_from_tokenizer_json(model: Path) -> None:
    write_tokenizer(model, chat_template="{{ messages }}")
    (model / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    found = load_tokenizer(open_model(model))
    assert found.decode(found.encode("ab c</s>")) == "ab c"
    assert found.stop_ids == {2, 7, 9, 95}  # config.json's eos_token_id is 2
    assert found.templates == {"default": "{{ messages }}"}
    assert found.special["eos_token"] == "</s>"
    (model / "chat_template.jinja").write_text("other")
    assert load_tokenizer(open_model(model)).templates == {"default": "other"}


def test_templates_by_name(model: Path) -> None:
    write_tokenizer(model)
    (model / "chat_template.jinja").unlink(missing_ok=True)
    file = model / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    file.write_text(json.dumps({**settings, "chat_template": named}))
    assert load_tokenizer(open_model(model)).templates == {"default": "a", "tool_use": "b"}


def test_a_tokenizer_of_another_model(model: Path) -> None:
    write_tokenizer(model, extra=4)
    with pytest.raises(InputError) as raised:
        load_tokenizer(open_model(model))
    assert "the tokenizer has tokens up to 99, the model embeds 96" in str(raised.value)


def test_no_tokenizer_and_a_broken_one(model: Path) -> None:
    (model / "tokenizer.json").write_text('{"model": 5}')
    with pytest.raises(InputError, match=r"tokenizer.json cannot be read") as raised:
        load_tokenizer(open_model(model))
    assert str(raised.value.remedy).startswith("fetch tokenizer.json again")
    (model / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="there is no tokenizer beside the model"):
        load_tokenizer(open_model(model))
