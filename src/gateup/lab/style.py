"""The lab's style sheet: the reports' palette, light and dark, nothing wider than a phone."""

from __future__ import annotations

from gateup.account.report.style import PALETTE

# Ground, text, softer text, lines, text on bars, panels, yes, no.
_GROUND: dict[str, tuple[str, str]] = {
    "bg": ("#ffffff", "#14161a"),
    "fg": ("#1b1d21", "#e8eaee"),
    "soft": ("#5d636e", "#9aa1ad"),
    "line": ("#dcdfe4", "#30343c"),
    "on": ("#ffffff", "#14161a"),
    "panel": ("#f5f6f8", "#1c1f25"),
    "yes": ("#1c7a3c", "#5bd07f"),
    "no": ("#b3261e", "#ff8a80"),
    "warn": ("#8a5a00", "#f0b429"),
}
# One for each rank or function, told apart also by those who see no red or green.
SERIES: tuple[tuple[str, str], ...] = (
    ("#d9600a", "#ff9440"),
    ("#0f7f8f", "#4cc3d3"),
    ("#3b62c4", "#84a5f5"),
    ("#9a55b5", "#cf97e6"),
    ("#4d8b31", "#86c765"),
    ("#c23b8c", "#f285c4"),
    ("#a88700", "#e0bf3f"),
    ("#7d3c1d", "#c98a66"),
)
# Plotly draws on a canvas and knows no CSS: colours that can be read on both grounds.
BOTH: tuple[str, ...] = (
    "#e8731e",
    "#1d9bab",
    "#5d82e8",
    "#ad6cc6",
    "#62a346",
    "#d65aa5",
    "#b8971a",
    "#a3694a",
)
GREY, GRID = "#858c99", "rgba(133,140,153,0.28)"


def _variables(which: int) -> str:
    named = _GROUND | PALETTE | {f"s{i}": pair for i, pair in enumerate(SERIES)}
    return "".join(f"--{name}:{both[which]};" for name, both in named.items())


def _classes() -> str:
    names = [*PALETTE, *(f"s{i}" for i in range(len(SERIES)))]
    return "".join(
        f".c-{n}{{fill:var(--{n})}}.b-{n}{{background:var(--{n})}}.l-{n}{{stroke:var(--{n})}}"
        for n in names
    )


# A shade at the side where a table goes on: covered by the ground at the table's own ends.
_SHADE = "rgba(125,130,140,.55),transparent) {} 0/.8rem 100% no-repeat scroll"
_COVER = "var(--bg) 40%,transparent) {} 0/2.4rem 100% no-repeat local"
_SHADES = ",".join(
    f"linear-gradient({turn},{layer.format(place)}"
    for layer in (_COVER, _SHADE)
    for turn, place in (("90deg", "0"), ("270deg", "100%"))
)

STYLE = f"""
body{{{_variables(0)}background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,sans-serif}}
body.body--dark{{{_variables(1)}}}
body .q-page,body .nicegui-content{{padding:0;gap:0;display:block}}
.lab{{max-width:76rem;margin:0 auto;padding:0 1rem 3rem;display:block}}
.lab *{{min-width:0}}
.lab a{{color:inherit}}
.top{{display:flex;align-items:center;gap:.25rem 1rem;flex-wrap:wrap;padding:.6rem 0;
border-bottom:1px solid var(--line);margin-bottom:1rem}}
.top .brand{{font-weight:700;text-decoration:none;white-space:nowrap}}
.top .brand b{{color:var(--mlp)}}
.top nav{{display:flex;flex-wrap:wrap;gap:.1rem .9rem;flex:1 1 20rem;order:1}}
.top nav a{{flex:none;text-decoration:none;color:var(--soft);white-space:nowrap;padding:.35rem 0}}
.top nav a[aria-current]{{color:var(--fg);box-shadow:0 2px 0 var(--mlp)}}
.top .tools{{display:flex;gap:.25rem .75rem;order:2;margin-left:auto;align-items:center}}
.top .tools a,.top .tools button{{border:0;background:none;color:var(--soft);cursor:pointer;
font:inherit;padding:.35rem;text-decoration:none;min-width:2.2rem;text-align:center}}
.lab h1{{font-size:1.5rem;line-height:1.25;font-weight:700;margin:.75rem 0 .25rem}}
.lab h2{{font-size:1.1rem;line-height:1.3;font-weight:600;margin:1.75rem 0 .5rem}}
.lab h3{{font-size:1rem;line-height:1.3;font-weight:600;margin:0 0 .25rem}}
.lab p{{margin:.25rem 0}}
.about,.note,figcaption{{color:var(--soft);font-size:.9rem}}
.controls{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,15rem),1fr));
gap:.6rem 1.25rem;background:var(--panel);border-radius:8px;padding:.75rem 1rem;margin:1rem 0;
align-items:end}}
.controls .wider{{grid-column:1/-1}}
.controls .named{{display:block}}
.controls .named label{{display:flex;justify-content:space-between;color:var(--soft);
font-size:.85rem}}
.controls .named output{{color:var(--fg);font-variant-numeric:tabular-nums}}
.controls .q-slider{{padding:0 .5rem;box-sizing:border-box}}
.grid{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,var(--cell,22rem)),1fr));
gap:1.25rem 2rem}}
.wide-cells{{--cell:26rem}}
.cards{{--cell:16rem;gap:1rem}}
.surfaces{{--cell:max(10.4rem,22%);gap:.75rem 1rem}}
.cards a{{display:block;text-decoration:none;border:1px solid var(--line);border-radius:8px;
padding:.75rem 1rem}}
.cards a:hover,.cards a:focus-visible{{border-color:var(--mlp)}}
.cards p{{color:var(--soft);font-size:.9rem}}
.lab figure>svg{{max-width:36rem}}
.wide+h3,.keys+h3{{margin-top:1rem}}
.upload{{width:100%;max-width:22rem}}.upload .q-uploader__list{{display:none}}
.figures{{margin:0;display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));
gap:0 2.5rem;align-items:start}}
.figure{{border-bottom:1px solid var(--line)}}
.figure summary{{display:flex;flex-wrap:wrap;gap:0 1rem;justify-content:space-between;
cursor:pointer;padding:.35rem 0;list-style-position:inside}}
.figure summary::-webkit-details-marker{{display:none}}
.figure dt{{text-decoration:underline dotted var(--soft);text-underline-offset:.25em}}
.figure dd{{margin:0 0 0 auto;font-variant-numeric:tabular-nums;white-space:nowrap;
text-align:right}}
.how{{color:var(--soft);font-size:.8125rem;padding:0 0 .5rem;overflow-wrap:anywhere}}
.lab code,.lab pre{{font:.8125rem/1.45 ui-monospace,monospace;overflow-wrap:anywhere}}
.lab pre{{white-space:pre-wrap;background:var(--panel);padding:.5rem .75rem;border-radius:6px;
margin:.25rem 0}}
.wide,.prose table{{overflow-x:auto;background:{_SHADES}}}
.lab table{{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}}
.lab th,.lab td{{padding:.3rem .9rem .3rem 0;text-align:right;vertical-align:top;
white-space:nowrap;border-bottom:1px solid var(--line)}}
.lab th{{color:var(--soft);font-weight:500}}
.lab th:first-child,.lab td:first-child{{text-align:left}}
tr.hot td{{color:var(--mlp);font-weight:600}}
tr.total td{{font-weight:600;border-bottom:0}}
.key{{display:inline-block;width:.7em;height:.7em;border-radius:2px;margin-right:.4em}}
.keys{{display:flex;flex-wrap:wrap;gap:.25rem 1rem;font-size:.8125rem;color:var(--soft);
margin-top:.25rem}}
.lab figure{{margin:0 0 1rem}}
.lab svg{{display:block;width:100%;height:auto}}
.lab svg text{{font:11px system-ui,sans-serif;fill:var(--soft);paint-order:stroke;
stroke:var(--bg);stroke-width:5px;stroke-linejoin:round}}
.lab svg text.on{{fill:var(--on);font-weight:600;stroke:none}}
.lab svg text.total,.lab svg text.name{{fill:var(--fg)}}
.lab svg text.limit{{fill:var(--no)}}
.lab svg line.grid{{stroke:var(--line)}}
.lab svg line.limit{{stroke:var(--no);stroke-dasharray:5 3}}
.lab svg line.flow{{stroke:var(--soft)}}
.lab svg polyline{{fill:none;stroke-width:2}}
.lab svg .dashed{{stroke-dasharray:4 3}}
.lab svg .mark{{fill:var(--fg)}}
.lab svg .edge{{fill:none;stroke:var(--line)}}
.verdict{{margin:1rem 0;padding:.75rem 1rem;border-left:4px solid;border-radius:2px;
background:var(--panel)}}
.yes{{border-color:var(--yes)}}.yes>strong{{color:var(--yes)}}
.no{{border-color:var(--no)}}.no>strong{{color:var(--no)}}
.warn{{border-color:var(--warn)}}.warn>strong{{color:var(--warn)}}
.stale{{opacity:.5}}
.quoted{{border-left:2px solid var(--line);padding-left:.75rem;margin:.35rem 0}}
.plain{{border-color:var(--line)}}
.error{{margin:1rem 0;padding:.75rem 1rem;border-left:4px solid var(--no);background:var(--panel);
white-space:pre-wrap;overflow-wrap:anywhere}}
tr.bad td{{color:var(--no)}}
.prose{{max-width:44rem}}.prose p,.prose ul,.prose ol{{margin:.6rem 0}}
.prose table{{display:block;width:fit-content;max-width:100%;overflow-x:auto}}
.prose th,.prose td{{text-align:left;white-space:normal}}
.prose p{{max-width:100%;overflow-x:auto;overflow-y:hidden}}
.prose math[display=block]{{margin:.25rem 0;padding:.35rem 0;max-width:100%;overflow-x:auto;
overflow-y:hidden}}
.prose blockquote{{margin:.6rem 0;padding-left:1rem;border-left:3px solid var(--line)}}
.editor{{height:26rem;border:1px solid var(--line);border-radius:6px;overflow:hidden;width:100%}}
.buttons{{display:flex;flex-wrap:wrap;gap:.5rem;margin:.75rem 0}}
.links{{font-size:.9rem}}
.plot3d{{width:100%;height:15.5rem}}
.plot{{width:100%;height:15rem}}
.tall{{height:21rem}}
.lab math{{font-size:1.05rem}}
.lab footer{{margin:2.5rem 0 0;color:var(--soft);font-size:.8125rem}}
.q-chip{{max-width:100%}}
@media (max-width:30rem){{.lab{{padding:0 .75rem 2rem}}.plot3d{{height:14rem}}
.surfaces{{--cell:100%}}
.figure summary{{gap:.5rem}}.top nav{{order:3;flex-basis:100%}}}}
@media print{{.top,.controls{{display:none}}}}
{_classes()}
"""
