"""The picture of a cluster over time: a line per GPU, coloured by job."""

from collections.abc import Sequence
from itertools import accumulate
from math import ceil
from typing import Final

from costmodels.units import format_time
from scenarios.report.blocks import Chart, Section
from scenarios.report.charts.axis_unit import drawn_number, time_unit
from scenarios.report.charts.hover_text import WHOLE_TEXT, hover_text
from sim.jobs.record import Allocation, Record

MOST_BARS: Final = 3_000
"""Bars that a browser draws without delay; the first ones are drawn."""
MOST_TICKS: Final = 8
"""Labelled lines of the picture, which begins and ends at a GPU's edge."""
_COLOURS: Final = (
    "#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0",
)  # fmt: skip


def cluster_section(
    record: Record, title: str = "Cluster over time", name: str = "cluster", until_s: float = 0.0
) -> Section:
    """Return the picture of the GPUs that each job held, and when, to the last bar or longer, until ``until_s``.

    ``name``: its own on the page.
    """
    bars = gpu_bars(record.allocations, record.gpus_per_node)
    drawn = bars[:MOST_BARS]
    end_s = max(until_s, max((allocation.end_s for allocation, _, _ in drawn), default=1.0))
    unit, unit_s = time_unit(end_s)
    ticks = list(range(0, record.num_gpus + 1, ceil(record.num_gpus / MOST_TICKS)))
    data = {
        "type": "bar", "orientation": "h", "name": "jobs",
        "y": [first + height / 2 for _, first, height in drawn],
        "width": [height for _, _, height in drawn],
        "base": [drawn_number(allocation.start_s / unit_s) for allocation, _, _ in drawn],
        "x": [drawn_number((allocation.end_s - allocation.start_s) / unit_s) for allocation, _, _ in drawn],
        "marker": {"color": [_COLOURS[allocation.job_index % len(_COLOURS)] for allocation, _, _ in drawn],
                   "line": {"width": 0.5, "color": "white"}},
        "hovertext": [_words(record, allocation) for allocation, _, _ in drawn], "hovertemplate": WHOLE_TEXT,
    }  # fmt: skip
    layout = {
        "showlegend": False, "bargap": 0, "barmode": "overlay", "margin": {"l": 56, "r": 16, "t": 10, "b": 44},
        "xaxis": {"title": {"text": f"time ({unit})"}, "range": [0, drawn_number(end_s / unit_s)], "zeroline": False},
        "yaxis": {"title": {"text": "GPU"}, "range": [record.num_gpus, 0], "zeroline": False, "tickvals": ticks},
    }  # fmt: skip
    left_out = len(bars) - len(drawn)
    note = f"The first {MOST_BARS:,} bars are drawn, {left_out:,} are not." if left_out else ""
    lead = "Each line is a GPU, each bar a job that holds it; jobs that share it have half a line. White is idle."
    height = min(900, 120 + 14 * record.num_gpus)
    return Section(title, (Chart(name, {"data": [data], "layout": layout}, height),), lead, note)


def gpu_bars(allocations: Sequence[Allocation], gpus_per_node: Sequence[int]) -> list[tuple[Allocation, float, float]]:
    """Return (allocation, first GPU, height in neighbouring GPUs), by start; no two overlap in GPU and time.

    Placements count GPUs per node; each job takes the first GPUs of a node that are free. Of two jobs that share GPUs
    the one that came first has the upper halves, each GPU with a bar of its own.
    """
    begins = [0, *accumulate(gpus_per_node)]
    free_from_s = [0.0] * begins[-1]
    last: dict[tuple[int, int], tuple[Allocation, list[int]]] = {}
    found: list[tuple[Allocation, float, float]] = []
    for allocation in sorted(allocations, key=lambda each: (each.start_s, not each.stays, each.job_index)):
        for node, count in allocation.placement:
            own, partners = last.get((allocation.job_index, node)), last.get((allocation.beside or 0, node))
            if allocation.stays and own is not None:
                gpus = own[1]
            elif partners is not None and _shares(allocation, partners[0]):
                gpus = partners[1]
            else:
                node_gpus = range(begins[node], begins[node + 1])
                gpus = [gpu for gpu in node_gpus if free_from_s[gpu] <= allocation.start_s][:count]
            for gpu in gpus:
                free_from_s[gpu] = allocation.end_s
            last[allocation.job_index, node] = allocation, gpus
            found += _bars(allocation, gpus)
    return found


def _shares(one: Allocation, other: Allocation) -> bool:
    """Return whether two jobs share their GPUs from one instant on."""
    return one.beside == other.job_index and other.beside == one.job_index and one.start_s == other.start_s


def _bars(allocation: Allocation, gpus: Sequence[int]) -> list[tuple[Allocation, float, float]]:
    """Return the bars of GPUs: neighbouring ones have one, shared ones half a bar each."""
    if allocation.beside is None:
        return [(allocation, first, length) for first, length in _runs(gpus)]
    shift = 0.0 if allocation.job_index < allocation.beside else 0.5
    return [(allocation, gpu + shift, 0.5) for gpu in gpus]


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
