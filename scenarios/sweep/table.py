"""The rows of a sweep in words: one list of columns for the terminal and the page."""

from typing import Any

from scenarios.summaries.point_names import varied, written
from scenarios.summaries.sweep import SweepSummary, SweptPoint
from scenarios.workloads.registry import workload_named
from scenarios.workloads.workload import Column


def columns_of(summary: SweepSummary[Any]) -> list[Column]:
    """Return the columns that some point has something to say in, and that no varied key has already."""
    keys = varied(summary).values()
    return [
        column
        for column in workload_named(summary.workload).columns
        if column.head not in keys and any(_cell(column, point) not in {"-", ""} for point in summary.points)
    ]


def _cell(column: Column, point: SweptPoint[Any]) -> str:
    value = getattr(point.results, column.key)
    return "-" if value is None else column.words(value)


def rows_of(summary: SweepSummary[Any]) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows: the keys that vary, then the results."""
    keys, columns = varied(summary), columns_of(summary)
    rows = [
        [written(point.set[key]) for key in keys] + [_cell(column, point) for column in columns]
        for point in summary.points
    ]
    heads = [short.replace("_", " ") for short in keys.values()]
    return [*heads, *(column.head for column in columns)], rows
