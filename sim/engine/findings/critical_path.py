"""The critical path of a run: ops that follow each other without a gap from 0 to the end, and decide how long it takes.

Walked back from what ends last: of everything that an op waited for, the one that ended last. What an op waited for is
what the compiler recorded: order on a stream, hazards on buffers, members of a collective, messages. To first
order a run lasts longer by as much as the ops on this path do (the derivative of a longest path), unless they share
resources with others. Of several paths of one length that through the first rank and the first call is taken, so that
folded and whole runs have the same one: ends that rounding alone may tell apart are equal. Of steps without a barrier
between them it is the path from the begin of one step to that of the next, a period long.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, takewhile
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
Floats = NDArray[np.float64]

MESSAGE: Final = "message"
COPY: Final = "copy"
"""Between memory tiers."""
_NO_OPS: Final = np.zeros(0, np.int64)


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
        numbers, is_way = _Numbers(self.run.programs), [isinstance(part, Way) for part in self.parts]
        of_parts = [numbers.of_part(part) for part in self.parts]
        is_of_way = np.repeat(np.array(is_way, np.bool_), list(map(len, of_parts)))
        of_ops, spent_s = np.concatenate([_NO_OPS, *of_parts]), np.empty(len(is_of_way))
        spent_s[is_of_way] = _spent_s([part for part in self.parts if isinstance(part, Way)])
        spent_s[~is_of_way] = [part.duration_s for part in self.parts if not isinstance(part, Way)]
        found, first = np.unique(of_ops[~is_of_way | (spent_s > 0.0)], return_index=True)
        found, totals_s = found[np.argsort(first)], np.bincount(of_ops, spent_s)
        return [Spent(*op, total_s) for op, total_s in zip(numbers.ops(found), totals_s[found].tolist(), strict=True)]


def _spent_s(ways: Sequence[Way]) -> Floats:
    """Return how long a path stays with each op of its ways, way by way, in order of time."""
    if not ways:
        return np.zeros(0)
    sizes = np.array([len(way.places) for way in ways])
    starts_s = np.concatenate([way.starts_s[::-1] for way in ways])
    ends_s = np.append(starts_s[1:], 0.0)
    ends_s[np.cumsum(sizes) - 1] = [way.end_s for way in ways]
    spent_s: Floats = np.repeat([way.times for way in ways], sizes) * (ends_s - starts_s)
    return spent_s


class _Numbers:
    """Numbers of the distinct ops of all ranks' programs, rank by rank from 1; 0: of no op."""

    def __init__(self, programs: Mapping[int, Program]) -> None:
        self._programs = programs
        sizes = [len(program.distinct_ops.ops) for program in programs.values()]
        self._ranks, self._begins = [-1, *programs], np.cumsum([0, 1, *sizes])[: 1 + len(sizes)]
        self._begin_of: dict[int, int] = dict(zip(self._ranks, self._begins.tolist(), strict=True))
        self._tasks = {id(task.ops): (of, task.name) for of in programs.values() for task in of.tasks.values()}
        self._places: dict[int, Ints] = {}
        self._of_ops: dict[int, dict[int, int]] = {}

    def of_part(self, part: PathPart) -> Ints:
        """Return the number of each op of a path's part, in order of time."""
        if not isinstance(part, Way):
            return np.array([self._of_op(part.rank, part.op)])
        places, begins = self._of_call(part.ops), [self._begin_of[rank] for rank in part.ranks]
        members, own = np.divmod(part.places[::-1], len(places))
        numbers: Ints = np.array(begins)[members] + places[own]
        return numbers

    def ops(self, numbers: Ints) -> Iterator[tuple[int, Op | None, int]]:
        """Yield the rank, the op and the place of each number."""
        ranks = np.searchsorted(self._begins, numbers, side="right") - 1
        places = np.where(numbers == 0, -1, numbers - self._begins[ranks])
        for rank, place in zip(map(self._ranks.__getitem__, ranks.tolist()), places.tolist(), strict=True):
            yield rank, None if place < 0 else self._programs[rank].distinct_ops.ops[place], place

    def _of_op(self, rank: int, op: Op | None) -> int:
        if op is None:
            return 0
        distinct = self._programs[rank].distinct_ops
        if id(distinct) not in self._of_ops:
            named = ((self._programs[rank].tasks[name].ops, places) for name, places in distinct.of_task.items())
            self._of_ops[id(distinct)] = {
                id(op): at for ops, places in named for op, at in zip(ops, places, strict=True)
            }
        return self._begin_of[rank] + self._of_ops[id(distinct)][id(op)]

    def _of_call(self, ops: Sequence[Op]) -> Ints:
        """Return the place of each op of a task's call."""
        if id(ops) not in self._places:
            program, name = self._tasks[id(ops)]
            self._places[id(ops)] = np.array(program.distinct_ops.of_task[name])
        return self._places[id(ops)]


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
