"""A verdict of the judge as HTML."""

from __future__ import annotations

from gateup.lab.figures import table, text
from gateup.practice import messages
from gateup.practice.exercise import Text
from gateup.practice.show import compared_in_words
from gateup.practice.verdict import CaseResult, Verdict

DETAILED = 3  # failed cases that are told in full


def verdict_html(verdict: Verdict, language: str) -> str:
    """Whether it passed, the cases, what is wrong with the first that failed, the guards."""

    def say(words: Text, *values: object) -> str:
        return text(words.in_language(language).format(*values))

    passed = sum(case.passed for case in verdict.cases)
    if verdict.passed:
        head = say(messages.PASSED_ALL, len(verdict.cases), verdict.seconds)
    else:
        head = say(messages.FAILED, passed, len(verdict.cases))
    out = [f'<div class="verdict {"yes" if verdict.passed else "no"}"><strong>{head}</strong>']
    out += [_failure(case, language) for case in verdict.different_failures()[:DETAILED]]
    if not verdict.passed:
        out.append(f'<p class="note">{say(messages.AGAIN, verdict.seed)}</p>')
    out.append("</div>")
    if verdict.output:
        out.append(f"<h3>{say(messages.PRINTED)}</h3><pre>{text(verdict.output)}</pre>")
    out.append(_cases(verdict, language))
    between = messages.SEMICOLON.in_language(language)
    inside = between.join(g.label for g in verdict.guards if g.in_force)
    outside = between.join(f"{g.label} ({g.reason})" for g in verdict.guards if not g.in_force)
    lines = [say(messages.USAGE, verdict.cpu_seconds, verdict.peak_mib)]
    lines.append(say(messages.IN_FORCE, inside))
    if outside:
        lines.append(say(messages.NOT_IN_FORCE, outside))
    return "".join(out) + "".join(f'<p class="note">{line}</p>' for line in lines)


def _cases(verdict: Verdict, language: str) -> str:
    heads = [t.in_language(language) for t in (messages.CASE, messages.RESULT, messages.TIME)]
    rows, css = [], []
    for case in verdict.cases:
        status = messages.STATUS[case.status].in_language(language)
        if case.compared is not None and case.compared.self_reported:
            status += f" ({messages.SELF_REPORTED.in_language(language)})"
        rows.append([case.name, status, f"{case.seconds * 1e3:.1f}"])
        css.append("" if case.passed else "bad")
    return table(heads, rows, css)


def _failure(case: CaseResult, language: str) -> str:
    status = messages.STATUS[case.status].in_language(language)
    colon = messages.COLON.in_language(language)
    out = [f"<p><strong>{text(case.name)}</strong>{colon}{text(status)}</p>"]
    if case.message:
        out.append(f"<p>{text(case.message)}</p>")
    if case.lines:
        place = messages.LINE.in_language(language)
        lines = "\n".join(f"{place.format(x.number)}  {x.text}" for x in case.lines)
        out.append(f"<pre>{text(lines)}</pre>")
    if case.error:
        out.append(f"<p><code>{text(case.error)}</code></p>")
    if case.compared is not None:
        out += [f"<p>{text(line)}</p>" for line in compared_in_words(case.compared, language)]
    return "".join(out)
