"""`gateup run`: one answer that streams, or a conversation in the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateup.errors import GateupError, InputError, UsageError

if TYPE_CHECKING:
    from gateup.engine.generate import Engine, Stream
    from gateup.engine.prompts import Prompts

NEEDED = ("torch", "tokenizers", "jinja2")
INTERRUPTED = 130  # what a shell reports for a process that Ctrl-C ended: 128 + 2
MAX_TOOLS_BYTES = 4 << 20
MAX_STDIN = 64 << 20  # bytes of a prompt; a context of a million tokens has about 4 million

Model = Annotated[str, typer.Argument(metavar="MODEL", help="As for plan.")]
Prompt = Annotated[
    str | None,
    typer.Argument(metavar="[PROMPT]", help="The text; - reads it from stdin; none: converse."),
]
Chat = Annotated[
    bool | None,
    typer.Option(
        "--chat/--no-chat",
        help="Through the model's chat template, or as a text to continue. [default: chat where "
        "the model has a template]",
        show_default=False,
    ),
]


def tokens_of(text: str | int) -> int:
    """A count of tokens; k means times 1024: 32k is 32768."""
    words = str(text).strip().lower().replace(",", "").replace("_", "")
    number = words.removesuffix("k")
    if not (number.isascii() and number.removeprefix("-").isdigit()):
        raise typer.BadParameter(f"{text!r} is no count of tokens: 32768, or 32k for the same")
    return int(number) * (1 << 10 if number != words else 1)


TOKENS: dict[str, Any] = {"parser": tokens_of, "metavar": "TOKENS"}


def run(
    model: Model,
    prompt: Prompt = None,
    chat: Chat = None,
    system: Annotated[str | None, typer.Option("--system", help="The system message.")] = None,
    tools: Annotated[
        Path | None, typer.Option("--tools", help="JSON file: a list of functions to offer.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="Of the answer (1024).", **TOKENS)
    ] = None,
    temperature: Annotated[
        float, typer.Option("--temperature", help="0: always the likeliest token.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option("--top-k", help="Only the k likeliest; 0: all.")] = 0,
    top_p: Annotated[
        float, typer.Option("--top-p", help="Only the likeliest that sum to p.")
    ] = 1.0,
    min_p: Annotated[
        float, typer.Option("--min-p", help="Only those p times as likely as the likeliest.")
    ] = 0.0,
    repeat_penalty: Annotated[
        float, typer.Option("--repeat-penalty", help="Above 1: less of what has occurred.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option("--seed", help="Of the random numbers.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="A text that ends the answer; repeatable.")
    ] = None,
    ctx: Annotated[
        int | None, typer.Option("--ctx", help="Prompt and answer together.", **TOKENS)
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="Processor threads.")] = None,
    activations: Annotated[
        str | None,
        typer.Option(
            "--activations",
            help="int8 (fastest) or int16 (as exact as float32) for quantised weights. "
            "[default: int16 below a billion parameters]",
            show_default=False,
        ),
    ] = None,
    cache_type: Annotated[
        str, typer.Option("--cache-type", help="Of keys and values: float16 or float32.")
    ] = "float16",
    stats: Annotated[
        bool, typer.Option("--stats", help="Times, tokens per second and memory, on stderr.")
    ] = False,
) -> None:
    """Run a model: one answer, or a conversation when no prompt is given."""
    _require()
    from gateup.engine.sampling import Sampling
    from gateup.engine.stats import peak_rss

    stops = tuple(utf8(t, "--stop") for t in stop or ())
    sampling = Sampling(temperature, top_k, top_p, min_p, repeat_penalty, seed, stops)
    if sys.stdin is None and prompt in ("-", None):
        raise UsageError("stdin is closed: there is nothing to read", remedy="give a prompt")
    text = _stdin() if prompt == "-" else None if prompt is None else utf8(prompt, "the prompt")
    system = None if system is None else utf8(system, "--system")
    offered = None if tools is None else _tools(tools)
    floor = peak_rss()
    try:
        from gateup.engine.generate import load

        engine = load(
            model,
            ctx=ctx,
            threads=threads,
            activations=activations,  # type: ignore[arg-type]
            cache_type=cache_type,  # type: ignore[arg-type]
            first=lambda prompts: _check(prompts, chat, system, offered, text, max_tokens),
        )
        talk = Talk(engine, _chat(engine, chat, system, offered), system, offered)
        talk.options = {"max_tokens": max_tokens, "sampling": sampling}
        if text is None:
            talk.converse(show_stats=stats)
        else:
            stream = talk.ask(text)
            talk.show(stream)
            if stats:
                _show_stats(model, engine, stream, floor)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def _require() -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        verb = "are" if missing[1:] else "is"
        raise UsageError(
            f"running a model needs {' and '.join(missing)}, which {verb} not installed",
            remedy='pip install "gateup[torch]"',
        )


def _stdin() -> str:
    """UTF-8, whatever the locale says."""
    data = sys.stdin.buffer.read(MAX_STDIN + 1)
    if len(data) > MAX_STDIN:
        raise InputError("the prompt on stdin is too long", expected=f"at most {MAX_STDIN:,} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        raise InputError(f"the prompt on stdin is not UTF-8: {e}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def utf8(text: str, what: str) -> str:
    """An argument or a line as it was meant: in a locale without UTF-8, and for bytes that are not
    UTF-8, Python puts half characters (U+DC80 to U+DCFF) for bytes. Raises UsageError."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        pass
    try:
        return os.fsencode(text).decode()
    except UnicodeError:
        raise UsageError(f"{what} is not UTF-8", expected="text in UTF-8") from None


def _tools(path: Path) -> list[Any]:
    from gateup.engine.chat import checked_tools
    from gateup.files.config_json import parse_json
    from gateup.files.opening import read_bounded

    data = read_bounded(path, MAX_TOOLS_BYTES)
    return list(checked_tools(parse_json(data, str(path)), str(path)))


def _check(
    prompts: Prompts,
    chat: bool | None,
    system: str | None,
    tools: Any,
    text: str | None,
    max_tokens: int | None,
) -> None:
    """Raise whatever is wrong with the prompt, or with any first one where None is given."""
    said = "Hi" if text is None else text
    if _chat(prompts, chat, system, tools):
        ids = prompts.tokens([*_beginning(system), {"role": "user", "content": said}], tools=tools)
    else:
        ids = prompts.tokens(said)
    prompts.room(len(ids), max_tokens)


def _beginning(system: str | None) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}] if system else []


def _chat(engine: Prompts, chat: bool | None, system: str | None, tools: Any) -> bool:
    """Whether to go through the chat template. Raises where options ask for what cannot be."""
    from gateup.engine.chat import pick_template

    wanted = bool(engine.tokenizer.templates) if chat is None else chat
    if wanted or system is not None or tools:
        if not wanted and chat is False:
            raise UsageError("--system and --tools are about chat", remedy="leave out --no-chat")
        pick_template(engine.tokenizer.templates, tools)
        return True
    return False


class Talk:
    """Questions to one engine, and what has been said so far."""

    def __init__(self, engine: Engine, chat: bool, system: str | None, tools: Any) -> None:
        self.engine = engine
        self.chat = chat
        self.system = system
        self.tools = tools
        self.options: dict[str, Any] = {}
        self.session: Any = None
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        self.messages = _beginning(self.system)

    def ask(self, text: str) -> Stream:
        """The answer to one more message (or the continuation of a text)."""
        if not self.chat:
            return self.engine.stream(text, session=self.session, **self.options)
        asked = [*self.messages, {"role": "user", "content": text}]
        return self.engine.stream(asked, tools=self.tools, session=self.session, **self.options)

    def show(self, stream: Stream) -> str:
        """Print an answer as it comes, and a newline behind it; its text."""
        said = ""
        clean = _harmless if sys.stdout.isatty() else str
        try:
            for piece in stream:
                said += piece
                sys.stdout.write(_writable(clean(piece)))
                sys.stdout.flush()
        finally:
            if not said.endswith("\n"):
                sys.stdout.write("\n")
            sys.stdout.flush()
        return said

    def converse(self, *, show_stats: bool) -> None:
        """Read lines until the input ends or /quit; Ctrl-C stops the answer that is running."""
        self.session = self.engine.session()
        tty = sys.stdin.isatty()
        if not tty and isinstance(sys.stdin, TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # see `utf8`
        if tty:
            _line_editing()
            spec = self.engine.checkpoint.spec
            print(
                f"{_harmless(spec.name)}, context {self.engine.context:,}. "
                "/reset forgets, /quit ends, Ctrl-C stops an answer.",
                file=sys.stderr,
            )
        for line in _lines("> " if tty else ""):
            if line == "/quit":
                return
            if line == "/reset":
                self.reset()
            elif line:
                self._turn(line, show_stats)

    def _turn(self, line: str, show_stats: bool) -> None:
        """One question and its answer; a fault ends the turn, not the conversation."""
        from gateup.account.report.units import printable

        said: list[str] = []
        try:
            line = utf8(line, "the line")
            stream = self.ask(line)
            said.append(self.show(stream))
            if show_stats:
                print(_rates(stream), file=sys.stderr)
        except KeyboardInterrupt:
            print("(stopped)", file=sys.stderr)
            return
        except GateupError as e:
            print(f"gateup: {printable(str(e))}", file=sys.stderr)
            return
        if self.chat:
            self.messages += [
                {"role": "user", "content": line},
                {"role": "assistant", "content": said[0]},
            ]


def _lines(mark: str) -> Iterator[str]:
    """Lines of input, stripped; Ctrl-C at the prompt clears the line."""
    while True:
        try:
            yield input(mark).strip()
        except EOFError:
            if mark:
                print(file=sys.stderr)
            return
        except KeyboardInterrupt:
            print("\n(/quit or Ctrl-D ends)", file=sys.stderr)
        except UnicodeDecodeError as e:
            raise InputError(f"the input is not UTF-8: {e}") from None


def _line_editing() -> None:
    """Arrow keys and history in `input`, where Python was built with them."""
    if find_spec("readline") is not None:
        __import__("readline")


def _harmless(text: str) -> str:
    """Without the control characters that would steer a terminal."""
    return "".join(c for c in text if c in "\n\t" or c.isprintable())


def _writable(text: str) -> str:
    r"""With \u6f22 for what stdout's encoding does not have (a C locale, PYTHONIOENCODING)."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _rates(stream: Stream) -> str:
    s = stream.stats
    reused = f" ({s.reused:,} of them in the cache)" if s.reused else ""
    return (
        f"prompt {s.prompt_tokens:,} tokens{reused} in {s.prefill_s:.2f} s, "
        f"{s.prefill_rate:,.0f} tok/s; answer {s.new_tokens:,} tokens, {s.decode_rate:,.1f} tok/s"
    )


def _show_stats(model: str, engine: Engine, stream: Stream, floor: int) -> None:
    """What it took, and what the plan says of the same run.

    floor  the process's peak before anything was loaded, in bytes
    """
    from gateup.account.options import PlanOptions
    from gateup.account.plan import plan
    from gateup.engine.stats import peak_rss

    peak = peak_rss()
    length = stream.stats.prompt_tokens + stream.stats.new_tokens
    kv = f"f{8 * engine.cache_dtype.itemsize}"
    said = plan(model, PlanOptions(ctx=length, kv=kv, engine="gateup"))
    memory = said.figures["memory.peak"].value
    moved = said.figures["traffic.per_token"].value
    rate = stream.stats.decode_rate
    lines = (
        f"load {engine.load_s:.2f} s; {_rates(stream)} ({engine.decoder.name} decoder)",
        f"peak memory {peak / 1e6:,.0f} MB, {(peak - floor) / 1e6:,.0f} MB above Python and torch; "
        f"plan: {memory / 1e6:,.0f} MB for {length:,} tokens",
        f"plan: a token moves {moved / 1e6:,.1f} MB, at {rate:,.1f} tok/s that is "
        f"{moved * rate / 1e9:,.1f} GB/s",
    )
    for line in lines:
        print(line, file=sys.stderr)
