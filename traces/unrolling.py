"""Unrolling of folded timelines: all passes of the period, or some of them.

A row of the period is its op in the first pass. Pass k starts k periods later, for a micro-batch k times further on.
Messages and collectives of later passes are found by counting: every pass has equally many ops of each kind, so the
ends of a message in one pass are that many ops later in the next.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from traces.timeline import NO_INDEX, MemoryCurve, Messages, Period, Rows, Timeline

BEFORE: Final = 0
DURING: Final = 1
AFTER: Final = 2
"""The parts of a step by its period, as numbered by ``Period.part``."""
_PARTS: Final = (BEFORE, DURING, AFTER)


def num_unrolled(timeline: Timeline) -> int:
    """Return the number of rows of the unrolled timeline."""
    return int(timeline.repeats.sum(dtype=np.int64))


def unrolled(timeline: Timeline) -> Timeline:
    """Return the timeline with a row for every op of every pass; the timeline itself if it is not folded."""
    return timeline if timeline.period is None else with_passes(timeline, range(timeline.period.count))


def with_passes(timeline: Timeline, passes: Sequence[int]) -> Timeline:
    """Return the part before the period, some of its passes (from 0, rising), and the part after it.

    All rows are at their times in the step, so an omitted pass leaves a gap. Messages and collectives with rows in a
    gap lose those rows.
    """
    if timeline.period is None:
        return timeline
    layout = _Layout(timeline, timeline.period, np.asarray(passes, dtype=np.int64))
    return layout.timeline()


def with_count(timeline: Timeline, count: int) -> Timeline:
    """Return a folded timeline with ``count`` passes of its period; later rows move accordingly."""
    period = timeline.period
    if period is None:
        return timeline
    curve, more = timeline.memory, count - period.count
    passes, of_memory = (np.where(period.part(times) == AFTER, more, 0) for times in (timeline.start_s, curve.time_s))
    return replace(
        timeline,
        start_s=timeline.start_s + passes * period.length_s,
        end_s=timeline.end_s + passes * period.length_s,
        microbatch=_later(timeline.microbatch, passes, period),
        memory=MemoryCurve(curve.rank, curve.time_s + of_memory * period.length_s, curve.bytes),
        period=replace(period, count=count),
    )


def unrolled_memory(timeline: Timeline) -> MemoryCurve:
    """Return the memory of the whole step."""
    period = timeline.period
    if period is None:
        return timeline.memory
    return _memory(timeline.memory, period, np.arange(period.count))


def _memory(curve: MemoryCurve, period: Period, passes: Rows) -> MemoryCurve:
    part = period.part(curve.time_s)
    ranks, times_s, held = [], [], []
    for rank in np.unique(curve.rank):
        of_rank = curve.rank == rank
        before, during, after = (np.flatnonzero(of_rank & (part == which)) for which in _PARTS)
        rows = np.concatenate([before, np.tile(during, len(passes)), after])
        late = np.concatenate([np.zeros(len(before)), np.repeat(passes, len(during)), np.zeros(len(after))])
        ranks.append(curve.rank[rows])
        times_s.append(np.maximum.accumulate(curve.time_s[rows] + late * period.length_s))  # ascending up to rounding
        held.append(curve.bytes[rows])
    if not ranks:
        return curve
    return MemoryCurve(np.concatenate(ranks), np.concatenate(times_s), np.concatenate(held))


def _later(microbatch: NDArray[np.int32], passes: Rows, period: Period) -> NDArray[np.int32]:
    """Return micro-batches so many passes later; rows without a micro-batch stay."""
    moved: NDArray[np.int32] = np.where(
        microbatch == NO_INDEX, NO_INDEX, microbatch + passes * period.microbatches
    ).astype(np.int32)
    return moved


class _Layout(Struct, dict=True):
    """The order of the rows of some passes: first those before the period, then pass by pass, then those after it.

    Afterwards they are sorted like all rows of a timeline.
    """

    folded: Timeline
    period: Period
    passes: Rows

    def timeline(self) -> Timeline:
        folded, period = self.folded, self.period
        rows, late = self._rows
        by_s = late * period.length_s
        columns = {key: getattr(folded, key)[rows] for key in ("rank", "start_s", "end_s", "stage", "bytes", "flop")}
        columns |= {key: columns[key] + by_s for key in ("start_s", "end_s")}
        columns["microbatch"] = _later(folded.microbatch[rows], late, period)
        order = np.lexsort((columns["end_s"], columns["start_s"], columns["rank"]))
        words = {key: getattr(folded, key).take(rows[order]) for key in ("stream", "name", "kind", "group")}
        return replace(
            folded, **{key: column[order] for key, column in columns.items()}, **words,
            memory=_memory(folded.memory, period, self.passes), messages=self._messages(order), period=None,
        )  # fmt: skip

    @cached_property
    def _part(self) -> NDArray[np.int8]:
        return self.period.part(self.folded.start_s)

    @cached_property
    def _rows(self) -> tuple[Rows, Rows]:
        """Return the folded row of each row, and the number of passes by which it is later."""
        before, during, after = (np.flatnonzero(self._part == which) for which in _PARTS)
        rows = np.concatenate([before, np.tile(during, len(self.passes)), after])
        late = np.zeros(len(rows), dtype=np.int64)
        late[len(before) : len(rows) - len(after)] = np.repeat(self.passes, len(during))
        return rows, late

    # --- messages and collectives --------------------------------------------------------------------------

    def _messages(self, order: Rows) -> Messages:
        """Return messages and collectives of the rows in their order."""
        position = np.empty(len(order), dtype=np.int64)
        position[order] = np.arange(len(order))
        found = self.folded.messages
        ends = np.stack([found.send, found.recv], axis=1).ravel()
        ends, _ = self._again(ends, np.repeat(np.arange(len(found.send)), 2), fewest=2)
        members, collective = self._again(found.member, found.collective, fewest=1)
        return Messages(position[ends[::2]], position[ends[1::2]], position[members], collective)

    def _again(self, members: Rows, numbers: Rows, *, fewest: int) -> tuple[Rows, Rows]:
        """Return the rows of every pass that belong together, and a number that they share.

        ``members``: folded rows that belong together, group by group, with the group's number. Groups with fewer than
            ``fewest`` rows are left out.
        """
        if not len(members):
            return members, numbers
        first = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
        group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(members))))
        earliest, latest = (f.reduceat(self._part[members], first) for f in (np.minimum, np.maximum))
        last = self.period.count - 1
        once = (latest == BEFORE) | (earliest == AFTER)
        passes = [np.where(earliest == AFTER, last, 0)[group[once[group]]]]
        rows, groups = [members[once[group]]], [group[once[group]]]
        again = ~once[group]
        for number, late in enumerate(self.passes.tolist(), start=1):
            rows.append(members[again])
            groups.append(group[again] + number * len(first))
            passes.append(np.full(int(again.sum()), late))
        places = self._places(np.concatenate(rows), np.concatenate(passes))
        there = places >= 0
        return _distinct(places[there], np.concatenate(groups)[there], fewest)

    def _places(self, rows: Rows, passes: Rows) -> Rows:
        """Return the positions of folded rows' ops so many passes later; -1 if that pass is left out."""
        kind, place = self._kinds
        by_kind, first, before, during = self._of_kind
        of_kind = kind[rows]
        num_before, in_pass = before[of_kind], during[of_kind]
        ordinal = place[rows] + passes * in_pass
        late, place_in_pass = np.divmod(ordinal - num_before, np.maximum(in_pass, 1))
        is_before, is_after = ordinal < num_before, ordinal >= num_before + self.period.count * in_pass
        folded = np.where(is_after, ordinal - (self.period.count - 1) * in_pass, num_before + place_in_pass)
        folded = by_kind[first[of_kind] + np.where(is_before, ordinal, folded)]
        where = np.where(is_before | is_after, 0, late)
        drawn = np.searchsorted(self.passes, where)
        is_drawn = np.append(self.passes, NO_INDEX)[drawn] == where
        places: Rows = self._first_place[folded] + np.where(is_before | is_after, 0, drawn * self._num_during)
        return np.where(is_before | is_after | is_drawn, places, NO_INDEX)

    @cached_property
    def _num_during(self) -> int:
        return int((self._part == DURING).sum())

    @cached_property
    def _first_place(self) -> Rows:
        """Return the position of each folded row; for a row of the period, that in the first pass."""
        places = np.empty(len(self.folded), dtype=np.int64)
        num_before = 0
        for which, skipped in ((BEFORE, 0), (DURING, 0), (AFTER, (len(self.passes) - 1) * self._num_during)):
            rows = np.flatnonzero(self._part == which)
            places[rows] = num_before + skipped + np.arange(len(rows))
            num_before += len(rows)
        return places

    @cached_property
    def _kinds(self) -> tuple[Rows, Rows]:
        """Return each folded row's kind of op, on one stream of one rank, and the number of earlier ops of the kind."""
        folded = self.folded
        kind = np.zeros(len(folded), dtype=np.int64)
        for column in (folded.rank, folded.stream.codes, folded.name.codes, folded.stage):
            _, codes = np.unique(column, return_inverse=True)
            _, kind = np.unique(kind * (int(codes.max(initial=0)) + 1) + codes, return_inverse=True)
        by_kind = np.argsort(kind, kind="stable")
        place = np.empty(len(folded), dtype=np.int64)
        place[by_kind] = np.arange(len(folded)) - np.searchsorted(kind[by_kind], kind[by_kind])
        return kind, place

    @cached_property
    def _of_kind(self) -> tuple[Rows, Rows, Rows, Rows]:
        """Return the folded rows by kind; of each kind its first, and the numbers of ops before and in a pass."""
        kind, _ = self._kinds
        by_kind = np.argsort(kind, kind="stable")
        num_kinds = int(kind.max(initial=-1)) + 1
        first = np.searchsorted(kind[by_kind], np.arange(num_kinds))
        before, during = (np.bincount(kind[self._part == w], minlength=num_kinds) for w in (BEFORE, DURING))
        return by_kind, first, before, during


def _distinct(rows: Rows, groups: Rows, fewest: int) -> tuple[Rows, Rows]:
    """Return distinct groups of rows that have enough rows; groups with a common row are equal."""
    if not len(rows):
        return rows, groups
    first = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    sizes = np.diff(np.append(first, len(rows)))
    _, once = np.unique(np.minimum.reduceat(rows, first), return_index=True)
    kept = np.zeros(len(first), dtype=np.bool_)
    kept[once] = True
    kept &= sizes >= fewest
    number = np.repeat(np.cumsum(kept) - 1, sizes)
    chosen = np.repeat(kept, sizes)
    return rows[chosen], number[chosen]
