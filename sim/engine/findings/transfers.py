"""When every collective and message of a run moved its bytes, and how fast."""

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from itertools import chain
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.compiling.graph import Graph, NodeKind, PricedTask
from sim.engine.prices.activity import Activity
from sim.engine.prices.traffic import exchanging_places, signature
from sim.engine.running.period import Times
from sim.engine.running.run import SimulatedRun
from sim.engine.running.task_times import TimesOfRanks
from sim.plan.words.op import Collective, Compute, Op, Send
from sim.plan.words.program import Program, Task
from sim.sorting import in_ranges, sorted_order

Ints = NDArray[np.int64]

_ALONE = -(2**62)
"""The key of what did not go through shared resources."""

_INTS, _SECONDS = np.zeros(0, np.int64), np.zeros(0)
_NONE: Final[tuple[NDArray[Any], ...]] = (_INTS, _SECONDS, _SECONDS, _SECONDS, _INTS)
"""The columns of no spans: flow, begin, end, speed, count."""


class Flow(Struct, frozen=True, eq=False):
    """Transfers that are alike in all but time: those of one simulated rank, for all that it stands for.

    ``activity``: what all of them that run at once demand together. ``num_ranks``: the members of all groups, all
    senders, or all who copy or run a kernel on their host.
    """

    rank: int
    program: Program
    op: Op
    signature: tuple[object, ...]
    activity: Activity
    num_ranks: int

    @property
    def kind(self) -> str:
        """Return the kind of collective, ``send``, ``copy``, or ``kernel`` of one on a host's cores."""
        if isinstance(self.op, Compute):
            return "kernel"
        return str(self.op.kind) if isinstance(self.op, Collective) else type(self.op).__name__.lower()


class Transfers(Struct, frozen=True, eq=False, dict=True):
    """Spans in which transfers get on at one speed, sorted by flow; those of one transfer add up to the whole.

    From ``begin_s[i]`` to ``end_s[i]`` a transfer of flow ``flow_of[i]`` gets on by ``speed[i]`` of the whole a second.
    ``counts[i]``: how many spans of the step it stands for, where a run passed through its period once for many;
    ``apart_s[i]``: how much later each of them is than the one before, where ranks have paces of their own.

    By flow: ``num_transfers`` of the step, and ``waiting_s``, how long all of them wait before their bytes move.
    """

    flows: Sequence[Flow]
    num_transfers: Ints
    waiting_s: Times
    flow_of: Ints
    counts: Ints
    apart_s: Times
    begin_s: Times
    end_s: Times
    speed: Times

    @cached_property
    def has_paces(self) -> bool:
        """Return whether ranks have paces of their own."""
        return bool(self.apart_s.any())

    def passes(self, spans: Ints) -> tuple[Ints, Ints]:
        """Return the places of spans as often as each has another time in the step, and which of its times it is.

        Without paces a span has one time, whatever it stands for.
        """
        counts = self.counts[spans] if self.has_paces else np.ones(len(spans), np.int64)
        return in_ranges(np.zeros_like(counts), counts)

    def times_of(self, spans: Ints, passes: Ints) -> tuple[Times, Times]:
        """Return when spans begin and end that time of theirs."""
        later_s = passes * self.apart_s[spans]
        return self.begin_s[spans] + later_s, self.end_s[spans] + later_s


def transfers(run: SimulatedRun) -> Transfers:
    """Return all transfers of a run, one of several simulated ranks once. What uses no link is none.

    An op alone on its links moves its bytes evenly once its latency is over; one that shares them, as fast as the
    event loop let it.
    """
    flows, parts = _Flows(run), [_NONE if run.paced is None else (*_NONE, _SECONDS)]
    moving = {
        (rank, task): flows.of_ops(rank, program.tasks[task])
        for rank, program in run.programs.items() for task in run.called(rank)
    }  # fmt: skip
    totals, speeds = _Totals.of(len(flows.found)), _Speeds(run, flows.found)
    for times in run.times_together():
        found = [moving[rank, times.times.task.name] for rank in times.ranks]
        for ops in dict.fromkeys(tuple(of_rank) for of_rank in found):
            if ops:
                places = [place for place, of_rank in enumerate(found) if tuple(of_rank) == ops]
                flow_of = np.array([list(found[place].values()) for place in places])
                parts.append(_moved_by(run, times.of_some(places), ops, flow_of, speeds, totals))
    columns = [list(column) for column in zip(*parts, strict=True)]
    del parts
    order = sorted_order(np.concatenate(columns[0]))
    flow_of, begins_s, ends_s, speed, counts = (np.concatenate(columns.pop(0))[order] for _ in _NONE)
    apart_s = np.concatenate(columns[0])[order] if columns else np.broadcast_to(0.0, len(flow_of))
    return Transfers(
        flows=flows.found,
        num_transfers=totals.num_transfers,
        waiting_s=totals.waiting_s,
        flow_of=flow_of,
        counts=counts,
        apart_s=apart_s,
        begin_s=begins_s,
        end_s=ends_s,
        speed=speed,
    )


class _Totals(Struct, frozen=True, eq=False):
    """How many transfers of the step each flow has, and how long they wait before their bytes move."""

    num_transfers: Ints
    waiting_s: Times

    @classmethod
    def of(cls, num_flows: int) -> "_Totals":
        """Return those of no transfers."""
        return cls(np.zeros(num_flows, np.int64), np.zeros(num_flows))

    def add(self, flow_of: Ints, counts: Ints, latencies_s: Times) -> None:
        """Add so many transfers of some flows, and the latency of each."""
        np.add.at(self.num_transfers, flow_of, counts)
        np.add.at(self.waiting_s, flow_of, counts * latencies_s)


class _Flows:
    """The flows of a run, numbered as they are met."""

    def __init__(self, run: SimulatedRun) -> None:
        self.run, self.found = run, list[Flow]()
        self._num_ranks, self._on_links = _counter(run), exchanging_places(list(run.programs.values()))
        self._exchanging: dict[tuple[int, str], list[tuple[int, int]]] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._known: dict[tuple[int, int], int | None] = {}
        self._signatures: dict[tuple[int, int], tuple[object, ...]] = {}

    def of_ops(self, rank: int, task: Task) -> dict[int, int]:
        """Return the flow of every op, by number, of a simulated rank's task that moves bytes for which it answers."""
        program, activities = self.run.programs[rank], self.run.priced[rank][task.name].activities
        moving = {}
        for at, place in self._exchanging_ops(program, task):
            activity = activities[at]
            if activity.uses_links:
                if (rank, place) not in self._known:
                    self._known[rank, place] = self._number(rank, place, task.ops[at], activity)
                if (number := self._known[rank, place]) is not None:
                    moving[at] = number
        return moving

    def _exchanging_ops(self, program: Program, task: Task) -> list[tuple[int, int]]:
        """Return the ops of a task that exchange bytes, by number, each with its place among the distinct ops."""
        distinct = program.distinct_ops  # programs share them
        key = id(distinct), task.name
        if key not in self._exchanging:
            on_links = frozenset(self._on_links[id(distinct)])
            self._exchanging[key] = [each for each in enumerate(distinct.of_task[task.name]) if each[1] in on_links]
        return self._exchanging[key]

    def _number(self, rank: int, place: int, op: Op, activity: Activity) -> int | None:
        """Return the number of the flow of an op, of this place; None where another simulated rank answers for it."""
        num_ranks, program = self._num_ranks(rank, op), self.run.programs[rank]
        if not num_ranks:
            return None
        key = id(program.distinct_ops), place  # programs share them
        if key not in self._signatures:
            self._signatures[key] = signature(program, op)
        alike = self._signatures[key]
        number = self._numbers.setdefault((rank, op.stream, alike), len(self.found))
        if number == len(self.found):
            self.found.append(Flow(rank, program, op, alike, activity, num_ranks))
        return number


def _moved_by(
    run: SimulatedRun, found: TimesOfRanks, ops: tuple[int, ...], flow_of: Ints, speeds: "_Speeds", totals: _Totals
) -> tuple[NDArray[Any], ...]:
    """Return the spans of the transfers of some ops in all calls of their task: columns as in ``_NONE``, and paces.

    They are in order op by op. ``flow_of``: the flows, ranks x ops. The transfers are added to ``totals``.
    """
    times, moving, num_calls = found.times, np.array(ops), found.num_calls
    latencies_s = np.array([_latencies_s(run.priced[rank][times.task.name], times.task, ops) for rank in found.ranks])
    begins_s, flows = times.starts_of(moving), np.repeat(flow_of, num_calls, axis=0)
    counts = run.counts(found, begins_s)
    totals.add(flow_of, np.add.reduceat(counts, found.begins), latencies_s)
    begins_s += np.repeat(latencies_s, num_calls, axis=0)
    columns = [flows, begins_s, times.ends_of(moving), speeds.alone[flows], counts]
    if run.paced is not None:
        columns.append(run.paces(found, moving))
    moved, own = tuple([column.T.ravel() for column in columns]), times.nodes >= 0
    if not own.any():
        return moved
    keys = np.full(begins_s.shape, _ALONE)
    keys[own] = speeds.key_of[times.nodes[own, None] + moving]
    return speeds.in_spans(moved, keys.T.ravel())


def _latencies_s(priced: PricedTask, task: Task, ops: Sequence[int]) -> list[float]:
    """Return how long ops of a task wait before their bytes move."""
    return [0.0 if isinstance(task.ops[op], Send) else priced.activities[op].latency_s for op in ops]


def _counter(run: SimulatedRun) -> Callable[[int, Op], int]:
    """Return a function of a simulated rank and its op: how many ranks take part in all that it stands for.

    0 where another simulated rank of the group answers for it.
    """
    mesh, folding = run.plan.mesh, run.folding

    @cache
    def members(rank: int, axes: tuple[str, ...], chosen: tuple[int, ...]) -> int:
        group = mesh.group(rank, axes)
        group = tuple(group[i] for i in chosen) if chosen else group
        if min(folding.stands_for[member] for member in group) != rank:
            return 0
        return len(group) * folding.group_counts.get((axes, chosen), {}).get(rank, 1)

    def num_ranks(rank: int, op: Op) -> int:
        return members(rank, op.axes, op.members) if isinstance(op, Collective) else folding.multiplicity[rank]

    return num_ranks


class _Speeds:
    """How fast transfers get on: alone, by flow, or as the event loop let them, span by span."""

    def __init__(self, run: SimulatedRun, flows: Sequence[Flow]) -> None:
        self.alone = np.array([1 / flow.activity.occupancy_s for flow in flows])
        self.key_of, table = _keys(run.graph), run.loop.shared_spans
        table = table[np.argsort(table[:, 0], kind="stable")]
        table[:, 1:3] -= run.origin_s
        self._keys, self._spans = table[:, 0].astype(np.int64), table[:, 1:]

    def in_spans(self, columns: Sequence[NDArray[Any]], keys: Ints) -> tuple[NDArray[Any], ...]:
        """Return columns of transfers as columns of their spans; ``keys``: see ``_keys``.

        The begin and the end of a transfer of some nanoseconds say less about its speed than its spans do.
        """
        is_shared = keys != _ALONE
        first = self._keys.searchsorted(keys[is_shared])
        counts = self._keys.searchsorted(keys[is_shared], "right") - first
        num_spans = np.ones(len(keys), np.int64)
        num_spans[is_shared] = counts
        span_of = np.arange(len(keys)).repeat(num_spans)
        found, (_, rows) = tuple([column[span_of] for column in columns]), in_ranges(first, counts)
        for column, of_shared in zip(found[1:4], self._spans[rows].T, strict=True):
            column[is_shared[span_of]] = of_shared
        return found


def _keys(graph: Graph) -> Ints:
    """Return, per node, under which key its op went through the shared resources; _ALONE where it did not."""
    kinds = graph.kinds_of_nodes
    keys: Ints = np.where(kinds == NodeKind.SHARED, np.arange(len(kinds)), _ALONE)
    shared = [(number, joint.members) for number, joint in enumerate(graph.joints) if joint.shared]
    numbers, sizes = np.array([(number, len(members)) for number, members in shared], np.int64).reshape(-1, 2).T
    keys[list(chain.from_iterable(members for _, members in shared))] = np.repeat(-numbers - 1, sizes)
    return keys
