"""docs/checks.md, made from the rules:

python -m gateup.checks.pages docs/checks.md
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gateup.checks.context import NEEDS
from gateup.checks.report import option
from gateup.checks.rule import Rule
from gateup.checks.runner import RULES

INTRODUCTION = """\
# What `gateup check` looks for

`gateup check MODEL` looks at headers and settings and reports what is wrong, what shows it, why it
happens and what to do, with numbers. With `--deep` it also reads every weight and runs a short text
through the model, a layer at a time (the rules under [deep](#deep), which need torch: `pip install
"gateup[torch]"`). The text needs the tokenizer: in the GGUF, as `tokenizer.json` beside the model,
or in the folder that `--tokenizer` names; without one only the rules that read weights alone are
looked at, and the report says so. This page is made from the rules themselves (`python -m
gateup.checks.pages docs/checks.md`); `gateup check --list` and `gateup check --explain RULE` print
the same.

| severity | meaning |
|---|---|
| error | it fails to load, or it computes something else than was meant |
| warning | it probably is not what was meant |
| note | worth knowing; nothing is wrong |

Exit codes: 0 without errors (warnings and notes may be there), 1 with errors, 2 for bad usage and
for a model that cannot be read; where its files are there, the report says in one finding what is
wrong with them. A rule that stumbles over input it did not foresee is named in the report, and the
others run. `--json` prints schema `gateup.check/1` ([json-schema.md](json-schema.md)).
"""


def page(rules: Sequence[Rule] = RULES) -> str:
    """The whole page, as Markdown."""
    parts = [INTRODUCTION, _contents(rules)]
    topic = ""
    for rule in rules:
        if rule.id.partition(".")[0] != topic:
            topic = rule.id.partition(".")[0]
            parts.append(f"## {topic}\n")
        parts.append(f"### {rule.id}\n\n**{rule.title}.** {_when(rule)}\n\n{rule.teaches}\n")
    return "\n".join(parts)


def _contents(rules: Sequence[Rule]) -> str:
    rows = [f"| [{r.id}](#{r.id.replace('.', '')}) | {r.title} |" for r in rules]
    return "\n".join(["| rule | looks at |", "|---|---|", *rows, ""])


def _when(rule: Rule) -> str:
    needs = [f"`{option(n)}`" for n in NEEDS if n in rule.needs and n != "headers"]
    files = "weights" if "headers" in rule.needs else ""
    said = " and ".join([*([files] if files else []), *needs])
    severity = f"Severity: {rule.severities}."
    return f"Needs {said}. {severity}" if said else f"Always. {severity}"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m gateup.checks.pages docs/checks.md")
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
