"""Mismatches: ops that two timelines do not share, or that differ."""

from collections.abc import Iterator, Mapping
from typing import Final, Literal

import numpy as np
from msgspec import Struct

from traces.comparison.alignment import Alignment
from traces.comparison.sides import Side, Sides
from traces.timeline import NO_INDEX, Rows, Timeline

MAX_EXAMPLES: Final = 10
"""Number of mismatches of each kind kept as examples; all are counted."""

What = Literal["missing", "extra", "name", "order", "stream", "kind", "bytes"]


class Mismatch(Struct, frozen=True):
    """One op that the two timelines do not share, or that differs; ``rank`` is the pair's (``RankPair.rank``).

    ``what``: missing (only in the first), extra (only in the second), another name (aligned by kind), stream, kind or
        number of bytes, or another place in the order of its stream.
    ``first`` and ``second``: the two values, empty if missing.
    """

    what: What
    rank: int
    stream: str
    name: str
    microbatch: int
    first: str = ""
    second: str = ""


def find_mismatches(both: Sides, alignment: Alignment) -> tuple[Mapping[What, int], tuple[Mismatch, ...]]:
    """Return the number of mismatches of each kind, and the first examples of each."""
    counts: dict[What, int] = {}
    examples: list[Mismatch] = []
    alone: tuple[tuple[What, Side, Rows], ...] = (
        ("missing", both.first, alignment.first_alone),
        ("extra", both.second, alignment.second_alone),
    )
    for what, side, rows in alone:
        counts[what] = len(rows)
        examples += [_alone(what, both, side, row) for row in rows[:MAX_EXAMPLES].tolist()]
    pairs = _Pairs(both, alignment)
    for what, differing, others in pairs.differences():
        counts[what] = len(differing)
        chosen = zip(differing[:MAX_EXAMPLES].tolist(), others[:MAX_EXAMPLES].tolist(), strict=True)
        examples += [pairs.mismatch(what, position, other) for position, other in chosen]
    return counts, tuple(examples)


def _alone(what: What, both: Sides, side: Side, position: int) -> Mismatch:
    """Return an op of one side alone as a mismatch."""
    row, timeline = int(side.rows[position]), side.timeline
    span = f"{timeline.start_s[row]:.6g} s to {timeline.end_s[row]:.6g} s"
    return Mismatch(
        what, both.pairs[int(side.pair[position])].rank, timeline.stream.at(row), timeline.name.at(row),
        int(timeline.microbatch[row]), first=span if what == "missing" else "", second=span if what == "extra" else "",
    )  # fmt: skip


class _Pairs:
    """The aligned ops: positions in both sides."""

    def __init__(self, both: Sides, alignment: Alignment) -> None:
        self._both = both
        self._first, self._second = alignment.first, alignment.second
        self._by_name = alignment.by_name

    def differences(self) -> Iterator[tuple[What, Rows, Rows]]:
        """Yield, for each property, the pairs that differ in it (and the pairs with which they changed places)."""
        first, second = self._both.first, self._both.second
        renamed = np.flatnonzero(~self._by_name)
        yield "name", renamed, renamed
        yield "order", *self._out_of_order()
        differing = np.flatnonzero(first.stream[self._first] != second.stream[self._second])
        yield "stream", differing, differing
        differing = np.flatnonzero(first.kind[self._first] != second.kind[self._second])
        yield "kind", differing, differing
        sizes = first.bytes[self._first], second.bytes[self._second]
        known = self._by_name | ((sizes[0] > 0) & (sizes[1] > 0))
        differing = np.flatnonzero((sizes[0] != sizes[1]) & known)
        yield "bytes", differing, differing

    def mismatch(self, what: What, position: int, other: int) -> Mismatch:
        """Return the pair at ``position`` as a mismatch; ``other``: the pair with which it changed places."""
        first, second = self._both.first.timeline, self._both.second.timeline
        rows, partners = self._both.first.rows[self._first], self._both.second.rows[self._second]
        row, partner = int(rows[position]), int(partners[position])
        match what:
            case "order":
                neighbour = _instance(first, int(rows[other]))
                values = f"after {neighbour}", f"before {neighbour}"
            case "bytes":
                values = str(first.bytes[row]), str(second.bytes[partner])
            case "name":
                values = first.name.at(row), second.name.at(partner)
            case "stream":
                values = first.stream.at(row), second.stream.at(partner)
            case _:
                values = first.kind.at(row), second.kind.at(partner)
        rank = self._both.pairs[int(self._both.first.pair[self._first[position]])].rank
        return Mismatch(what, rank, first.stream.at(row), first.name.at(row), int(first.microbatch[row]), *values)

    def _out_of_order(self) -> tuple[Rows, Rows]:
        """Return the pairs that began in the second before their predecessor in the first, and these predecessors.

        Ops that start and end together on one side take the other side's order. Only names decide what is out of order.
        """
        named = np.flatnonzero(self._by_name)
        ours, theirs = self._first[named], self._second[named]
        queue = self._both.first.pair[ours] * len(self._both.streams) + self._both.first.stream[ours]
        first = self._both.first.start_s[ours], self._both.first.end_s[ours]
        second = self._both.second.start_s[theirs], self._both.second.end_s[theirs]
        before = np.lexsort((second[1], second[0], first[1], first[0], queue))
        after = np.lexsort((first[1], first[0], second[1], second[0], queue))
        place = np.empty(len(named), dtype=np.int64)
        place[after] = np.arange(len(named))
        descents = np.flatnonzero(np.diff(place[before]) < 0)
        return named[before[descents + 1]], named[before[descents]]


def _instance(timeline: Timeline, row: int) -> str:
    microbatch = timeline.microbatch[row]
    return timeline.name.at(row) + (f" (micro-batch {microbatch})" if microbatch != NO_INDEX else "")
