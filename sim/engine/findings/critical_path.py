"""The critical path of a run: ops that follow each other without a gap from 0 to the end, and decide how long it takes.

Walked back from what ends last: of everything that an op waited for, the one that ended last. What an op waited for is
what the compiler recorded: order on a stream, hazards on buffers, members of a collective, messages. To first
order a run lasts longer by as much as the ops on this path do (the derivative of a longest path), unless they share
resources with others. Of several paths of one length that through the first rank and the first call is taken, so that
folded and whole runs have the same one: ends that rounding alone may tell apart are equal. Of steps without a barrier
between them it is the path from the begin of one step to that of the next, a period long.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, takewhile
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.kernels import KERNELS
from sim.engine.findings.path_parts import LeftOut, PathPart, Step, Way
from sim.engine.findings.path_walk import Walk
from sim.engine.running.period import Repeated
from sim.engine.running.run import SimulatedRun
from sim.plan.words.op import Collective, Compute, Copy, Op
from sim.plan.words.program import Program

Ints = NDArray[np.int64]

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
    """How long a path stays with ops of a rank that are alike (``Program.distinct_ops``), all calls together.

    ``op``: the first of them, ``place``: its place. No op, place -1 and rank -1: with messages on their way.
    """

    rank: int
    op: Op | None
    place: int
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
        """Return how long the path stays with ops of every kind, in the order in which it first comes by one."""
        first, seconds = dict[tuple[int, int], int](), defaultdict[tuple[int, int], float](float)
        calls: dict[tuple[tuple[int, ...], int], _Calls] = {}
        places, count = _Places(self.run.programs), 0
        for part in self.parts:
            if isinstance(part, Way):
                calls.setdefault((part.ranks, id(part.ops)), _Calls()).add(part, count)
                count += len(part.places)
            else:
                at = part.rank, places.of_op(part.rank, part.op)
                first.setdefault(at, count)
                seconds[at] += part.duration_s
                count += 1
        for found in calls.values():
            for at, before, spent_s in found.spent(places):
                first[at] = min(first.get(at, before), before)
                seconds[at] += spent_s
        return [
            Spent(at[0], places.op_at(*at), at[1], seconds[at]) for at, _ in sorted(first.items(), key=itemgetter(1))
        ]


class _Places:
    """The places of ops among the distinct ones of their rank's program."""

    def __init__(self, programs: Mapping[int, Program]) -> None:
        self._programs = programs
        self._of_ops: dict[int, dict[int, int]] = {}
        self._tasks = {
            id(task.ops): (program, task.name) for program in programs.values() for task in program.tasks.values()
        }

    def of_op(self, rank: int, op: Op | None) -> int:
        """Return the place of an op of a rank; of none -1."""
        if op is None:
            return -1
        program = self._programs[rank]
        distinct = program.distinct_ops
        if id(distinct) not in self._of_ops:
            named = ((program.tasks[name].ops, places) for name, places in distinct.of_task.items())
            self._of_ops[id(distinct)] = {
                id(op): at for ops, places in named for op, at in zip(ops, places, strict=True)
            }
        return self._of_ops[id(distinct)][id(op)]

    def of_call(self, ops: Sequence[Op]) -> Ints:
        """Return the place of each op of a task's call."""
        program, name = self._tasks[id(ops)]
        return np.array(program.distinct_ops.of_task[name])

    def op_at(self, rank: int, place: int) -> Op | None:
        """Return the op of a rank at a place."""
        return None if place < 0 else self._programs[rank].distinct_ops.ops[place]


class _Calls(Struct, frozen=True):
    """The ways of a path through the calls of one task, in order of time; ``before``: how many ops come before each."""

    ways: list[Way] = []
    before: list[int] = []

    def add(self, way: Way, count: int) -> None:
        """Add a way that so many ops of the path come before."""
        self.ways.append(way)
        self.before.append(count)

    def spent(self, places: _Places) -> Iterator[tuple[tuple[int, int], int, float]]:
        """Yield each rank and place that the path comes by, when it first does, and the seconds that it stays there."""
        ranks, of_op = self.ways[0].ranks, places.of_call(self.ways[0].ops)
        sizes = np.array([len(way.places) for way in self.ways])
        begins, num_places = np.cumsum(sizes) - sizes, int(of_op.max()) + 1
        members, own = np.divmod(np.concatenate([way.places for way in self.ways]), len(of_op))
        at = members * num_places + of_op[own]
        starts_s = np.concatenate([way.starts_s for way in self.ways])
        ends_s = np.roll(starts_s, 1)
        ends_s[begins] = [way.end_s for way in self.ways]
        spent_s = np.repeat([way.times for way in self.ways], sizes) * (ends_s - starts_s)
        seconds, lasts = np.bincount(at, spent_s, len(ranks) * num_places), spent_s > 0.0
        numbers = np.repeat(self.before + begins + sizes - 1, sizes) - np.arange(len(at))  # the last op is first
        first = np.full(len(seconds), _NEVER)
        np.minimum.at(first, at[lasts], numbers[lasts])
        found = np.flatnonzero(first < _NEVER)
        for place, before, spent in zip(found.tolist(), first[found].tolist(), seconds[found].tolist(), strict=True):
            member, of_rank = divmod(place, num_places)
            yield (ranks[member], of_rank), before, spent


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
