"""The drawing of a topology: the network between nodes beside the inside of a node."""

from collections.abc import Sequence
from math import log2
from typing import Any, Final

from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch
from msgspec import Struct

from costmodels.units import format_rate
from scenarios.report.pictures.topology_layout import Box, Line, Picture, lay_out_islands, lay_out_network
from sim.cluster.topology.links import LinkKind
from sim.cluster.topology.topology import Topology

_COLOURS: Final = {
    LinkKind.NVLINK: "#4c9a2a",
    LinkKind.NVSWITCH: "#76b900",
    LinkKind.PORT: "#76b900",
    LinkKind.PCIE: "#8a94a6",
    LinkKind.HOST: "#2a9d8f",
    LinkKind.SOCKET: "#e07b39",
    LinkKind.NIC: "#2f6fde",
    LinkKind.LEAF_SPINE: "#8e5bd0",
    LinkKind.SPINE_CORE: "#c2408f",
    LinkKind.TORUS: "#2f6fde",
    LinkKind.LOCAL: "#8a94a6",
    LinkKind.GLOBAL: "#c2408f",
}
_FILLS: Final = {"device": "#dff0c8", "switch": "#e6e0f5", "nic": "#dbe7fb", "host": "#fbe4d3", "node": "#eef1f5"}
_INK: Final = "#2b3240"
_UNIT_INCHES: Final = 0.62


class TopologyDrawing(Struct, frozen=True):
    """A topology laid out, ready to be drawn on a figure of ``size_inches``: width, height."""

    title: str
    pictures: Sequence[Picture]
    spans: Sequence[tuple[float, float, float, float]]
    size_inches: tuple[float, float]

    def draw(self, figure: Any) -> None:
        """Draw on a matplotlib figure or subfigure."""
        widths = [right - left for left, right, _, _ in self.spans]
        plots = figure.subplots(1, len(self.pictures), squeeze=False, width_ratios=widths)[0]
        for plot, picture, span in zip(plots, self.pictures, self.spans, strict=True):
            _draw(plot, picture, span)
        handles = _legend([line for picture in self.pictures for line in picture.lines])
        if handles:
            columns = max(1, int(self.size_inches[0] / 2.9))
            figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
        figure.suptitle(self.title, x=0.01, ha="left", fontsize=13, color=_INK)


def lay_out_topology(topology: Topology, *, title: str) -> TopologyDrawing:
    """Return the drawing of a topology: the network between nodes beside the inside of a node."""
    network = lay_out_network(topology)
    pictures = ([network] if network else []) + lay_out_islands(topology)
    pictures = pictures or [Picture("a single device")]
    spans = [_span(picture) for picture in pictures]
    width, height = sum(s[1] - s[0] for s in spans), max(s[3] - s[2] for s in spans)
    size = (_UNIT_INCHES * width + 0.6, _UNIT_INCHES * height + 1.5)
    return TopologyDrawing(f"{title}, {topology.num_devices:,} devices", pictures, spans, size)


def _span(picture: Picture) -> tuple[float, float, float, float]:
    """Return left, right, bottom and top of a picture's content, with margins and room for the titles of rows."""
    points = [box.at for box in picture.boxes] or [(0.0, 0.0)]
    words = max((len(box.label) for box in picture.boxes if box.look == "words"), default=0)
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    bends = any(line.bend for line in picture.lines)
    top = max(y for _, y in points) + (1.6 if bends else 0.7)
    wide = max(right + 0.9, left - 0.15 * words + 0.15 * len(picture.title))
    return left - 0.7 - 0.15 * words, wide, min(y for _, y in points) - 0.7, top


def _draw(plot: Any, picture: Picture, span: tuple[float, float, float, float]) -> None:
    plot.set_xlim(*span[:2])
    plot.set_ylim(*span[2:])
    plot.set_axis_off()
    plot.set_title(picture.title, loc="left", fontsize=11, color=_INK)
    crowded = len(picture.lines) > 120
    for line in picture.lines:
        _draw_line(plot, line, 0.45 if crowded else 0.85)
    for box in picture.boxes:
        _draw_box(plot, box)


def _draw_line(plot: Any, line: Line, opacity: float) -> None:
    colour, width = _COLOURS[line.kind], _width(line.bandwidth_bytes_per_s)
    if not line.bend:
        (x0, y0), (x1, y1) = line.start, line.end
        plot.plot([x0, x1], [y0, y1], color=colour, linewidth=width, alpha=opacity, zorder=1, solid_capstyle="round")
        return
    bow = f"arc3,rad={line.bend}"
    patch = FancyArrowPatch(
        line.start, line.end, connectionstyle=bow, arrowstyle="-", color=colour, linewidth=width, alpha=opacity,
        zorder=1, shrinkA=0, shrinkB=0,
    )  # fmt: skip
    plot.add_patch(patch)


def _width(bandwidth_bytes_per_s: float) -> float:
    """Return a line's width in points, by the logarithm of its bandwidth: 1 at 10 GB/s, 4.3 at 1 TB/s."""
    return min(5.0, max(0.6, 1.0 + 0.5 * log2(bandwidth_bytes_per_s / 1e10)))


def _draw_box(plot: Any, box: Box) -> None:
    x, y = box.at
    if box.look == "gap":
        plot.text(x, y, "…", ha="center", va="center", fontsize=13, color=_INK, zorder=3)
    elif box.look.startswith("words"):
        side = "center" if box.look == "words-middle" else "right"
        plot.text(x, y, box.label, ha=side, va="center", fontsize=9, color=_INK, zorder=3)
    elif not box.label:
        marker = "o" if box.look == "device" else "s"
        plot.plot([x], [y], marker, markersize=7, color=_FILLS[box.look], markeredgecolor=_INK, zorder=2)
    else:
        frame = {"boxstyle": "round,pad=0.35", "facecolor": _FILLS[box.look], "edgecolor": _INK, "linewidth": 0.8}
        plot.text(x, y, box.label, ha="center", va="center", fontsize=7.5, color=_INK, zorder=3, bbox=frame)


def _legend(lines: list[Line]) -> list[Line2D]:
    """Return one line for each drawn kind and bandwidth, at most eight."""
    different = sorted({(line.kind, -line.bandwidth_bytes_per_s) for line in lines})
    return [
        Line2D(
            [], [], color=_COLOURS[kind], linewidth=_width(-minus), label=f"{kind.words} {format_rate(-minus, 'B/s')}"
        )
        for kind, minus in different[:8]
    ]
