"""The rows of a sweep in words: one list of columns for the terminal and the page."""

from collections.abc import Mapping
from typing import Any, Final

from scenarios.summaries.algorithm import algorithm_words
from scenarios.sweep.labels import OTHER, varied, written
from scenarios.workloads.registry import workload_named
from scenarios.workloads.workload import Column

EXPLAINED: Final = (
    "exposed: communication while nothing is computed; memory: peak of the fullest rank; "
    "sent: bytes per rank and step; pp sent: those between stages; "
    "live: micro-batches whose activations the fullest rank holds"
)


def columns_of(summary: Mapping[str, Any]) -> list[Column]:
    """Return the columns that some point has something to say in."""
    return [
        column
        for column in workload_named(summary["workload"]).columns
        if any(_cell(column, point) not in {"-", ""} for point in summary["points"])
    ]


def other_algorithms(summary: Mapping[str, Any]) -> list[str]:
    """Return a line for each algorithm other than synchronous backpropagation: its name, and what it does."""
    names = dict.fromkeys(point["algorithm"] for point in summary["points"])
    return [f"{OTHER} {name}: {words}" for name in names if (words := algorithm_words(name))]


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
