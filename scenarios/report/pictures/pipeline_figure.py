"""A picture of a pipeline for documents, with the same bars as the report."""

from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from scenarios.report.charts.axis_unit import time_unit
from scenarios.report.charts.bar_labels import FONT_POINTS, label_angle
from scenarios.report.charts.gantt import CHUNK_OPACITY, COMMUNICATION_LANE, MAIN_LANE, Bars, choose_bars, window_title
from scenarios.report.phases import Phase
from traces.files import replacing
from traces.timeline import NO_INDEX, Timeline

_WIDTH_INCHES: Final = 11.0
_TITLE_INCHES: Final = 0.3
_ROW_INCHES: Final = 0.52
_LEAST_EDGED_INCHES: Final = 0.04
"""Narrower bars get no white edge, which would cover them."""


class PipelineFigure(Figure):
    """A matplotlib figure that a notebook shows as the last line of a cell, with any backend.

    Notebooks can show matplotlib's own figures only after ``pyplot`` has drawn one, and ``pyplot`` is not used here.
    """

    def _repr_png_(self) -> bytes:
        picture = BytesIO()
        self.savefig(picture, format="png", metadata={"Software": None})
        return picture.getvalue()


def write_pipeline_figure(timeline: Timeline, path: Path, *, title: str = "", max_ranks: int = 8) -> None:
    """Write a PNG of the pipeline's timeline. Identical timelines give identical bytes."""
    figure = pipeline_figure(timeline, title=title, max_ranks=max_ranks)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})


def pipeline_figure(timeline: Timeline, *, title: str = "", max_ranks: int = 8) -> PipelineFigure:
    """Return a picture of the pipeline's timeline: a line per rank, numbers are micro-batches."""
    gantt = choose_bars(timeline, max_ranks=max_ranks)
    windows = gantt.windows
    height_inches = 1.1 + _ROW_INCHES * len(gantt.ranks) + (_TITLE_INCHES if title else 0.0)
    figure = PipelineFigure(figsize=(_WIDTH_INCHES, height_inches), dpi=160, layout="constrained")
    axes = figure.subplots(1, len(windows), sharey=True, squeeze=False)[0]
    unit, factor = time_unit(windows[-1].end_s)
    for index, (plot, window) in enumerate(zip(axes, windows, strict=True)):
        for phase in gantt.phases:
            inches_per_s = 0.9 * _WIDTH_INCHES / len(windows) / (window.end_s - window.start_s or 1.0)
            _draw(plot, window.bars.of(phase), phase, factor, inches_per_s)
        plot.set_xlim(window.start_s / factor, window.end_s / factor)
        plot.set_ylim(len(gantt.ranks) - 0.45, -0.55)
        plot.set_yticks(range(len(gantt.ranks)), gantt.ranks)
        plot.set_xlabel(window_title(index, gantt, unit), color="#667080")
        plot.tick_params(colors="#667080", length=0)
        plot.spines[:].set_visible(False)
    handles = [Patch(color=phase.colour, label=phase.words) for phase in gantt.phases]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False, fontsize=9)
    if title:
        axes[0].set_title(title, loc="left", fontsize=12)
    return figure


def _draw(plot: Any, bars: Bars, phase: Phase, factor: float, inches_per_s: float) -> None:
    offset, thickness = COMMUNICATION_LANE if phase.is_communication else MAIN_LANE
    edged = ((bars.end_s - bars.start_s) * inches_per_s > _LEAST_EDGED_INCHES) & (not phase.is_communication)
    for parity, opacity in enumerate(CHUNK_OPACITY):
        chosen = bars.chunk % 2 == parity
        plot.barh(
            bars.lane[chosen] + offset, (bars.end_s - bars.start_s)[chosen] / factor, thickness,
            left=bars.start_s[chosen] / factor, color=phase.colour, alpha=opacity, edgecolor="white",
            linewidth=np.where(edged[chosen], 0.4, 0.0),
        )  # fmt: skip
    if phase.is_communication:
        return
    for lane, start_s, end_s, microbatch in zip(
        bars.lane.tolist(), bars.start_s.tolist(), bars.end_s.tolist(), bars.microbatch.tolist(), strict=True
    ):
        label = "" if microbatch == NO_INDEX else str(microbatch)
        angle = label_angle(label, (end_s - start_s) * inches_per_s, thickness * _ROW_INCHES)
        if angle is not None:
            plot.text(
                (start_s + end_s) / 2 / factor, lane + offset, label, ha="center", va="center", color="white",
                fontsize=FONT_POINTS, rotation=angle, clip_on=True,
            )  # fmt: skip
