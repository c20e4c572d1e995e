"""Where a rank's time goes: busy seconds by stream, and idle seconds of its compute stream by cause."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.compiling.tables import MAIN_STREAM
from sim.engine.running.period import Part, Times
from sim.engine.running.plan_facts import PlanFacts
from sim.engine.running.rank_paces import RankPaces, UnlikeError
from sim.engine.running.run import SimulatedRun
from sim.engine.running.task_times import TaskTimes, TimesOfRanks
from sim.plan.words.stream import Purpose, stream_of
from sim.sorting import in_ranges

Ints = NDArray[np.int64]

Spans = tuple[Times, Times]
"""The starts and the ends of spans of time."""

BUBBLE = "bubble"
EXPERT_WAIT = "expert_wait"


class Breakdown(Struct, frozen=True):
    """``busy_s`` by stream; ``exposed_s``: idle time of the compute stream by the communication stream that ran
    meanwhile (the first in the order tp, ep, dp, others by name), ``bubble`` where none did. ``expert_wait``, where
    there are experts' exchanges: idle time that ends as one begins, because another rank has come to it. Compute's busy
    time and all of ``exposed_s`` add up to the run's iteration time.
    """

    busy_s: Mapping[str, float]
    exposed_s: Mapping[str, float]


class _Clock(Struct, frozen=True, eq=False):
    """Parts of time, one after the other: where each begins and the last one ends, and how often each happens."""

    edges: Times
    times: Times

    @classmethod
    def of(cls, parts: Sequence[Part]) -> "_Clock":
        """Return the clock of parts that follow each other."""
        edges = [*(part.begin_s for part in parts), parts[-1].end_s]
        return cls(np.array(edges), np.array([part.times for part in parts], np.float64))

    def inside_s(self, several: Sequence[Spans]) -> list[float]:
        """Return of several lots of spans the length of what of each lies in the parts, as often as these happen."""
        starts, ends = _joined(several)
        edges = self.edges[:-1, None], self.edges[1:, None]
        of_span = ((ends.clip(*edges) - starts.clip(*edges)) * self.times[:, None]).sum(axis=0)
        lot = np.repeat(np.arange(len(several)), [len(own) for own, _ in several])
        found: list[float] = np.bincount(lot, of_span, minlength=len(several)).tolist()
        return found


_NOTHING: Final = np.empty(0), np.empty(0)
"""The starts and ends of no spans."""

TOUCHING: Final = 1e-15
"""Ops of which one begins by a smaller part of its time after the other's end follow each other: by rounding alone."""


def breakdowns(run: SimulatedRun) -> dict[int, Breakdown]:
    """Return where the time of a step goes on each simulated rank.

    Without a barrier between steps: of the steady period that begins with the step's first op on that rank.
    """
    if run.paced is not None:
        return {rank: _of_paces(run, rank) for rank in run.programs}
    found = dict[int, Breakdown]()
    for times, parts in run.windows():
        clock = _Clock.of(parts)
        for rank, streams in _streams_of_ranks(run.facts, times).items():
            found[rank] = _of_parts(streams, clock, run.busy_s[rank])
    return {rank: found[rank] for rank in run.programs}


def _of_paces(run: SimulatedRun, rank: int) -> Breakdown:
    """Return the same of one simulated rank where ranks have paces of their own."""
    own, step = run.paces_of_step(rank)
    try:
        return _of_own_pace(own, step, run.busy_s[rank])
    except UnlikeError:  # every op of the step is looked at, at the time that its pace gives it
        places_of, clock = own.layout.of_streams, _Clock.of((step,))
        spans = {stream: own.unrolled(places) for stream, places in places_of.items()}
        return _of_parts(spans, clock, dict(zip(spans, clock.inside_s([*spans.values()]), strict=True)))


def _streams_of_ranks(facts: PlanFacts, several: Iterable[TimesOfRanks]) -> Mapping[int, Mapping[str, Spans]]:
    """Return the spans in which the ops of each stream run, by rank; computing that goes on is one span per call."""
    found: dict[int, dict[str, list[Spans]]] = {}
    for together in several:
        begins, times = together.begins.tolist(), together.times
        for stream, ops in facts.by_stream(times.task).items():
            first, last = _span_ops(times, ops) if stream == MAIN_STREAM else (ops, ops)
            starts_s, ends_s = times.starts_of(first), times.ends_of(last)
            for rank, begin, count in zip(together.ranks, begins, together.num_calls.tolist(), strict=True):
                own = starts_s[begin : begin + count].ravel(), ends_s[begin : begin + count].ravel()
                found.setdefault(rank, {}).setdefault(stream, []).append(own)
    return {rank: {stream: _joined(parts) for stream, parts in streams.items()} for rank, streams in found.items()}


def _span_ops(times: TaskTimes, ops: Ints) -> tuple[Ints, Ints]:
    """Return with which of some ops of a task's calls spans begin, and with which they end."""
    begins, finishes = span_edges(times.begin_after_s.take(ops, axis=1), times.end_after_s.take(ops, axis=1))
    return ops[begins], ops[finishes]


def without_touching(starts_s: Times, ends_s: Times) -> Spans:
    """Return the spans of ops in a row as fewer: those that follow each other are one."""
    begins, finishes = span_edges(starts_s[None], ends_s[None])
    return starts_s[begins], ends_s[finishes]


def span_edges(starts_s: Times, ends_s: Times) -> tuple[Ints, Ints]:
    """Return with which ops spans begin and end: ops that follow each other in all rows [rows, ops] are one span."""
    earlier_s, edge = ends_s[:, :-1], [True]
    apart = np.logical_or.reduce(np.abs(starts_s[:, 1:] - earlier_s) > TOUCHING * earlier_s)
    begins, finishes = (np.flatnonzero(np.concatenate(flags)) for flags in ((edge, apart), (apart, edge)))
    return begins, finishes


def _of_parts(streams: Mapping[str, Spans], clock: _Clock, busy_s: Mapping[str, float]) -> Breakdown:
    """Return the same of parts of time, from the starts and ends of the ops of each stream."""
    causes = _causes(streams)
    in_order = {stream: _in_order(*spans) for stream, spans in streams.items()}
    gaps, covered = _expose(_gaps(clock, *in_order.get(MAIN_STREAM, _NOTHING)), in_order, causes)
    exposed_s = clock.inside_s([*covered.values(), gaps])
    return Breakdown(dict(sorted(busy_s.items())), dict(zip([*covered, BUBBLE], exposed_s, strict=True)))


def _of_own_pace(own: RankPaces, step: Part, busy_s: Mapping[str, float]) -> Breakdown:
    """Return the same where ranks have paces of their own.

    What repeats at the pace of computing is looked at once per period. From the first cause of idle time on that
    includes messages at another pace, what is idle still is looked at in the whole step. Raises UnlikeError.
    """
    parts, streams, foreign = own.parts(step), own.layout.of_streams, own.foreign_streams
    clock, causes = _Clock.of(parts), _causes(streams)
    first = next((place for place, cause in enumerate(causes) if cause in foreign), len(causes))
    if MAIN_STREAM in foreign or EXPERT_WAIT in causes[first:]:
        raise UnlikeError
    spans = {cause: own.by_own_clock(streams[cause]) for cause in causes[:first] if cause in streams}
    looked_at = {cause: _in_order(*_not_over(*found, clock.edges[0])) for cause, found in spans.items()}
    if MAIN_STREAM in streams:
        looked_at[MAIN_STREAM] = without_touching(*own.by_own_clock(own.computing_from(step.begin_s)))
    gaps, covered = _expose(_gaps(clock, *looked_at.get(MAIN_STREAM, _NOTHING)), looked_at, causes[:first])
    exposed = dict(zip(covered, clock.inside_s([*covered.values()]), strict=True)) if covered else {}
    if first < len(causes):
        gaps = _unrolled(gaps, parts, own.left_out_s(range(own.layout.shown.start)))
        clock, left = _Clock.of((step,)), causes[first:]
        spans = {cause: _in_order(*own.unrolled(own.running_in(step, streams[cause]))) for cause in left}
        gaps, covered = _expose(gaps, spans, left)
        exposed |= dict(zip(covered, clock.inside_s([*covered.values()]), strict=True))
    return Breakdown(dict(sorted(busy_s.items())), {**exposed, BUBBLE: clock.inside_s([gaps])[0]})


def _unrolled(gaps: Spans, parts: Sequence[Part], before_s: float) -> Spans:
    """Return gaps as often as their parts happen, cut where these begin and end.

    ``before_s``: how much later than by the clock the first part is.
    """
    begins_s, lengths_s, ends_s = np.array([(part.begin_s, part.length_s, part.end_s) for part in parts]).T
    times = np.array([part.times for part in parts])
    left_out_s = (times - 1) * lengths_s
    first, stop = gaps[1].searchsorted(begins_s, "right"), gaps[0].searchsorted(ends_s)
    part_of, passes = in_ranges(np.zeros_like(times), times)
    later_s = (before_s + left_out_s.cumsum() - left_out_s)[part_of] + passes * lengths_s[part_of]
    of_pass, gap = in_ranges(first[part_of], np.maximum(stop - first, 0)[part_of])
    part_of, later_s = part_of[of_pass], later_s[of_pass]
    return np.maximum(gaps[0][gap], begins_s[part_of]) + later_s, np.minimum(gaps[1][gap], ends_s[part_of]) + later_s


def _expose(gaps: Spans, streams: Mapping[str, Spans], causes: Sequence[str]) -> tuple[Spans, dict[str, Spans]]:
    """Return the gaps that no cause explains, and what of gaps each cause does. ``streams``: spans in order."""
    covered: dict[str, Spans] = {}
    for cause in causes:
        if cause == EXPERT_WAIT:
            starts = [spans[0] for stream, spans in streams.items() if _is_exchange(stream)]
            gaps, covered[cause] = _without_waits(gaps, np.concatenate(starts))
        else:
            gaps, covered[cause] = _cover(gaps, *streams[cause])
    return gaps, covered


def _causes(streams: Iterable[str]) -> list[str]:
    """Return the causes of idle time, the first for whom it counts first: streams, and waits for experts' exchanges."""
    causes = [stream for stream in _by_priority(streams) if stream != MAIN_STREAM]
    exchanges = [place for place, stream in enumerate(causes) if _is_exchange(stream)]
    if exchanges:
        causes.insert(exchanges[-1] + 1, EXPERT_WAIT)
    return causes


def _is_exchange(stream: str) -> bool:
    return stream_of(stream).purpose is Purpose.EXPERT


def _by_priority(streams: Iterable[str]) -> list[str]:
    places: Mapping[Purpose | None, int] = {Purpose.TENSOR: 0, Purpose.EXPERT: 1, Purpose.DATA: 2}
    return sorted(streams, key=lambda name: (places.get(stream_of(name).purpose, len(places)), name))


def _not_over(starts: Times, ends: Times, moment: float) -> Spans:
    """Return the spans that do not end before a moment."""
    kept = ends >= moment
    return starts[kept], ends[kept]


def _joined(parts: Sequence[Spans]) -> Spans:
    """Return all starts and all ends."""
    if len(parts) == 1:
        return parts[0]
    starts, ends = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return starts, ends


def _in_order(starts: Times, ends: Times) -> Spans:
    """Return spans in order. A wait that takes no time comes before the op that begins at the same moment."""
    if (starts[1:] > starts[:-1]).all():
        return starts, ends
    order = np.lexsort((ends, starts))
    return starts[order], ends[order]


def _gaps(clock: _Clock, starts: Times, ends: Times) -> Spans:
    """Return the idle spans between ops that do not overlap, those that are in the time or reach into it.

    None is cut where parts of the time meet: what ends a span explains all of it. A wait of no time may come after an
    op that begins at its moment, by rounding.
    """
    first, last = clock.edges[[0, -1]]
    begins, finishes = np.concatenate([[first], np.maximum.accumulate(ends)]), np.concatenate([starts, [last]])
    idle = (finishes > begins) & (finishes > first) & (begins < last)
    return begins[idle], finishes[idle]


def _lasting(begins: Times, ends: Times) -> Spans:
    """Return the spans between begins and ends that last. Both are a few sorted runs, which a stable sort merges."""
    begins.sort(kind="stable")
    ends.sort(kind="stable")
    lasts = ends > begins
    return begins[lasts], ends[lasts]


def _without_waits(gaps: Spans, starts: Times) -> tuple[Spans, Spans]:
    """Return the gaps that do not end at one of the given starts, and those that do."""
    waits = np.isin(gaps[1], starts)
    return (gaps[0][~waits], gaps[1][~waits]), (gaps[0][waits], gaps[1][waits])


def _cover(gaps: Spans, starts: Times, ends: Times) -> tuple[Spans, Spans]:
    """Return the gaps without the given spans, and what of gaps is inside these.

    Both are sorted, and gaps do not overlap. A span counts until the next one begins. A piece is what a gap and a span
    have in common.
    """
    lasts = ends > starts
    starts, ends = starts[lasts], ends[lasts]
    ends[:-1] = np.minimum(ends[:-1], starts[1:])
    first, stop = gaps[1].searchsorted(starts, side="right"), gaps[0].searchsorted(ends, side="left")
    span, gap = in_ranges(first, np.maximum(stop - first, 0))
    if not len(span):
        return gaps, _NOTHING
    begins, finishes = np.maximum(gaps[0][gap], starts[span]), np.minimum(gaps[1][gap], ends[span])
    return _lasting(np.concatenate([gaps[0], finishes]), np.concatenate([begins, gaps[1]])), (begins, finishes)
