"""The report of a sweep over steps, beside its table: times, memory, pipelines, and points with other algorithms."""

from collections.abc import Sequence, Set
from typing import Any, Final

from msgspec import Struct

from costmodels.units import format_bytes, format_percent, format_time
from scenarios.report.blocks import Card, Chart, Legend, Section
from scenarios.report.causes import COMPUTING, cause_of
from scenarios.report.charts.axis_unit import drawn_number, memory_unit, time_unit
from scenarios.report.charts.hover_text import WHOLE_TEXT, chart_text, hover_text
from scenarios.report.charts.thumbnail import Thumbnail
from scenarios.report.pages.thumbnails_chart import thumbnails_chart, thumbnails_legend
from scenarios.report.phases import MESSAGE
from scenarios.summaries.point_names import label
from scenarios.summaries.steps.algorithm import algorithm_words
from scenarios.summaries.steps.step_row import StepRow
from scenarios.summaries.sweep import SweepSummary, SweptPoint
from scenarios.workloads.workload import Swept
from sim.engine.findings.breakdown import BUBBLE

Step = SweptPoint[StepRow]
Steps = SweepSummary[StepRow]

MAX_BARS: Final = 60
OTHER: Final = "*"
"""Marks points that do not train by synchronous backpropagation."""
EXPOSED: Final = ("exposed communication", MESSAGE.colour)
FITS: Final = ("fits", "#4a7fd6")
TOO_LARGE: Final = ("does not fit", "#c8402f")
EXPLAINED: Final = (
    "exposed: communication while nothing is computed; memory: peak of the fullest rank; "
    "sent: bytes per rank and step; pp sent: those between stages; "
    "live: micro-batches whose activations the fullest rank holds, virtual stages and slices as fractions"
)


def swept_steps(summary: Steps, pictures: Sequence[Thumbnail]) -> Swept:
    """Return the report of a sweep over steps; ``pictures``: of the points, in their order, or empty."""
    sections = [_times(summary), _memory(summary), *([_pipelines(summary, pictures)] if pictures else [])]
    return Swept(_cards(summary), _best(summary), tuple(sections), EXPLAINED, tuple(other_algorithms(summary)))


def _fits(point: Step) -> bool:
    """Return whether a point fits into memory, or nothing is said of it."""
    return point.results.fits_memory is not False


def _time_s(point: Step) -> float:
    return point.results.iteration_time_s


def _best(summary: Steps) -> str:
    """Return the fastest point of those that fit, in a line."""
    first = summary.points[0]
    if not _fits(first):
        return "no point fits: all need more memory than there is"
    all_fit = all(map(_fits, summary.points))
    words = "fastest" if all_fit else "fastest that fits"
    return f"{words}: {marked(summary, first)}, {format_time(_time_s(first))}"


def other_algorithms(summary: Steps) -> list[str]:
    """Return a line for each algorithm other than synchronous backpropagation: its name and its difference."""
    names = dict.fromkeys(point.results.algorithm for point in summary.points)
    return [f"{OTHER} {name}: {words}" for name in names if (words := algorithm_words(name))]


def marked(summary: Steps, point: Step) -> str:
    """Return a point's name, marked where another algorithm than the others' is simulated."""
    return label(summary, point.set) + OTHER * bool(algorithm_words(point.results.algorithm))


def _cards(summary: Steps) -> tuple[Card, ...]:
    points = summary.points
    best, fastest = points[0], min(points, key=_time_s)
    cards = []
    if not _fits(best):
        cards.append(Card("Fastest that fits", "none", "all points need more memory than there is", "bad"))
    elif not all(map(_fits, points)):
        cards.append(Card("Fastest that fits", format_time(_time_s(best)), marked(summary, best)))
    if best is fastest or not _fits(fastest):
        words = "" if _fits(fastest) else ", does not fit"
        cards.append(Card("Fastest", format_time(_time_s(fastest)), f"{marked(summary, fastest)}{words}"))
    synchronous = [point for point in points if not algorithm_words(point.results.algorithm)]
    if synchronous and synchronous[0] is not best:
        first = synchronous[0]
        cards.append(Card("Fastest synchronous", format_time(_time_s(first)), marked(summary, first)))
    held = _held(summary)
    least, leanest = min(zip(held.values, points, strict=True), key=lambda pair: pair[0])
    words = format_bytes(least) if held.in_bytes else f"{least:.4g} micro-batches live"
    cards.append(Card("Least memory", words, marked(summary, leanest)))
    return tuple(cards)


def _times(summary: Steps) -> Section:
    points = summary.points[:MAX_BARS]
    unit, factor = time_unit(max(map(_time_s, points)))
    steps = [point.results for point in points]
    labels = [chart_text(marked(summary, point)) for point in points]
    parts = {
        COMPUTING: [1 - p.bubble_fraction - p.exposed_communication_fraction for p in steps],
        EXPOSED: [p.exposed_communication_fraction for p in steps],
        cause_of(BUBBLE): [p.bubble_fraction for p in steps],
    }
    shown = [cause for cause, fractions in parts.items() if any(fraction > 1e-9 for fraction in fractions)]
    data = [
        {
            "type": "bar", "orientation": "h", "name": words, "y": labels, "marker": {"color": colour},
            "x": [drawn_number(f * p.iteration_time_s / factor) for f, p in zip(fractions, steps, strict=True)],
            "hovertext": [hover_text(words, f"{format_time(f * p.iteration_time_s)}, {format_percent(f)}")
                          for f, p in zip(fractions, steps, strict=True)],
            "hovertemplate": WHOLE_TEXT,
        }
        for words, colour in shown for fractions in [parts[words, colour]]
    ]  # fmt: skip
    layout = {
        "barmode": "stack", "bargap": 0.3, "showlegend": False, "hovermode": "closest",
        "margin": {"l": 8, "r": 60, "t": 6, "b": 44},
        "xaxis": {"title": {"text": f"time per step ({unit})", "standoff": 6}, "zeroline": False},
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True, "fixedrange": True,
                  "showgrid": False},
        "annotations": [
            {"x": drawn_number(p.iteration_time_s / factor), "y": index, "xanchor": "left", "xshift": 4,
             "showarrow": False, **_end_mark(p)}
            for index, p in enumerate(steps)
        ],
    }  # fmt: skip
    lead = "What the mean rank spends the step on: computing, waiting for communication, and the bubble."
    if not all(map(_fits, points)):
        lead += " Red times are of points that do not fit into memory."
    left_out = len(summary.points) - len(points)
    note = f"The first {MAX_BARS} points are drawn, {left_out:,} are not." if left_out else ""
    chart = Chart("times", {"data": data, "layout": layout}, 70 + 30 * len(points))
    return Section("Time", (Legend(shown), chart), lead, note)


def _end_mark(step: StepRow) -> dict[str, Any]:
    """Return the words at the end of a bar: its time, in red where the step does not fit."""
    words = format_time(step.iteration_time_s)
    return {"text": words} if step.fits_memory is not False else {"text": words, "font": {"color": TOO_LARGE[1]}}


class _Held(Struct, frozen=True):
    """What the fullest rank of each point holds: bytes, or micro-batches where times are stated."""

    values: tuple[float, ...]
    in_bytes: bool

    def words(self, place: int) -> str:
        """Return what a point holds, in words."""
        value = self.values[place]
        return format_bytes(value) if self.in_bytes else f"{value:.4g} live"


def _held(summary: Steps) -> _Held:
    peaks = [point.results.peak_memory_bytes for point in summary.points]
    known = tuple(float(peak_bytes) for peak_bytes in peaks if peak_bytes is not None)
    if len(known) == len(peaks):
        return _Held(known, in_bytes=True)
    return _Held(tuple(point.results.peak_live_activations for point in summary.points), in_bytes=False)


def _memory(summary: Steps) -> Section:
    points, held = summary.points, _held(summary)
    least_s, most_s = min(map(_time_s, points)), max(map(_time_s, points))
    unit, factor = time_unit(most_s)
    words, scale = memory_unit(max(held.values)) if held.in_bytes else ("live micro-batches", 1.0)
    first, last = least_s / factor, most_s / factor
    margin = 0.12 * (last - first) or 0.5 * last
    layout: dict[str, Any] = {
        "showlegend": False, "hovermode": "closest", "margin": {"l": 8, "r": 24, "t": 24, "b": 44},
        "xaxis": {"title": {"text": f"time per step ({unit})", "standoff": 6}, "zeroline": False,
                  "range": [drawn_number(first - margin), drawn_number(last + margin)]},
        "yaxis": {"title": {"text": words, "standoff": 6}, "rangemode": "tozero", "automargin": True,
                  "zeroline": False},
    }  # fmt: skip
    _mark_capacities(layout, points, scale)
    what = "peak memory of" if held.in_bytes else "micro-batches whose activations are held by"
    lead = f"Lower left is better: {what} the fullest rank, against time. Named are the points that no other "
    lead += "beats in both."
    unbeaten, groups = _unbeaten(points, held.values), _by_verdict(points)
    data = [_scatter(summary, group, places, unbeaten, (held, factor, scale)) for group, places in groups.items()]
    verdicts = (Legend(list(groups)),) if held.in_bytes else ()
    chart = Chart("memory", {"data": data, "layout": layout}, 420)
    return Section("Memory against time", (*verdicts, chart), lead)


def _unbeaten(points: Sequence[Step], held: Sequence[float]) -> set[int]:
    """Return the places of the points that hold less than every faster one."""
    found: list[int] = []
    for place in sorted(range(len(points)), key=lambda place: _time_s(points[place])):
        if not found or held[place] < held[found[-1]]:
            found.append(place)
    return set(found)


def _scatter(
    summary: Steps,
    group: tuple[str, str],
    places: Sequence[int],
    unbeaten: Set[int],
    scale: tuple[_Held, float, float],
) -> dict[str, Any]:
    """Return the points of one verdict; ``scale``: what points hold, and the units of time and of that."""
    held, unit_s, height = scale
    labels = [marked(summary, summary.points[place]) for place in places]
    times_s = [summary.points[place].results.iteration_time_s for place in places]
    all_s = [_time_s(point) for point in summary.points]
    middle_s = (min(all_s) + max(all_s)) / 2
    return {
        "type": "scatter", "mode": "markers+text", "name": group[0], "marker": {"color": group[1], "size": 9},
        "text": [f" {chart_text(words)} " if place in unbeaten else ""
                 for words, place in zip(labels, places, strict=True)],
        "textposition": ["middle right" if t < middle_s else "middle left" for t in times_s],
        "textfont": {"size": 12, "color": "#8a93a0"}, "cliponaxis": False,
        "x": [drawn_number(t / unit_s) for t in times_s],
        "y": [drawn_number(held.values[place] / height) for place in places],
        "hovertext": [hover_text(words, f"{format_time(t)}, {held.words(place)}")
                      for words, t, place in zip(labels, times_s, places, strict=True)],
        "hovertemplate": WHOLE_TEXT,
    }  # fmt: skip


def _by_verdict(points: Sequence[Step]) -> dict[tuple[str, str], list[int]]:
    """Return the places of the points that fit (or where nothing is said of it), and of those that do not."""
    fits = list(map(_fits, points))
    groups = {FITS: [place for place, fit in enumerate(fits) if fit]}
    groups[TOO_LARGE] = [place for place, fit in enumerate(fits) if not fit]
    return {key: places for key, places in groups.items() if places}


def _mark_capacities(layout: dict[str, Any], points: Sequence[Step], scale: float) -> None:
    """Draw a dashed line at each capacity that some point comes near."""
    highest = max((point.results.peak_memory_bytes or 0) for point in points)
    known = {point.results.memory_capacity_bytes for point in points}
    capacities = sorted(capacity for capacity in known if capacity)
    shown = [capacity for capacity in capacities if capacity < 3 * highest]
    layout["shapes"] = [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": drawn_number(capacity / scale),
         "y1": drawn_number(capacity / scale), "line": {"color": "#c8402f", "width": 1.5, "dash": "dash"}}
        for capacity in shown
    ]  # fmt: skip
    layout["annotations"] = [
        {"xref": "paper", "x": 1, "xanchor": "right", "y": drawn_number(capacity / scale), "yanchor": "bottom",
         "text": f"capacity {format_bytes(capacity)}", "showarrow": False}
        for capacity in shown
    ]  # fmt: skip


def _pipelines(summary: Steps, pictures: Sequence[Thumbnail]) -> Section:
    points = summary.points
    named = [
        (f"{marked(summary, point)}: {format_time(_time_s(point))}{'' if _fits(point) else ', does not fit'}", picture)
        for point, picture in zip(points, pictures, strict=True)
    ]
    longest_s = max(map(_time_s, points))
    ends = [picture.complete_s for point, picture in zip(points, pictures, strict=True)
            if picture.complete_s < point.results.iteration_time_s * (1 - 1e-9)]  # fmt: skip
    end_s = min([longest_s, *ends])
    lead = "One line per rank of a pipeline, the first at the top; all pictures have the same axis of time."
    lead += " Every second virtual stage of a rank is fainter. Gaps are waiting."
    notes = ["Messages are not drawn."]
    if end_s < longest_s:
        notes.insert(0, f"The first {format_time(end_s)} are drawn.")
    chart = thumbnails_chart("pipelines", named, end_s)
    return Section("Pipelines", (Legend(thumbnails_legend(pictures)), chart), lead, " ".join(notes))
