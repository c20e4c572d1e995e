"""A finished run with other durations: who waited for whom stays, and with it how much contention slowed whom.

What an op lasted is taken as it came out, whoever it shared resources with, and is scaled by how much its own kernel
or message errs. Calls that were one event are taken apart: the longest paths through their ops are looked for anew.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.engine.compiling.graph import SENT, NodeKind, Pattern, PricedTask
from sim.engine.compiling.shape import analyse
from sim.engine.running.chains import NONE, calls_of_nodes
from sim.engine.running.period import Repeated
from sim.engine.running.run import SimulatedRun
from sim.engine.uncertainty.calls import CallTimes, OpRatios, Predecessors, TaskTimes
from sim.engine.uncertainty.errors import ErrorClass, ErrorClasses
from sim.engine.uncertainty.longest_path import Durations, Floats, Ints, Levels, drawn_s
from sim.engine.uncertainty.repeating import EVEN, Counterparts, Flags, PlacedNodes, Repeating
from sim.engine.uncertainty.sends import SendsInOrder
from sim.plan.words.calls import NO_MICROBATCH, Calls
from sim.sorting import in_ranges, run_begins

FactorRow = Callable[[ErrorClass, int], int]
"""Gives the row, among the drawn factors, of the one with which a class of calls errs on a simulated rank."""
Derived = CallTimes | OpRatios
_Call = tuple[tuple[TaskTimes, ...], tuple[int, ...], Predecessors, tuple[int, ...]]
"""What tells the ``CallTimes`` of calls apart: all that they say but their rows."""
CallRow = Callable[[tuple[int, int]], int]
Key = TypeVar("Key")
MOST_NODES: Final = 500_000
"""Runs that take more are not sampled: each takes about 5 us and, with what else there is to keep, 400 bytes."""
_LASTING: Final = (NodeKind.FIXED, NodeKind.SHARED, NodeKind.MEMBER)


class Retiming(Struct, frozen=True, dict=True, eq=False):
    """A run's nodes, as ``Durations`` has them, and ``graph``, which says when they end.

    ``derived``: rows that are not drawn but follow from those that are; ``rows[n]`` is ~k where it is row k of these.
    ``of_whole`` retimes the run of all micro-batches, for draws that do not settle into paces. None: it is too large,
    or ranks have no paces of their own. ``in_order``: sends that do not wait for those before them; ``of_waiting``
    retimes the run for draws in which they do.
    """

    run: SimulatedRun
    graph: "Repeating | _Single"
    base_s: Floats
    rows: Ints
    derived: tuple[Derived, ...]
    in_order: SendsInOrder
    of_waiting: "Callable[[], Retiming]"
    of_whole: "Callable[[], Retiming] | None" = None

    def relative_times(self, factors: Floats) -> Floats:
        """Return how many times as long as predicted a step takes with drawn factors (rows x draws), per draw."""
        durations = self.durations(factors)
        step_s, settles = self._step_s(durations)
        times: Floats = step_s / self._predicted_s
        if self.of_whole is not None and not settles.all():
            times[~settles] = self._whole.relative_times(factors[:, ~settles])
        if (outlast := self.in_order.outlast(durations)).any():
            times[outlast] = self._waiting.relative_times(factors[:, outlast])
        return times

    def durations(self, factors: Floats) -> Durations:
        """Return the durations of all nodes with drawn factors."""
        derived = np.empty((sum(len(part.rows) for part in self.derived), factors.shape[1]))
        for part in self.derived:
            derived[list(part.rows.values())] = part.drawn(factors)
        rows = np.where(self.rows < 0, len(factors) + ~self.rows, self.rows)
        return Durations(self.base_s, rows, np.concatenate([factors, derived]))

    def _step_s(self, durations: Durations) -> tuple[Floats, Flags]:
        """Return how long a step takes, per draw, and whether its paces are settled."""
        if isinstance(self.graph, Repeating):
            return self.graph.step_s(durations), np.ones(durations.num_draws, np.bool_)
        return self.graph.step_s(durations)

    @cached_property
    def _whole(self) -> "Retiming":
        assert self.of_whole is not None
        return self.of_whole()

    @cached_property
    def _waiting(self) -> "Retiming":
        return self.of_waiting()

    @property
    def _predicted_s(self) -> float:
        return self.run.makespan_s if self.run.num_steps == 1 else self.run.iteration_time_s


class _Single(Struct, frozen=True, eq=False):
    """The nodes of a run in levels.

    ``begins``: the nodes at whose ends the run's last steps begin, whose mean the period is; none where it is one step.
    ``left_out``: the periods that it left out, where ranks have paces of their own.
    """

    levels: Levels
    begins: Ints
    left_out: "_LeftOut"

    def step_s(self, durations: Durations) -> tuple[Floats, Flags]:
        """Return the makespan, or the period as the run has found it, per draw, and whether its paces are settled."""
        lasting, rows = self.levels.lasting(durations), self.levels.rows
        left_out_s = np.zeros((len(self.left_out.nodes), durations.num_draws))
        none_s = np.zeros((0, durations.num_draws))
        for _ in range(self.left_out.num_passes):
            factors, before_s = np.concatenate([durations.factors, left_out_s]), left_out_s
            ends_s = self.levels.ends_s(drawn_s(lasting, factors), none_s)
            left_out_s = self.left_out.lasting_s(ends_s, rows)
            if np.array_equal(left_out_s, before_s):
                break
        settles = self.left_out.settles(ends_s, rows)
        if len(self.begins):
            periods_s: Floats = np.diff(ends_s[rows[self.begins]], axis=0).mean(axis=0)
            return periods_s, settles
        return np.maximum(self.levels.latest_s(ends_s), self.left_out.latest_s(ends_s, rows)), settles


def _num_nodes(run: SimulatedRun) -> int:
    """Return how many nodes there are to retime: the run's own, and one between each entry and exit of a block."""
    blocks = run.graph.blocks.values()
    return len(run.graph.kinds) + sum(len(block.pattern.entries) * (len(block.exits) + 1) for block in blocks)


def num_whole_nodes(run: SimulatedRun) -> int:
    """Return about how many nodes the whole run has, where it passed through its period once for many.

    Where ranks have paces of their own in one step, it is those of the run.
    """
    is_like_whole = run.repeated is None and (run.paced is None or run.num_steps == 1)
    return _num_nodes(run) if is_like_whole else _num_nodes_of_all(run)


def _num_nodes_of_all(run: SimulatedRun) -> int:
    """Return about how many nodes the run of all micro-batches has."""
    whole = run.num_steps * sum(sum(run.num_calls(rank).values()) for rank in run.programs)
    return _num_nodes(run) * whole // len(run.graph.units)


def retiming(
    run: SimulatedRun,
    classes: ErrorClasses,
    factor_row: FactorRow,
    most_nodes: int = MOST_NODES,
    *,
    alike: bool = False,
    sends_wait: bool = False,
) -> Retiming:
    """Return the graph of a finished run: the nodes and edges that decide the run's time.

    Draws that do not settle into paces are those of the whole run, if that has no more than ``most_nodes``. ``alike``:
    a class errs alike on all ranks, so its row is asked for once for all whose ops are the same. ``sends_wait``: each
    send waits for the one before it, also where that decides nothing while sends take no longer than calls.
    """
    nodes, rows = _Nodes(run, sends_wait), _Rows(run, classes, factor_row, alike)
    blocks = _add_units(nodes, rows)
    _add_blocks(nodes, rows, blocks)
    _add_journeys(nodes)
    if run.repeated is None:
        graph: Repeating | _Single | None = _single(nodes, rows)
    else:
        graph = Repeating.of(nodes.placed(run.repeated), run.repeated)
    if graph is None:
        return retiming(run.whole, classes, factor_row, alike=alike, sends_wait=sends_wait)
    is_drawn_whole = run.paced is not None and _num_nodes_of_all(run) <= most_nodes
    of_whole = (lambda: retiming(run.whole, classes, factor_row, alike=alike)) if is_drawn_whole else None
    of_waiting = partial(retiming, run, classes, factor_row, most_nodes, alike=alike, sends_wait=True)
    return Retiming(run, graph, *nodes.in_all(), rows.derived, nodes.in_order, of_waiting, of_whole)


def _single(nodes: "_Nodes", rows: "_Rows") -> _Single:
    """Return the nodes of a run in levels."""
    run, begins = nodes.run, list[int]()
    if run.num_steps > 1:
        begins = run.first_nodes[-2:] if run.is_steady else run.first_nodes[(run.num_steps - 1) // 2 :]
    shown = np.array([nodes.begin_of(node) for node in begins], dtype=np.int64)
    left_out = _LeftOut.of(run)
    nodes.let_left_out_wait(left_out, sum(len(part.rows) for part in rows.derived))
    levels = Levels.of(len(nodes), *nodes.dependencies(), np.concatenate([shown, left_out.wanted]))
    return _Single(levels, shown, left_out)


class _LeftOut(Struct, frozen=True, eq=False):
    """The periods that a run left out: ``nodes`` that stand for them, of each two nodes a period apart in ``apart``.

    ``at_end``: nodes for which nothing waits, each with that a period before; ``times``: how many were left out.
    ``passes``: for each of these pairs the nodes of its last passes, the last first, one more than the plan has
    programs: stages take turns over at most as many. NONE: there are fewer.
    """

    nodes: Ints
    apart: Ints
    at_end: Ints
    passes: Ints
    times: int
    num_passes: int

    @classmethod
    def of(cls, run: SimulatedRun) -> "_LeftOut":
        """Return those of a run; none where ranks have no paces of their own."""
        if run.paced is None:
            pairs = np.zeros((0, 2), np.int64)
            return cls(np.zeros(0, np.int64), pairs, pairs, pairs, 0, 1)
        first_of = np.arange(len(run.graph.kinds))
        for node, index in run.graph.joint_of.items():
            first_of[node] = run.graph.joints[index].members[0]
        apart, at_end = (
            np.array(pairs, dtype=np.int64).reshape(-1, 2)
            for pairs in (list(run.paced.added.values()), list(run.paced.at_end))
        )
        passes = _passes(run.paced.earlier, np.concatenate([apart, at_end]), 1 + len(run.plan.programs))
        passes = np.where(passes == NONE, NONE, first_of[passes])
        num_passes = 1 + run.num_steps * max(map(len, run.paced.repeated.values()))
        nodes = np.array(list(run.paced.added), np.int64)
        return cls(nodes, first_of[apart], first_of[at_end], passes, run.paced.times, num_passes)

    @property
    def wanted(self) -> Ints:
        """Return the nodes whose ends are asked for."""
        passes = self.passes[self.passes != NONE]
        return np.concatenate([self.nodes, self.apart.ravel(), self.at_end.ravel(), passes])

    def lasting_s(self, ends_s: Floats, rows: Ints) -> Floats:
        """Return how long each stands for, per draw; ``rows``: by node."""
        later, earlier = (ends_s[rows[nodes]] for nodes in self.apart.T)
        lasting_s: Floats = self.times * (later - earlier)
        return lasting_s

    def settles(self, ends_s: Floats, rows: Ints) -> Flags:
        """Return which draws' last passes are all a pace apart."""
        settles = np.ones(ends_s.shape[1], np.bool_)
        for later, earlier in pairwise(self.passes.T):
            known = earlier != NONE
            last, before = self.passes[known, :2].T
            pace_s = ends_s[rows[last]] - ends_s[rows[before]]
            off_s = np.abs(ends_s[rows[later[known]]] - ends_s[rows[earlier[known]]] - pace_s)
            settles &= (off_s <= EVEN * pace_s).all(axis=0)
        return settles

    def latest_s(self, ends_s: Floats, rows: Ints) -> Floats:
        """Return when the last node for which none waits ends, per draw, if it does so that many periods later."""
        later, earlier = (ends_s[rows[nodes]] for nodes in self.at_end.T)
        beyond_s = later + self.times * (later - earlier)
        latest_s: Floats = beyond_s.max(axis=0, initial=0.0)
        return latest_s


def _passes(earlier: Ints, pairs: Ints, most: int) -> Ints:
    """Return of pairs of nodes a period apart these and those of the periods before, up to so many; NONE: no more.

    ``earlier``: by node, the one a period before.
    """
    passes = [*np.unique(pairs, axis=0).T]
    while len(passes) < most:
        passes.append(np.where(passes[-1] == NONE, NONE, earlier[passes[-1]]))
    return np.stack(passes, axis=1)


class _Nodes:
    """The nodes of a run and of its blocks: their durations, the rows of these, and the edges between nodes.

    ``base_s``, ``rows`` and ``starts_s`` are those of the run's own nodes; ``added`` has these of nodes beside them,
    another node of the call of each, and the ops of its entry and its exit (NONE: it leads to all exits). ``entries``:
    by block and slot the node at whose end it is released. ``more``: what waits beside the run's own. ``sends_wait``:
    each send waits for the one before it (see ``SendsInOrder``).
    """

    def __init__(self, run: SimulatedRun, sends_wait: bool) -> None:
        self.run, graph, loop = run, run.graph, run.loop
        self.sends_wait = sends_wait
        lasting = np.isin(graph.kinds_of_nodes, _LASTING)
        lasting[[node for joint in graph.joints for node in joint.members[1:]]] = False
        starts_s, ends_s = loop.times_s
        self.base_s = np.where(lasting, ends_s - starts_s, 0.0)
        begins_s = np.isin(graph.kinds_of_nodes, (*_LASTING, NodeKind.BLOCK))
        self.starts_s = np.where(begins_s, starts_s, ends_s)
        self.rows = np.zeros(len(self.base_s), dtype=np.int64)
        self.added: list[tuple[float, int, float, int, int, int]] = []
        self.entries = {place: node for node, place in graph.entries.items()}
        self.more: list[tuple[int, int]] = []
        self._released: dict[int, int] = {}
        self._begins: dict[int, int] = {}

    def __len__(self) -> int:
        """Return how many nodes there are."""
        return len(self.rows) + len(self.added)

    def add(self, owner: int, start_s: float, entry: int = 0, through: tuple[float, int, int] = (0.0, 0, NONE)) -> int:
        """Add a node that belongs to the call of another one; return its number.

        ``entry``: the op that it lets go; ``through``: how long it lasts, its row, and the op of its exit.
        """
        base_s, row, leaves = through
        self.added.append((base_s, row, start_s, owner, entry, leaves))
        return len(self) - 1

    def give_rows(self, calls: Sequence[tuple[Ints, Sequence[int]]]) -> None:
        """Give the ops of calls, by the nodes of their first ops, the rows of their tasks' ops."""
        if calls:
            num_calls, num_ops = np.array([(len(first), len(rows)) for first, rows in calls]).T
            counts = num_ops.repeat(num_calls)
            _, ops = in_ranges(np.concatenate([first for first, _ in calls]), counts)
            _, places = in_ranges((num_ops.cumsum() - num_ops).repeat(num_calls), counts)
            self.rows[ops] = np.array([row for _, rows in calls for row in rows])[places]

    def let_timeless_wait(self, first: Ints, task: PricedTask) -> None:
        """Let the ops of a launched task that take no time last as many seconds as their rows say.

        ``first``: the nodes of the first ops of its calls.
        """
        if task.launches_s:
            timeless = np.flatnonzero(np.array(task.durations_s) == 0.0)
            nodes = np.add.outer(first, timeless).ravel().tolist()
            self.base_s[[node for node in nodes if node not in self.run.graph.joint_of]] = 1.0

    def in_all(self) -> tuple[Floats, Ints]:
        """Return the durations of all nodes, and their rows."""
        base_s, rows, *_ = self._added
        return np.concatenate([self.base_s, base_s]), np.concatenate([self.rows, rows.astype(np.int64)])

    def placed(self, repeated: Repeated) -> PlacedNodes:
        """Return all nodes of a run that passed through its period once for many, by when they begin, and the edges."""
        starts_s, edges = np.concatenate([self.starts_s, self._added[2]]), self.dependencies()
        return PlacedNodes(starts_s, *edges, self._counterparts(repeated))

    def _counterparts(self, repeated: Repeated) -> Counterparts:
        """Return the same node of the next period for every node."""
        run, starts_s, (owners, entries, exits) = self.run, self._added[2], self._added[3:].astype(np.int64)
        calls = calls_of_nodes(run.graph, run.programs.values())
        units = np.concatenate([np.where(calls == NONE, NONE, 2 * calls), 2 * calls[owners] + 1])
        places = np.concatenate([_places_in_units(calls), entries * (exits.max(initial=0) + 2) + exits - NONE])
        later, repeats = _calls_a_period_later(run, repeated)
        later_units = np.where(later == NONE, NONE, 2 * later)[:, None] + np.where(later == NONE, 0, [[0], [1]]).T
        moments_s = np.concatenate([run.loop.times_s[1], starts_s])
        return Counterparts.of(units, places, later_units.ravel(), np.repeat(repeats, 2), moments_s)

    @cached_property
    def _added(self) -> Floats:
        """Return what is known of the nodes beside the run's own, a column each, once all are added."""
        return np.array(self.added, dtype=np.float64).reshape(-1, 6).T

    def let_left_out_wait(self, left_out: _LeftOut, first_row: int) -> None:
        """Let nodes that stand for periods last as long as rows from ``~first_row`` on say."""
        for row, node in enumerate(left_out.nodes.tolist(), start=first_row):
            self.base_s[node], self.rows[node] = 1.0, ~row

    def entry(self, block: int, slot: int) -> int:
        """Return the node at whose end an entry of a block is released: of its only one all that it waits for."""
        if (block, slot) not in self.entries:
            start_s = self.run.loop.starts_s[block]
            entry = self.run.graph.blocks[block].pattern.entries[slot]
            self.entries[block, slot] = self._released[block] = self.add(block, start_s, entry)
        return self.entries[block, slot]

    def begin_of(self, node: int) -> int:
        """Return a node that ends when a node begins."""
        begin = self._begins[node] = self.add(node, self.run.loop.starts_s[node])
        return begin

    def dependencies(self) -> tuple[Ints, Ints]:
        """Return the edges that decide when nodes end: their first ends, their second ends."""
        return self._deciding[:2]

    @property
    def in_order(self) -> SendsInOrder:
        """Return the sends that need not wait for the ones before them."""
        return self._deciding[2]

    @cached_property
    def _deciding(self) -> tuple[Ints, Ints, SendsInOrder]:
        """Return the edges that decide when nodes end, once all nodes are added, and the sends without theirs."""
        before, after = self._edges()
        in_order = (
            SendsInOrder.of_none(len(before))
            if self.sends_wait
            else SendsInOrder.of(self.run, before, after, len(self))
        )
        decides = ~in_order.is_between
        return before[decides], after[decides], in_order

    def _edges(self) -> tuple[Ints, Ints]:
        """Return all edges, once all nodes are added. A collective's members are its first one."""
        graph, joint = self.run.graph, np.arange(len(self))
        for node, index in graph.joint_of.items():
            joint[node] = graph.joints[index].members[0]
        before, after = (joint[ends] for ends in self.run.edges)
        more = list(self.more)
        for node, begin in self._begins.items():
            entries = [self.entries[place] for place in self.entries if place[0] == node]
            waited = entries or before[after == joint[node]].tolist()
            more += [(other, begin) for other in waited]
        released = np.arange(len(self))
        released[list(self._released)] = list(self._released.values())
        after = released[after]
        added = np.array(more, dtype=np.int64).reshape(-1, 2)
        return np.concatenate([before, added[:, 0]]), np.concatenate([after, added[:, 1]])


def _places_in_units(units: Ints) -> Ints:
    """Return the place of each node among those of its unit."""
    places, order = np.empty_like(units), np.argsort(units, kind="stable")
    first = np.flatnonzero(begins := run_begins(units[order]))
    places[order] = np.arange(len(units)) - first[np.cumsum(begins) - 1]
    return places


def _calls_a_period_later(run: SimulatedRun, repeated: Repeated) -> tuple[Ints, NDArray[np.bool_]]:
    """Return by call, counted over all ranks, that of the next period, and whether its task recurs.

    It is the call of the same task for a later micro-batch; of one for none it is as many calls on as a period has.
    NONE: there is none.
    """
    calls = [Calls.of(program.calls) for program in run.programs.values()]
    counts = [repeated.calls[rank] for rank in run.programs]
    num_calls, num_tasks = list(map(len, calls)), [len(found.names) for found in calls]
    tasks = np.concatenate([found.tasks for found in calls]) + np.repeat(np.cumsum(num_tasks) - num_tasks, num_calls)
    microbatches = np.concatenate([found.microbatches for found in calls])
    row = int(microbatches.max(initial=0)) + 1 + repeated.microbatches
    call_of, numbered = np.full(sum(num_tasks) * row, NONE), np.flatnonzero(microbatches != NO_MICROBATCH)
    keys = tasks[numbered] * row + microbatches[numbered]
    call_of[keys] = numbered
    places = np.arange(len(tasks)) + np.repeat([sum(once.values()) for once in counts], num_calls)
    later = np.minimum(places, len(tasks) - 1)
    later = np.where((tasks[later] == tasks) & (microbatches[later] == NO_MICROBATCH), later, NONE)
    later[numbered] = call_of[keys + repeated.microbatches]
    recurs = [once.get(name, 0) > 0 for found, once in zip(calls, counts, strict=True) for name in found.names]
    return later, np.array(recurs)[tasks]


class _Rows(Struct, eq=False):
    """Rows of ops and calls; those alike have the same."""

    run: SimulatedRun
    classes: ErrorClasses
    factor_row: FactorRow
    alike: bool
    _rows: dict[tuple[int, int | None], tuple[int, ...]] = {}
    """Of the ops of tasks, by the identity of these ops' places and, where ranks are not alike, by rank."""
    _ratios: dict[TaskTimes, OpRatios] = {}
    _call_times: dict[_Call, CallTimes] = {}
    _num_derived: int = 0
    _tasks: dict[tuple[int, str], TaskTimes] = {}
    _calls: dict[tuple[Sequence[int], int], CallRow] = {}

    @property
    def derived(self) -> tuple[Derived, ...]:
        """Return the nodes whose durations are not drawn."""
        return (*self._ratios.values(), *self._call_times.values())

    def of_ops(self, rank: int, task: str) -> Sequence[int]:
        """Return the rows by which the ops of a rank's task last longer or shorter."""
        if not self.run.priced[rank][task].launches_s:
            return self._drawn_rows(rank, task)
        times = self._task(rank, task)
        if times not in self._ratios:
            self._ratios[times] = OpRatios(times)
        rows = self._ratios[times].rows
        return [self._derived_row(rows, op) for op in range(len(times.rows))]

    def of_call(self, ranks: Sequence[int], task: str, pattern: Pattern, joint: tuple[int, ...] = ()) -> CallRow:
        """Return what gives the rows of a call that is one event, by entry and op."""
        key = (ranks, id(pattern))
        if key not in self._calls:
            tasks = tuple(self._task(rank, task) for rank in ranks)
            call = tasks, pattern.entries, pattern.predecessors, joint
            if call not in self._call_times:
                self._call_times[call] = CallTimes(*call)
            self._calls[key] = partial(self._derived_row, self._call_times[call].rows)
        return self._calls[key]

    def _derived_row(self, rows: dict[Key, int], key: Key) -> int:
        if key not in rows:
            rows[key] = self._num_derived
            self._num_derived += 1
        return ~rows[key]

    def _task(self, rank: int, name: str) -> TaskTimes:
        if (rank, name) not in self._tasks:
            priced = self.run.priced[rank][name]
            times = TaskTimes(tuple(priced.durations_s), self._drawn_rows(rank, name))
            if priced.launches_s:
                waits = analyse(self.run.programs[rank].tasks[name]).predecessors
                singles_s = tuple(priced.singles_s)
                times = replace(times, predecessors=waits, launches_s=priced.launches_s, singles_s=singles_s)
            self._tasks[rank, name] = times
        return self._tasks[rank, name]

    def _drawn_rows(self, rank: int, task: str) -> tuple[int, ...]:
        """Return the row of the drawn factors that each op of a rank's task errs with."""
        program = self.run.programs[rank]
        places = program.distinct_ops.of_task[task]
        key = id(places), None if self.alike else rank
        if key not in self._rows:
            classes = self.classes.of_distinct(program)
            row_of = {place: self.factor_row(classes[place], rank) for place in dict.fromkeys(places)}
            self._rows[key] = tuple([row_of[place] for place in places])
        return self._rows[key]


def _add_units(nodes: _Nodes, rows: _Rows) -> dict[int, tuple[int, int, str]]:
    """Give ops and calls their rows; return of each block a rank, the call's index and its task."""
    run, blocks = nodes.run, dict[int, tuple[int, int, str]]()
    of_ops, sent = list[tuple[Ints, Sequence[int]]](), list[tuple[Ints, Sequence[int]]]()
    calls = [(rank, task, called) for rank in run.programs for task, called in run.called(rank).items()]
    is_block = np.zeros(len(run.graph.kinds), np.bool_)
    is_block[list(run.graph.blocks)] = True
    for rank, task, called in calls:
        for pattern, places in called.rows_of.items():
            own = called.nodes[places]
            if pattern is SENT:
                sent.append((own, rows.of_ops(rank, task)[:1]))
            elif pattern is None:
                of_ops.append((own, rows.of_ops(rank, task)))
                nodes.let_timeless_wait(own, run.priced[rank][task])
            else:
                alone = own[~is_block[own]]
                if len(alone):
                    row_of = rows.of_call((rank,), task, pattern)
                    nodes.base_s[alone], nodes.rows[alone] = 1.0, row_of((0, pattern.main_exit))
                several = places[is_block[own]]
                for node, index in zip(called.nodes[several].tolist(), called.calls[several].tolist(), strict=True):
                    blocks.setdefault(node, (rank, index, task))
    nodes.give_rows(of_ops)
    nodes.give_rows(sent)  # after others: one node with its receive
    return blocks


def _add_blocks(nodes: _Nodes, rows: _Rows, blocks: Mapping[int, tuple[int, int, str]]) -> None:
    """Let the exits of blocks wait for their entries and for what is between."""
    graph = nodes.run.graph
    joint_ops = {(ranks[0], index): ops for ranks, index, ops in graph.team_calls}
    calls: dict[int, CallRow] = {}
    for node, (rank, index, task) in blocks.items():
        block = graph.blocks[node]
        joint = joint_ops[block.ranks[0], index] if block.ranks else ()
        row_of = calls[node] = rows.of_call(block.ranks or (rank,), task, block.pattern, joint)
        for op, done in ((block.pattern.main_exit, node), *block.exits.items()):
            for slot, start_s in enumerate(block.released_s):
                entry = block.pattern.entries[slot]
                through = nodes.add(node, start_s, entry, (1.0, row_of((slot, op)), op))
                nodes.more += [(nodes.entry(node, slot), through), (through, done)]
    for node, (block_node, slot, op) in graph.early_exits.items():
        nodes.base_s[node], nodes.rows[node] = 1.0, calls[block_node]((slot, op))


def _add_journeys(nodes: _Nodes) -> None:
    """Let messages on their way err as their sends do."""
    sends, journeys, _ = nodes.run.graph.message_columns
    nodes.rows[journeys] = nodes.rows[sends]
