"""The rows of a sweep in words: one list of columns for the terminal and the page."""

from collections.abc import Mapping
from typing import Any

from scenarios.summaries.point_names import varied, written
from scenarios.workloads.registry import workload_named
from scenarios.workloads.workload import Column


def columns_of(summary: Mapping[str, Any]) -> list[Column]:
    """Return the columns that some point has something to say in."""
    return [
        column
        for column in workload_named(summary["workload"]).columns
        if any(_cell(column, point) not in {"-", ""} for point in summary["points"])
    ]


def _cell(column: Column, point: Mapping[str, Any]) -> str:
    value = point.get(column.key)
    return "-" if value is None else column.words(value)


def rows_of(summary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows: the keys that vary, then the results."""
    keys, columns = varied(summary), columns_of(summary)
    rows = [
        [written(point["set"][key]) for key in keys] + [_cell(column, point) for column in columns]
        for point in summary["points"]
    ]
    heads = [short.replace("_", " ") for short in keys.values()]
    return [*heads, *(column.head for column in columns)], rows
