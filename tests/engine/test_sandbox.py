"""Templates that would hang or take all memory end with an error, and useful ones do not."""

from __future__ import annotations

import resource
import sys
from threading import Thread
from typing import Any

import pytest
from transformers.utils.chat_template_utils import _compile_jinja_template

from gateup.engine import template_budget
from gateup.engine.chat import render
from gateup.errors import InputError

# Sixty times over, of itself twice: 2^60 of what it began with.
SET = "{{% set ns = namespace(a={0}) %}}"
GROW = SET + "{{% for i in range(60) %}}{{% set ns.a = {1} %}}{{% endfor %}}"
LISTS = GROW.format("[1]", "[ns.a, ns.a]")
TUPLES = GROW.format("(1,)", "(ns.a, ns.a)")


def loops(text: str) -> str:
    return f"{{% for i in range(99999) %}}{text}{{% endfor %}}"


STEPS, ALL, TEXT = "400,000 rounds", "of text in all", "a text of more than"
HOSTILE = {
    # rounds, calls, elements
    loops(loops("")): STEPS,
    loops("{% for j in range(99999) if false %}{% endfor %}"): STEPS,
    "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}": STEPS,
    "{% for i in [1, 1] recursive %}{% if loop.depth < 60 %}{{ loop([1, 1]) }}{% endif %}"
    "{% endfor %}": STEPS,
    "{% macro f() %}{{ caller() }}{% endmacro %}{% macro g(n) %}{% if n %}{% call f() %}"
    "{{ g(n-1) }}{{ g(n-1) }}{% endcall %}{% endif %}{% endmacro %}{{ g(25) }}": STEPS,
    loops("{{ range(99999)|sum }}"): STEPS,
    loops("{{ range(99999)|map('string')|list }}"): STEPS,
    loops("{% set x = [" + "1, " * 999 + "] %}"): STEPS,
    GROW.format("[1]", "ns.a + ns.a"): STEPS,
    "{{ ('ab' * 5000000).split('a') }}": STEPS,
    "{{ ('a\n' * 5000000).splitlines() }}": STEPS,
    "{{ [1] * 9999999999 }}": "a list of more than",
    # text
    GROW.format("'aaaaaaaa'", "ns.a + ns.a"): TEXT,
    GROW.format("'aaaaaaaa'", "ns.a ~ ns.a"): TEXT,
    GROW.format("'aaaaaaaa'", "[ns.a, ns.a]|join"): TEXT,
    GROW.format("'aaaaaaaa'", "ns.a.join([ns.a, ns.a])"): TEXT,
    GROW.format("'aaaaaaaa'", "ns.a|replace('a', 'aaaa')"): TEXT,
    GROW.format("'aaaaaaaa'", "ns.a.replace('a', 'aaaa')"): TEXT,
    GROW.format("'<'|safe", "ns.a ~ ns.a"): TEXT,
    "{{ ('%(a)s' * 100000) % {'a': 'x' * 1000000} }}": TEXT,
    "{{ ('%s' * 2)|format('x' * 9999999, 'y' * 9999999) }}": TEXT,
    "{{ ('{0}' * 100000).format('x' * 1000000) }}": TEXT,
    "{{ 'a'.ljust(30000000000) }}": TEXT,
    "{{ 'a'.center(30000000000) }}": TEXT,
    "{{ '1'.zfill(30000000000) }}": TEXT,
    "{{ '\t'.expandtabs(30000000000) }}": TEXT,
    "{{ (['a']|map(attribute='rjust')|first)(30000000000) }}": TEXT,
    "{{ 'a\nb'|indent(30000000000) }}": TEXT,
    "{{ 'a'.join(range(99999)|map('replace', '0', 'x' * 1000000)) }}": ALL,
    "{% macro m() %}" + loops("{{ 'a' * 1000000 }}") + "{% endmacro %}{{ m()|length }}": ALL,
    "{% set x %}" + loops("{{ 'a' * 1000000 }}") + "{% endset %}": ALL,
    "{% filter upper %}" + loops("{{ 'a' * 1000000 }}") + "{% endfilter %}": ALL,
    "{% macro m() %}" + "a" * 100000 + "{% endmacro %}" + loops("{% set x = m() %}"): ALL,
    "{% set s = 'x' * 9999999 %}" + loops("{% set x = s[1:] %}"): ALL,
    # widths and sizes
    "{{ '%030000000000d' % 1 }}": "a format with the width",
    "{{ '%*d' % (999999999, 1) }}": "a format with the width",
    "{{ '%.999999999f'|format(1) }}": "a format with the width",
    "{{ '{:>30000000000}'.format(1) }}": "a format with the width",
    "{{ '{:{w}}'.format(1, w=9999999999) }}": "a format with the width",
    "{{ [[1]]|tojson(indent=30000000000) }}": "JSON indented by 30,000,000,000",
    "{{ strftime_now('%Y' * 1000) }}": "a time format of 2,000",
    "{{ 1.5|round(100000000, 'ceil') }}": "rounding to 100,000,000 places",
    "{{ ('9' * 1000000)|int }}": "a number of 1,000,000 digits",
    "{{ [[1]]|sum(start=[]) }}": "a sum of something else",
    GROW.format("4294967296", "ns.a * ns.a"): "a number of more than 4,096 bits",
    "{% set ns = namespace(a=1) %}" + loops("{% set ns.a = ns.a + ns.a %}"): "than 4,096 bits",
    # what looks small and is endless when it is printed, compared or hashed
    **dict.fromkeys(
        [
            LISTS + "{{ ns.a }}",
            LISTS + "{{ ns.a|tojson }}",
            LISTS + "{{ ns.a|string }}",
            LISTS + "{{ 'a' ~ ns.a }}",
            LISTS + "{{ '%s' % ns.a }}",
            LISTS + "{{ '{}'.format(ns.a) }}",
            LISTS + "{{ raise_exception(ns.a) }}",
            LISTS + "{{ ns.a == [ns.a] }}",
            LISTS + "{{ 1 != ns.a == ns.a + [] }}",
            LISTS + "{{ ns.a in [ns.a + []] }}",
            LISTS + "{{ [ns.a + []].index(ns.a) }}",
            LISTS + "{{ [ns.a, ns.a + []]|sort }}",
            LISTS + "{{ [{'x': ns.a}]|selectattr('x', 'equalto', ns.a + [])|list }}",
            LISTS + "{% for i in [ns.a, ns.a + []] %}{{ loop.changed(i) }}{% endfor %}",
            TUPLES + "{{ {ns.a: 1} }}",
            TUPLES + "{{ {}[ns.a] }}",
            GROW.format("(1,)", "(ns.a,) * 2"),
            GROW.format("{}", "dict(x=ns.a, y=ns.a)") + "{{ ns.a }}",
            "{{ 'x' * 1000000 in ['y' * 1000000] * 100 }}",
        ],
        TEXT,
    ),
    GROW.format("()", "(ns.a,)").replace("60", "200"): "100 deep",
    # what is not there
    "{{ lipsum(n=1000) }}": "'lipsum' is undefined",
    "{{ range(10)|slice(10000000000)|list }}": "No filter named 'slice'",
    "{{ range(10)|batch(10000000000, 'x')|list }}": "No filter named 'batch'",
    "{{ ['a']|map('center', 30000000000)|list }}": "No filter named 'center'",
    "{{ 'a'.translate({97: 'b'}) }}": "attribute 'translate' of 'str' object is unsafe",
    "{{ dict.fromkeys(range(9)) }}": "unsafe",
    "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}": "no use for",
    "{% autoescape true %}{% endautoescape %}": "no use for",
    "{% for i in [1] %}" * 30 + "{% endfor %}" * 30: "nested blocks",
    "{{ " + "a, " * 30000 + "}}": "more than 20,000 parts",
    "a" * 300000: "it has 300,000 characters",
}


def test_hostile_templates_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, in no more than 1 GB beside what was there; with a tenth of the steps,
    all of them take 8 seconds otherwise."""
    monkeypatch.setattr(template_budget, "MAX_STEPS", 400_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for template, says in HOSTILE.items():
        with pytest.raises(InputError) as raised:
            render(template, [{"role": "user", "content": "hi"}])
        assert says in str(raised.value), template[:300]
    if sys.platform == "linux":  # in KiB there
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20


def test_what_is_only_read_is_bounded_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_budget, "MAX_SECONDS", 0.2)
    for read in ("'y' in a", "a == b", "a.count('xy')"):
        template = "{% set a = 'x' * 9999999 %}{% set b = 'x' * 9999999 %}"
        with pytest.raises(InputError, match="seconds of computing"):
            render(template + loops(loops("{% if " + read + " %}{% endif %}")), [])


# Of what chat templates do, with and without keyword arguments, in loops (where compiled templates
# pass more) and out of them.
USEFUL = """\
{%- for m in messages if m.role != 'system' %}{{ loop.index }}/{{ loop.length }} {{ m.get('x', 1) }}
{{- m.content.split('b')[-1].strip('\\n').startswith('c') }} {{ m['role'].upper() ~ 1 }}
{%- for k, v in m.items() %}{{ k }}={{ v|string }},{% else %}none{% endfor %}{% endfor %}
{{ (messages|selectattr('role', 'equalto', 'user')|first).content }}
{{ messages|map(attribute='role')|unique|join(', ') }} {{ messages[1:]|length }} {{ 'é'|tojson }}
{{ {'b': [1, (2, 3)], 'a': none}|tojson(indent=2, sort_keys=true) }} {{ {'b': 1, 'a': 2}|dictsort }}
{{ '%s-%05.1f|' % ('a', 2.5) }}{{ '{:>5}|{}'.format('a', [1]) }}{{ '%d'|format(3) }}
{{ 'a\\nb'|indent(2, true) }} {{ ' x '|trim }} {{ 'abc'|reverse }} {{ [3, 1, 2]|sort|last }}
{{ 'a,b'.split(',', 1) }} {{ 'a b'.rsplit(maxsplit=1) }} {{ 'aaa'.replace('a', 'b', 2) }}
{{ 'aaa'|replace('a', 'b', 2) }} {{ 'x' * 3 + 'y' }} {{ [1] + [2] }} {{ 2 ** 8 // 3 % 5 - 1.5 }}
{{ 1 < 2 <= 2 }} {{ 'a' not in 'bcd' }} {{ 2 in range(3) }} {{ '<' ~ ('&'|safe) }} {{ '<'|e }}
{{ messages|rejectattr('content', 'undefined')|list|length }} {{ '7'|int + ('2.5'|float) }}
{%- macro f(x, y=2) %}[{{ x }}{{ y }}{{ varargs }}]{% endmacro %}{{ f(1) }}{{ f(1, y=3) }}
{%- set block %}b{{ f(5) }}{% endset %}{{ block|upper }}{% filter title %}a b{% endfilter %}
{%- macro g() %}<{{ caller(4) }}>{% endmacro %}{% call(z) g() %}{{ z }}{% endcall %}
{%- for i in [[1, [2]], 3] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}
{%- set c = cycler('a', 'b') %}{{ c.next() }}{{ c.current }}
{%- set j = joiner('|') %}{{ j() }}{{ j() }}
{{ dict(a=1, **{'b': 2}) }} {{ messages is iterable and messages is not mapping }} {{ nothing }}
{{ 1.0.is_integer() }} {{ 'Ab'.swapcase() }} {{ 'a'.join(['x', 'y']) }} {{ 'ab'[::-1] }}
"""


def test_useful_templates_are_as_in_transformers() -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a\nbc\n", "x": [1, {"y": None}]},
        {"role": "assistant", "content": "", "tool_calls": None},
    ]
    given: dict[str, Any] = {"messages": messages, "tools": None, "documents": None}
    theirs = _compile_jinja_template(USEFUL).render(**given, add_generation_prompt=True)
    assert render(USEFUL, messages) == theirs
    assert len(theirs) > 400


def test_long_conversations_fit() -> None:
    """500 messages, each of which looks through those behind it, 4 million characters."""
    template = (
        "{% macro text(m) %}{{ m.content|trim }}{% endmacro %}{% for m in messages %}"
        "{% for later in messages[loop.index:] %}{% if later.role == 'none' %}{% endif %}"
        "{% endfor %}<{{ m['role'] }}>{{ text(m) }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "x" * 8000}] * 500
    assert len(render(template, messages)) == 500 * (8000 + len("<user>"))


def test_each_rendering_has_its_own_budget() -> None:
    template = (
        "{% for a in range(99999) %}{% for b in 'abcdefghijklmnopqrst' %}{% endfor %}{% endfor %}."
    )
    said: list[str] = []
    threads = [Thread(target=lambda: said.append(render(template, []))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == [".", "."]
