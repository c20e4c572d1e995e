"""Two timelines of one plan side by side: which ops differ, in what, and which explain the difference in time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from traces.errors import TraceError
from traces.timeline import NO_INDEX, Rows, Timeline, Words

MAX_EXAMPLES: Final = 10
"""Mismatches of each kind that are kept as examples; all are counted."""
NUM_LARGEST: Final = 10

What = Literal["missing", "extra", "order", "stream", "kind", "bytes"]
Codes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One op that the two timelines do not share, or do differently; ``rank`` is the real timeline's.

    ``what``: missing (only simulated), extra (only real), another stream, kind or number of bytes, or another
    place in the order of its stream. ``simulated`` and ``real`` hold the two values, empty where there is none.
    """

    what: What
    rank: int
    stream: str
    name: str
    microbatch: int
    simulated: str = ""
    real: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    """Seconds of the ops that both timelines have, summed over ranks: of one name, kind or stream."""

    key: str
    num_ops: int
    simulated_s: float
    real_s: float

    @property
    def difference_s(self) -> float:
        """Return simulated less real."""
        return self.simulated_s - self.real_s

    @property
    def error(self) -> float | None:
        """Return the difference as a fraction of the real time, None where that is zero."""
        return self.difference_s / self.real_s if self.real_s else None


@dataclass(frozen=True, slots=True)
class Explanation:
    """An op's share of all differences between ops: ``share`` of the sum of absolute differences, 0..1."""

    totals: Totals
    share: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """What ``compare`` finds. Row i of ``simulated_rows`` is the same op as row i of ``real_rows``."""

    simulated_s: float
    real_s: float
    num_simulated: int
    num_real: int
    mismatches: Mapping[What, int]
    examples: tuple[Mismatch, ...]
    by_op: tuple[Totals, ...]
    by_kind: tuple[Totals, ...]
    by_stream: tuple[Totals, ...]
    largest: tuple[Explanation, ...]
    simulated_rows: Rows
    real_rows: Rows

    @property
    def makespan_error(self) -> float:
        """Return how much longer the simulated step is, as a fraction of the real one."""
        if self.real_s == 0.0:
            return 0.0 if self.simulated_s == 0.0 else 1.0
        return (self.simulated_s - self.real_s) / self.real_s

    @property
    def same_work(self) -> bool:
        """Return whether both did the same ops, in the same order per stream, with the same bytes."""
        return not any(self.mismatches.values())

    @property
    def worst_error(self) -> float:
        """Return the makespan's absolute error; at least 1 (100 %) where the two did not do the same work."""
        return max(abs(self.makespan_error), 0.0 if self.same_work else 1.0)


@dataclass(frozen=True, slots=True)
class _Side:
    """One timeline's rows, with the rank that each is compared under and codes that both sides share."""

    timeline: Timeline
    rows: Rows
    rank: Codes
    name: Codes

    @property
    def microbatch(self) -> Codes:
        return self.timeline.microbatch[self.rows].astype(np.int64)


def compare(simulated: Timeline, real: Timeline) -> Comparison:
    """Return how two timelines differ, op by op: same rank, name, micro-batch and occurrence.

    Where the simulated timeline is folded, a real rank that it does not have is held against the rank of the
    same role. Raises TraceError where one has a row per op and the other per task, or none at all.
    """
    _refuse_uncomparable(simulated, real)
    ours, theirs = _sides(simulated, real)
    left, right = _match(ours, theirs)
    missing = np.setdiff1d(np.arange(len(ours.rows)), left)
    extra = np.setdiff1d(np.arange(len(theirs.rows)), right)
    found: dict[What, list[Mismatch]] = {
        "missing": [_mismatch("missing", ours, row) for row in missing[:MAX_EXAMPLES].tolist()],
        "extra": [_mismatch("extra", theirs, row) for row in extra[:MAX_EXAMPLES].tolist()],
    }
    counts: dict[What, int] = {"missing": len(missing), "extra": len(extra)}
    simulated_rows, real_rows = ours.rows[left], theirs.rows[right]
    pairs = _Pairs(simulated, real, simulated_rows, real_rows, theirs.rank[right])
    for what, differing, others in pairs.differences():
        counts[what] = len(differing)
        chosen = zip(differing[:MAX_EXAMPLES].tolist(), others[:MAX_EXAMPLES].tolist(), strict=True)
        found[what] = [pairs.mismatch(what, position, other) for position, other in chosen]
    by_op = pairs.totals(simulated.name)
    return Comparison(
        simulated_s=simulated.duration_s,
        real_s=real.duration_s,
        num_simulated=len(ours.rows),
        num_real=len(theirs.rows),
        mismatches=counts,
        examples=tuple(example for examples in found.values() for example in examples),
        by_op=by_op,
        by_kind=pairs.totals(simulated.kind),
        by_stream=pairs.totals(simulated.stream),
        largest=_largest(by_op),
        simulated_rows=simulated_rows,
        real_rows=real_rows,
    )


def _refuse_uncomparable(simulated: Timeline, real: Timeline) -> None:
    if simulated.detail != real.detail:
        rule = f"the first timeline has a row per {simulated.detail}, the second a row per {real.detail}"
        raise TraceError("", rule, "write both with the same --detail")
    for which, timeline in (("first", simulated), ("second", real)):
        if not len(timeline):
            raise TraceError("", f"the {which} timeline has no ops", "compare timelines of whole runs")


def _sides(simulated: Timeline, real: Timeline) -> tuple[_Side, _Side]:
    """Return both timelines' rows under the real timeline's ranks and with common codes of names."""
    have = {info.rank for info in simulated.ranks}
    by_role: dict[str, int] = {}
    for info in simulated.ranks:
        by_role.setdefault(info.role, info.rank)
    partner = {info.rank: info.rank if info.rank in have else by_role.get(info.role) for info in real.ranks}
    pairs = [(ours, theirs) for theirs, ours in partner.items() if ours is not None]
    pairs += [(rank, rank) for rank in sorted(have - {ours for ours, _ in pairs})]
    parts = [simulated.select(rank=ours) for ours, _ in pairs]
    rows = np.concatenate(parts)
    rank = np.repeat([theirs for _, theirs in pairs], [len(part) for part in parts]).astype(np.int64)
    codes = {name: code for code, name in enumerate(simulated.name.values)}
    translation = np.array([codes.setdefault(name, len(codes)) for name in real.name.values], dtype=np.int64)
    return (
        _Side(simulated, rows, rank, simulated.name.codes[rows].astype(np.int64)),
        _Side(real, np.arange(len(real)), real.rank.astype(np.int64), translation[real.name.codes]),
    )


_KEYS: Final = ("name", "microbatch")


def _match(ours: _Side, theirs: _Side) -> tuple[Rows, Rows]:
    """Return positions in both sides of the ops that both have."""
    num_names, num_microbatches = (1 + max(int(getattr(side, key).max()) for side in (ours, theirs)) for key in _KEYS)
    identity = [
        (side.rank * num_names + side.name) * (num_microbatches + 1) + side.microbatch - NO_INDEX
        for side in (ours, theirs)
    ]
    keys = np.unique(np.concatenate(identity), return_inverse=True)[1]
    own, other = keys[: len(ours.rows)], keys[len(ours.rows) :]
    occurrences = _occurrence(own, ours), _occurrence(other, theirs)
    factor = 1 + max(int(occurrence.max()) for occurrence in occurrences)
    _, left, right = np.intersect1d(
        own * factor + occurrences[0], other * factor + occurrences[1], assume_unique=True, return_indices=True
    )
    by_time = np.argsort(ours.rows[left], kind="stable")
    return left[by_time], right[by_time]


def _occurrence(keys: Codes, side: _Side) -> Codes:
    """Return how many ops of the same key came before each op, by start."""
    order = np.lexsort((side.timeline.start_s[side.rows], keys))
    in_order = keys[order]
    first = np.flatnonzero(np.concatenate([[True], in_order[1:] != in_order[:-1]]))
    lengths = np.diff(np.append(first, len(in_order)))
    result = np.empty(len(keys), dtype=np.int64)
    result[order] = np.arange(len(keys)) - np.repeat(first, lengths)
    return result


def _mismatch(what: What, side: _Side, position: int) -> Mismatch:
    """Return an op that one side alone has."""
    row, timeline = int(side.rows[position]), side.timeline
    span = f"{timeline.start_s[row]:.6g} s to {timeline.end_s[row]:.6g} s"
    return Mismatch(
        what, int(side.rank[position]), timeline.stream.at(row), timeline.name.at(row), int(timeline.microbatch[row]),
        simulated=span if what == "missing" else "", real=span if what == "extra" else "",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The ops that both timelines have: row numbers in both, and the real rank."""

    simulated: Timeline
    real: Timeline
    ours: Rows
    theirs: Rows
    rank: Codes

    def differences(self) -> list[tuple[What, Rows, Rows]]:
        """Return, for each way to differ, the pairs that do (and those that they changed places with)."""
        moved, before = self._out_of_order()
        result: list[tuple[What, Rows, Rows]] = [("order", moved, before)]
        words: tuple[tuple[What, Words, Words], ...] = (
            ("stream", self.simulated.stream, self.real.stream),
            ("kind", self.simulated.kind, self.real.kind),
        )
        for what, ours, theirs in words:
            translation = np.array([ours.code(value) for value in theirs.values], dtype=np.int64)
            differing = np.flatnonzero(ours.codes[self.ours] != translation[theirs.codes[self.theirs]])
            result.append((what, differing, differing))
        differing = np.flatnonzero(self.simulated.bytes[self.ours] != self.real.bytes[self.theirs])
        result.append(("bytes", differing, differing))
        return result

    def mismatch(self, what: What, position: int, other: int) -> Mismatch:
        """Return the pair at ``position`` as a mismatch; ``other`` is the pair that it changed places with."""
        row, real_row = int(self.ours[position]), int(self.theirs[position])
        match what:
            case "order":
                neighbour = _instance(self.simulated, int(self.ours[other]))
                values = f"after {neighbour}", f"before {neighbour}"
            case "stream":
                values = self.simulated.stream.at(row), self.real.stream.at(real_row)
            case "kind":
                values = self.simulated.kind.at(row), self.real.kind.at(real_row)
            case _:
                values = str(self.simulated.bytes[row]), str(self.real.bytes[real_row])
        microbatch = int(self.simulated.microbatch[row])
        stream, name = self.simulated.stream.at(row), self.simulated.name.at(row)
        return Mismatch(what, int(self.rank[position]), stream, name, microbatch, *values)

    def totals(self, words: Words) -> tuple[Totals, ...]:
        """Return the seconds of both sides per word of a column of the simulated timeline, longest first."""
        codes, size = words.codes[self.ours], len(words.values)
        counts = np.bincount(codes, minlength=size).tolist()
        simulated_s, real_s = (
            np.bincount(codes, weights=timeline.end_s[rows] - timeline.start_s[rows], minlength=size).tolist()
            for timeline, rows in ((self.simulated, self.ours), (self.real, self.theirs))
        )
        rows = [
            Totals(word, counts[code], simulated_s[code], real_s[code])
            for code, word in enumerate(words.values)
            if counts[code]
        ]
        return tuple(sorted(rows, key=lambda entry: (-entry.real_s, entry.key)))

    def _out_of_order(self) -> tuple[Rows, Rows]:
        """Return the pairs that really started before the op that precedes them when simulated, and those ops.

        Ops that start and end together on one side have the other side's order.
        """
        stream = self.simulated.stream.codes[self.ours].astype(np.int64)
        times = [
            (timeline.start_s[rows], timeline.end_s[rows])
            for timeline, rows in ((self.simulated, self.ours), (self.real, self.theirs))
        ]
        (ours_start, ours_end), (theirs_start, theirs_end) = times
        ours = np.lexsort((theirs_end, theirs_start, ours_end, ours_start, stream, self.rank))
        theirs = np.lexsort((ours_end, ours_start, theirs_end, theirs_start, stream, self.rank))
        place = np.empty(len(theirs), dtype=np.int64)
        place[theirs] = np.arange(len(theirs))
        descents = np.flatnonzero(np.diff(place[ours]) < 0)
        return ours[descents + 1], ours[descents]


def _instance(timeline: Timeline, row: int) -> str:
    microbatch = timeline.microbatch[row]
    return timeline.name.at(row) + (f" (micro-batch {microbatch})" if microbatch != NO_INDEX else "")


def _largest(by_op: tuple[Totals, ...]) -> tuple[Explanation, ...]:
    """Return the ops whose seconds differ most."""
    total_s = sum(abs(entry.difference_s) for entry in by_op)
    ordered = sorted(by_op, key=lambda entry: (-abs(entry.difference_s), entry.key))[:NUM_LARGEST]
    return tuple(Explanation(entry, abs(entry.difference_s) / total_s) for entry in ordered if entry.difference_s)
