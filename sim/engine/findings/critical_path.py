"""The critical path of a run: ops that follow each other without a gap from 0 to the end, and decide how long it takes.

Walked back from what ends last: of everything that an op waited for, the one that ended last. What an op waited for is
what the compiler recorded: order on a stream, hazards on buffers, members of a collective, messages. To first
order a run lasts longer by as much as the ops on this path do (the derivative of a longest path), unless they share
resources with others. Of several paths of one length, one is taken. Of steps without a barrier between them it is the
path from the begin of one step to that of the next, a period long.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, takewhile
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from costmodels.kernels import KERNELS
from sim.engine.findings.path_parts import LeftOut, PathPart, Step, Way
from sim.engine.findings.path_walk import Walk
from sim.engine.running.period import Repeated
from sim.engine.running.run import SimulatedRun
from sim.plan.words.op import Collective, Compute, Copy, Op

MESSAGE: Final = "message"
COPY: Final = "copy"
"""Between memory tiers."""
_NEVER: Final = np.iinfo(np.int64).max


def kind_of(op: Op | None) -> str:
    """Return an op's kernel family or kind of collective; MESSAGE for a message, on its way or at its ends; COPY."""
    if isinstance(op, Compute):
        return str(KERNELS[op.kernel].family)
    if isinstance(op, Copy):
        return COPY
    return str(op.kind) if isinstance(op, Collective) else MESSAGE


class Spent(NamedTuple):
    """How long a path stays with an op of a rank, all calls together; no op and rank -1: with messages on their way."""

    rank: int
    op: Op | None
    seconds: float


class CriticalPath(Struct, frozen=True, dict=True):
    """Parts in order of time, each beginning where the one before ends; those of a period are there once."""

    run: SimulatedRun
    parts: tuple[PathPart, ...]

    @property
    def steps(self) -> Sequence[Step]:
        """Return the parts op by op."""
        single = (reversed(list(part.steps())) if isinstance(part, Way) else (part,) for part in self.parts)
        return list(chain.from_iterable(single))

    @property
    def seconds(self) -> dict[str, float]:
        """Return how long the path stays with each kernel family, each kind of collective and messages."""
        found: dict[str, float] = {}
        for spent in self.spent:
            kind = kind_of(spent.op)
            found[kind] = found.get(kind, 0.0) + spent.seconds
        return found

    @cached_property
    def spent(self) -> Sequence[Spent]:
        """Return how long the path stays with every op that it comes by, in the order in which it first does."""
        alone: dict[tuple[int, int], tuple[int, Step]] = {}
        alone_s: dict[tuple[int, int], float] = {}
        calls: dict[tuple[tuple[int, ...], int], _Calls] = {}
        count = 0
        for part in self.parts:
            if isinstance(part, Way):
                calls.setdefault((part.ranks, id(part.ops)), _Calls()).add(part, count)
                count += len(part.places)
            else:
                at = (part.rank, id(part.op))
                if at in alone_s:
                    alone_s[at] += part.duration_s
                else:
                    alone[at], alone_s[at] = (count, part), part.duration_s
                count += 1
        every = [(first, Spent(step.rank, step.op, alone_s[at])) for at, (first, step) in alone.items()]
        every += chain.from_iterable(found.spent() for found in calls.values())
        return [spent for _, spent in sorted(every, key=itemgetter(0))]


class _Calls(Struct, frozen=True):
    """The ways of a path through the calls of one task, in order of time; ``before``: how many ops come before each."""

    ways: list[Way] = []
    before: list[int] = []

    def add(self, way: Way, count: int) -> None:
        """Add a way that so many ops of the path come before."""
        self.ways.append(way)
        self.before.append(count)

    def spent(self) -> Iterator[tuple[int, Spent]]:
        """Yield what was spent in every place that the path comes by, each with when it first does."""
        ranks, ops = self.ways[0].ranks, self.ways[0].ops
        sizes = np.array([len(way.places) for way in self.ways])
        begins, num_places = np.cumsum(sizes) - sizes, len(ranks) * len(ops)
        places = np.concatenate([way.places for way in self.ways])
        starts_s = np.concatenate([way.starts_s for way in self.ways])
        ends_s = np.roll(starts_s, 1)
        ends_s[begins] = [way.end_s for way in self.ways]
        spent_s = np.repeat([way.times for way in self.ways], sizes) * (ends_s - starts_s)
        seconds, lasts = np.bincount(places, spent_s, num_places), spent_s > 0.0
        numbers = np.repeat(self.before + begins + sizes - 1, sizes) - np.arange(len(places))  # the last op is first
        first = np.full(num_places, _NEVER)
        np.minimum.at(first, places[lasts], numbers[lasts])
        found = np.flatnonzero(first < _NEVER)
        members, own = np.divmod(found, len(ops))
        of_ranks, of_ops = map(ranks.__getitem__, members.tolist()), map(ops.__getitem__, own.tolist())
        yield from zip(first[found].tolist(), map(Spent, of_ranks, of_ops, seconds[found].tolist()), strict=True)


def critical_path(run: SimulatedRun) -> CriticalPath:
    """Return the path of a run that has ended."""
    walked = list(Walk(run).back())
    parts: list[PathPart] | None = [part for part in walked if not isinstance(part, LeftOut)]
    if run.paced is not None:
        parts = _through_all(walked, run.paced.times)
    elif run.repeated is not None and parts is not None:
        parts = _repeated(parts, run.repeated)
    if parts is None:  # of several paths that are equally long it does not keep to one
        return critical_path(run.whole)
    return CriticalPath(run, tuple(reversed(parts)))


def _through_all(walked: Sequence[PathPart | LeftOut], times: int) -> list[PathPart] | None:
    """Return a path, its last part first, that goes through what was left out as through the period before it.

    None where no period of it comes to the same op as the period before.
    """
    repeated = set[int]()
    for place, part in enumerate(walked):
        if not isinstance(part, LeftOut):
            continue
        before = list(takewhile(lambda other: not isinstance(other, LeftOut), walked[place + 1 :]))
        period = _period(before, part.period_s)
        if period is None:
            return None
        repeated.update(range(place + 1 + period.start, place + 1 + period.stop))
    return [
        _often(part, 1 + times) if place in repeated else part
        for place, part in enumerate(walked) if not isinstance(part, LeftOut)
    ]  # fmt: skip


def _often(part: PathPart, times: int) -> PathPart:
    """Return a part that a path comes by so many times."""
    return replace(part, times=times) if isinstance(part, Way) else part._replace(times=times)


def _period(parts: Sequence[PathPart | LeftOut], period_s: float) -> range | None:
    """Return a stretch of a path, its last part first, that lasts a period and ends as it begins; None: no such."""
    names = [_name(part) for part in parts]
    starts_s = np.array([part.start_s for part in parts])
    for first, name in enumerate(names):
        same = np.flatnonzero(np.abs(starts_s[first] - period_s - starts_s) <= 1e-9 * period_s)
        for last in same.tolist():
            if name is not None and names[last] == name:
                return range(first + 1, last + 1)
    return None


def _name(part: PathPart | LeftOut) -> tuple[object, ...] | None:
    """Return what tells a part from others but its time and micro-batch; None for messages on their way."""
    if isinstance(part, Way):
        return part.ranks, id(part.ops), part.places.tobytes()
    return (part.rank, id(part.op)) if isinstance(part, Step) and part.op is not None else None


def _repeated(parts: Sequence[PathPart], period: Repeated) -> list[PathPart] | None:
    """Return a path, its last part first, with the parts of a period as often as they are made.

    None where the path does not come to the same op at the begin and the end of the period.
    """
    slack_s = 1e-9 * period.length_s
    after, rest = _cut(parts, period.end_s - slack_s)
    inside, before = _cut(rest, period.begin_s - slack_s)
    if not before:
        return None
    later, earlier = _last_step((*inside, *before)[0]), _last_step(before[0])
    apart_s = later.start_s - earlier.start_s - period.length_s
    if (later.rank, later.op) != (earlier.rank, earlier.op) or abs(apart_s) > slack_s:
        return None
    return [*after, *(_often(part, 1 + period.times) for part in inside), *before]


def _cut(parts: Sequence[PathPart], moment_s: float) -> tuple[list[PathPart], list[PathPart]]:
    """Return what of a path, its last part first, begins at a moment or later, and what begins before it."""
    at = next((at for at, part in enumerate(parts) if part.start_s < moment_s), len(parts))
    late, early = list(parts[:at]), list(parts[at:])
    if early and isinstance(early[0], Way):
        first, second = early[0].cut(moment_s)
        late += [] if first is None else [first]
        early[:1] = [] if second is None else [second]
    return late, early


def _last_step(part: PathPart) -> Step:
    return next(part.steps()) if isinstance(part, Way) else part
