"""Templates render as in transformers, and cannot hang, flood or leave the sandbox."""

from __future__ import annotations

import time
from typing import Any

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from gateup.engine.chat import checked_tools, pick_template, render
from gateup.errors import InputError, UsageError
from gateup.files.checkpoint import open_model

MESSAGES = [
    {"role": "system", "content": "Be brief & <kind>."},
    {"role": "user", "content": "  Wie heißt du? 漢字 "},
    {"role": "assistant", "content": 'I\'m "G".'},
    {"role": "user", "content": "And?\n"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Le temps à <place>",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    }
]
# Each uses what real templates use: white space control, namespaces, loop variables and controls,
# filters, tools, macros, generation blocks.
TEMPLATES = {
    "plain": """\
{% for message in messages %}
    {% if message.role == 'system' %}
<<{{ message['content'] | trim }}>>
    {% else %}
{{ bos_token if loop.first else '' }}[{{ message.role|upper }}] {{ message.content }}{{ eos_token }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}[ASSISTANT]{% endif %}""",
    "tools": """\
{%- if tools %}{{- 'TOOLS:' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- tools | tojson(indent=2) }}
{%- endif %}
{%- set ns = namespace(n=0, last=none) %}
{%- for m in messages[::-1] if m.role == 'user' %}
{%- set ns.n = ns.n + 1 %}{%- if ns.n > 1 %}{% break %}{% endif %}{%- set ns.last = m.content %}
{%- endfor %}
{{- ns.last }}|{{ ns.n }}|{{ messages | length }}""",
    "generation": """\
{%- macro say(m) -%}<{{ m.role }}>{%- endmacro -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}{{ say(m) }}{% generation %}{{ m.content }}{% endgeneration %}
{%- else -%}{%- continue -%}{%- endif -%}
{%- endfor -%}
{{ loop_count is defined }}{{ documents is none }}{{ dict(a=1).items() | list }}""",
}


def transformers_says(template: str, messages: Any, tools: Any) -> str:
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")
    text = tokenizer.apply_chat_template(
        messages, tools=tools, chat_template=template, tokenize=False, add_generation_prompt=True
    )
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("name", [*TEMPLATES, "smollm2"])
def test_the_text_is_that_of_transformers(name: str) -> None:
    template = TEMPLATES.get(name) or open_model("smollm2").metadata["tokenizer.chat_template"]
    tools = TOOLS if name == "tools" else None
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    ours = render(template, MESSAGES, tools=tools, special=special)
    assert ours == transformers_says(template, MESSAGES, tools)
    assert len(ours) > 20


def test_time_and_variables() -> None:
    assert render("{{ strftime_now('%Y') }}", []) == time.strftime("%Y")
    assert render("{{ enable_thinking }}", [], variables={"enable_thinking": False}) == "False"
    assert render("{{ add_generation_prompt }}", [], answer=False) == "False"


def test_a_template_s_own_refusal_is_shown() -> None:
    with pytest.raises(InputError) as raised:
        render("{{ raise_exception('roles must alternate') }}", MESSAGES)
    assert "the model's chat template fails: 'roles must alternate'" in str(raised.value)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for m in %}", "chat template, line 1"),
        ("{{ messages + 1 }}", "can only concatenate list"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[9].content.x }}", "has no element 9"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ raise_exception.__globals__.x }}", "unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ 'a' * 1000000000 }}", "a text of more than"),
        ("{{ 1000000000 * 'a' }}", "a text of more than"),
        ("{{ 9 ** 99 }}", "a power of"),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "rounds",
        ),
        (
            "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
            "a text of more than 16,777,216 characters",
        ),
        ("{% for a in range(999999999) %}{% endfor %}", "Range too big"),
    ],
)
def test_templates_that_go_wrong(template: str, says: str) -> None:
    start = time.process_time()
    with pytest.raises(InputError) as raised:
        render(template, MESSAGES)
    assert says in str(raised.value)
    assert time.process_time() - start < 20  # it ended: the worst loops would take hours


def test_which_template() -> None:
    two = {"default": "{{ messages }}", "tool_use": "t"}
    assert pick_template(two, None) == "{{ messages }}"
    assert pick_template(two, TOOLS) == "t"
    assert pick_template({"default": "{{ tools }}"}, TOOLS) == "{{ tools }}"
    with pytest.raises(UsageError, match="has no place for tools"):
        pick_template({"default": "{{ messages }}"}, TOOLS)
    with pytest.raises(InputError) as raised:
        pick_template({}, None)
    assert "--no-chat" in str(raised.value)


def test_tools_are_a_list_of_objects() -> None:
    assert checked_tools(TOOLS, "t") == TOOLS
    with pytest.raises(UsageError, match="the tools are "):
        checked_tools({"a": 1}, "tools.json")
