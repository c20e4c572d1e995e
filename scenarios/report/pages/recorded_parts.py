"""What the reports of recordings and of their replays share: the parts of a rank's time, in bars and in words."""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from costmodels.units import format_percent, format_time
from scenarios.report.blocks import Bars, Block, Only, Section, Series, Table
from scenarios.report.causes import COMPUTING, IDLE


class TimeParts(Struct, frozen=True, kw_only=True):
    """The parts of a rank's time on its device, in seconds; they add up to its span."""

    compute_s: float
    exposed_communication_s: float
    exposed_memory_s: float
    idle_s: float

    @property
    def span_s(self) -> float:
        """Return all of it."""
        return self.compute_s + self.exposed_communication_s + self.exposed_memory_s + self.idle_s


_LOOKS: Final[Sequence[tuple[Callable[[TimeParts], float], str, str]]] = (
    (lambda parts: parts.compute_s, *COMPUTING),
    (lambda parts: parts.exposed_communication_s, "communication that nothing hides", "#d9694f"),
    (lambda parts: parts.exposed_memory_s, "copies and fills alone", "#7f8f4e"),
    (lambda parts: parts.idle_s, *IDLE),
)
"""Each part of a rank's time, with its words and its colour."""


def time_bars(chart_id: str, rows: Sequence[str], ranks: Sequence[TimeParts]) -> Bars:
    """Return a bar per row with the parts of its time, in per cent of its span."""
    series = []
    for part_s, words, colour in _LOOKS:
        shares = [part_s(parts) / (parts.span_s or 1.0) for parts in ranks]
        if any(shares):
            details = [part_in_words(part_s(parts), parts.span_s) for parts in ranks]
            series.append(Series(words, colour, [100 * share for share in shares], details))
    return Bars(chart_id, rows, series, "percent of the span", ends_at=100)


def ranks_in_words(count: int) -> str:
    """Return a number of ranks in words: ``1 rank``, ``16 ranks``."""
    return f"{count:,} rank{'s' if count != 1 else ''}"


def part_in_words(part_s: float, whole_s: float) -> str:
    """Return seconds, and what fraction they are of a whole: ``2 s (20.0 %)``."""
    return f"{format_time(part_s)} ({format_percent(part_s / whole_s)})" if whole_s else format_time(part_s)


def warning_sections(texts: Sequence[str]) -> list[Block]:
    """Return what is doubtful about a recording, for a page; a terminal has it on standard error."""
    rows = [(text,) for text in texts]
    return [Only("page", (Section("Doubts", (Table(("what the files lack, or contradict",), rows),)),))] if rows else []
