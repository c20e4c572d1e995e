"""Charts as still pictures for notebooks: the plotly figures of pages, drawn with matplotlib."""

import html
import re
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any, Final

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure as Canvas
from matplotlib.text import Text

from scenarios.report.blocks import Chart, Figure

_DPI: Final = 100
_SOFT: Final = "#667080"
_WIDTH_PIXELS: Final = 960
_DIGIT_PIXELS: Final = 8
_BAR_HEIGHT: Final = 0.65
_PLAIN_AXIS: Final[Mapping[str, Any]] = {}

Colour = tuple[float, float, float, float]


def chart_png(chart: Chart, width: int = _WIDTH_PIXELS) -> bytes:
    """Return a chart as a PNG, ``width`` pixels wide. Raises ValueError for an unknown type of mark."""
    canvas = Canvas(figsize=(width / _DPI, chart.height / _DPI), dpi=_DPI, layout="constrained")
    draw_chart(chart.figure, canvas)
    picture = BytesIO()
    canvas.savefig(picture, format="png", metadata={"Software": None})
    return picture.getvalue()


def draw_chart(figure: Figure, canvas: Canvas) -> None:
    """Draw a chart on an empty matplotlib figure. Raises ValueError for an unknown type of mark."""
    layout = figure["layout"]
    plots = _plots(layout, canvas)
    for suffix, plot in plots.items():
        traces = [trace for trace in figure["data"] if trace.get("xaxis", "x") == f"x{suffix}"]
        _draw_traces(plot, traces, layout)
        y_axis = layout.get(layout.get(f"xaxis{suffix}", _PLAIN_AXIS).get("anchor", "y").replace("y", "yaxis", 1))
        _dress(plot, "x", layout.get(f"xaxis{suffix}", _PLAIN_AXIS))
        _dress(plot, "y", y_axis or _PLAIN_AXIS)
        plot.tick_params(colors=_SOFT, length=0, labelsize=8)
        plot.spines[:].set_visible(False)
    _mark(next(iter(plots.values())), layout)
    if layout.get("showlegend", "legend" in layout):
        handles, labels = next(iter(plots.values())).get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8)
    for text in canvas.findobj(Text):
        text.set_parse_math(False)  # a dollar sign in a name is no mathematics


def _plots(layout: Mapping[str, Any], canvas: Canvas) -> dict[str, Any]:
    """Return a plot per horizontal axis, by the number at the end of the axis' name, in rows and columns."""
    places: dict[str, tuple[float, float]] = {}
    for key in [key for key in layout if re.fullmatch(r"xaxis\d*", key)]:
        anchor = layout[key].get("anchor", "y").replace("y", "yaxis", 1)
        left = layout[key].get("domain", (0.0, 1.0))[0]
        places[key.removeprefix("xaxis")] = (left, layout.get(anchor, _PLAIN_AXIS).get("domain", (0.0, 1.0))[1])
    columns, rows = (sorted({place[i] for place in places.values()}, reverse=bool(i)) for i in range(2))
    grid = canvas.subplots(len(rows), len(columns), squeeze=False)
    plots = {suffix: grid[rows.index(top), columns.index(left)] for suffix, (left, top) in places.items()}
    for plot in grid.flat:
        plot.set_visible(any(plot is used for used in plots.values()))
    return plots


def _draw_traces(plot: Any, traces: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> None:
    rows = {label: place for place, label in enumerate(dict.fromkeys(
        label for trace in traces for label in trace.get("y", ()) if isinstance(label, str)))}  # fmt: skip
    ends = np.zeros(len(rows)) if layout.get("barmode") == "stack" else None
    draw: Mapping[str, Callable[..., None]] = {"bar": _bars, "scatter": _scatter, "heatmap": _heat_map}
    for trace in traces:
        if trace["type"] not in draw:
            message = f"marks of the type {trace['type']!r} cannot be drawn; known: {', '.join(draw)}"
            raise ValueError(message)
        draw[trace["type"]](plot, trace, rows, ends)
    if rows:
        plot.set_yticks(range(len(rows)), [_plain(row) for row in rows])
        plot.set_ylim(len(rows) - 0.5, -0.5)


def _bars(plot: Any, trace: Mapping[str, Any], rows: Mapping[str, int], ends: Any) -> None:
    places = np.array([rows.get(y, y) for y in trace["y"]], dtype=np.float64)
    lengths = np.asarray(trace["x"], dtype=np.float64)
    starts = np.asarray(trace.get("base", np.zeros(len(lengths))), dtype=np.float64)
    if ends is not None:
        at = places.astype(int)
        starts = ends[at].copy()
        ends[at] += lengths
    marker, opacity = trace["marker"], trace["marker"].get("opacity", 1.0)
    alphas = [opacity] * len(lengths) if isinstance(opacity, int | float) else opacity
    words = [marker["color"]] * len(lengths) if isinstance(marker["color"], str) else marker["color"]
    colours = [_colour(colour, alpha) for colour, alpha in zip(words, alphas, strict=True)]
    thickness = trace.get("width", _BAR_HEIGHT)
    edges = marker.get("line", {}).get("width", 0.0)
    plot.barh(places, lengths, thickness, left=starts, color=colours, edgecolor="white", linewidth=edges)
    _number_bars(plot, trace, (starts, lengths, places))


def _number_bars(plot: Any, trace: Mapping[str, Any], bars: tuple[Any, Any, Any]) -> None:
    """Write the labels of bars inside them, if they fit."""
    pixels = 0.9 * plot.get_window_extent().width / max(float((bars[0] + bars[1]).max(initial=0.0)), 1e-300)
    for start, length, place, words in zip(*bars, trace.get("text", [""] * len(bars[0])), strict=True):
        if words and length * pixels > _DIGIT_PIXELS * len(words):
            middle = start + length / 2
            plot.text(middle, place, words, ha="center", va="center", color="white", fontsize=7, clip_on=True)


def _scatter(plot: Any, trace: Mapping[str, Any], _rows: Mapping[str, int], _ends: Any) -> None:
    if trace.get("fill") == "toself":
        edges = [place for place, x in enumerate([*trace["x"], None]) if x is None]
        points = list(zip(trace["x"], trace["y"], strict=True))
        shapes = [points[a + 1 : b] for a, b in zip([-1, *edges[:-1]], edges, strict=True)]
        plot.add_collection(PolyCollection(shapes, facecolors=[_colour(trace["fillcolor"], trace.get("opacity", 1.0))]))
        plot.autoscale_view()
        return
    name = _plain(trace["name"])
    if "lines" in trace["mode"]:
        line = trace["line"]
        style = "steps-post" if line.get("shape") == "hv" else "default"
        colour = _colour(line["color"])
        plot.plot(trace["x"], trace["y"], color=colour, linewidth=line.get("width", 1.5), drawstyle=style, label=name)
    if "markers" in trace["mode"]:
        colour = _colour(trace["marker"]["color"])
        plot.plot(trace["x"], trace["y"], "o", color=colour, markersize=6, label=name)
        if "error_y" in trace:
            spread = [trace["error_y"]["arrayminus"], trace["error_y"]["array"]]
            plot.errorbar(trace["x"], trace["y"], spread, fmt="none", ecolor=colour)
    for x, y, words in zip(trace["x"], trace["y"], trace.get("text", [""] * len(trace["x"])), strict=True):
        if words.strip():
            plot.annotate(_plain(words), (x, y), fontsize=8, color=_SOFT, va="center")


def _heat_map(plot: Any, trace: Mapping[str, Any], rows: Mapping[str, int], _ends: Any) -> None:
    values = np.asarray(trace["z"], dtype=np.float64)
    scale = LinearSegmentedColormap.from_list(
        "scale", [(stop, _colour(colour)) for stop, colour in trace["colorscale"]]
    )
    end = trace["x0"] - trace["dx"] / 2 + trace["dx"] * values.shape[1]
    extent = (trace["x0"] - trace["dx"] / 2, end, len(rows) - 0.5, -0.5)
    plot.imshow(values, aspect="auto", extent=extent, cmap=scale, vmin=trace["zmin"], vmax=trace["zmax"],
                interpolation="nearest")  # fmt: skip


def _dress(plot: Any, way: str, axis: Mapping[str, Any]) -> None:
    """Set the scale, range, ticks and title of an axis."""

    def set_of(what: str) -> Callable[..., None]:
        found: Callable[..., None] = getattr(plot, f"set_{way}{what}")
        return found

    if axis.get("type") == "log":
        set_of("scale")("log")
        plot.minorticks_off()
    if "range" in axis:
        set_of("lim")(*axis["range"])
    if axis.get("rangemode") == "tozero":
        set_of("lim")(0)
    if "autorangeoptions" in axis:
        shown, included = getattr(plot, f"get_{way}lim")(), axis["autorangeoptions"]["include"]
        set_of("lim")(min(*shown, *included), max(*shown, *included))
    if "tickvals" in axis:
        words = axis.get("ticktext", [f"{value:g}" for value in axis["tickvals"]])
        set_of("ticks")(axis["tickvals"], [_plain(word) for word in words])
    if axis.get("showticklabels") is False:
        set_of("ticks")([])
    if "title" in axis:
        set_of("label")(_plain(axis["title"]["text"]), color=_SOFT, fontsize=8)


def _mark(plot: Any, layout: Mapping[str, Any]) -> None:
    """Draw lines at limits, with their labels."""
    for shape in layout.get("shapes", ()):
        draw, at = (plot.axvline, shape["x0"]) if shape["x0"] == shape["x1"] else (plot.axhline, shape["y0"])
        draw(at, color=_colour(shape["line"]["color"]), linewidth=1.2, linestyle="--")
    for note in layout.get("annotations", ()):
        if "shapes" in layout:
            coordinates = tuple("axes fraction" if note.get(f"{way}ref") == "paper" else "data" for way in "xy")
            plot.annotate(_plain(note["text"]), (note["x"], note["y"]), xycoords=coordinates, fontsize=8, color=_SOFT,
                          ha=note.get("xanchor", "left"), va="bottom")  # fmt: skip


def _plain(text: str) -> str:
    """Return a chart's text without markup."""
    return html.unescape(text)


def _colour(words: str, opacity: float = 1.0) -> Colour:
    """Return a colour from CSS's words: ``#4a7fd6``, ``rgb(1,2,3)``, ``rgba(1,2,3,0.5)``."""
    if found := re.fullmatch(r"rgba?\(([^)]*)\)", words):
        red, green, blue, *alpha = map(float, found[1].split(","))
        return red / 255, green / 255, blue / 255, (alpha[0] if alpha else 1.0) * opacity
    return to_rgba(words, opacity)
