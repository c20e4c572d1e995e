"""The predicted cost of simulating a plan: from counts of its ops, calls and ranks, never from a clock.

So two runs try the same changes on any machine. The constants are seconds of one core of 2024; BENCHMARKS.md has larger
runs. They were read off 60 simulations of the library's scenarios with one change each: half of the predictions are
within a factor of two.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from sim.engine.running.run import SimulatedRun
from sim.engine.running.shorter import Shorter
from sim.plan.words.calls import Calls
from sim.plan.words.op import Collective, Send
from sim.plan.words.program import Plan, Program, Task
from sim.plan.words.stream import Purpose, stream_of
from sim.training.spec.techniques import SPLIT_SCHEDULES

_BUILDING_S: Final = 40e-6
"""To lay out, check and measure the memory of an op of a task, however often the task is called."""
_COMPILING_S: Final = 50e-6
"""To price and compile an op of a task for one simulated rank."""
_CALL_S: Final = 7e-6
_RANK_S: Final = 40e-6
"""To fold a rank."""
_NODE_S: Final = 7e-6
"""To compile and run a node of the graph, which is an op, or a call of a task that coalesces."""
_NODES_PER_CALL: Final = 8
"""More than most calls take whose tasks coalesce."""
_FORMS: Final = 2
"""Shorter forms of a step are as long together as the first so many times, where it soon repeats itself."""
REPEATING: Final = ("1f1b", "interleaved_1f1b")
"""Schedules of which few forms are tried before one repeats itself."""
_TANGLED: Final = 3
"""Where backwards come in parts, calls wait for each other in many ways; each way takes time to find."""
_SPLITTING: Final = 4
"""Where parts are slow, ops one by one tell so many times more ranks apart than whole calls do."""


class CostModel(Struct, frozen=True):
    """What simulations of a scenario cost; ``ranks_per_program``: simulated ones. ``uneven``: some parts are slow.

    ``repeats``: steps of many micro-batches come back to the state they were in, so that shorter ones stand for them.
    """

    ranks_per_program: float
    uneven: bool
    repeats: bool = True

    @classmethod
    def of(cls, run: SimulatedRun, *, uneven: bool) -> "CostModel":
        """Return the model for plans like that of a run."""
        repeats = run.repeated is not None or not Shorter(run.plan).times
        return cls(len(run.programs) / len(run.plan.programs), uneven, repeats)

    def building_s(self, plan: Plan) -> float:
        """Return the seconds to lay out and check a plan, and to follow its memory."""
        calls = sum(len(program.calls) for program in plan.programs)
        return _BUILDING_S * num_task_ops(plan.programs) + _CALL_S * calls

    def simulating_s(self, plan: Plan, schedule: str) -> float:
        """Return the seconds to simulate a plan that is built."""
        compiling_s = _COMPILING_S * self.ranks_per_program * num_task_ops(plan.programs)
        simulated = shortest_programs(plan, schedule) if self.repeats else plan.programs
        nodes = num_nodes(simulated)
        if any(_in_single_ops(task) for program in plan.programs for task in program.tasks.values()) and self.uneven:
            nodes *= _SPLITTING
        forms = _FORMS if schedule in REPEATING and Shorter(plan).times else 1
        if schedule in SPLIT_SCHEDULES:
            compiling_s *= _TANGLED
        return compiling_s + _RANK_S * plan.mesh.size + _NODE_S * self.ranks_per_program * nodes * forms


def num_task_ops(programs: Iterable[Program]) -> int:
    """Return the number of ops of all tasks, however often they are called."""
    return sum(len(task.ops) for program in programs for task in program.tasks.values())


def shortest_programs(plan: Plan, schedule: str) -> Sequence[Program]:
    """Return the programs that a run passes through, in the plan's order: those of the shortest form of a step."""
    shorter = Shorter(plan)
    short = shorter.without(shorter.times[0]) if schedule in REPEATING and shorter.times else None
    return plan.programs if short is None else [short.programs[id(program)] for program in plan.programs]


def num_nodes(programs: Iterable[Program]) -> int:
    """Return about how many nodes of the engine's graph programs become, which may share tasks."""
    of_tasks: dict[int, dict[str, int]] = {}
    nodes = 0
    for program in programs:
        key = id(program.tasks)
        if key not in of_tasks:
            of_tasks[key] = {name: _nodes_of(task) for name, task in program.tasks.items()}
        nodes += sum(count * of_tasks[key][name] for name, count in Calls.of(program.calls).counts().items())
    return nodes


def _nodes_of(task: Task) -> int:
    return len(task.ops) if _in_single_ops(task) else min(len(task.ops), _NODES_PER_CALL)


def _in_single_ops(task: Task) -> bool:
    """Return whether calls of a task of many ops are simulated op by op: they send, or synchronise, on the way."""
    if not task.traits.coalesces:
        return False
    streams = {op.stream for op in task.ops if isinstance(op, Collective)}
    synchronises = any(stream_of(stream).purpose is Purpose.DATA for stream in streams)
    return synchronises or Send in set(map(type, task.ops))
