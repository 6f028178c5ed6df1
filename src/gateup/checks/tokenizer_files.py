"""A tokenizer's files: how many entries it has and its special tokens, read with size limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateup.errors import ConfigError, InputError
from gateup.files.config_json import read_json
from gateup.files.folder import names_in
from gateup.files.header import clip
from gateup.model.config import MAX_DIM

# Gemma 3's tokenizer.json has 33 MB; the largest known stay under 40.
MAX_TOKENIZER_BYTES = 96 << 20
FILES = ("tokenizer.json", "vocab.json", "added_tokens.json", "tokenizer_config.json")
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True)
class TokenizerInfo:
    """A tokenizer as its files describe it.

    path      the folder, or the GGUF that holds it
    size      entries, added tokens included: len(tokenizer)
    highest   the largest id; an embedding needs highest + 1 rows
    added     added tokens -> id
    special   "eos_token" -> its text, as tokenizer_config.json says
    ids       "eos_token" -> its id, where one is known
    config    tokenizer_config.json, raw
    source    the files the size comes from: "tokenizer.json"
    """

    path: Path
    size: int
    highest: int
    added: Mapping[str, int] = field(default_factory=dict)
    special: Mapping[str, str] = field(default_factory=dict)
    ids: Mapping[str, int] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""


def find_tokenizer(folder: Path) -> TokenizerInfo | None:
    """The tokenizer in a folder; None where no file says how many entries it has.

    Raises InputError, ConfigError for files that are there and cannot be read.
    """
    names = [n for n in names_in(folder) if n in FILES]
    if "tokenizer.json" not in names and "vocab.json" not in names:
        return None
    config = read_json(folder / FILES[3]) if FILES[3] in names else {}
    if "tokenizer.json" in names:
        source = folder / "tokenizer.json"
        vocab, added = _fast(source)
    else:
        source = folder / "vocab.json"
        vocab, added = _ids(read_json(source, max_bytes=MAX_TOKENIZER_BYTES), str(source)), {}
    used = [source.name]
    more: dict[str, int] = {}
    if "tokenizer.json" not in names and "added_tokens.json" in names:
        more = _ids(read_json(folder / FILES[2], max_bytes=MAX_TOKENIZER_BYTES), FILES[2])
        used.append(FILES[2])
    written = _decoder(config, str(folder / FILES[3]))
    if set(written) - set(vocab) - set(added) - set(more):
        used.append(FILES[3])
    added = {**added, **more, **written}
    ids = {**vocab, **added}
    if not ids:
        raise ConfigError(f"{source.name} has no entries", where=str(source))
    special = _special(config)
    return TokenizerInfo(
        path=folder,
        size=len(ids),
        highest=max(ids.values()),
        added=added,
        special=special,
        ids={key: ids[text] for key, text in special.items() if text in ids},
        config=config,
        source=", ".join(used),
    )


def read_tokenizer(path: Path) -> TokenizerInfo:
    """The tokenizer in a folder, or beside a file of it that was named. Raises InputError."""
    folder = path if path.is_dir() else path.parent
    if not path.exists():
        raise InputError("there is no such tokenizer folder", where=str(path))
    found = find_tokenizer(folder)
    if found is None:
        raise InputError(
            "the folder holds no tokenizer whose size can be read",
            where=str(folder),
            expected="tokenizer.json, or vocab.json with added_tokens.json",
            remedy="write it with AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)",
        )
    return found


def _fast(path: Path) -> tuple[dict[str, int], dict[str, int]]:
    """(vocabulary, added tokens) of a tokenizer.json."""
    data = read_json(path, max_bytes=MAX_TOKENIZER_BYTES)
    model = data.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    where = f"{path}, field model.vocab"
    if isinstance(vocab, list):  # unigram: [piece, score] in the order of their ids
        pieces = {}
        for i, entry in enumerate(vocab):
            if not isinstance(entry, list) or not entry or not isinstance(entry[0], str):
                raise ConfigError(
                    f"entry {i} is {clip(entry)}", where=where, expected="[piece, score]"
                )
            pieces[entry[0]] = i
        ids = pieces
    else:
        ids = _ids(vocab, where)
    entries = data.get("added_tokens") or []
    if not isinstance(entries, list):
        raise ConfigError(
            f"added_tokens is {clip(entries)}", where=str(path), expected="a list of objects"
        )
    added = {}
    for entry in entries:
        content = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(content, str):
            raise ConfigError(
                f"an added token is {clip(entry)}",
                where=f"{path}, field added_tokens",
                expected="an object with id and content",
            )
        added[content] = _id(entry.get("id"), f"{path}, added token {clip(content)}")
    return ids, added


def _ids(value: object, where: str) -> dict[str, int]:
    if not isinstance(value, dict):
        raise ConfigError(
            f"the vocabulary is {clip(value)}", where=where, expected="an object: token -> id"
        )
    for token, number in value.items():
        if type(number) is not int or not 0 <= number < MAX_DIM:
            _id(number, f"{where}, token {clip(token)}")
    return value


def _id(value: object, where: str) -> int:
    if type(value) is not int or not 0 <= value < MAX_DIM:
        raise ConfigError(
            f"the id is {clip(value)}", where=where, expected=f"a whole number below {MAX_DIM:,}"
        )
    return value


def _decoder(config: Mapping[str, Any], where: str) -> dict[str, int]:
    """added_tokens_decoder: {"151643": {"content": "<|endoftext|>"}}."""
    entries = config.get("added_tokens_decoder")
    if not isinstance(entries, dict):
        return {}
    out = {}
    for number, entry in entries.items():
        content = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(content, str) or not number.isdecimal() or len(number) > 9:
            raise ConfigError(
                f"the added token {clip(number)} is {clip(entry)}",
                where=f"{where}, field added_tokens_decoder",
                expected='an id with {"content": text}',
            )
        out[content] = _id(int(number), where)
    return out


def _special(config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens as text; older files write an object with the text inside."""
    out = {}
    for key in SPECIAL:
        value = config.get(key)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            out[key] = value
    return out
