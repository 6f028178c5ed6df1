"""Reads whatever lies beside a model or was named for the check, into one Context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from gateup.checks.context import Context
from gateup.checks.tokenizer_files import TokenizerInfo, find_tokenizer, read_tokenizer
from gateup.checks.trainer_model import KEYS, located, name_in, read_named
from gateup.errors import ConfigError, GateupError, InputError, TruncatedError, UsageError
from gateup.files.adapter import CONFIG, WEIGHTS, Adapter, read_adapter
from gateup.files.adapter_zero import zero_halves
from gateup.files.checkpoint import Checkpoint, open_model
from gateup.files.config_json import read_json
from gateup.files.folder import names_in
from gateup.files.header import clip
from gateup.files.opening import read_bounded
from gateup.model.quant.mix import kind_of

# A state logs one entry per logging step: 100,000 steps logged one by one take 20 MB.
MAX_STATE_BYTES = 64 << 20
# Trainers' YAML files stay under 10 kB; the parser reads about 1 MB a second.
MAX_YAML_BYTES = 256 << 10
MAX_ALIASES = 16
MAX_DIGITS = 40  # of one number; YAML 1.1 also spells them in base 60, which grows without end
MAX_DEPTH = 32
ADAPTER_FILES = (CONFIG, WEIGHTS)
STATE = "trainer_state.json"
GENERATION = "generation_config.json"
TEMPLATE = "chat_template.jinja"
MAX_TEMPLATE_BYTES = 1 << 20  # Llama 4's has 10 kB

T = TypeVar("T")
# A file's path, or what it holds.
Settings = str | Path | Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """What is asked of a check beside the model. See `gateup.check`."""

    adapter: str | Path | None = None
    base: str | Path | None = None
    tokenizer: str | Path | None = None
    tp: int | None = None
    quant: str | None = None
    trainer: Settings | None = None
    generation: Settings | None = None

    def __post_init__(self) -> None:
        if self.tp is not None and not 1 <= self.tp <= 1024:
            raise UsageError(f"--tp is {self.tp}", expected="1 to 1024")
        if self.quant is not None:
            kind_of(self.quant)  # refuses what nothing knows, with the known names


@dataclass
class _Side:
    """Files found beside the model; one that cannot be read is kept as its error."""

    sources: dict[str, str] = field(default_factory=dict)
    unreadable: list[GateupError] = field(default_factory=list)

    def read(self, part: str, path: Path, reader: Callable[[Path], T]) -> T | None:
        try:
            value = reader(path)
        except InputError as error:
            self.unreadable.append(error)
            return None
        if value is not None:
            self.sources[part] = path.name
        return value


def read_context(checkpoint: Checkpoint, request: Request) -> Context:
    """Everything a check of `checkpoint` may look at. Raises GateupError.

    What was named must be readable; what merely lies beside the model need not be.
    """
    base, adapter = _others(checkpoint, request)
    side = _Side()
    folder = _folder(checkpoint)
    folders = [f for f in (adapter.path if adapter else None, folder) if f is not None]
    if checkpoint.kind in ("config", "safetensors") and folder is not None:
        side.sources["config"] = "config.json"
    if adapter:
        side.sources["adapter"] = CONFIG
    beside = side.read("tokenizer", adapter.path, find_tokenizer) if adapter else None
    trainer, state = _trainer(request.trainer, side)
    if state is None:
        state = _first(side, "trainer_state", STATE, folders, _read_state)
    return Context(
        checkpoint=checkpoint,
        base=base,
        adapter=adapter,
        adapter_config=read_json(adapter.path / CONFIG) if adapter else None,
        zero_halves=zero_halves(adapter) if adapter else None,
        tokenizer=_tokenizer(request.tokenizer, folder, side) or beside,
        adapter_tokenizer=beside,
        tp=request.tp,
        quant=request.quant,
        trainer=trainer,
        trainer_base=None if trainer is None else read_named(trainer, _beside(request.trainer)),
        trainer_state=state,
        generation=_generation(request.generation, folder, side),
        template=_first(side, "template", TEMPLATE, folders, _read_text),
        sources=side.sources,
        unreadable=tuple(side.unreadable),
        beside=_sizes(folder) if folder else {},
    )


def _others(checkpoint: Checkpoint, request: Request) -> tuple[Checkpoint | None, Adapter | None]:
    """(a second model to compare with, adapter). An adapter's folder has taken its base already."""
    if checkpoint.adapter is not None:
        if request.adapter is not None:
            raise UsageError(
                "the model is an adapter's folder, and --adapter names another",
                remedy="check one adapter at a time: gateup check BASE --adapter ADAPTER",
            )
        return None, checkpoint.adapter
    base = None if request.base is None else _compared(request.base)
    if request.adapter is None:
        return base, None
    return base, read_adapter(adapter_folder(Path(request.adapter).expanduser()))


def _compared(ref: str | Path) -> Checkpoint:
    """The second model. Raises InputError, of an adapter too: it is none."""
    path = Path(ref).expanduser()
    if names_adapter(path):
        raise InputError(
            f"the base {clip(str(ref))} that was given is an adapter, not a model",
            where=str(path),
            expected="a second model to compare with",
            remedy=f"to check the adapter on the model: gateup check MODEL --adapter {path}",
        )
    try:
        return open_model(ref)
    except TruncatedError:
        raise
    except InputError as e:
        what = f"the base {clip(str(ref))} that was given cannot be opened: {e.what}"
        raise type(e)(what, where=e.where, expected=e.expected, remedy=e.remedy) from None


def names_adapter(path: Path) -> bool:
    """Whether it is an adapter's folder, or a file of one."""
    try:
        if path.name in ADAPTER_FILES:
            return path.is_file()
        return (path / CONFIG).is_file() and not (path / "config.json").is_file()
    except (OSError, ValueError):  # too long a name, a NUL character in it
        return False


def adapter_folder(path: Path) -> Path:
    """The folder of the adapter that was named, itself or by a file in it. Raises InputError."""
    expected = f"a folder with {CONFIG} and {WEIGHTS}"
    if not path.exists():
        raise InputError("there is no such adapter folder", where=str(path), expected=expected)
    if path.is_file() and path.name not in ADAPTER_FILES:
        raise InputError(
            f"the adapter {path.name} is a file that is no part of one",
            where=str(path),
            expected=expected,
        )
    folder = path if path.is_dir() else path.parent
    if (folder / CONFIG).is_file():
        return folder
    names = names_in(folder)
    if "config.json" in names:
        raise InputError(
            "the adapter that was given is a model, not an adapter",
            where=str(folder),
            expected=expected,
            remedy=f"to compare two models: gateup check MODEL --base {folder}",
        )
    holds = "holds no files" if not names else f"has no {CONFIG}"
    raise InputError(f"the adapter's folder {holds}", where=str(folder), expected=expected)


def _folder(checkpoint: Checkpoint) -> Path | None:
    path = checkpoint.path
    if path is None:
        return None
    return path if path.is_dir() else path.parent


def _sizes(folder: Path) -> dict[str, int]:
    """Weights in the model's folder: name -> bytes."""
    sizes = {}
    for name in names_in(folder):
        if name.endswith((".safetensors", ".gguf")):
            try:
                sizes[name] = (folder / name).stat().st_size
            except OSError:  # removed meanwhile, or a link to nothing
                continue
    return sizes


def _first(
    side: _Side, part: str, name: str, folders: list[Path], reader: Callable[[Path], T]
) -> T | None:
    """The file of that name in the first folder that has it."""
    for folder in folders:
        if (folder / name).is_file():
            return side.read(part, folder / name, reader)
    return None


def _read_state(path: Path) -> Mapping[str, Any]:
    """transformers writes NaN and Infinity into it as Python spells them."""
    return read_json(path, max_bytes=MAX_STATE_BYTES, finite=False)


def _read_text(path: Path) -> str:
    data = read_bounded(path, MAX_TEMPLATE_BYTES)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        what = f"the text is not UTF-8: byte {e.start} is wrong"
        raise ConfigError(what, where=str(path)) from None


def _tokenizer(asked: str | Path | None, folder: Path | None, side: _Side) -> TokenizerInfo | None:
    """The one that was named, or the model's own."""
    if asked is not None:
        found = read_tokenizer(Path(asked).expanduser())
        side.sources["tokenizer"] = str(found.path)
        return found
    return None if folder is None else side.read("tokenizer", folder, find_tokenizer)


def _trainer(
    asked: Settings | None, side: _Side
) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """(settings, state): a file with log_history is a run's state, any other its settings."""
    if asked is None:
        return None, None
    if isinstance(asked, Mapping):
        values, where = asked, "the trainer's settings"
    else:
        path = Path(asked).expanduser()
        values, where = read_settings(path), str(path)
    part = "trainer_state" if "log_history" in values else "trainer"
    side.sources[part] = where
    return (None, values) if part == "trainer_state" else (values, None)


def _beside(asked: Settings | None) -> Path | None:
    """The folder of a settings file."""
    return Path(asked).expanduser().parent if isinstance(asked, str | Path) else None


def named_model(trainer: str | Path) -> str:
    """The model that a trainer's file names, as `open_model` takes it. Raises GateupError."""
    path = Path(trainer).expanduser()
    found = name_in(read_settings(path))
    if found is None:
        raise UsageError(
            "no MODEL was given, and the trainer's file names none",
            where=str(path),
            expected=f"MODEL, or {KEYS[0]} in the file",
        )
    local = located(found[1], path.parent)
    return found[1] if local is None else str(local)


def _generation(
    asked: Settings | None, folder: Path | None, side: _Side
) -> Mapping[str, Any] | None:
    if isinstance(asked, Mapping):
        side.sources["generation"] = "the generation settings"
        return asked
    if asked is not None:
        path = Path(asked).expanduser()
        side.sources["generation"] = str(path)
        return read_settings(path)
    if folder is not None and (folder / GENERATION).is_file():
        return side.read("generation", folder / GENERATION, read_json)
    return None


def read_settings(path: Path) -> Mapping[str, Any]:
    """A JSON or YAML file of settings, one object. Raises InputError, ConfigError."""
    if path.suffix.lower() not in (".yaml", ".yml"):
        return read_json(path, max_bytes=MAX_STATE_BYTES, finite=path.name != STATE)
    import yaml  # type: ignore[import-untyped]  # 30 ms that only YAML files need

    data = read_bounded(path, MAX_YAML_BYTES)
    try:
        text = data.decode("utf-8")
        _bound(yaml, text)
        value = yaml.load(text, _loader(yaml))
    except UnicodeDecodeError as e:
        raise ConfigError(
            f"the text is not UTF-8: byte {e.start} is wrong", where=str(path)
        ) from None
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        what = getattr(e, "problem", None) or "a value cannot be read"
        raise ConfigError(f"not YAML: {what}", where=f"{path}{line}") from None
    except ValueError as e:  # a date without such a day, a number of thousands of digits
        what = str(e) if str(e).isprintable() else clip(str(e))
        raise ConfigError(f"a value cannot be read: {what[:160]}", where=str(path)) from None
    if not isinstance(value, dict) or not all(isinstance(k, str) for k in value):
        raise ConfigError(
            f"{path.name} does not hold settings", where=str(path), expected="lines of key: value"
        )
    return value


def _loader(yaml: Any) -> Any:
    """PyYAML's safe loader, with ValueError for keys that occur twice and for endless numbers."""

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                    continue
                if key.value in seen:
                    line = key.start_mark.line + 1
                    raise ValueError(f"the key {clip(key.value)} occurs twice (line {line})")
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    def number(kind: str) -> Callable[[Any, Any], Any]:
        def construct(loader: Any, node: Any) -> Any:
            if len(node.value) > MAX_DIGITS:
                raise ValueError(f"a number has {len(node.value):,} characters")
            return getattr(yaml.SafeLoader, f"construct_yaml_{kind}")(loader, node)

        return construct

    for kind in ("int", "float"):
        Loader.add_constructor(f"tag:yaml.org,2002:{kind}", number(kind))
    return Loader


def _bound(yaml: Any, text: str) -> None:
    """ValueError for a document that is deeper or shares more than settings do."""
    depth = aliases = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
        if depth > MAX_DEPTH:  # 5,000 brackets take the parser 18 s
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        if aliases > MAX_ALIASES:  # they can make a tree of billions of leaves out of 1 kB
            raise ValueError(f"it has more than {MAX_ALIASES} aliases")
