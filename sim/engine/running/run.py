"""A simulated run: when every op of every simulated rank ran."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import Final

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from sim.engine.compiling.graph import SENT, Graph, PricedTask, UnitColumns
from sim.engine.compiling.tables import MAIN_STREAM
from sim.engine.folding.folding import Folding
from sim.engine.running.called import TaskCalls, calls_by_task
from sim.engine.running.loop import EventLoop
from sim.engine.running.memory import MemoryUse
from sim.engine.running.node_times import NodeTimes
from sim.engine.running.op_layout import OpLayout
from sim.engine.running.paced import Paced
from sim.engine.running.period import EQUAL, Part, Repeated, Times
from sim.engine.running.plan_facts import PlanFacts
from sim.engine.running.rank_paces import RankPaces
from sim.engine.running.task_times import TaskTimes, TimesOfRanks
from sim.plan.words.buffer import Tier
from sim.plan.words.calls import Calls
from sim.plan.words.program import Plan, Program, Task
from sim.sorting import first_largest

Ints = NDArray[np.int64]

STEADY: Final = 1e-5
"""Steps whose periods differ by no more than this part are taken to be alike."""

MOST_KEPT_NODES: Final = 1_000_000
"""The times of a longer run are not kept, but made for one finding after the other: they would fill the memory."""


class SimulatedRun(Struct, dict=True, eq=False):
    """What the engine found out about a step; ``wall_time_s`` is what it took to fold, price, compile and run.

    ``num_steps``: how many were simulated in a row. Of several the step before the last is the one that is shown: what
    comes before it and after it is there as well. Times count from its first op. ``begun``: where the last one is only
    begun, how many calls of it there are, by simulated rank; empty: all.

    ``repeated``: a run that passed through its period once, for the many times that the step does. ``programs`` and the
    times of ops are then those of a step with fewer micro-batches; ``whole`` has all ops. ``paced``: the same where
    ranks have paces of their own; times are then those of the whole step. ``facts``: those of the plan.
    """

    plan: Plan
    folding: Folding
    programs: Mapping[int, Program]
    priced: Mapping[int, Mapping[str, PricedTask]]
    graph: Graph
    loop: EventLoop
    num_steps: int = 1
    wall_time_s: float = 0.0
    begun: Mapping[int, int] = {}
    repeated: Repeated | None = None
    paced: Paced | None = None
    simulate_whole: Callable[[], "SimulatedRun"] | None = None
    facts: PlanFacts = field(default_factory=PlanFacts)
    _rank_paces: dict[int, RankPaces] = {}
    _layouts_in_a_row: dict[int, OpLayout] = {}
    _layouts: dict[tuple[object, ...], OpLayout] = {}
    _apart_of: dict[tuple[tuple[int, ...], str], Ints] = {}
    _uncounted: list[list[TimesOfRanks]] = []

    @property
    def num_events(self) -> int:
        """Return how many SimPy events the run took."""
        return self.loop.num_events

    @cached_property
    def whole(self) -> "SimulatedRun":
        """Return the run of all micro-batches one by one: this one, or if it repeated a period, another one."""
        return self if self.simulate_whole is None else self.simulate_whole()

    def num_calls(self, rank: int) -> Mapping[str, int]:
        """Return how often a simulated rank calls each task in the step."""
        calls = Calls.of(self.programs[rank].calls)
        found = dict(calls.counts())
        if self.repeated is not None:
            for task, count in self.repeated.calls[rank].items():
                found[task] += count * self.repeated.times
        if self.paced is not None:
            for first, stop in self.paced.repeated[rank]:
                for task, count in calls[first:stop].counts().items():
                    found[task] += count * self.paced.times
        return found

    def counts(self, found: TimesOfRanks, starts_s: Times) -> Ints:
        """Return how many ops of the step some ops of each call stand for: calls x ops, as their starts."""
        if self.repeated is not None:
            return self.repeated.counts(starts_s)
        return np.broadcast_to(self._counts(found)[:, None], starts_s.shape)

    def _counts(self, found: TimesOfRanks) -> Ints:
        """Return how many calls of the step each call of a task stands for, where no period of all ranks repeats."""
        if self.paced is None:
            return np.ones(len(found.times.calls), np.int64)
        return np.where(self._apart(found), 1 + self.paced.times, 1)

    def paces(self, found: TimesOfRanks, ops: NDArray[np.int64]) -> Times:
        """Return how much later each of these comes than the one before [calls, ops]; 0: ranks have no own paces."""
        paces_s = np.zeros((len(found.times.calls), len(ops)))
        if self.paced is not None:
            apart = self._apart(found)
            repeated, ends_s = np.flatnonzero(apart), found.times.ends_of(ops)
            paces_s[repeated] = ends_s[repeated] - ends_s[repeated - apart[repeated]]
        return paces_s

    def _apart(self, found: TimesOfRanks) -> Ints:
        """Return how many rows before each call is the one a period earlier, in a run with paces; 0: it is of none."""
        key = found.ranks, found.times.task.name
        if key not in self._apart_of:
            layouts = [self.rank_paces(rank).layout for rank in found.ranks]
            self._apart_of[key] = np.concatenate([layout.apart[found.times.task.name] for layout in layouts])
        return self._apart_of[key]

    def rank_paces(self, rank: int) -> RankPaces:
        """Return the times of a simulated rank in a run in which ranks have paces of their own."""
        if rank not in self._rank_paces:
            assert self.paced is not None
            tasks, shown = self.task_times(rank), range(len(self.programs[rank].calls))
            self._rank_paces[rank] = RankPaces(tasks, self._layout(rank, tasks, self.paced.repeated[rank], shown))
        return self._rank_paces[rank]

    def paces_in_a_row(self, rank: int) -> RankPaces:
        """Return the same in all steps, from the begin of the first: calls are counted over all of them.

        They are not kept: what is found out about the ops of all ranks would fill the memory.
        """
        return RankPaces(self._tasks_in_a_row[rank], self.layout_in_a_row(rank))

    def layout_in_a_row(self, rank: int) -> OpLayout:
        """Return which ops a simulated rank runs in all steps. A step that is only begun has no sections."""
        if rank not in self._layouts_in_a_row:
            assert self.paced is not None
            num_calls = len(self.programs[rank].calls)
            repeated = [
                (step * num_calls + first, step * num_calls + stop)
                for step in range(self.num_steps - bool(self.begun)) for first, stop in self.paced.repeated[rank]
            ]  # fmt: skip
            shown = self._shown_calls(rank)
            self._layouts_in_a_row[rank] = self._layout(rank, self._tasks_in_a_row[rank], repeated, shown)
        return self._layouts_in_a_row[rank]

    def _layout(
        self, rank: int, tasks: Sequence[TaskTimes], repeated: Sequence[tuple[int, int]], shown: range
    ) -> OpLayout:
        """Return which ops run in some calls of a rank; ranks with its tasks and calls share it."""
        assert self.paced is not None
        program = self.programs[rank]
        key = (id(program.calls), self.begun.get(rank), shown, *repeated, *(id(times.task) for times in tasks))
        if key not in self._layouts:
            self._layouts[key] = OpLayout(
                [times.task for times in tasks], [times.calls for times in tasks], repeated, self.paced.times, shown
            )
        return self._layouts[key]

    def paces_of_step(self, rank: int) -> tuple[RankPaces, Part]:
        """Return the paces of a simulated rank in all steps, and when by its times the step begins, and how long it is.

        The step begins with its first op on its main stream; of a run with barriers when all begin.
        """
        if self.num_steps == 1:
            return self.rank_paces(rank), Part(0.0, self.iteration_time_s)
        return self.paces_in_a_row(rank), Part(self._main_begin_s(rank), self.iteration_time_s)

    def program_in_full(self, rank: int) -> Program:
        """Return the program of a simulated rank that has its memory's peak: of those run, or of all micro-batches.

        Where a whole run would come back to its state, it holds no more for more micro-batches.
        """
        return self.programs[rank] if self.paced is None else self.plan.program_of(rank)

    @property
    def _later_s(self) -> float:
        """Return how much later than simulated the end of the step comes."""
        return 0.0 if self.repeated is None else self.repeated.later_s

    def memory_of(self, rank: int, tier: Tier = Tier.DEVICE) -> MemoryUse:
        """Return the memory of a simulated rank in one tier; ranks with one program have the same."""
        return self.facts.memory_of(self.program_in_full(rank), tier)

    def peak_live_chunks(self, rank: int) -> int:
        """Return the most chunks in flight on a simulated rank."""
        return self.facts.peak_live_chunks(self.program_in_full(rank))

    @cached_property
    def edges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the edges of the graph: the node before and the node after, per edge."""
        counts, after = self.loop.edges
        return np.repeat(np.arange(len(counts)), counts), after

    # --- one number for the step ---------------------------------------------------------------------------

    @cached_property
    def iteration_time_s(self) -> float:
        """Return from when to when a step is done again: its makespan, or the steady period without a barrier.

        Where steps never become alike it is the mean of the later half of them. Of a plan that holds several steps it
        is how long after the last but one the last begins, on the slowest rank.
        """
        if self.plan.num_steps > 1:
            return max(self._step_begin_s(rank, -1) - self._step_begin_s(rank, -2) for rank in self.programs)
        if self.num_steps == 1:
            return self.makespan_s
        periods_s = self._periods_s
        return float(periods_s[-1] if self.is_steady else periods_s[len(periods_s) // 2 :].mean())

    @cached_property
    def period_nodes(self) -> tuple[int, int] | None:
        """Return the nodes with which the shown step and the one after it begin; None where there is one step alone.

        Of a plan that holds several steps: the last but one and the last, on the rank that decides the step's time.
        """
        if self.plan.num_steps > 1:
            lasts_s = [self._step_begin_s(rank, -1) - self._step_begin_s(rank, -2) for rank in self.programs]
            slowest = list(self.programs)[first_largest(lasts_s, self._rounding_s)]
            return self._step_node(slowest, -2), self._step_node(slowest, -1)
        if self.num_steps == 1:
            return None
        before, after = self.first_nodes[-2:]
        return before, after

    @cached_property
    def is_steady(self) -> bool:
        """Return whether the last two steps began equally long after the steps before them."""
        if self.num_steps == 1:
            return True
        *_, one_s, other_s = self._periods_s
        return bool(abs(one_s - other_s) <= STEADY * other_s)

    @cached_property
    def makespan_s(self) -> float:
        """Return the time from the step's first op to its last, over all ranks."""
        if self.num_steps == 1 and self.paced is not None:
            return self.paced.end_s(self.loop.times_s[1])
        if self.paced is not None:
            return max(self.last_ends_s.values())
        if self.num_steps == 1:
            return float(self.loop.times_s[1].max(initial=0.0)) + self._later_s
        return max((float(t.last_s.max()) for rank in self.programs for t in self.task_times(rank)), default=0.0)

    @cached_property
    def last_ends_s(self) -> Mapping[int, float]:
        """Return when the last op of each simulated rank ends in the whole step, in a run with paces of ranks."""
        assert self.paced is not None
        found = dict.fromkeys(self.programs, -np.inf)
        for together in self.times_together():
            apart, ends_s = self._apart(together), together.times.ends_s
            last_s, repeated = ends_s.max(axis=1), np.flatnonzero(apart)
            paces_s = ends_s[repeated] - ends_s[repeated - apart[repeated]]
            last_s[repeated] = (ends_s[repeated] + self.paced.times * paces_s).max(axis=1)
            _keep(max, found, together.ranks, np.maximum.reduceat(last_s, together.begins))
        return found

    @cached_property
    def max_rank_span_s(self) -> float:
        """Return the longest time, over ranks, from a rank's first opening call to the end of its last op."""
        begins_s, ends_s = dict[int, float](), dict[int, float]()
        for times in self.times_together():
            if times.times.task.traits.opens:
                _keep(min, begins_s, times.ranks, times.begins_s)
            _keep(max, ends_s, times.ranks, times.ends_s)
        last_s = ends_s if self.paced is None else self.last_ends_s
        return max((last_s[rank] - begin_s + self._later_s for rank, begin_s in begins_s.items()), default=0.0)

    @cached_property
    def _periods_s(self) -> Times:
        """Return how long after each step the next one began."""
        return np.diff([self.loop.starts_s[node] for node in self.first_nodes])

    @cached_property
    def first_nodes(self) -> list[int]:
        """Return the node with which each step begins: the first opening call of any rank. Steps count from there.

        Of several that begin together it is that of the first rank, in every step.
        """
        found: list[list[int]] = [[] for _ in range(self.num_steps)]
        for rank, program in self.programs.items():
            own, num_calls = self._units_at[rank], len(program.calls)
            firsts = range(own.start + first_opening(program), own.stop, max(num_calls, 1))
            for nodes, node in zip(found, map(self.graph.units.nodes.__getitem__, firsts), strict=False):
                nodes.append(node)
        starts_s = self.loop.starts_s
        return [nodes[first_largest([-starts_s[node] for node in nodes], self._rounding_s)] for nodes in found]

    @cached_property
    def _rounding_s(self) -> float:
        """Return by how much moments of the run differ where they differ by rounding alone."""
        return EQUAL * float(self.loop.times_s[1].max(initial=0.0))

    @property
    def last_step_begin_s(self) -> float:
        """Return when the first call of the last of several steps was let go: it need not be an opening call."""
        last = (self._nodes_of(rank)[-len(program.calls) :] for rank, program in self.programs.items())
        return min((self.loop.starts_s[node] for nodes in last for node in nodes), default=0.0)

    # --- all ops of the step -------------------------------------------------------------------------------

    def task_times(self, rank: int) -> Sequence[TaskTimes]:
        """Return the times of a simulated rank in the step, task by task in the order of first use."""
        return (self._times_of if self._keeps_times else self._by_rank(self._shown([rank]))).get(rank, [])

    def times_together(self) -> Iterable[TimesOfRanks]:
        """Return the same of all simulated ranks, task by task; ranks that share a task are together.

        Every finding asks for the times: those of runs that are not too long are kept.
        """
        return self._together if self._keeps_times else chain.from_iterable(self._shown([r]) for r in self.programs)

    @cached_property
    def _together(self) -> list[TimesOfRanks]:
        return self._shown(list(self.programs))

    @cached_property
    def _times_of(self) -> Mapping[int, Sequence[TaskTimes]]:
        return self._by_rank(self._together)

    @property
    def _keeps_times(self) -> bool:
        return len(self.loop.ends_s) <= MOST_KEPT_NODES

    def _by_rank(self, found: Iterable[TimesOfRanks]) -> dict[int, list[TaskTimes]]:
        """Return times rank by rank, each with its tasks in the order of first use."""
        named: dict[int, dict[str, TaskTimes]] = {}
        for together in found:
            for rank, times in together.of_each():
                named.setdefault(rank, {})[times.task.name] = times
        return {
            rank: [of_rank[name] for name in self._calls[rank] if name in of_rank] for rank, of_rank in named.items()
        }

    def _shown(self, ranks: Sequence[int]) -> list[TimesOfRanks]:
        """Return the times of some ranks in the step that is shown, from its begin."""
        if self.num_steps == 1:
            return self._made(ranks)
        origin_s, firsts = self.origin_s, {rank: self._shown_calls(rank).start for rank in ranks}
        found = self._uncounted.pop() if self._uncounted else self._made(ranks)
        return [times.counted_from(firsts, origin_s) for times in found]

    def _shown_calls(self, rank: int) -> range:
        """Return the calls of the step that is shown, counted over all steps."""
        num_calls = len(self.programs[rank].calls)
        first = max(self.num_steps - 2, 0) * num_calls
        return range(first, first + num_calls)

    def _made(self, ranks: Sequence[int]) -> list[TimesOfRanks]:
        """Return the same counted from the begin of the first step."""
        if self.paced is None or self.num_steps == 1:
            return self._in_calls({rank: self._shown_calls(rank) for rank in ranks})
        shown = {rank: self._shown_calls(rank) for rank in ranks}
        return [found for found in (times.within(shown) for times in self.times_in_a_row) if found.ranks]

    @cached_property
    def times_in_a_row(self) -> list[TimesOfRanks]:
        """Return the times of all ranks in all of several steps, counted from the begin of the first."""
        return self._in_calls({rank: range(self.num_steps * len(of.calls)) for rank, of in self.programs.items()})

    @cached_property
    def _tasks_in_a_row(self) -> Mapping[int, Sequence[TaskTimes]]:
        return self._by_rank(self.times_in_a_row)

    def window(self, rank: int) -> tuple[Sequence[TaskTimes], tuple[Part, ...]]:
        """Return the times of a rank in all steps, and the parts of time that make up the step for it.

        It begins with its first op on its main stream; of a run with barriers when all begin. Of a plan that holds
        several steps, the step is the last but one. Ranks have no paces of their own.
        """
        tasks, begin_s = self._from_begin(rank)
        return tasks, self._parts(begin_s)

    def _parts(self, begin_s: float) -> tuple[Part, ...]:
        """Return the parts of time that make up a step that begins at a moment."""
        if self.repeated is not None:
            return self.repeated.parts(self.iteration_time_s - self._later_s)
        return (Part(begin_s, self.iteration_time_s),)

    @cached_property
    def seconds_of_ops(self) -> Mapping[int, Mapping[str, Times]]:
        """Return how long each op of every task takes in the step, all calls together, by simulated rank.

        It is what of the time makes up the step for the rank (``window``); of ranks with paces, what its calls take.
        """
        found: dict[int, dict[str, Times]] = {rank: {} for rank in self.programs}
        for ranks, task, seconds in self._seconds:
            for rank, of_rank in zip(ranks, seconds, strict=True):
                found[rank][task.name] = of_rank
        return found

    @cached_property
    def busy_s(self) -> Mapping[int, Mapping[str, float]]:
        """Return the same by the stream that ops count for."""
        found: dict[int, dict[str, float]] = {rank: {} for rank in self.programs}
        for ranks, task, seconds in self._seconds:
            for stream, ops in self.facts.by_stream(task).items():
                for rank, of_rank in zip(ranks, seconds[:, ops].sum(axis=1).tolist(), strict=True):
                    found[rank][stream] = found[rank].get(stream, 0.0) + of_rank
        return found

    @cached_property
    def _seconds(self) -> list[tuple[tuple[int, ...], Task, Times]]:
        """Return of every task the ranks that share it, and how long each is at its ops: ranks x ops."""
        if self.paced is not None:
            return [(of.ranks, of.times.task, of.seconds(self._counts(of))) for of in self.times_together()]
        return [(of.ranks, of.times.task, of.seconds_in(parts)) for several, parts in self.windows() for of in several]

    def windows(self) -> Iterator[tuple[Sequence[TimesOfRanks], tuple[Part, ...]]]:
        """Yield the times of ranks in all steps, and the parts of time that make up the step for them.

        Ranks come together where these are the same and all times are kept, else one by one.
        """
        if self.num_steps == self.plan.num_steps == 1 and self._keeps_times:
            yield self._together, self._parts(0.0)
            return
        for rank in self.programs:
            tasks, parts = self.window(rank)
            yield [TimesOfRanks.alone(rank, times) for times in tasks], parts

    def _from_begin(self, rank: int) -> tuple[Sequence[TaskTimes], float]:
        """Return the times of a rank in all steps, and when the step begins for it."""
        if self.plan.num_steps > 1:
            return self.task_times(rank), self._step_begin_s(rank, -2)
        if self.num_steps == 1:
            return self.task_times(rank), 0.0
        num_calls = len(self.programs[rank].calls)
        return self._task_times(rank, range(self.num_steps * num_calls)), self._main_begin_s(rank)

    def _main_begin_s(self, rank: int) -> float:
        """Return when a rank begins the first call of the step that is shown with an op on its main stream.

        Of several steps in a row, from the begin of the first.
        """
        return self._main_begins_s.get(rank, 0.0) + self.origin_s

    @cached_property
    def _main_begins_s(self) -> Mapping[int, float]:
        """Return the same of all ranks that have such calls, from the begin of the step."""
        found: dict[int, float] = {}
        for times in self.times_together():
            if any(op.stream == MAIN_STREAM for op in times.times.task.ops):
                _keep(min, found, times.ranks, times.begins_s)
        return found

    def _step_node(self, rank: int, step: int) -> int:
        """Return the node of a rank's first opening call of one of the steps that its program holds; -1 is the last."""
        program, first = self.programs[rank], self._first_microbatch(step)
        return min(
            (
                node for index, node in enumerate(self._nodes_of(rank))
                if (call := program.calls[index]).microbatch == first
                and program.tasks[call.task].traits.opens
            ),
            key=self.loop.starts_s.__getitem__,
        )  # fmt: skip

    def _first_microbatch(self, step: int) -> int:
        """Return the first micro-batch of one of the steps that the plan holds; -1 is the last."""
        return (self.plan.num_steps + step) * self.plan.microbatches_per_step

    def _step_begin_s(self, rank: int, step: int) -> float:
        """Return when a rank begins its first opening call of one of its program's steps; -1 is the last."""
        calls, first = self.programs[rank].calls, self._first_microbatch(step)
        return min(
            float(times.first_s[row])
            for times in self.task_times(rank) if times.task.traits.opens
            for row, call in enumerate(times.calls.tolist()) if calls[call].microbatch == first
        )  # fmt: skip

    @cached_property
    def origin_s(self) -> float:
        """Return when the first op of the step began, over all ranks.

        The times that it is found in wait for ``task_times``, which counts them from there.
        """
        if self.num_steps == 1:
            return 0.0
        if not self._keeps_times:
            return min((of.begin_s for rank in self.programs for of in self._made([rank])), default=0.0)
        self._uncounted.append(self._made(list(self.programs)))
        return min((of.begin_s for of in self._uncounted[0]), default=0.0)

    def called(self, rank: int) -> Mapping[str, TaskCalls]:
        """Return the calls of each task of a simulated rank, over all steps, in the order of first use."""
        return self._calls[rank]

    @cached_property
    def _calls(self) -> dict[int, dict[str, TaskCalls]]:
        return calls_by_task(self.programs, self.units, self._units_at)

    @property
    def units(self) -> UnitColumns:
        """Return the calls of all simulated ranks as columns."""
        return self.graph.unit_columns

    def _nodes_of(self, rank: int) -> Sequence[int]:
        """Return the nodes of a rank's calls in order, over all steps: ranks are compiled one after the other."""
        return self.graph.units.nodes[self._units_at[rank]]

    @cached_property
    def _units_at(self) -> Mapping[int, slice]:
        """Return where the calls of each rank stand in the graph."""
        ends = list(accumulate(map(self._num_units, self.programs)))
        return {rank: slice(*both) for rank, both in zip(self.programs, pairwise([0, *ends]), strict=True)}

    def _num_units(self, rank: int) -> int:
        """Return how many calls of a rank there are in the graph."""
        num_calls = len(self.programs[rank].calls)
        return (self.num_steps - 1) * num_calls + self.begun.get(rank, num_calls)

    def _task_times(self, rank: int, calls: range) -> list[TaskTimes]:
        """Return the times of some of a rank's calls, counted over all steps."""
        return [times for together in self._in_calls({rank: calls}) for _, times in together.of_each()]

    @cached_property
    def _nodes(self) -> NodeTimes:
        return NodeTimes(self.graph, self.loop, self.programs, self._calls, self.paced)

    def _in_calls(self, calls_of: Mapping[int, range]) -> list[TimesOfRanks]:
        """Return the times of some of the calls of ranks, counted over all steps."""
        found: dict[tuple[int, str, bool], dict[int, TaskCalls]] = {}
        for rank, calls in calls_of.items():
            tasks = id(self.programs[rank].tasks)
            for name, every in self._calls[rank].items():
                chosen = every if self.num_steps == 1 else every.within(calls)
                if len(chosen.calls):
                    found.setdefault((tasks, name, SENT in chosen.rows_of), {})[rank] = chosen
        return [
            TimesOfRanks.of(
                {rank: len(called.calls) for rank, called in of_ranks.items()},
                self._nodes.of_calls(
                    self.programs[next(iter(of_ranks))].tasks[name], TaskCalls.joined([*of_ranks.values()])
                ),
            )
            for (_, name, _), of_ranks in found.items()
        ]


def _keep(best: Callable[[float, float], float], found: dict[int, float], ranks: Sequence[int], times_s: Times) -> None:
    """Note times of ranks where they are better than those that are found so far."""
    for rank, time_s in zip(ranks, times_s.tolist(), strict=True):
        found[rank] = best(time_s, found.get(rank, time_s))


def first_opening(program: Program) -> int:
    """Return the index of the first call that opens a stay on a stage, 0 where no call does."""
    first_calls = Calls.of(program.calls).first_calls
    return next((index for name, index in first_calls.items() if program.tasks[name].traits.opens), 0)
