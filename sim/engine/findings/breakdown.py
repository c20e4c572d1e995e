"""Where a rank's time goes: busy seconds by stream, and idle seconds of its compute stream by cause."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.compiling.tables import MAIN_STREAM
from sim.engine.running.period import Part, Times
from sim.engine.running.plan_facts import counted_stream
from sim.engine.running.rank_paces import RankPaces, UnlikeError
from sim.engine.running.run import SimulatedRun
from sim.plan.words.stream import Purpose, stream_of

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


def breakdown(run: SimulatedRun, rank: int) -> Breakdown:
    """Return where the time of a step goes on one simulated rank.

    Without a barrier between steps: of the steady period that begins with the step's first op on that rank.
    """
    if run.paced is not None:
        own, step = run.paces_of_step(rank)
        try:
            return _of_own_pace(own, step)
        except UnlikeError:  # every op of the step is looked at, at the time that its pace gives it
            return _of_parts({stream: own.unrolled(places) for stream, places in _places(own).items()}, (step,))
    tasks, parts = run.window(rank)
    streams: dict[str, list[tuple[Times, Times]]] = {}
    for times in tasks:
        for stream, ops in run.facts.by_stream(times.task).items():
            streams.setdefault(stream, []).append((times.starts_s[:, ops].ravel(), times.ends_s[:, ops].ravel()))
    joined = {stream: _joined(found) for stream, found in streams.items()}
    return _of_parts(joined, parts)


def _of_parts(streams: Mapping[str, tuple[Times, Times]], parts: Sequence[Part]) -> Breakdown:
    """Return the same of parts of time, from the starts and ends of the ops of each stream."""
    busy, exposed = dict.fromkeys(sorted(streams), 0.0), dict.fromkeys([*_causes(streams), BUBBLE], 0.0)
    in_order = {stream: _in_order(*found) for stream, found in streams.items()}
    for part in parts:
        _add_part(part, in_order, busy, exposed)
    return Breakdown(busy, exposed)


def _places(own: RankPaces) -> Mapping[str, NDArray[np.int64]]:
    """Return the places of the ops that count for each stream."""
    names = [counted_stream(op) for task in own.tasks for op in task.task.ops]
    number_of = {name: number for number, name in enumerate(dict.fromkeys(names))}
    streams = np.array([number_of[name] for name in names], np.int64)[own.ops.numbers]
    return {name: np.flatnonzero(streams == number) for name, number in number_of.items()}


def _of_own_pace(own: RankPaces, step: Part) -> Breakdown:
    """Return the same where ranks have paces of their own.

    What repeats at the pace of computing is looked at once per period. From the first cause of idle time on that
    includes messages at another pace, what is idle still is looked at in the whole step. Raises UnlikeError.
    """
    (starts_s, ends_s), parts, streams = own.by_own_clock, own.parts(step), _places(own)
    spent_s = own.counts_shown * (own.ops.ends_s - own.ops.starts_s)
    busy = {stream: float(spent_s[places].sum()) for stream, places in sorted(streams.items())}
    foreign = {stream for stream, places in streams.items() if not own.at_own_pace[places].all()}
    causes = _causes(streams)
    first = next((place for place, cause in enumerate(causes) if cause in foreign), len(causes))
    if MAIN_STREAM in foreign or EXPERT_WAIT in causes[first:]:
        raise UnlikeError
    exposed, left = dict.fromkeys([*causes, BUBBLE], 0.0), list[tuple[Times, Times]]()
    before_s = own.left_out_s(range(own.shown.start)) - step.begin_s
    looked_at = {
        stream: _in_order(starts_s[places], ends_s[places])
        for stream, places in streams.items() if stream in {MAIN_STREAM, *causes[:first]}
    }  # fmt: skip
    for part in parts:
        spans = {stream: _within(times, part.begin_s, part.end_s) for stream, times in looked_at.items()}
        gaps = _expose(part, spans, causes[:first], exposed)
        moments_s = part.begin_s + before_s + part.length_s * np.arange(part.times)[:, None]
        if first < len(causes):
            left.append(((gaps[0] + moments_s).ravel(), (gaps[1] + moments_s).ravel()))
        else:
            exposed[BUBBLE] += part.times * float((gaps[1] - gaps[0]).sum())
        before_s += (part.times - 1) * part.length_s
    if left:
        gaps = _joined(left)
        for cause in causes[first:]:
            every = _in_order(*own.unrolled(streams[cause]))
            gaps, exposed[cause] = _cover(gaps, *_within(every, step.begin_s, step.end_s))
        exposed[BUBBLE] = float((gaps[1] - gaps[0]).sum())
    return Breakdown(busy, exposed)


def _add_part(
    part: Part, streams: Mapping[str, tuple[Times, Times]], busy: dict[str, float], exposed: dict[str, float]
) -> None:
    """Add the busy and idle seconds of a part of the time."""
    spans = {stream: _within(times, part.begin_s, part.end_s) for stream, times in streams.items()}
    for stream, (starts, ends) in spans.items():
        busy[stream] += part.times * float((ends - starts).sum())
    gaps = _expose(part, spans, _causes(spans), exposed)
    exposed[BUBBLE] += part.times * float((gaps[1] - gaps[0]).sum())


def _expose(
    part: Part, spans: Mapping[str, tuple[Times, Times]], causes: Sequence[str], exposed: dict[str, float]
) -> tuple[Times, Times]:
    """Add the idle seconds of a part of the time by cause; return the gaps that none explains, from its begin."""
    empty = np.empty(0)
    gaps = _gaps(*spans.get(MAIN_STREAM, (empty, empty)), part.length_s)
    for cause in causes:
        if cause == EXPERT_WAIT:
            gaps, covered_s = _without_waits(gaps, [spans[stream][0] for stream in spans if _is_exchange(stream)])
        else:
            gaps, covered_s = _cover(gaps, *spans[cause])
        exposed[cause] += part.times * covered_s
    return gaps


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


def _joined(parts: Sequence[tuple[Times, Times]]) -> tuple[Times, Times]:
    """Return all starts and all ends."""
    starts, ends = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return starts, ends


def _in_order(starts: Times, ends: Times) -> tuple[Times, Times]:
    """Return spans in order. A wait that takes no time comes before the op that begins at the same moment."""
    order = np.lexsort((ends, starts))
    return starts[order], ends[order]


def _within(spans: tuple[Times, Times], begin_s: float, end_s: float) -> tuple[Times, Times]:
    """Return what of some spans lies in a window, counted from its begin."""
    starts, ends = spans
    inside = (ends > begin_s) & (starts < end_s)
    return np.clip(starts[inside], begin_s, end_s) - begin_s, np.clip(ends[inside], begin_s, end_s) - begin_s


def _gaps(starts: Times, ends: Times, period_s: float) -> tuple[Times, Times]:
    """Return the idle spans between ops that do not overlap, from 0 to the end of the period.

    A wait of no time may come after an op that begins at its moment, by rounding.
    """
    begin, finish = np.concatenate([[0.0], np.maximum.accumulate(ends)]), np.concatenate([starts, [period_s]])
    idle = finish > begin
    return begin[idle], finish[idle]


def _without_waits(gaps: tuple[Times, Times], starts: Sequence[Times]) -> tuple[tuple[Times, Times], float]:
    """Return the gaps that do not end at one of the given starts, and the seconds of those that do."""
    waits = np.isin(gaps[1], np.concatenate(starts))
    return (gaps[0][~waits], gaps[1][~waits]), float((gaps[1] - gaps[0])[waits].sum())


def _merged(one: Times, other: Times) -> Times:
    """Return the values of two sorted arrays in order: a stable sort finds the two runs, and merges them."""
    return np.sort(np.concatenate([one, other]), kind="stable")


def _cover(gaps: tuple[Times, Times], starts: Times, ends: Times) -> tuple[tuple[Times, Times], float]:
    """Return the gaps without the given spans, and the seconds of gaps inside these.

    Both are sorted, and gaps do not overlap. A span counts until the next one begins. A piece is what a gap and a span
    have in common.
    """
    starts, ends = starts[ends > starts], ends[ends > starts]
    ends = np.minimum(ends, np.append(starts[1:], np.inf))
    first, stop = ends.searchsorted(gaps[0], side="right"), starts.searchsorted(gaps[1], side="left")
    counts = np.maximum(stop - first, 0)
    gap = np.repeat(np.arange(len(counts)), counts)
    if not len(gap):
        return gaps, 0.0
    span = np.arange(len(gap)) + (first - np.cumsum(counts) + counts)[gap]
    begins, finishes = np.maximum(gaps[0][gap], starts[span]), np.minimum(gaps[1][gap], ends[span])
    left_from, left_until = (_merged(*edges) for edges in ((gaps[0], finishes), (begins, gaps[1])))
    left = left_until > left_from
    return (left_from[left], left_until[left]), float((finishes - begins).sum())
