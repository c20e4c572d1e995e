"""A slot diagram as a picture: a grey lane of idle time per rank, a numbered box per forward and backward."""

from typing import Any, Final

from matplotlib.patches import Patch
from msgspec import Struct

from costmodels.units import format_time
from scenarios.report.charts.axis_unit import time_unit
from scenarios.report.charts.bar_labels import FONT_POINTS, label_angle
from scenarios.report.charts.gantt import CHUNK_OPACITY
from scenarios.report.phases import BACKWARD_WEIGHT, Phase
from scenarios.report.slots.slot_diagram import SlotDiagram

_INK: Final = "#2b3240"
_SOFT: Final = "#667080"
_IDLE: Final = "#eceff3"
_UNIT_INCHES: Final = 0.2
_LEAST_INCHES: Final = 8.0
_MOST_INCHES: Final = 40.0
_ROW_INCHES: Final = 0.34
_BOX_HEIGHT: Final = 0.7
"""Height of a box, as a fraction of a row."""
_LEAST_EDGED_INCHES: Final = 0.04
"""Narrower boxes get no white edge, which would cover them."""
MAX_SLOTS: Final = 4_000
"""Largest number of slots drawn; of a longer step the beginning is drawn."""


class SlotDrawing(Struct, frozen=True):
    """A slot diagram, ready to be drawn."""

    diagram: SlotDiagram
    title: str

    @property
    def size_inches(self) -> tuple[float, float]:
        """Return width and height in inches: the width that the boxes need, within bounds."""
        units = self._end_s / self.diagram.unit_s if self.diagram.unit_s else 1.0
        width = min(_MOST_INCHES, max(_LEAST_INCHES, _UNIT_INCHES * units + 1.2))
        return width, 1.6 + _ROW_INCHES * len(self.diagram.ranks) * (1.4 if self.diagram.lines else 1.0)

    def draw(self, figure: Any) -> None:
        """Draw on a matplotlib figure or subfigure."""
        diagram, plot = self.diagram, figure.subplots(1, 1)
        unit, factor = time_unit(self._end_s)
        lanes = range(len(diagram.ranks))
        plot.barh(lanes, self._end_s / factor, _BOX_HEIGHT, color=_IDLE, linewidth=0)
        self._draw_bars(plot, factor)
        self._draw_labels(plot, factor)
        plot.set_xlim(0, self._end_s / factor)
        plot.set_ylim(len(lanes) - 0.35, -0.5)
        plot.set_yticks(list(lanes), diagram.ranks)
        plot.set_xlabel(f"time ({unit})", color=_SOFT)
        plot.tick_params(colors=_SOFT, length=0)
        plot.spines[:].set_visible(False)
        handles = [Patch(color=phase.colour, label=phase.words) for phase in diagram.phases]
        handles.append(Patch(color=_IDLE, label="idle"))
        figure.legend(
            handles=handles,
            loc="outside lower left",
            ncols=max(1, int(self.size_inches[0] / 1.9)),
            frameon=False,
            fontsize=9,
        )
        figure.suptitle("\n".join([self.title, *self._notes()]), x=0.01, ha="left", fontsize=11, color=_INK)

    @property
    def _end_s(self) -> float:
        """Return the end of the picture: that of the step, or the start of the first box beyond the largest number."""
        boxes = self.diagram.boxes
        return self.diagram.end_s if len(boxes) <= MAX_SLOTS else boxes[MAX_SLOTS].start_s

    @property
    def _inches_per_s(self) -> float:
        return 0.9 * self.size_inches[0] / self._end_s

    def _notes(self) -> list[str]:
        notes = []
        if self._end_s < self.diagram.end_s:
            notes.append(f"the first {format_time(self._end_s)} of {format_time(self.diagram.end_s)}")
        if self.diagram.hidden_ranks:
            notes.append(f"{self.diagram.hidden_ranks:,} more ranks are not shown")
        return notes

    def _draw_bars(self, plot: Any, factor: float) -> None:
        """Draw the boxes of a lane and colour together; messages and synchronisation are thin lines below them."""
        alike: dict[tuple[Phase, int, int, bool], list[tuple[float, float]]] = {}
        for slot in (*self.diagram.boxes, *self.diagram.lines):
            if slot.start_s < self._end_s:
                has_edge = (
                    not slot.phase.is_communication and slot.duration_s * self._inches_per_s > _LEAST_EDGED_INCHES
                )
                key = (slot.phase, slot.chunk % 2, slot.lane, has_edge)
                alike.setdefault(key, []).append((slot.start_s / factor, slot.duration_s / factor))
        for (phase, parity, lane, has_edge), spans in alike.items():
            place = (lane + 0.37, 0.12) if phase.is_communication else (lane - _BOX_HEIGHT / 2, _BOX_HEIGHT)
            colour = {"facecolor": phase.colour, "edgecolor": "white", "linewidth": 0.6 if has_edge else 0.0}
            plot.broken_barh(spans, place, alpha=CHUNK_OPACITY[parity], **colour)

    def _draw_labels(self, plot: Any, factor: float) -> None:
        for slot in self.diagram.boxes:
            middle_s = (slot.start_s + slot.end_s) / 2
            angle = label_angle(slot.label, slot.duration_s * self._inches_per_s, _BOX_HEIGHT * _ROW_INCHES)
            if angle is not None and middle_s < self._end_s:
                where = {"ha": "center", "va": "center" if angle else "center_baseline", "clip_on": True}
                style = {"color": _INK if slot.phase == BACKWARD_WEIGHT else "white", "fontsize": FONT_POINTS}
                plot.text(middle_s / factor, slot.lane, slot.label, rotation=angle, **where, **style)
