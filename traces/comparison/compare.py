"""Comparison of two timelines: the ops that differ, and those that explain the difference in time."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from traces.comparison.alignment import Alignment, align
from traces.comparison.critical_path import IDLE, ROUNDING_S, critical_path_s
from traces.comparison.mismatch import Mismatch, What, find_mismatches
from traces.comparison.sequence import Codes
from traces.comparison.sides import Sides, sides
from traces.comparison.step_time import ROUNDING, StepTime, divide
from traces.errors import TraceError
from traces.timeline import Floats, Timeline
from traces.unrolling import num_unrolled, unrolled

NUM_LARGEST: Final = 10
MAX_ROWS: Final = 1 << 25
"""Limit of rows of a compared timeline, unrolled."""
_LAYER: Final = re.compile(r"\blayer\d+\b")


def difference_s(first_s: float, second_s: float) -> float:
    """Return the first less the second; 0 for differences from rounding only: 1e-12 s, or 1e-9 of the longer."""
    rounding_s = max(ROUNDING_S, ROUNDING * max(abs(first_s), abs(second_s)))
    return first_s - second_s if abs(first_s - second_s) > rounding_s else 0.0


class Totals(Struct, frozen=True):
    """Seconds of one name, kind or stream on both sides, and the number of ops of each side."""

    key: str
    num_first: int
    num_second: int
    first_s: float
    second_s: float

    @property
    def difference_s(self) -> float:
        """Return the first less the second, without rounding."""
        return difference_s(self.first_s, self.second_s)

    @property
    def error(self) -> float | None:
        """Return the difference as a fraction of the second, None if the second is zero."""
        return self.difference_s / self.second_s if self.second_s else None


Share = tuple[Totals, float]
"""An entry, and its fraction of the sum of all absolute differences."""


class Explained(Struct, frozen=True):
    """Explanation of a difference: the ops with most of it, all others as one entry (``num_others``), and idling.

    The parts add up to 1, or are all 0 without a difference.
    """

    ops: tuple[Share, ...]
    others: Share
    num_others: int
    idle: Share


class Comparison(Struct, frozen=True):
    """The result of ``compare``.

    ``by_op``: aligned ops by name (by two names if aligned by kind). ``by_kind`` and ``by_stream``: all ops. Seconds
        are summed over ranks, longest first.
    ``contributions``: seconds of every op name, and of idle time, in the mean rank's step on both sides, largest
        difference first; the differences add up to that of the steps.
    ``step_times`` and ``critical_paths_s``: of the two timelines.
    """

    sides: Sides
    alignment: Alignment
    mismatches: Mapping[What, int]
    examples: tuple[Mismatch, ...]
    by_op: tuple[Totals, ...]
    by_kind: tuple[Totals, ...]
    by_stream: tuple[Totals, ...]
    contributions: tuple[Totals, ...]
    step_times: tuple[StepTime, StepTime]
    critical_paths_s: tuple[Mapping[str, float], Mapping[str, float]]

    @property
    def first_s(self) -> float:
        """Return the first timeline's duration."""
        return self.step_times[0].step_s

    @property
    def second_s(self) -> float:
        """Return the second timeline's duration."""
        return self.step_times[1].step_s

    @property
    def makespan_error(self) -> float:
        """Return the excess of the first timeline's duration, as a fraction of the second's."""
        if self.second_s == 0.0:
            return 0.0 if self.first_s == 0.0 else 1.0
        return difference_s(self.first_s, self.second_s) / self.second_s

    @property
    def same_work(self) -> bool:
        """Return whether both timelines have the same ops, in the same order per stream, with the same bytes."""
        return not any(self.mismatches.values())

    @property
    def explained(self) -> Explained:
        """Return the NUM_LARGEST ops with the largest contributions, and the rest.

        An op that repeats in every layer is one entry, ``forward.0/layer*.qkv``.
        """
        idle = next(entry for entry in self.contributions if entry.key == IDLE)
        ops = [entry for entry in _of_all_layers(self.contributions) if entry.key != IDLE and entry.difference_s]
        whole_s = sum(abs(entry.difference_s) for entry in (*ops, idle)) or 1.0
        rest = ops[NUM_LARGEST:]
        sums = [
            sum(getattr(entry, key) for entry in rest) for key in ("num_first", "num_second", "first_s", "second_s")
        ]
        others = Totals("all other ops", int(sums[0]), int(sums[1]), float(sums[2]), float(sums[3]))
        return Explained(
            ops=tuple((entry, abs(entry.difference_s) / whole_s) for entry in ops[:NUM_LARGEST]),
            others=(others, sum(abs(entry.difference_s) for entry in rest) / whole_s),
            num_others=len(rest),
            idle=(idle, abs(idle.difference_s) / whole_s),
        )

    @property
    def worst_error(self) -> float:
        """Return the makespan's absolute error; at least 1 (100 %) if the work differs."""
        return max(abs(self.makespan_error), 0.0 if self.same_work else 1.0)


def _of_all_layers(entries: Sequence[Totals]) -> list[Totals]:
    """Return the entries with layers combined: one entry for all that differ only in the layer number.

    Largest first.
    """
    groups: dict[str, list[Totals]] = {}
    for entry in entries:
        groups.setdefault(_LAYER.sub("layer*", entry.key), []).append(entry)
    merged = [
        found[0]
        if len(found) == 1
        else Totals(
            key,
            sum(entry.num_first for entry in found),
            sum(entry.num_second for entry in found),
            sum(entry.first_s for entry in found),
            sum(entry.second_s for entry in found),
        )
        for key, found in groups.items()
    ]
    return sorted(merged, key=lambda entry: (-abs(entry.difference_s), entry.key))


def compare(first: Timeline, second: Timeline) -> Comparison:
    """Return the differences of two timelines, op by op. Folded timelines are unrolled and compared pass by pass.

        comparison = compare(read_timeline(first), read_timeline(second))

    Raises TraceError if one has a row per op and the other per task, or a timeline has no rows or too many.
    """
    _refuse_uncomparable(first, second)
    both = sides(unrolled(first), unrolled(second))
    alignment = align(both)
    counts, examples = find_mismatches(both, alignment)
    weights = [
        np.array([pair.num_ranks if info else 0 for pair, info in zip(both.pairs, infos, strict=True)], dtype=float)
        for infos in ([pair.first for pair in both.pairs], [pair.second for pair in both.pairs])
    ]
    (first_step, first_held), (second_step, second_held) = (
        divide(side, weight) for side, weight in zip((both.first, both.second), weights, strict=True)
    )
    keys = _op_keys(both, alignment)
    lasting = both.first.lasting_s, both.second.lasting_s
    aligned = alignment.first, alignment.second
    idle = Totals(IDLE, 0, 0, first_step.idle_s, second_step.idle_s)
    held = _totals(keys.words, (keys.first, keys.second), (first_held, second_held))
    return Comparison(
        sides=both,
        alignment=alignment,
        mismatches=counts,
        examples=examples,
        by_op=_totals(
            keys.words,
            (keys.first[aligned[0]], keys.second[aligned[1]]),
            (lasting[0][aligned[0]], lasting[1][aligned[1]]),
        ),
        by_kind=_totals(both.kinds, (both.first.kind, both.second.kind), lasting),
        by_stream=_totals(both.streams, (both.first.stream, both.second.stream), lasting),
        contributions=tuple(sorted([*held, idle], key=lambda entry: (-abs(entry.difference_s), entry.key))),
        step_times=(first_step, second_step),
        critical_paths_s=(critical_path_s(first), critical_path_s(second)),
    )


def _refuse_uncomparable(first: Timeline, second: Timeline) -> None:
    if first.detail != second.detail:
        rule = f"the first timeline has a row per {first.detail}, the second a row per {second.detail}"
        raise TraceError("", rule, "write both with the same --detail")
    for which, timeline in (("first", first), ("second", second)):
        if not len(timeline):
            raise TraceError("", f"the {which} timeline has no ops", "compare timelines of whole runs")
        if (number := num_unrolled(timeline)) > MAX_ROWS:
            rule = f"the {which} timeline has {number:,} rows with all that it repeats, more than {MAX_ROWS:,}"
            raise TraceError("", rule, "write both with --detail task, or of less")


class _Keys(Struct, frozen=True):
    """The key of each row's sum: codes of words."""

    words: tuple[str, ...]
    first: Codes
    second: Codes


def _op_keys(both: Sides, alignment: Alignment) -> _Keys:
    """Return the name of each op, and both names of ops aligned by kind."""
    first, second = both.first.name.copy(), both.second.name.copy()
    renamed = np.flatnonzero(~alignment.by_name)
    ours, theirs = alignment.first[renamed], alignment.second[renamed]
    couples, number = np.unique(first[ours] * len(both.names) + second[theirs], return_inverse=True)
    first[ours] = second[theirs] = len(both.names) + number
    names = both.names
    words = [f"{names[couple // len(names)]} | {names[couple % len(names)]}" for couple in couples.tolist()]
    return _Keys((*names, *words), first, second)


def _totals(words: Sequence[str], codes: tuple[Codes, Codes], seconds: tuple[Floats, Floats]) -> tuple[Totals, ...]:
    """Return the seconds of both sides per word, the longest of the second first."""
    counts = [np.bincount(part, minlength=len(words)).tolist() for part in codes]
    sums = [
        np.bincount(part, weights=weights, minlength=len(words)).tolist()
        for part, weights in zip(codes, seconds, strict=True)
    ]
    rows = [
        Totals(word, counts[0][code], counts[1][code], sums[0][code], sums[1][code])
        for code, word in enumerate(words)
        if counts[0][code] or counts[1][code]
    ]
    return tuple(sorted(rows, key=lambda entry: (-entry.second_s, -entry.first_s, entry.key)))
