"""The page's style sheet: one palette for light, one for dark, nothing wider than a phone."""

from __future__ import annotations

# class: (light, dark). The MLP has the warm colour to itself.
PALETTE: dict[str, tuple[str, str]] = {
    "mlp": ("#d9600a", "#ff9440"),
    "attention": ("#0f7f8f", "#4cc3d3"),
    "embedding": ("#4d8b31", "#86c765"),
    "head": ("#3b62c4", "#84a5f5"),
    "norm": ("#9a55b5", "#cf97e6"),
    "other": ("#7a7a7a", "#a5a5a5"),
    "weights": ("#5a6b80", "#93a6bd"),
    "kv": ("#3b62c4", "#84a5f5"),
    "logits": ("#a88700", "#e0bf3f"),
    "adapter": ("#c23b8c", "#f285c4"),
    "gradients": ("#b3362f", "#f2847e"),
    "optimizer": ("#7d3c1d", "#c98a66"),
    "buffers": ("#2f8f6b", "#63d1a8"),
}


# The page's own colours: ground, text, softer text, lines, text on bars, verdicts.
_GROUND: dict[str, tuple[str, str]] = {
    "bg": ("#fff", "#14161a"),
    "fg": ("#1b1d21", "#e8eaee"),
    "soft": ("#5d636e", "#9aa1ad"),
    "line": ("#dcdfe4", "#30343c"),
    "on": ("#fff", "#14161a"),
    "yes": ("#1c7a3c", "#5bd07f"),
    "no": ("#b3261e", "#ff8a80"),
}


def _variables(which: int) -> str:
    return "".join(f"--{name}:{both[which]};" for name, both in (_GROUND | PALETTE).items())


def _classes() -> str:
    return "".join(
        f".c-{n}{{fill:var(--{n})}}.b-{n}{{background:var(--{n})}}.l-{n}{{stroke:var(--{n})}}"
        for n in PALETTE
    )


STYLE = f"""
:root{{color-scheme:light dark;{_variables(0)}}}
@media (prefers-color-scheme:dark){{:root{{{_variables(1)}}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,sans-serif}}
main{{max-width:60rem;margin:0 auto;padding:1rem}}
h1{{font-size:1.5rem;margin:1.5rem 0 .25rem;overflow-wrap:anywhere}}
h2{{font-size:1.1rem;margin:1.75rem 0 .5rem}}
h3{{font-size:1rem;margin:0 0 .25rem}}
p,li,footer{{color:var(--soft)}}
li strong{{color:var(--fg)}}
.wide{{overflow-x:auto}}
table{{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}}
th,td{{padding:.25rem .75rem .25rem 0;text-align:right;vertical-align:top;white-space:nowrap;
border-bottom:1px solid var(--line)}}
th{{color:var(--soft);font-weight:500}}
th:first-child,td:first-child{{text-align:left}}
tr.hot td{{color:var(--mlp);font-weight:600}}
tr.total td{{font-weight:600;border-bottom:0}}
details td{{white-space:normal;text-align:left;overflow-wrap:anywhere;min-width:6rem}}
summary{{cursor:pointer;margin:1.5rem 0 .5rem}}
code{{font-size:.8125rem;overflow-wrap:anywhere}}
.key{{display:inline-block;width:.7em;height:.7em;border-radius:2px;margin-right:.4em}}
.keys{{display:flex;flex-wrap:wrap;gap:.25rem 1rem;font-size:.8125rem;color:var(--soft)}}
.charts{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));
gap:2rem 2.5rem;margin:1.75rem 0}}
figure{{margin:0;min-width:0}}
figcaption{{font-size:.8125rem;color:var(--soft);margin-top:.25rem}}
svg{{display:block;width:100%;height:auto}}
svg text{{font:11px system-ui,sans-serif;fill:var(--soft);
paint-order:stroke;stroke:var(--bg);stroke-width:3px;stroke-linejoin:round}}
svg text.on{{fill:var(--on);font-weight:600;stroke:none}}
svg text.total{{fill:var(--fg)}}
svg text.limit{{fill:var(--no)}}
svg line.grid{{stroke:var(--line)}}
svg line.limit{{stroke:var(--no);stroke-dasharray:5 3}}
svg polyline{{fill:none;stroke-width:2}}
svg .dashed{{stroke-dasharray:4 3}}
svg .mark{{fill:var(--fg)}}
.verdict{{margin:1rem 0;padding:.75rem 1rem;border-left:4px solid;border-radius:2px}}
.yes{{border-color:var(--yes)}}
.no{{border-color:var(--no)}}
.yes strong{{color:var(--yes)}}
.no strong{{color:var(--no)}}
footer{{margin:2rem 0 1rem;font-size:.8125rem}}
{_classes()}
"""
