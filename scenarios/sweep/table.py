"""The rows of a sweep in words: one list of columns for the terminal and the page."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from costmodels.units import format_bytes, format_percent, format_time
from scenarios.summaries.algorithm import algorithm_words
from scenarios.sweep.labels import OTHER, varied, written


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head, the result key that it shows, and how."""

    head: str
    key: str
    words: Callable[[Any], str]


COLUMNS: Final = (
    Column("time", "iteration_time_s", format_time),
    Column("tokens/s", "tokens_per_s", lambda rate: f"{rate:,.0f}"),
    Column("MFU", "mfu", format_percent),
    Column("bubble", "bubble_fraction", format_percent),
    Column("exposed", "exposed_communication_fraction", format_percent),
    Column("memory", "peak_memory_bytes", format_bytes),
    Column("fits", "fits_memory", lambda fits: "yes" if fits else "NO"),
    Column("sent", "sent_bytes_per_rank", format_bytes),
    Column("pp sent", "pipeline_sent_bytes_per_rank", format_bytes),
    Column("live", "peak_live_activations", lambda live: f"{live:.4g}"),
    Column("algorithm", "algorithm", lambda name: name if algorithm_words(name) else ""),
)
EXPLAINED: Final = (
    "exposed: communication while nothing is computed; memory: peak of the fullest rank; "
    "sent: bytes per rank and step; pp sent: those between stages; "
    "live: micro-batches whose activations the fullest rank holds"
)


def columns_of(summary: Mapping[str, Any]) -> list[Column]:
    """Return the columns that some point has something to say in."""
    return [column for column in COLUMNS if any(_cell(column, point) not in {"-", ""} for point in summary["points"])]


def other_algorithms(summary: Mapping[str, Any]) -> list[str]:
    """Return a line for each algorithm other than synchronous backpropagation: its name, and what it does."""
    names = dict.fromkeys(point["algorithm"] for point in summary["points"])
    return [f"{OTHER} {name}: {words}" for name in names if (words := algorithm_words(name))]


def _cell(column: Column, point: Mapping[str, Any]) -> str:
    value = point[column.key]
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
