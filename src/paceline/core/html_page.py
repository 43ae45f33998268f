"""Frame of every HTML page: one file with its style inside, without scripts or requests.

Light or dark as the reader's system is, and light on paper.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from paceline import __version__
from paceline.core.html import Child, Markup, raw, tag

# Okabe and Ito 2008: distinguishable with every kind of colour vision. No yellow: too light on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#666666")
_DARK = ("#5ab4e6", "#ff8a4c", "#3dcc9e", "#e79ac4", "#f0b840", "#9ad5f7", "#bb9ae0", "#b0b0b0")
_LIGHT = PALETTE
# Colours of the phases of a step, by theme. The dashboard's page is built with the same file.
_PHASES: Mapping[str, Mapping[str, str]] = {
    theme: colours["phases"]
    for theme, colours in json.loads(Path(__file__).with_name("palette.json").read_text("utf-8")).items()
}
_LIGHT_SIDE = (
    "--bg:#fff;--text:#1b1f24;--soft:#57606a;--line:#d0d7de;--box:#f3f6f9;--good:#0b5a3a;--warn:#7a4300"
)
_DARK_SIDE = (
    "--bg:#14181d;--text:#e6e9ee;--soft:#a9b3bf;--line:#39424d;--box:#1d232b;--good:#7fdcb1;--warn:#f3c27a"
)


def _colours(palette: tuple[str, ...], phases: Mapping[str, str]) -> dict[str, str]:
    """Colours by the name of their CSS variable."""
    numbered = {f"c{number}": colour for number, colour in enumerate(palette)}
    return numbered | {f"phase_{name}": colour for name, colour in phases.items()}


def _variables(side: str, colours: Mapping[str, str]) -> str:
    variables = ";".join(f"--{name}:{colour}" for name, colour in colours.items())
    return f":root{{{side};{variables}}}"


_RULES = """
*{box-sizing:border-box}
html{color-scheme:light dark}
body{margin:0;background:var(--bg);color:var(--text)}
body{font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:70rem;margin:0 auto;padding:1.2rem 1rem 3rem}
h1{font-size:1.5rem;line-height:1.25;margin:.2rem 0 .4rem}
h2{font-size:1.2rem;margin:2rem 0 .6rem}
h3{font-size:1rem;margin:0 0 .3rem}
p,li{max-width:48rem}
.soft,.note,figcaption p{color:var(--soft)}
.note{font-size:.82rem;white-space:nowrap}
.verdict{background:var(--box);border-left:.35rem solid var(--c0);padding:.8rem 1rem;border-radius:.3rem}
.headline{font-size:1.2rem;font-weight:600;margin:.2rem 0 .6rem;overflow-wrap:anywhere}
.warnings{border-left-color:var(--c1);margin-top:.8rem}
.warnings h2{margin:0 0 .3rem;font-size:1rem;color:var(--warn)}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:.3rem}
.scroll:focus-visible{outline:3px solid var(--c0)}
table{border-collapse:collapse;width:100%;font-size:.92rem}
caption{text-align:left;padding:.5rem .6rem;color:var(--soft)}
th,td{padding:.4rem .6rem;text-align:left;border-top:1px solid var(--line);vertical-align:top}
thead th{border-top:0;background:var(--box);vertical-align:bottom}
tbody th{white-space:nowrap}
th.number{text-align:right}
td.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
td.number .note{display:block}
tr.use th,tr.use td{background:var(--box);font-weight:600}
tr.use .note{font-weight:400}
.chip{display:inline-block;width:.75em;height:.75em;border-radius:2px;margin-right:.4em;background:currentColor}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1.2rem}
figure{margin:0;max-width:40rem;padding:.8rem;border:1px solid var(--line);border-radius:.3rem;min-width:0}
figure>svg{display:block;width:100%;height:auto;font-size:12.5px}
figcaption{font-size:.88rem}
figcaption p{margin:.3rem 0}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem .9rem;margin:.3rem 0 0;padding:0}
.legend svg{width:22px;height:10px;margin-right:.35rem;vertical-align:middle}
dl{display:grid;grid-template-columns:minmax(7rem,auto) 1fr;gap:.35rem 1rem}
dt{font-weight:600}
dd{margin:0;overflow-wrap:anywhere;max-width:48rem}
code{font-size:.9em;overflow-wrap:anywhere}
@media (max-width:36rem){dl{grid-template-columns:1fr}dd{margin-bottom:.5rem}}
@media print{body{font-size:11pt}main{max-width:none;padding:0}.scroll{overflow:visible;border:0}
table{font-size:8.5pt}th,td{padding:.2rem .3rem}.note{font-size:7pt}figcaption{font-size:8pt}
thead th,td.number,.note{white-space:normal}
figure,.verdict,tr,dl>*{break-inside:avoid}h2,h3{break-after:avoid}
.figures{grid-template-columns:1fr 1fr;gap:.6rem}*{print-color-adjust:exact}}
"""

# Rules of all drawings, in pages and in image files.
_SVG_RULES = """
svg text{fill:var(--text)}
svg text.middle{text-anchor:middle}
svg text.end{text-anchor:end}
svg line,svg polyline{stroke:var(--line);stroke-width:1;fill:none}
svg .axis{stroke:var(--soft)}
svg .grid{stroke:var(--line);stroke-opacity:.7}
svg polyline{stroke-width:2;stroke-linejoin:round}
svg .plain{stroke:var(--text);stroke-width:1.4}
svg .thick{stroke-width:4}
"""


def _colour_rules() -> str:
    return "".join(
        f"svg .{name}{{stroke:var(--{name})}}"
        f"svg .{name}.fill rect,svg .{name}.mark{{fill:var(--{name});stroke:none}}"
        f".chip.{name}{{color:var(--{name})}}"
        for name in _colours(_LIGHT, _PHASES["light"])
    )


def _style() -> str:
    light = _variables(_LIGHT_SIDE, _colours(_LIGHT, _PHASES["light"]))
    dark = _variables(_DARK_SIDE, _colours(_DARK, _PHASES["dark"]))
    # Print has a white background in every colour scheme.
    return (
        f"{light}@media screen and (prefers-color-scheme:dark){{{dark}}}{_RULES}{_SVG_RULES}{_colour_rules()}"
    )


def picture_style() -> str:
    """The style sheet of an SVG file: the page's light side, with colours written out.

    Inkscape, librsvg and office programs know no CSS variables.
    """
    pairs = (pair.split(":") for pair in _LIGHT_SIDE.split(";"))
    colours = {name.removeprefix("--"): colour for name, colour in pairs}
    colours |= _colours(_LIGHT, _PHASES["light"])
    return re.sub(r"var\(--(\w+)\)", lambda match: colours[match[1]], _SVG_RULES + _colour_rules())


def page(title: str, *body: Child) -> str:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=f"paceline {__version__}"),
        tag("title", title),
        # Without it a browser requests favicon.ico.
        Markup('<link rel="icon" href="data:,"/>'),
        tag("style", raw(_style())),
    )
    whole = tag("html", head, tag("body", tag("main", *body)), lang="en")
    return f"<!doctype html>\n{whole}\n"


def scrolling(label: str, table: Markup) -> Markup:
    """Make a wide table scrollable, also by keyboard; the page does not scroll sideways."""
    return tag("div", table, class_="scroll", role="region", aria_label=label, tabindex=0)


def definitions(items: dict[str, str]) -> Markup:
    return tag("dl", [[tag("dt", name), tag("dd", text)] for name, text in items.items()])
