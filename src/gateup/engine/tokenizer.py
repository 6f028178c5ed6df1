"""Text to token numbers and back, from a GGUF's metadata or from tokenizer.json.

Both end in a `tokenizers.Tokenizer`; what is added here is which tokens end an answer, the chat
templates, and text that streams out in whole characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateup.engine.gguf_tokenizer import from_metadata
from gateup.errors import InputError
from gateup.files.checkpoint import Checkpoint
from gateup.files.config_json import read_json
from gateup.files.header import clip
from gateup.model.config import whole

if TYPE_CHECKING:
    import tokenizers

MAX_TOKENIZER_BYTES = 256 << 20  # Gemma 3's tokenizer.json has 33 MB
MAX_SETTINGS_BYTES = 32 << 20  # Gemma 3's tokenizer_config.json has 1.2 MB
MAX_TEMPLATE_BYTES = 1 << 20
_REPLACEMENT = "\ufffd"

# Tokens that end an answer or a turn whatever the files say: many GGUFs name one of two only.
# [source: the models' generation_config.json, llama.cpp's list of the same]
ENDS = (
    *("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>"),
    *("<end_of_turn>", "<|end_of_role|>", "</s>", "<eos>"),
)


@dataclass(frozen=True)
class Tokenizer:
    """A model's tokenizer.

    core       the library's tokenizer; its post-processor adds what a text begins with (BOS)
    stop_ids   tokens that end an answer
    special    bos_token, eos_token and the like, by their text, for templates
    templates  chat templates by name: "default", and others that the model has ("tool_use")
    """

    core: tokenizers.Tokenizer
    stop_ids: frozenset[int]
    special: Mapping[str, str] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token numbers. Special tokens' texts become these tokens, as in transformers.

        special  begin with what the model's texts begin with; a rendered chat template has it

        Raises InputError for a text that has half a character (U+D800 to U+DFFF), which Python
        makes of bytes that are not UTF-8.
        """
        try:
            text.encode()
        except UnicodeEncodeError as e:
            raise InputError(
                f"the text has U+{ord(text[e.start]):04X} at character {e.start:,}, which is none",
                expected="text that UTF-8 can hold",
            ) from None
        ids: list[int] = self.core.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of the tokens, special ones left out unless asked for."""
        text: str = self.core.decode(list(ids), skip_special_tokens=not special)
        return text

    def stream(self, *, special: bool = False) -> TextStream:
        return TextStream(self, special=special)

    @property
    def size(self) -> int:
        """One more than the largest token number."""
        return max(self.core.get_vocab(with_added_tokens=True).values(), default=-1) + 1


class TextStream:
    """Text as tokens come, never half a character: bytes wait until their character is whole."""

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        self.tokenizer = tokenizer
        self.special = special
        self.ids: list[int] = []
        self.start = 0  # of the tokens that are decoded again, for the spaces between words
        self.read = 0  # tokens whose text is out

    def push(self, token: int) -> str:
        """What the token completes; "" while a character is open."""
        self.ids.append(token)
        text = self._text(len(self.ids))
        if text.endswith(_REPLACEMENT) and len(self.ids) - self.read < 4:
            return ""
        return self._emit(text)

    def finish(self) -> str:
        """What is left: an unfinished character comes as U+FFFD."""
        return self._emit(self._text(len(self.ids)))

    def _text(self, end: int) -> str:
        return self.tokenizer.decode(self.ids[self.start : end], special=self.special)

    def _emit(self, text: str) -> str:
        known = self._text(self.read)
        new = text[len(known) :] if text.startswith(known) else ""
        if new or not text:
            self.start, self.read = self.read, len(self.ids)
        return new


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer that belongs to a model's files.

    Raises InputError where there is none, it cannot be read, or it has more tokens than the model
    has embeddings.
    """
    if checkpoint.kind == "gguf":
        core, special, templates, ends = from_metadata(checkpoint.metadata, str(checkpoint.path))
    else:
        core, special, templates, ends = _from_folder(checkpoint)
    vocab = core.get_vocab(with_added_tokens=True)
    if not vocab:
        raise InputError("the tokenizer has no tokens", where=str(checkpoint.path))
    # A few more added tokens than embeddings are common and harmless (they are never produced).
    largest = max(vocab.values())
    if core.get_vocab_size(with_added_tokens=False) > checkpoint.spec.vocab_size:
        raise InputError(
            f"the tokenizer has tokens up to {largest:,}, the model embeds "
            f"{checkpoint.spec.vocab_size:,}",
            where=str(checkpoint.path),
            remedy="use the tokenizer that belongs to the model",
        )
    stops = {vocab[t] for t in ENDS if t in vocab and _is_special(core, t)}
    return Tokenizer(core, frozenset({*ends, *stops}), special, templates)


def _is_special(core: tokenizers.Tokenizer, text: str) -> bool:
    return any(t.content == text for t in core.get_added_tokens_decoder().values())


Parts = tuple["tokenizers.Tokenizer", dict[str, str], dict[str, str], list[int]]


def _from_folder(checkpoint: Checkpoint) -> Parts:
    import tokenizers

    path = checkpoint.path
    folder = path if path is not None and path.is_dir() else path.parent if path else None
    file = folder / "tokenizer.json" if folder is not None else None
    if file is None or not file.is_file():
        raise InputError(
            "there is no tokenizer beside the model",
            where=str(folder),
            expected="tokenizer.json in the model's folder",
            remedy="fetch it with the model's files; a tokenizer.model alone is turned into it by "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
        )
    if file.stat().st_size > MAX_TOKENIZER_BYTES:
        raise InputError(
            f"tokenizer.json has {file.stat().st_size:,} bytes",
            where=str(file),
            expected=f"at most {MAX_TOKENIZER_BYTES:,}",
        )
    try:
        core = tokenizers.Tokenizer.from_file(str(file))
    except Exception as e:
        if type(e) is not Exception:  # the library raises the plain class, for anything it refuses
            raise
        what = f"tokenizer.json cannot be read: {clip(str(e), 200)}"
        raise InputError(
            what,
            where=str(file),
            expected="a file of the tokenizers library, as beside the model it came with",
            remedy="fetch tokenizer.json again; where it is whole, it may need a later version: "
            "pip install -U tokenizers",
        ) from None
    core.no_padding()
    core.no_truncation()
    settings = _optional(file.with_name("tokenizer_config.json"))
    special = {k: t for k in _SPECIAL if (t := _text_of(settings.get(k))) is not None}
    return core, special, _templates(file.parent, settings), _ends(core, checkpoint, file, special)


_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token")


def _optional(path: Path) -> Mapping[str, Any]:
    return read_json(path, max_bytes=MAX_SETTINGS_BYTES) if path.is_file() else {}


def _text_of(token: Any) -> str | None:
    """A token of tokenizer_config.json: its text, or an object that holds it."""
    found = token.get("content") if isinstance(token, Mapping) else token
    return found if isinstance(found, str) else None


def _ends(
    core: tokenizers.Tokenizer, checkpoint: Checkpoint, file: Path, special: Mapping[str, str]
) -> list[int]:
    """eos_token_id of generation_config.json, of config.json, and the tokenizer's own."""
    found: list[int] = []
    generation = _optional(file.with_name("generation_config.json"))
    for values in (generation, checkpoint.spec.config):
        ids = values.get("eos_token_id")
        many: Iterable[Any] = ids if isinstance(ids, list) else [ids]
        found += [i for i in many if whole(i)]
    own = core.token_to_id(special["eos_token"]) if "eos_token" in special else None
    return found if own is None else [*found, own]


def _templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """chat_template.jinja where it is there, else tokenizer_config.json's."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        if file.stat().st_size > MAX_TEMPLATE_BYTES:
            raise InputError(
                f"chat_template.jinja has {file.stat().st_size:,} bytes",
                where=str(file),
                expected=f"at most {MAX_TEMPLATE_BYTES:,}",
            )
        try:
            return {"default": file.read_text(encoding="utf-8")}
        except UnicodeDecodeError as e:
            raise InputError(f"chat_template.jinja is not UTF-8: {e}", where=str(file)) from None
    template = settings.get("chat_template")
    if isinstance(template, str):
        return {"default": template}
    found: dict[str, str] = {}
    for entry in template if isinstance(template, list) else ():
        if isinstance(entry, Mapping):
            name, text = entry.get("name"), entry.get("template")
            if isinstance(name, str) and isinstance(text, str):
                found[name] = text
    return found
