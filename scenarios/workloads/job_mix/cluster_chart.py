"""The picture of a cluster over time: a line per GPU, coloured by job."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from costmodels.units import format_time
from scenarios.report.blocks import Chart, Section
from scenarios.report.charts.axis_unit import drawn_number, time_unit
from scenarios.report.charts.hover_text import WHOLE_TEXT, hover_text
from sim.jobs.record import Allocation, Record

MOST_BARS: Final = 3_000
"""Bars that a browser draws without delay; the first ones are drawn."""
_COLOURS: Final = (
    "#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0",
)  # fmt: skip


def cluster_section(record: Record, title: str = "Cluster over time", name: str = "cluster") -> Section:
    """Return the picture of the GPUs that each job held, and when. ``name``: its own on the page."""
    bars = gpu_bars(record.allocations, record.gpus_per_node)
    drawn = bars[:MOST_BARS]
    end_s = max((allocation.end_s for allocation, _, _ in drawn), default=1.0)
    unit, unit_s = time_unit(end_s)
    data = {
        "type": "bar", "orientation": "h", "name": "jobs",
        "y": [first + count / 2 for _, first, count in drawn],
        "width": [count for _, _, count in drawn],
        "base": [drawn_number(allocation.start_s / unit_s) for allocation, _, _ in drawn],
        "x": [drawn_number((allocation.end_s - allocation.start_s) / unit_s) for allocation, _, _ in drawn],
        "marker": {"color": [_COLOURS[allocation.job_index % len(_COLOURS)] for allocation, _, _ in drawn],
                   "line": {"width": 0.5, "color": "white"}},
        "hovertext": [_words(record, allocation) for allocation, _, _ in drawn], "hovertemplate": WHOLE_TEXT,
    }  # fmt: skip
    layout = {
        "showlegend": False, "bargap": 0, "barmode": "overlay", "margin": {"l": 56, "r": 16, "t": 10, "b": 44},
        "xaxis": {"title": {"text": f"time ({unit})"}, "range": [0, drawn_number(end_s / unit_s)], "zeroline": False},
        "yaxis": {"title": {"text": "GPU"}, "range": [record.num_gpus, 0], "zeroline": False},
    }  # fmt: skip
    left_out = len(bars) - len(drawn)
    note = f"The first {MOST_BARS:,} bars are drawn, {left_out:,} are not." if left_out else ""
    lead = "Each line is a GPU, each bar a job that holds it. White is idle."
    height = min(900, 120 + 14 * record.num_gpus)
    return Section(title, (Chart(name, {"data": [data], "layout": layout}, height),), lead, note)


def gpu_bars(allocations: Sequence[Allocation], gpus_per_node: Sequence[int]) -> list[tuple[Allocation, int, int]]:
    """Return (allocation, first GPU, number of neighbouring GPUs), by start; no two overlap in GPU and time.

    Placements count GPUs per node; each job takes the first GPUs of a node that are free.
    """
    begins = [0, *accumulate(gpus_per_node)]
    free_from_s = [0.0] * begins[-1]
    found = []
    for allocation in sorted(allocations, key=lambda each: (each.start_s, each.job_index)):
        for node, count in allocation.placement:
            node_gpus = range(begins[node], begins[node + 1])
            free = [gpu for gpu in node_gpus if free_from_s[gpu] <= allocation.start_s][:count]
            for gpu in free:
                free_from_s[gpu] = allocation.end_s
            found += [(allocation, first, length) for first, length in _runs(free)]
    return found


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return (first, length) of the runs of neighbouring ascending numbers."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and sum(runs[-1]) == number:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs


def _words(record: Record, allocation: Allocation) -> str:
    job = record.jobs[allocation.job_index].job
    num_gpus = sum(count for _, count in allocation.placement)
    return hover_text(
        f"job {job.id}", f"{num_gpus} GPUs, {format_time(allocation.start_s)} to {format_time(allocation.end_s)}"
    )
