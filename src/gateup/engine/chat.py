"""Chat templates: the model's own Jinja, rendered in a sandbox with bounds.

The names that templates count on (raise_exception, strftime_now, tojson, generation blocks, loop
controls) behave as in transformers. Templates come with model files and are not trusted: they run
in `BoundedEnvironment`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from gateup.engine.sandbox import BoundedEnvironment
from gateup.engine.template_budget import MAX_VALUE, Budget
from gateup.errors import InputError, UsageError
from gateup.files.header import clip

MAX_TEMPLATE = 1 << 18  # characters; the longest in use have some 30,000
_MAX_TIME_FORMAT = 256

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
    RuntimeError,
    MemoryError,
    SyntaxError,  # blocks deeper than Python's compiler goes
)


class _Generation(Extension):
    """{% generation %} … {% endgeneration %} marks the assistant's text in training; here it is
    its content."""

    tags = {"generation"}  # noqa: RUF012 # as the base class declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment([_Generation, loopcontrols])
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _strftime_now(form: str) -> str:
    if len(form) > _MAX_TIME_FORMAT:
        raise SecurityError(f"a time format of {len(form):,} characters")
    return datetime.now().strftime(form)


@lru_cache(maxsize=8)
def _compiled(template: str) -> tuple[BoundedEnvironment, jinja2.Template]:
    if len(template) > MAX_TEMPLATE:
        raise SecurityError(
            f"it has {len(template):,} characters, at most {MAX_TEMPLATE:,} are read"
        )
    environment = _environment()
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
        with environment.lock:
            environment.budget = Budget()
            for piece in compiled.generate(given):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_VALUE:
                    raise SecurityError(f"a text of more than {MAX_VALUE:,} characters")
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
