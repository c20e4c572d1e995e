"""Charts with a bar or a line per role: the parts of its time, and its memory over time."""

from typing import Final

import numpy as np

from costmodels.units import format_bytes, format_percent, format_time
from scenarios.report.blocks import Bars, Curve, Limit, Lines, Series
from scenarios.report.causes import COMPUTATION, IDLE, cause_of, memory_colour, role_colour
from scenarios.report.charts.axis_unit import drawn_numbers, memory_unit, time_unit
from scenarios.report.charts.gantt import evenly
from scenarios.summaries.steps.role_names import row_names
from scenarios.summaries.steps.step import RoleSummary, StepSummary
from traces.timeline import RankInfo, Timeline
from traces.unrolling import unrolled_memory

MAX_ROLES: Final = 16
MAX_MEMORY_POINTS: Final = 1_500


def breakdown_bars(chart_id: str, summary: StepSummary) -> Bars:
    """Return one bar per role: computing by purpose, waiting by cause, idle; as fractions of the step."""
    total_s = summary.iteration_time_s
    labels, roles = _rows(summary)
    parts: dict[tuple[str, str], list[float]] = {}
    for index, role in enumerate(roles):
        spent = [(COMPUTATION[purpose], seconds) for purpose, seconds in role.computing_s.items()]
        spent += [(cause_of(stream), seconds) for stream, seconds in role.exposed_s.items()]
        rest_s = total_s - sum(seconds for _, seconds in spent)
        for key, seconds in [*spent, (IDLE, rest_s if rest_s > 1e-9 * total_s else 0.0)]:
            parts.setdefault(key, [0.0] * len(roles))[index] += seconds
    series = [
        Series(words, colour, (100 * np.array(seconds) / total_s).tolist(),
               [f"{format_time(value)}, {format_percent(value / total_s)}" for value in seconds])
        for (words, colour), seconds in parts.items() if any(seconds)
    ]  # fmt: skip
    return Bars(chart_id, labels, series, "percent of the step", ends_at=100)


def memory_bars(chart_id: str, summary: StepSummary, capacity_bytes: float | None) -> Bars:
    """Return one bar per role: the parts of its peak, against the device's capacity."""
    labels, roles = _rows(summary)
    unit, factor = memory_unit(capacity_bytes or max(role.peak_memory_bytes for role in roles))
    series = []
    for kind in dict.fromkeys(kind for role in roles for kind in role.memory_by_kind_bytes):
        held = [role.memory_by_kind_bytes.get(kind, 0) for role in roles]
        values = [value / factor for value in held]
        if any(drawn_numbers(values)):
            details = [format_bytes(value) for value in held]
            series.append(Series(kind.replace("_", " "), memory_colour(kind), values, details))
    return Bars(chart_id, labels, series, f"{unit} at the peak", limit=_capacity(capacity_bytes, factor))


def memory_lines(chart_id: str, timeline: Timeline, capacity_bytes: float | None) -> Lines:
    """Return live bytes over time, a line per simulated rank, against the device's capacity."""
    infos = evenly([info for info in timeline.ranks if len(timeline.memory.of(info.rank)[0])], MAX_ROLES)
    unit, factor = time_unit(timeline.duration_s)
    memory_words, memory_factor = memory_unit(capacity_bytes or int(timeline.memory.bytes.max()))
    begin_s = float(timeline.start_s.min())
    curve = unrolled_memory(timeline).thinned(MAX_MEMORY_POINTS)
    curves = [
        Curve(
            _rank_label(timeline, info), role_colour(index / max(1, len(infos) - 1)),
            (np.append(times_s - begin_s, timeline.duration_s) / factor).tolist(),
            (np.append(held, held[-1]) / memory_factor).tolist(),
        )
        for index, info in enumerate(infos) for times_s, held in [curve.of(info.rank)]
    ]  # fmt: skip
    limit = _capacity(capacity_bytes, memory_factor)
    return Lines(chart_id, curves, ("time", unit), memory_words, timeline.duration_s / factor, limit)


def _capacity(capacity_bytes: float | None, factor: float) -> Limit | None:
    return Limit(capacity_bytes / factor, f"capacity {format_bytes(capacity_bytes)}") if capacity_bytes else None


def _rank_label(timeline: Timeline, info: RankInfo) -> str:
    """Return a rank's role, with its number if the role has several ranks."""
    if not info.role:
        return f"rank {info.rank}"
    is_class = sum(other.role == info.role for other in timeline.ranks) > 1
    return f"{info.role}, rank {info.rank}" if is_class else info.role


def _rows(summary: StepSummary) -> tuple[list[str], list[RoleSummary]]:
    """Return at most MAX_ROLES roles, or classes of a role's ranks, with distinct labels."""
    roles = summary.roles
    labels = [
        f"{name} ×{role.num_ranks:,}" if role.num_ranks > 1 else name
        for name, role in zip(row_names(roles, "all"), roles, strict=True)
    ]
    chosen = evenly(list(zip(labels, roles, strict=True)), MAX_ROLES)
    return [label for label, _ in chosen], [role for _, role in chosen]
