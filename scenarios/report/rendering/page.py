"""One self-contained HTML page: its style, its charts' data, and plotly.js inside. Opens without a network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from scenarios.report.rendering.markup import escape, script_json
from traces.files import replacing

Figure = Mapping[str, Any]
"""plotly's ``data`` and ``layout``, as plain values."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure with the id of its element and its height in pixels."""

    id: str
    figure: Figure
    height: int


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, HTML below it, a chart, and small print."""

    heading: str
    lead: str = ""
    body: str = ""
    chart: Chart | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """A number that answers a question: what it is, its value, and what goes with it; ``mood`` is good or bad."""

    label: str
    value: str
    detail: str = ""
    mood: str = ""


def write_page(
    path: Path,
    title: str,
    subtitle: str,
    cards: Sequence[Card],
    sections: Sequence[Section],
    *,
    scripts: Sequence[str] = (),
) -> None:
    """Write the page, with plotly.js if a section has a chart. Identical arguments give identical bytes.

    ``scripts`` run at the end of the page, for what sections draw by themselves.
    """
    charts = {section.chart.id: section.chart.figure for section in sections if section.chart}
    head = _HEAD.replace("{style}", _STYLE).replace("{title}", escape(title))
    body = [f"<header><h1>{escape(title)}</h1><p>{escape(subtitle)}</p></header>"]
    body += [f'<div class="cards">{"".join(_card(card) for card in cards)}</div>']
    body += [_section(section) for section in sections]
    parts = [*_chart_scripts(charts), *scripts]
    code = "\n".join(f"<script>{part}</script>" for part in parts)
    text = f"{head}<body><main>\n{chr(10).join(body)}\n</main>\n{code}\n</body></html>\n"
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def _chart_scripts(charts: Mapping[str, Figure]) -> list[str]:
    """Return what draws the charts, nothing where there are none: plotly.js is most of a page."""
    if not charts:
        return []
    return [get_plotlyjs(), f"const charts = {script_json(charts)};\n{_SCRIPT}"]


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1, is_html: bool = False
) -> str:
    """Return an HTML table that scrolls where it is too wide; the first ``text_columns`` are words, the others numbers.

    Cells are escaped unless they ``is_html``.
    """
    heads = [f"<th{_align(i, text_columns)}>{escape(name)}</th>" for i, name in enumerate(columns)]
    shown = [[cell if is_html else escape(cell) for cell in row] for row in rows]
    lines = [
        "<tr>" + "".join(f"<td{_align(i, text_columns)}>{cell}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in shown
    ]
    body = f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="wide"><table>{body}</table></div>'


def bar(fraction: float) -> str:
    """Return a bar for a cell of a table, as long as a fraction of it."""
    return f'<span class="bar"><i style="width:{100 * fraction:.1f}%"></i></span>'


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Return names with what is to be said of each, from (name, HTML)."""
    lines = "".join(f"<dt>{escape(name)}</dt><dd>{words}</dd>" for name, words in rows)
    return f'<dl class="facts">{lines}</dl>' if rows else ""


def split_bar(parts: Sequence[tuple[str, str, float, str]]) -> str:
    """Return a bar that is divided into parts, and what they are, from (words, colour, fraction, amount)."""
    pieces = "".join(
        f'<i style="width:{100 * fraction:.2f}%;background:{colour}" title="{escape(f"{words}: {amount}")}"></i>'
        for words, colour, fraction, amount in parts
    )
    entries = [(f"{words}: {amount}", colour) for words, colour, _, amount in parts]
    return f'<div class="split">{pieces}</div>{legend(entries)}'


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Return coloured squares with words, from (words, colour)."""
    items = [f'<span><i style="background:{colour}"></i>{escape(words)}</span>' for words, colour in entries]
    return f'<div class="legend">{"".join(items)}</div>'


def _align(index: int, text_columns: int) -> str:
    return "" if index < text_columns else ' class="n"'


def _card(card: Card) -> str:
    mood = f" {card.mood}" if card.mood else ""
    detail = f"<small>{escape(card.detail)}</small>" if card.detail else ""
    return f'<div class="card{mood}"><span>{escape(card.label)}</span><b>{escape(card.value)}</b>{detail}</div>'


def _section(section: Section) -> str:
    parts = [f"<section><h2>{escape(section.heading)}</h2>"]
    if section.lead:
        parts.append(f'<p class="lead">{escape(section.lead)}</p>')
    parts.append(section.body)
    if section.chart:
        parts.append(f'<div class="chart" id="{section.chart.id}" style="height:{section.chart.height}px"></div>')
    if section.note:
        parts.append(f'<p class="note">{escape(section.note)}</p>')
    return "".join([*parts, "</section>"])


_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'; img-src data: blob:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style></head>
"""

_STYLE = """
:root { --ground: #ffffff; --panel: #f6f7f9; --text: #1c2127; --soft: #667080; --line: #e1e5ea; --good: #1f8a5b;
  --bad: #c8402f; --accent: #4a7fd6; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171b; --panel: #1d2126; --text: #e6e9ed; --soft: #97a1ae;
  --line: #2f353d; --good: #4cc38a; --bad: #f0705c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1280px; margin: 0 auto; padding: 40px 32px 64px; }
header h1 { margin: 0; font-size: 26px; font-weight: 650; letter-spacing: -0.01em; }
header p { margin: 4px 0 0; color: var(--soft); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(220px, 1fr)); gap: 12px; margin: 24px 0 8px; }
.card:only-child { max-width: 420px; }
.card { background: var(--panel); border-radius: 10px; padding: 14px 18px 15px; }
.card span { display: block; color: var(--soft); font-size: 13px; }
.card b { display: block; font-size: 26px; font-weight: 600; letter-spacing: -0.01em; line-height: 1.35;
  font-variant-numeric: tabular-nums; }
.card small { display: block; color: var(--soft); font-size: 13px; }
.card.good small { color: var(--good); }
.card.bad b, .card.bad small { color: var(--bad); }
section { margin-top: 44px; }
h2 { margin: 0 0 4px; font-size: 18px; font-weight: 620; }
.lead { margin: 0 0 10px; color: var(--soft); max-width: 110ch; }
.note { margin: 6px 0 0; color: var(--soft); font-size: 13px; max-width: 110ch; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 13px; color: var(--soft); margin: 6px 0 2px; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 6px; }
.chart { width: 100%; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 8px 40px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 500; font-size: 13px; }
th, td { padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); }
.long td { overflow-wrap: anywhere; min-width: 5em; }
th.n, td.n { text-align: right; padding: 5px 0 5px 14px; white-space: nowrap; }
.packed td.n { white-space: normal; }
h3 { font-size: 14px; font-weight: 600; margin: 18px 0 4px; }
.wide { overflow-x: auto; }
.bar { display: block; width: 240px; max-width: 22vw; }
.bar i { display: block; height: 8px; border-radius: 2px; background: var(--accent); min-width: 1px; }
.split { display: flex; height: 26px; border-radius: 5px; overflow: hidden; margin: 2px 0 8px;
  background: var(--panel); }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: 5px 24px; margin: 16px 0 0; }
.facts dt { color: var(--soft); }
.facts dd { margin: 0; overflow-wrap: anywhere; }
code { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; background: var(--panel);
  padding: 2px 6px; border-radius: 4px; }
@media (max-width: 700px) { main { padding: 24px 16px 40px; } .facts { grid-template-columns: 1fr; gap: 0; }
  .facts dd { margin-bottom: 8px; } .card b { font-size: 22px; } .columns { grid-template-columns: 1fr; } }
.lanes { position: relative; margin-top: 8px; }
.lanes canvas { width: 100%; display: block; cursor: grab; touch-action: pan-y; }
.lanes canvas:active { cursor: grabbing; }
.lanes canvas:focus-visible { outline: 1px solid var(--line); outline-offset: 2px; }
.tools { display: flex; flex-wrap: wrap; align-items: center; gap: 6px; font-size: 13px; color: var(--soft); }
.tools button, .tools input { font: inherit; color: var(--text); background: var(--panel);
  border: 1px solid var(--line); border-radius: 6px; padding: 3px 10px; }
.tools span { margin-left: 8px; }
.tip { position: absolute; z-index: 2; pointer-events: none; max-width: 560px; background: var(--panel);
  border: 1px solid var(--line); border-radius: 8px; padding: 8px 12px; font-size: 13px; overflow-wrap: anywhere; }
.large { max-width: 860px; margin-top: 6px; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); gap: 10px 24px; }
figure { margin: 10px 0 0; min-width: 0; max-width: 560px; }
figcaption { font-size: 13px; font-weight: 600; margin-bottom: 2px; }
.plot { width: 100%; height: auto; font-size: 12px; display: block; overflow: visible; }
.plot text { fill: var(--soft); }
.plot path { fill: none; }
.plot .grid { stroke: var(--line); }
.plot .dots { stroke-width: 2.4; stroke-linecap: round; }
.plot .guide { stroke: var(--soft); }
.plot .dashed { stroke-dasharray: 5 4; }
.plot path.band { fill: var(--accent); opacity: 0.1; }
.packed { columns: 460px; column-gap: 40px; }
.packed > div { break-inside: avoid; padding-top: 14px; }
.packed h3 { margin-top: 0; }
details { margin: 10px 0 0; }
summary { cursor: pointer; color: var(--soft); font-size: 13px; }
@media print { section { break-inside: avoid; } }
"""

_SCRIPT = """
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const axes = layout => Object.keys(layout).filter(key => /^[xy]axis\\d*$/.test(key));
function themed(layout) {
  const result = structuredClone(layout);
  result.paper_bgcolor = result.plot_bgcolor = "rgba(0,0,0,0)";
  result.font = {color: css("--text"), size: 13, family: getComputedStyle(document.body).fontFamily};
  result.hoverlabel = {bgcolor: css("--panel"), bordercolor: css("--line"), align: "left",
    font: {color: css("--text"), size: 13}};
  for (const key of axes(result)) {
    Object.assign(result[key], {gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line"),
      tickfont: {color: css("--soft"), size: 12}});
    if (result[key].title) result[key].title.font = {color: css("--soft"), size: 12};
  }
  for (const note of result.annotations || []) note.font = {color: css("--soft"), size: 12};
  return result;
}
function draw() {
  for (const [id, chart] of Object.entries(charts))
    Plotly.react(id, chart.data, themed(chart.layout), {responsive: true, displayModeBar: false});
}
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
"""
