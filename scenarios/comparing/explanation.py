"""Why one simulated step takes longer than another: what waits longer, in which ops, and for which links.

Nothing is guessed. The time of the mean rank is computing plus what it waits for, so the differences of these parts
add up to that of the steps. Ops and the links that hold them back are those of the two summaries.
"""

from collections.abc import Mapping, Sequence
from math import isclose
from typing import Final

from msgspec import Struct

from costmodels.units import format_percent, format_time
from scenarios.report.causes import COMPUTING, cause_of
from scenarios.summaries.comparing.compared_step import ComparedCommunication, ComparedStep
from scenarios.summaries.comparing.explanation import CauseDifference, Explanation, LinkDifference, OpDifference
from scenarios.summaries.steps.mean_rank import mean_busy_s, mean_exposed_s
from sim.plan.words.stream import Purpose

LATENCY: Final = "latency"
ALIKE: Final = 1e-4
"""Steps whose times differ by a smaller part take equally long."""


def explain(first: ComparedStep, second: ComparedStep, names: tuple[str, str]) -> Explanation:
    """Return where two simulated steps differ, and which takes longer."""
    causes, communication = _causes(first, second), _communication(first, second)
    return Explanation(
        first=names[0],
        second=names[1],
        verdict=_verdict((first.iteration_time_s, second.iteration_time_s), names, causes, communication),
        causes=causes,
        communication=communication,
        links=_links(first, second),
    )


def _causes(first: ComparedStep, second: ComparedStep) -> tuple[CauseDifference, ...]:
    """Return the differences of the parts that the mean rank's step divides into."""
    sides = _parts(first), _parts(second)
    rows = []
    for cause in dict.fromkeys([*sides[0], *sides[1]]):
        first_s, second_s = (side.get(cause, 0.0) for side in sides)
        difference_s = _difference(first_s, second_s)
        rows.append(CauseDifference(cause=cause, first_s=first_s, second_s=second_s, difference_s=difference_s))
    return tuple(sorted(rows, key=lambda row: (-abs(row.difference_s), row.cause)))


def _parts(step: ComparedStep) -> dict[str, float]:
    """Return the seconds of each part of the mean rank's step, by the part's words."""
    parts = {COMPUTING[0]: mean_busy_s(step.roles).get(Purpose.COMPUTE, 0.0)}
    for stream, seconds in mean_exposed_s(step.roles).items():
        words = cause_of(stream)[0]
        parts[words] = parts.get(words, 0.0) + seconds
    return parts


def _difference(first: float, second: float) -> float:
    """Return the first less the second; 0 where they differ by rounding alone."""
    return 0.0 if isclose(first, second, rel_tol=1e-9, abs_tol=1e-12) else first - second


def _communication(first: ComparedStep, second: ComparedStep) -> tuple[OpDifference, ...]:
    """Return the time of every kind of op on both sides, and what it went to."""
    sides = [{(entry.stream, entry.kind): entry for entry in step.communication} for step in (first, second)]
    rows = []
    for stream, kind in dict.fromkeys([*sides[0], *sides[1]]):
        former, latter = (side.get((stream, kind)) for side in sides)
        first_s, second_s = (entry.time_s if entry else 0.0 for entry in (former, latter))
        rows.append(OpDifference(
            stream=stream, kind=kind, first_s=first_s, second_s=second_s, difference_s=_difference(first_s, second_s),
            first_bound_s=_bound_s(former), first_fullest_fraction=_fullest_fraction(former),
            second_bound_s=_bound_s(latter), second_fullest_fraction=_fullest_fraction(latter),
        ))  # fmt: skip
    return tuple(sorted(rows, key=lambda row: (-abs(row.difference_s), row.stream, row.kind)))


def _bound_s(entry: ComparedCommunication | None) -> Mapping[str, float]:
    return {LATENCY: entry.latency_s, **entry.bound_s} if entry else {}


def _fullest_fraction(entry: ComparedCommunication | None) -> Mapping[str, float]:
    return entry.fullest_fraction if entry else {}


def _links(first: ComparedStep, second: ComparedStep) -> tuple[LinkDifference, ...]:
    """Return the busiest link of each kind on both sides."""
    sides = [{entry.kind: entry.busiest.busy_fraction for entry in step.links} for step in (first, second)]
    rows = []
    for kind in dict.fromkeys([*sides[0], *sides[1]]):
        former, latter = (side.get(kind, 0.0) for side in sides)
        rows.append(LinkDifference(
            kind=kind, first_busy_fraction=former, second_busy_fraction=latter,
            difference_busy_fraction=_difference(former, latter),
        ))  # fmt: skip
    return tuple(sorted(rows, key=lambda row: (-abs(row.difference_busy_fraction), row.kind)))


# --- in words ----------------------------------------------------------------------------------------------


class _Side(Struct, frozen=True):
    """An op on one side: its seconds, what held it back, and how full that was."""

    time_s: float
    bound_s: Mapping[str, float]
    fullest_fraction: Mapping[str, float]


def _verdict(
    times_s: tuple[float, float],
    names: tuple[str, str],
    causes: Sequence[CauseDifference],
    communication: Sequence[OpDifference],
) -> str:
    """Return which step is slower, what waits longer there, and for which links."""
    longer_s = abs(times_s[1] - times_s[0])
    if longer_s <= ALIKE * max(times_s):
        return f"{names[0]} and {names[1]} take equally long: {format_time(times_s[0])}."
    slow, fast = (1, 0) if times_s[1] > times_s[0] else (0, 1)
    slower = _slower(times_s[slow], times_s[fast])
    words = [
        f"{names[slow]} {slower} {names[fast]}: {format_time(times_s[slow])} against {format_time(times_s[fast])}."
    ]
    sign = 1 if slow == 0 else -1
    cause = max(causes, key=lambda row: sign * row.difference_s)
    more = format_time(sign * cause.difference_s)
    words.append(f"What grows most: {cause.cause}, {more} more of the mean rank's step.")
    ops = [row for row in communication if cause_of(row.stream)[0] == cause.cause] or communication
    grown = max(ops, key=lambda row: sign * row.difference_s, default=None)
    if grown is not None and sign * grown.difference_s > ALIKE * longer_s:
        sides = _sides(grown)
        words.append(_of_op(grown, sides[slow], sides[fast], names[fast]))
    return " ".join(words)


def _sides(row: OpDifference) -> tuple[_Side, _Side]:
    return (
        _Side(row.first_s, row.first_bound_s, row.first_fullest_fraction),
        _Side(row.second_s, row.second_bound_s, row.second_fullest_fraction),
    )


def _slower(slow_s: float, fast_s: float) -> str:
    """Return how much longer one step takes than another, that of twice as long or more as a factor."""
    if slow_s < 2.0 * fast_s:
        return f"is {format_percent((slow_s - fast_s) / fast_s)} slower than"
    return f"takes {slow_s / fast_s:,.4g} times as long as"


def _of_op(row: OpDifference, slow: _Side, fast: _Side, name: str) -> str:
    """Return how much longer an op takes, and the links whose share of it grew most; ``name``: of the faster side."""
    longer_s = slow.time_s - fast.time_s
    words = f"{row.kind} ({cause_of(row.stream)[0]}) takes {format_time(longer_s)} longer per rank"
    now, then = slow.bound_s, fast.bound_s
    link = max(now, key=lambda kind: now[kind] - then.get(kind, 0.0))
    if link == LATENCY:
        return f"{words}, most of it latency: {format_time(now[link])} against {format_time(then.get(link, 0.0))}."
    full, before = slow.fullest_fraction[link], fast.fullest_fraction.get(link)
    return (
        f"{words}: {link} links hold it back for {format_time(now[link])} "
        f"({format_time(then.get(link, 0.0))} in {name}), and are {format_percent(full, 0)} full meanwhile "
        f"({format_percent(before, 0) if before else 'not used'} in {name})."
    )
