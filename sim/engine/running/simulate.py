"""A plan in, a simulated run out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Final

from sim.engine.compiling.graph import PricedTask
from sim.engine.compiling.repricing import Priced, StructureKey, structure_of
from sim.engine.compiling.shape import TaskShape, analyse
from sim.engine.compiling.structure import Structure, compiled
from sim.engine.folding.folding import Folding, fold
from sim.engine.prices.activity import Activity, Pricing
from sim.engine.prices.launching import launched
from sim.engine.running.collector import collector_paused
from sim.engine.running.deadlock import refuse_deadlock
from sim.engine.running.loop import EventLoop
from sim.engine.running.run import SimulatedRun
from sim.plan.words.op import LinkOp, Op
from sim.plan.words.program import Plan, Program, Task
from sim.plan.words.steps import repeated

NUMBERS_OF_STEPS: Final = (4, 8, 16)
"""How many steps are simulated where none waits for the others at its end, until two in a row take equally long."""

MOST_STRUCTURES: Final = 3
"""How many structures of a plan a simulation holds: prices seldom alternate between more."""

Fold = Callable[[Plan, Pricing], Folding]


def simulate(plan: Plan, pricing: Pricing, *, fold: Fold = fold, coalesce: bool = True) -> SimulatedRun:
    """Return the run of one step of ``plan``.

    Without a barrier between steps it is a step in the middle of several: as many are simulated as it takes to see
    the steady period. Raises CheckError where sends and receives do not match, DeadlockError where the run gets stuck.
    """
    return Simulation(plan, fold, coalesce).run(pricing)


@dataclass(frozen=True)
class _Known:
    """What a plan is compiled to under prices that fold alike and share a structure, by number of steps in a row."""

    folding: Folding
    programs: Mapping[int, Program]
    prices: Priced
    structures: dict[int, Structure] = field(default_factory=dict)

    @cached_property
    def key(self) -> StructureKey:
        """Return what of the prices decides on the graph."""
        return structure_of(self.programs, self.prices)

    def holds_for(self, other: "_Known") -> bool:
        """Return whether the structures are those under other prices, too."""
        return self.folding.same_as(other.folding) and self.key == other.key


@dataclass
class Simulation:
    """A plan to be simulated under one price after the other: each structure of it is compiled once.

    Each run is to the last bit what ``simulate`` returns. The structures of the last ``MOST_STRUCTURES`` are held:

        simulation = Simulation(plan)
        times_s = [simulation.run(pricing).iteration_time_s for pricing in pricings]
    """

    plan: Plan
    fold: Fold = fold
    coalesce: bool = True
    _known: list[_Known] = field(default_factory=list)
    _shapes: dict[int, Mapping[str, TaskShape]] = field(default_factory=dict)

    def run(self, pricing: Pricing) -> SimulatedRun:
        """Return the run of one step under some prices. Raises as ``simulate``."""
        with collector_paused():
            began_s = perf_counter()
            now = self._priced(pricing)
            structures = self._structures(now)
            for num_steps in (1,) if self.plan.barrier else NUMBERS_OF_STEPS:
                run = self._run_steps(now, structures, num_steps)
                if run.is_steady:
                    break
            run.wall_time_s = perf_counter() - began_s
        return run

    def _priced(self, pricing: Pricing) -> _Known:
        """Return the plan's prices, and which ranks are alike under them; nothing is compiled."""
        folding = self.fold(self.plan, pricing)
        programs = {rank: self.plan.program_of(rank) for rank in folding.multiplicity}
        self._shapes = self._shapes or {id(p): _shapes(p) for p in self.plan.programs}
        prices = {rank: _price(self.plan, pricing, folding, rank, self._shapes) for rank in programs}
        return _Known(folding, programs, prices)

    def _structures(self, now: _Known) -> dict[int, Structure]:
        """Return what is compiled for the structure of these prices, so far; structures that wait longest go."""
        place = next((place for place, known in enumerate(self._known) if known.holds_for(now)), None)
        known = now if place is None else self._known.pop(place)
        self._known = [known, *self._known[: MOST_STRUCTURES - 1]]
        return known.structures

    def _run_steps(self, now: _Known, structures: dict[int, Structure], num_steps: int) -> SimulatedRun:
        """Simulate that many steps in a row."""
        plan, folding = self.plan, now.folding
        if num_steps in structures:
            structure = structures[num_steps]
            graph = structure.priced(now.prices)
        else:
            in_a_row = _in_a_row(now.programs, num_steps)
            structure = compiled(plan, folding, in_a_row, now.prices, self._shapes, coalesce=self.coalesce)
            structures[num_steps], graph = structure, structure.graph
        loop = EventLoop(graph)
        loop.run()
        refuse_deadlock(SimulatedRun(plan, folding, structure.programs, now.prices, graph, loop))
        return SimulatedRun(plan, folding, now.programs, now.prices, graph, loop, num_steps)


def _shapes(program: Program) -> dict[str, TaskShape]:
    return {name: analyse(task) for name, task in program.tasks.items()}


def _in_a_row(programs: Mapping[int, Program], num_steps: int) -> Mapping[int, Program]:
    """Return the program of several steps of every rank; ranks with one program share it."""
    if num_steps == 1:
        return programs
    several = {key: repeated(p, num_steps) for key, p in {id(p): p for p in programs.values()}.items()}
    return {rank: several[id(program)] for rank, program in programs.items()}


def _price(
    plan: Plan, pricing: Pricing, folding: Folding, rank: int, shapes: Mapping[int, Mapping[str, TaskShape]]
) -> dict[str, PricedTask]:
    program = plan.program_of(rank)

    def folded(op: Op, activity: Activity) -> Activity:
        return folding.folded(op, rank, activity) if isinstance(op, LinkOp) else activity

    def priced(name: str, task: Task) -> PricedTask:
        launches_s, waits = pricing.launches_s(task), shapes[id(program)][name].predecessors
        alone = [pricing.price(plan, program, op, rank) for op in task.ops]
        late = launched(waits, launches_s, alone)  # as late as each rank's own, whoever else is like it
        return PricedTask(tuple(map(folded, task.ops, late)), launches_s)

    return {name: priced(name, task) for name, task in program.tasks.items()}
