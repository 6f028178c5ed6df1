"""Chat templates: the model's own Jinja, rendered in a sandbox with bounds.

The names that templates count on (raise_exception, strftime_now, tojson, generation blocks, loop
controls) behave as in transformers. Templates come with model files and are not trusted: the
sandbox keeps them from attributes of Python's own, and loops, products and output are bounded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateup.errors import InputError, UsageError
from gateup.files.header import clip

# A conversation of 1,000 messages takes some 10,000 rounds; each is about a microsecond.
MAX_ROUNDS = 1_000_000
MAX_PRODUCT = 1 << 20  # characters or elements that a multiplication may make
MAX_OUTPUT = 16 << 20  # characters; a context of a million tokens has about 4 million

Message = Mapping[str, Any]
Tool = Mapping[str, Any]

# What a template may raise beside Jinja's own errors: it is a program over the messages' values.
_RAISED = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


class _Generation(Extension):
    """{% generation %} … {% endgeneration %} marks the assistant's text in training; here it is
    its content."""

    tags = {"generation"}  # noqa: RUF012 # as the base class declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a budget of loop rounds and a bound on what `*` and `**` make."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        self.rounds = 0
        self.filters["tojson"] = _tojson
        self.filters["_counted"] = self._counted
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Every loop's sequence goes through `_counted`."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "_counted", [], [], None, None, lineno=loop.lineno)
        return tree

    def _counted(self, value: Any) -> Any:
        """`value` itself (as a list where it has no length), its length taken from the budget."""
        if not hasattr(value, "__len__"):
            value = list(islice(value, MAX_ROUNDS - self.rounds + 1))
        self.rounds += len(value)
        if self.rounds > MAX_ROUNDS:
            raise SecurityError(f"more than {MAX_ROUNDS:,} rounds of loops")
        return value

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if (
                    hasattr(sequence, "__len__")
                    and isinstance(times, int)
                    and len(sequence) * times > MAX_PRODUCT
                ):
                    raise SecurityError(f"a product of more than {MAX_PRODUCT:,} elements")
        elif not (abs(left) <= 1 << 32 and abs(right) <= 64):
            raise SecurityError(f"a power of {clip(left)} and {clip(right)}")
        return super().call_binop(context, operator, left, right)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without Jinja's escaping of HTML characters."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


@lru_cache(maxsize=8)
def _compiled(template: str) -> tuple[_Environment, jinja2.Template]:
    environment = _Environment()
    return environment, environment.from_string(template)


def pick_template(templates: Mapping[str, str], tools: Sequence[Tool] | None) -> str:
    """The template for a conversation: with tools "tool_use" where the model has one.

    Raises InputError where there is none, UsageError where it has no place for tools.
    """
    if not templates:
        raise InputError(
            "the model has no chat template",
            expected="tokenizer.chat_template in the GGUF, or chat_template.jinja or "
            "tokenizer_config.json in the folder",
            remedy="--no-chat continues the text as it is",
        )
    if tools and "tool_use" in templates:
        return templates["tool_use"]
    template = templates.get("default") or next(iter(templates.values()))
    if tools and "tools" not in template:
        raise UsageError(
            "the model's chat template has no place for tools",
            remedy="leave out --tools, or take a model that was trained with tools",
        )
    return template


def render(
    template: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[Tool] | None = None,
    special: Mapping[str, str] | None = None,
    answer: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """The conversation as the model was trained to read it.

    messages   {"role": "user", "content": "…"} each
    tools      JSON schemas of functions that the model may call
    special    bos_token and the like
    answer     end with what begins the assistant's answer (add_generation_prompt)
    variables  what else the template reads, as Qwen3's enable_thinking

    Raises InputError where the template is at fault or refuses the messages.
    """
    try:
        environment, compiled = _compiled(template)
        environment.rounds = 0
        given = {
            **(variables or {}),
            **(special or {}),
            "messages": list(messages),
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": answer,
        }
        pieces: list[str] = []
        size = 0
        for piece in compiled.generate(given):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_OUTPUT:
                raise SecurityError(f"more than {MAX_OUTPUT:,} characters of text")
    except _RAISED as e:
        line = f", line {e.lineno}" if isinstance(e, jinja2.TemplateSyntaxError) else ""
        raise InputError(
            f"the model's chat template fails: {clip(str(e) or type(e).__name__, 300)}",
            where=f"chat template{line}",
            remedy="messages in the form that the template takes (some know no system message), "
            "or --no-chat",
        ) from None
    return "".join(pieces)


def checked_tools(value: Any, where: str) -> list[Tool]:
    """The content of a tools file: a list of JSON schemas. Raises UsageError."""
    if not isinstance(value, list) or not all(isinstance(x, dict) for x in value):
        raise UsageError(
            f"the tools are {clip(value)}",
            where=where,
            expected='a JSON list of objects, {"type": "function", "function": {"name": …}}',
        )
    return value
