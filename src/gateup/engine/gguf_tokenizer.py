"""A tokenizer from a GGUF's metadata (tokenizer.ggml.*), as the model's own tokenizer.json is.

Two kinds: "gpt2", byte-level BPE whose rule for cutting text into words is named by
tokenizer.ggml.pre, and "llama", SentencePiece BPE with bytes for what it has no piece for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gateup.errors import HeaderError
from gateup.files.gguf_arrays import read_array
from gateup.files.header import clip
from gateup.model.config import Config

if TYPE_CHECKING:
    import tokenizers

HEAD = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASH_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_ENDINGS}|{_WORD}|\p{{N}}|{_TAIL}"
_GPT4O = (
    rf"{_UPPER}*{_LOWER}+{_ENDINGS}?|{_UPPER}+{_LOWER}*{_ENDINGS}?|\p{{N}}{{1,3}}|{_SLASH_TAIL}"
)
_TEKKEN = rf"{_UPPER}*{_LOWER}+|{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASH_TAIL}"

# tokenizer.ggml.pre -> the expression that cuts words; "" is GPT-2's own, and "digits" GPT-2's
# after each digit was cut off. [source: the models' tokenizer.json]
WORDS: Mapping[str, str] = {
    "gpt-2": "",
    "phi-2": "",
    "smollm": "digits",
    "starcoder": "digits",
    "refact": "digits",
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "dbrx": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "gpt-4o": _GPT4O,
    "tekken": _TEKKEN,
}
# Whole words that are in the vocabulary are taken as they are, whatever the merges make of them.
_WHOLE = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})

Parts = tuple["tokenizers.Tokenizer", dict[str, str], dict[str, str], list[int]]


def from_metadata(metadata: Mapping[str, Any], where: str) -> Parts:
    """(tokenizer, special tokens' texts, chat templates, numbers of the ending tokens).

    Raises ConfigError, HeaderError where the metadata has no tokenizer of the two kinds.
    """
    cfg = Config(metadata, where)
    kind = cfg.text(HEAD + "model")
    tokens = _array(metadata, "tokens", str, where)
    types = _array(metadata, "token_type", int, where, length=len(tokens), optional=True)
    types = types or [NORMAL] * len(tokens)
    if kind not in _KINDS:
        raise cfg.fault(HEAD + "model", kind, " or ".join(_KINDS))
    core = _KINDS[kind](metadata, tokens, types, cfg)
    strip = cfg.raw("general.architecture") == "phi3" and kind == "llama"
    _add_special(core, tokens, types, strip=strip)
    ids = {name: _token_id(cfg, name, len(tokens)) for name in _IDS}
    special = {key: tokens[n] for name, key in _IDS.items() if key and (n := ids[name]) is not None}
    _begin_and_end(core, cfg, kind, special, ids)
    ends = [n for name in ("eos", "eot", "eom") if (n := ids[name]) is not None]
    return core, special, _templates(metadata), ends


# Name in tokenizer.ggml.<name>_token_id -> name in templates.
_IDS = {
    "bos": "bos_token",
    "eos": "eos_token",
    "padding": "pad_token",
    "unknown": "unk_token",
    "eot": "",
    "eom": "",
}


def _array(
    metadata: Mapping[str, Any],
    name: str,
    kind: type,
    where: str,
    *,
    length: int | None = None,
    optional: bool = False,
) -> list[Any]:
    """A checked array of the tokenizer's; [] where it may be absent and is."""
    key = HEAD + name
    values = read_array(metadata, key)
    if values is None:
        if optional:
            return []
        raise HeaderError(
            f"{key} is missing",
            where=where,
            remedy="the file has no tokenizer: convert the model again with its tokenizer's files",
        )
    if length is not None and len(values) != length:
        raise HeaderError(
            f"{key} has {len(values):,} elements",
            where=where,
            expected=f"{length:,}, one per token",
        )
    for i, value in enumerate(values):
        if not isinstance(value, kind):
            raise HeaderError(
                f"{key}[{i}] is {clip(value)}", where=where, expected=f"a {kind.__name__}"
            )
    return values


def _token_id(cfg: Config, name: str, size: int) -> int | None:
    key = f"{HEAD}{name}_token_id"
    found: int | None = cfg.integer(key, default=None, low=0, high=size - 1)
    return found


def _numbered(tokens: Sequence[str], where: str) -> dict[str, int]:
    """token -> number; a token that occurs twice is refused."""
    vocab: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if vocab.setdefault(token, i) != i:
            raise HeaderError(
                f"token {clip(token)} has two numbers, {vocab[token]:,} and {i:,}",
                where=f"{where}, key {HEAD}tokens",
            )
    return vocab


def _byte_level(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int], cfg: Config
) -> tokenizers.Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    del types
    pre = cfg.text(HEAD + "pre", default=_unnamed(metadata, len(tokens)))
    if pre not in WORDS:
        raise cfg.fault(HEAD + "pre", pre, "one of " + ", ".join(WORDS))
    vocab = _numbered(tokens, cfg.where)
    core = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_merges(metadata, vocab, cfg.where),
            ignore_merges=pre in _WHOLE,
        )
    )
    expression = WORDS[pre]
    plain = pre_tokenizers.ByteLevel(
        add_prefix_space=bool(cfg.flag(HEAD + "add_space_prefix", default=False)),
        use_regex=expression in ("", "digits"),
    )
    if expression == "digits":
        first: Any = pre_tokenizers.Digits(individual_digits=True)
    else:
        first = pre_tokenizers.Split(Regex(expression), "isolated") if expression else None
    core.pre_tokenizer = pre_tokenizers.Sequence([first, plain]) if first else plain
    core.decoder = decoders.ByteLevel()
    if expression == _QWEN2:
        core.normalizer = normalizers.NFC()
    return core


def _unnamed(metadata: Mapping[str, Any], size: int) -> str:
    """The rule of files from before April 2024, which do not name it."""
    if str(metadata.get("general.architecture")).startswith("qwen"):
        return "qwen2"
    return "llama-bpe" if size >= 128_000 else "gpt-2"


def _merges(
    metadata: Mapping[str, Any], vocab: Mapping[str, int], where: str
) -> list[tuple[str, str]]:
    out = []
    for i, merge in enumerate(_array(metadata, "merges", str, where)):
        left, _, right = merge.partition(" ")
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise HeaderError(
                f"merge {i:,} is {clip(merge)}",
                where=f"{where}, key {HEAD}merges",
                expected="two tokens of the vocabulary whose join is one too",
            )
        out.append((left, right))
    return out


def _sentencepiece(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int], cfg: Config
) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = _array(metadata, "scores", float, cfg.where, length=len(tokens))
    vocab = _numbered(tokens, cfg.where)
    unknown = next((t for t, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    core = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_scored_merges(vocab, scores, types),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=BYTE in types,
        )
    )
    prefix = cfg.flag(HEAD + "add_space_prefix", default=True)
    steps: list[Any] = [normalizers.Prepend("▁")] if prefix else []
    core.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    strip: list[Any] = [decoders.Strip(" ", 1, 0)] if prefix else []
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return core


def _scored_merges(
    vocab: Mapping[str, int], scores: Sequence[float], types: Sequence[int]
) -> list[tuple[str, str]]:
    """Every way to make a piece of two, in the order SentencePiece would: best score first."""
    found: list[tuple[float, int, int, tuple[str, str]]] = []
    for piece, n in vocab.items():
        if types[n] not in (NORMAL, USER_DEFINED, UNUSED):
            continue
        score = -scores[n]
        for cut in range(1, len(piece)):
            left, right = vocab.get(piece[:cut]), vocab.get(piece[cut:])
            if left is not None and right is not None:
                found.append((score, left, right, (piece[:cut], piece[cut:])))
    found.sort()
    return [pair for _, _, _, pair in found]


_KINDS: Mapping[str, Callable[..., tokenizers.Tokenizer]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
}


# Special tokens of Phi-3 that leave the spaces behind them alone.
_UNSTRIPPED = frozenset({"<unk>", "<s>", "<|endoftext|>"})


def _add_special(
    core: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int], *, strip: bool
) -> None:
    """Control tokens are special; user-defined ones are cut out of the text first as well.

    strip  special tokens take the spaces and newlines behind them (Phi-3)
    """
    from tokenizers import AddedToken

    special, plain = [], []
    for text, kind in zip(tokens, types, strict=True):
        if kind in (CONTROL, UNKNOWN) and text:
            right = strip and text not in _UNSTRIPPED
            special.append(AddedToken(text, normalized=False, special=True, rstrip=right))
        elif kind == USER_DEFINED and text:
            plain.append(AddedToken(text, normalized=False, special=False))
    core.add_special_tokens(special)
    core.add_tokens(plain)


def _begin_and_end(
    core: tokenizers.Tokenizer,
    cfg: Config,
    kind: str,
    special: Mapping[str, str],
    ids: Mapping[str, int | None],
) -> None:
    """BOS before a text, EOS after it, where the file says so (SentencePiece: BOS by default)."""
    from tokenizers.processors import TemplateProcessing

    pre = cfg.text(HEAD + "pre", default="")
    by_default = kind == "llama" or pre in _WHOLE
    begin = cfg.flag(HEAD + "add_bos_token", default=by_default) and "bos_token" in special
    end = cfg.flag(HEAD + "add_eos_token", default=False) and "eos_token" in special
    first = [(special["bos_token"], ids["bos"])] if begin else []
    last = [(special["eos_token"], ids["eos"])] if end else []
    if first or last:
        core.post_processor = TemplateProcessing(
            single=[*(t for t, _ in first), "$A", *(t for t, _ in last)],
            special_tokens=[(t, n) for t, n in (*first, *last) if n is not None],
        )


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """tokenizer.chat_template, and tokenizer.chat_template.<name>."""
    head = "tokenizer.chat_template"
    return {
        key.removeprefix(head).removeprefix(".") or "default": value
        for key, value in metadata.items()
        if isinstance(value, str) and (key == head or key.startswith(head + "."))
    }
