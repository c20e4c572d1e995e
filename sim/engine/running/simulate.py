"""A plan in, a simulated run out."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from time import perf_counter
from typing import Final, Protocol

from msgspec import Struct, field

from sim.engine.compiling.graph import Graph, PricedTask
from sim.engine.compiling.repricing import Priced, StructureKey, structure_of
from sim.engine.compiling.shape import TaskShape, shapes_of
from sim.engine.compiling.structure import Structure, compiled
from sim.engine.compiling.tables import KnownTasks
from sim.engine.folding.folding import Folding, fold
from sim.engine.prices.activity import Pricing
from sim.engine.prices.launching import launched
from sim.engine.prices.traffic import exchanging_places
from sim.engine.running import again, deadlock, leads
from sim.engine.running.begun import first_calls
from sim.engine.running.collector import collector_paused
from sim.engine.running.loop import EventLoop
from sim.engine.running.paced import MULTIPLE, paced_run
from sim.engine.running.period import Repeated
from sim.engine.running.plan_facts import PlanFacts
from sim.engine.running.run import SimulatedRun, first_opening
from sim.engine.running.shorter import SectionForm, Shorter
from sim.engine.running.steady import Steady, comes_back, drifts_apart, steady_period
from sim.plan.facts import alike
from sim.plan.facts.repetition import Repetition
from sim.plan.facts.sections import Cut
from sim.plan.words.calls import Calls, CallsKey
from sim.plan.words.program import Plan, Program, Task
from sim.plan.words.steps import repeated

NUMBERS_OF_STEPS: Final = (3, 4, 8, 16)
"""How many steps are simulated where none waits for the others at its end, until two in a row take equally long.

The fewest are enough where the state comes back to the last digits: then the others would be like the second.
"""

MOST_STRUCTURES: Final = 3
"""How many structures of a plan a simulation holds: prices seldom alternate between more."""

Fold = Callable[[Plan, Pricing], Folding]
Structures = dict[tuple[CallsKey, ...], Structure]
"""By the calls of the programs that are run: each program's once, in the order of simulated ranks."""


class Notice(Protocol):
    """What is called before a plan is run, once it is known which ranks are alike, and again before all calls are."""

    def __call__(self, shorter: Shorter, folding: Folding, *, whole: bool) -> None:
        """Take a plan's shorter forms, its classes of ranks, and whether all its calls are run.

        They are where no period was found in shorter forms, or every call is asked for.
        """


def simulate(
    plan: Plan,
    pricing: Pricing,
    *,
    fold: Fold = fold,
    coalesce: bool = True,
    repeat: bool = True,
    notice: Notice | None = None,
) -> SimulatedRun:
    """Return the run of one step of ``plan``.

    Without a barrier between steps it is a step in the middle of several: as many are simulated as it takes to see
    the steady period. ``repeat``: a period of many micro-batches is simulated once. Raises CheckError where sends and
    receives do not match, DeadlockError where the run gets stuck.
    """
    return Simulation(plan, fold, coalesce, repeat, notice).run(pricing)


class _Known(Struct, frozen=True, dict=True, eq=False):
    """What a plan is compiled to under prices that fold alike and share a structure."""

    pricing: Pricing
    folding: Folding
    programs: Mapping[int, Program]
    prices: Priced
    structures: Structures = {}

    @cached_property
    def key(self) -> StructureKey:
        """Return the key of the prices that decide on the graph's structure."""
        return structure_of(self.programs, self.prices)

    def holds_for(self, other: "_Known") -> bool:
        """Return whether the structures are those under other prices, too."""
        return self.folding.same_as(other.folding) and self.key == other.key


class Simulation(Struct, dict=True, eq=False):
    """A plan to be simulated under one price after the other: each structure of it is compiled once.

    Each run is to the last bit what ``simulate`` returns. The structures of the last ``MOST_STRUCTURES`` are held:

        simulation = Simulation(plan)
        times_s = [simulation.run(pricing).iteration_time_s for pricing in pricings]
    """

    plan: Plan
    fold: Fold = fold
    coalesce: bool = True
    repeat: bool = True
    notice: Notice | None = None
    _known: list[_Known] = []
    _shapes: dict[int, Mapping[str, TaskShape]] = {}
    _known_tasks: KnownTasks = field(default_factory=KnownTasks)
    _facts: PlanFacts = field(default_factory=PlanFacts)
    _in_a_row: dict[tuple[int, int], Program] = {}

    def of_alike(self, plan: Plan) -> "Simulation | None":
        """Return the simulation of a plan with other calls and other numbers in its kernels, as for another batch.

        It shares the structures of forms with equal calls. None where the plans differ in more (``with_equal_ops``).
        """
        if not alike.with_equal_ops(self.plan, plan):
            return None
        pairs = zip(self.plan.programs, plan.programs, strict=True)
        shapes = {id(new): self._shapes[id(old)] for old, new in pairs} if self._shapes else {}
        known, options = list(self._known), (self.fold, self.coalesce, self.repeat, self.notice)
        return Simulation(plan, *options, _known=known, _shapes=shapes)

    def run(self, pricing: Pricing) -> SimulatedRun:
        """Return the run of one step under some prices. Raises as ``simulate``."""
        with collector_paused():
            began_s = perf_counter()
            now = self._priced(pricing)
            structures = self._structures(now)
            run = self._repeated_run(now, structures) or self._paced_run(now, structures)
            if run is None:
                if self.repeat and self._has_forms:
                    self._tell(now.folding, whole=True)
                run = self._whole_run(now, structures)
            run.wall_time_s = perf_counter() - began_s
        return run

    def _whole_run(self, now: _Known, structures: Structures) -> SimulatedRun:
        """Return the run of all calls: of several steps where none waits for the others at its end."""
        for num_steps in (1,) if self.plan.barrier else NUMBERS_OF_STEPS:
            programs = {rank: self._steps(program, num_steps) for rank, program in now.programs.items()}
            graph, loop = self._ran(now, structures, programs)
            if loop.is_stuck:
                deadlock.refuse_deadlock(SimulatedRun(self.plan, now.folding, programs, now.prices, graph, loop))
            run = self._as_run(now, now.programs, graph, loop, num_steps)
            if comes_back(run) if num_steps == NUMBERS_OF_STEPS[0] else run.is_steady:
                break
        return run

    def _repeated_run(self, now: _Known, structures: Structures) -> SimulatedRun | None:
        """Return a run that passes through its period once, for all that the step does; None where it has none."""
        waiting = list(self._shorter.times if self.repeat and self.coalesce else ())
        while waiting:
            times = waiting.pop(0)
            tried = self._try_without(times, now, structures)
            if tried is None:
                return None
            run, period = tried
            if period is None:
                if self._shorter.tells_paces(times) and drifts_apart(run, self._repetition_of(now, times)):
                    return None
                lead = leads.repetitions_in_lead(run, self._repetition_of(now, times))
                waiting = self._shorter.after_lead(times, lead, waiting)
                continue
            if not times % period.repetitions:
                return self._standing_for_all(run, period, now, times)
            waiting.insert(0, times - times % period.repetitions)  # whole periods
        return None

    def _try_without(
        self, times: int, now: _Known, structures: Structures
    ) -> tuple[SimulatedRun, Steady | None] | None:
        """Return a run with so many repetitions less, and its period; None where it gets stuck or is no plan."""
        short = self._shorter.without(times)
        if short is None:
            return None
        programs = {rank: short.programs[id(program)] for rank, program in now.programs.items()}
        graph, loop = self._ran(now, structures, programs)
        if loop.is_stuck:  # the whole run says where
            return None
        run = self._as_run(now, programs, graph, loop)
        return run, steady_period(run, self._repetition_of(now, times))

    def _paced_run(self, now: _Known, structures: Structures) -> SimulatedRun | None:
        """Return a run that passes through the period of each section once; None where no form shows such paces."""
        for form in self._shorter.section_forms(MULTIPLE) if self.repeat and self.coalesce else ():
            short = self._shorter.in_sections(form)
            if short is None:
                continue
            cuts = {rank: short[id(program)] for rank, program in now.programs.items()}
            begun = {} if self.plan.barrier else self._begun(form, cuts, now)
            run = self._run_in_sections(form, cuts, begun, now, structures)
            if begun and run is not None and not (_is_seen_again(run) or again.begins_again(run)):
                begun, run = {}, self._run_in_sections(form, cuts, {}, now, structures)
            if run is not None:
                return run if self.plan.barrier or begun or _is_seen_again(run) or comes_back(run) else None
        return None

    def _begun(self, form: SectionForm, cuts: Mapping[int, Cut], now: _Known) -> Mapping[int, int]:
        """Return how many calls of a last step, which is only begun, each rank makes; empty: some do not open it."""
        most = {rank: form.most_begun(cut) for rank, cut in cuts.items()}
        programs = {rank: cut.program for rank, cut in cuts.items()}
        begun = first_calls(self.plan.mesh, now.folding, programs, most)
        return begun if all(begun[rank] > first_opening(program) for rank, program in programs.items()) else {}

    def _run_in_sections(
        self,
        form: SectionForm,
        cuts: Mapping[int, Cut],
        begun: Mapping[int, int],
        now: _Known,
        structures: Structures,
    ) -> SimulatedRun | None:
        """Return the run of a form; None where it does not show paces. ``begun``: how many calls its last step has."""
        num_steps = 1 if self.plan.barrier else NUMBERS_OF_STEPS[0]
        num_whole = num_steps - bool(begun)
        in_a_row = {rank: self._shorter.in_a_row(cut, num_whole, begun.get(rank, 0)) for rank, cut in cuts.items()}
        programs = {rank: cut.program for rank, cut in in_a_row.items()}
        graph = self._compiled(now, structures, programs, all_received=not begun)
        found = paced_run(graph, in_a_row, form.left_out, num_whole)
        if found is None:
            return None
        graph, loop, paced = found
        run = self._as_run(now, {rank: cut.program for rank, cut in cuts.items()}, graph, loop, num_steps)
        run.paced, run.begun, run.simulate_whole = paced, begun, self._whole(now)
        return run

    def _whole(self, now: _Known) -> Callable[[], SimulatedRun]:
        """Return what simulates all micro-batches one by one."""

        def run() -> SimulatedRun:
            self._tell(now.folding, whole=True)
            return simulate(self.plan, now.pricing, fold=lambda *_: now.folding, coalesce=self.coalesce, repeat=False)

        return run

    def _as_run(
        self, now: _Known, programs: Mapping[int, Program], graph: Graph, loop: EventLoop, num_steps: int = 1
    ) -> SimulatedRun:
        """Return a finished loop as a run, which shares the plan's facts with other runs."""
        return SimulatedRun(self.plan, now.folding, programs, now.prices, graph, loop, num_steps, facts=self._facts)

    def _standing_for_all(self, run: SimulatedRun, period: Steady, now: _Known, left_out: int) -> SimulatedRun:
        """Return a run as that of the whole step, of which it leaves out so many repetitions."""
        run.repeated = _repeated(run.programs, self._repetition_of(now, left_out), period, left_out)
        run.simulate_whole = self._whole(now)
        return run

    def _repetition_of(self, now: _Known, left_out: int) -> Mapping[int, Repetition]:
        """Return the repeated calls of every simulated rank's program after so many repetitions are left out."""
        short = self._shorter.without(left_out)
        assert short is not None
        return {rank: short.repetitions[id(program)] for rank, program in now.programs.items()}

    @cached_property
    def _shorter(self) -> Shorter:
        return Shorter(self.plan)

    @property
    def _has_forms(self) -> bool:
        """Return whether the plan has shorter forms."""
        return bool(self._shorter.times or self._shorter.section_forms(MULTIPLE))

    def _tell(self, folding: Folding, *, whole: bool) -> None:
        """Tell who wants to know that the plan is about to be run, and whether all its calls are."""
        if self.notice is not None:
            self.notice(self._shorter, folding, whole=whole)

    def _priced(self, pricing: Pricing) -> _Known:
        """Return the plan's prices, and which ranks are alike under them; nothing is compiled."""
        folding = self.fold(self.plan, pricing)
        self._tell(folding, whole=False)
        programs = {rank: self.plan.program_of(rank) for rank in folding.multiplicity}
        self._shapes = self._shapes or _shapes(self.plan)
        pricing.expect(self.plan, programs)
        on_links = exchanging_places(self.plan.programs)
        prices = {rank: _price(self.plan, pricing, folding, rank, self._shapes, on_links) for rank in programs}
        return _Known(pricing, folding, programs, prices)

    def _structures(self, now: _Known) -> Structures:
        """Return what is compiled for the structure of these prices, so far; structures that wait longest go."""
        place = next((place for place, known in enumerate(self._known) if known.holds_for(now)), None)
        known = now if place is None else self._known.pop(place)
        self._known = [known, *self._known[: MOST_STRUCTURES - 1]]
        return known.structures

    def _steps(self, program: Program, num_steps: int) -> Program:
        """Return the program of several steps; ranks with one program share it, and so do runs."""
        key = (id(program), num_steps)
        if key not in self._in_a_row:
            self._in_a_row[key] = program if num_steps == 1 else repeated(program, num_steps)
        return self._in_a_row[key]

    def _ran(self, now: _Known, structures: Structures, programs: Mapping[int, Program]) -> tuple[Graph, EventLoop]:
        """Compile programs, or give their structure its prices, and run them."""
        graph = self._compiled(now, structures, programs)
        return graph, _run(graph)

    def _compiled(
        self, now: _Known, structures: Structures, programs: Mapping[int, Program], *, all_received: bool = True
    ) -> Graph:
        """Return the graph of programs under these prices."""
        key = tuple({id(program): Calls.of(program.calls).key for program in programs.values()}.values())
        if key in structures:
            return structures[key].priced(now.prices)
        structure = compiled(
            self.plan, now.folding, programs, now.prices, self._shapes, self._known_tasks,
            coalesce=self.coalesce, all_received=all_received,
        )  # fmt: skip
        structures[key] = structure
        return structure.graph


def _is_seen_again(run: SimulatedRun) -> bool:
    """Return whether the second of several steps was seen in a state of the first."""
    return run.paced is not None and run.paced.comes_back


def _run(graph: Graph) -> EventLoop:
    """Return the loop that has run a graph."""
    loop = EventLoop(graph)
    loop.run()
    return loop


def _repeated(
    programs: Mapping[int, Program], repetition_of: Mapping[int, Repetition], period: Steady, left_out: int
) -> Repeated:
    """Return the period of a run of programs that make their repeated calls ``left_out`` times less."""
    calls = {
        rank: {task: period.repetitions * count for task, count in found.of_task(programs[rank]).items()}
        for rank, found in repetition_of.items()
    }
    microbatches = period.repetitions * next(iter(repetition_of.values())).microbatches
    times = left_out // period.repetitions
    return Repeated(period.begin_s, period.end_s, times, microbatches, calls)


def _shapes(plan: Plan) -> dict[int, Mapping[str, TaskShape]]:
    """Return the shapes of every program's tasks, by its identity; those that share tasks share them."""
    one_of = {id(program.tasks): program for program in plan.programs}
    shapes = {key: shapes_of(program) for key, program in one_of.items()}
    return {id(program): shapes[id(program.tasks)] for program in plan.programs}


def _price(
    plan: Plan,
    pricing: Pricing,
    folding: Folding,
    rank: int,
    shapes: Mapping[int, Mapping[str, TaskShape]],
    on_links: Mapping[int, Sequence[int]],
) -> dict[str, PricedTask]:
    """Return the prices of a rank's tasks, with those of distinct ops; ``on_links``: see ``exchanging_places``."""
    program = plan.program_of(rank)
    distinct = program.distinct_ops
    ops, of_task = distinct.ops, distinct.of_task
    alone = folding.in_turn(program, ops, [pricing.price(plan, program, op, rank) for op in ops])
    of_all = list(alone)
    for place in on_links[id(distinct)]:
        of_all[place] = folding.folded(ops[place], rank, alone[place])

    def priced(name: str, task: Task) -> PricedTask:
        launches_s = pricing.launches_s(task)
        if not launches_s:
            return PricedTask(tuple([of_all[place] for place in of_task[name]]))
        own = [alone[place] for place in of_task[name]]
        late = launched(shapes[id(program)][name].predecessors, launches_s, own)  # as late as each rank's own
        return PricedTask(tuple(map(folding.folded, task.ops, repeat(rank), late)), launches_s)

    return {name: priced(name, task) for name, task in program.tasks.items()}
