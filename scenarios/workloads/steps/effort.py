"""The predicted cost of a step's simulation, once it is known which ranks are alike."""

from typing import Final

from scenarios.workloads.effort import Effort
from scenarios.workloads.steps.cost import num_nodes, num_task_ops, shortest_programs
from sim.engine.folding.folding import Folding
from sim.engine.running.shorter import Shorter
from sim.plan.words.program import Plan, Program

_OP_S: Final = 10e-6
"""To price and compile an op of a task for one rank, and to run a node of the graph."""
_NODE_BYTES: Final = 700
_PROGRAM_BYTES: Final = 70e6
"""The program itself, with its libraries."""
_TRIED: Final = 5
"""As many forms of a step are simulated where it may repeat itself in a way that has to be found."""


def effort_of(plan: Plan, folding: Folding, schedule: str) -> Effort:
    """Return what simulating a plan takes. Read off simulations of 20,000 to 300,000 nodes of the graph."""
    short = dict(zip(map(id, plan.programs), shortest_programs(plan, schedule), strict=True))
    programs = [plan.program_of(rank) for rank in folding.multiplicity]
    nodes = sum(num_nodes(short[id(program)]) for program in programs)
    if all(short[id(program)] is program for program in programs) and Shorter(plan).times:
        nodes *= _TRIED
    return Effort(
        num_ranks=plan.mesh.size,
        num_simulated=len(programs),
        num_ops=sum(_num_ops(short[id(program)]) for program in programs),
        time_s=_OP_S * (num_task_ops(programs) + nodes),
        memory_bytes=_PROGRAM_BYTES + _NODE_BYTES * nodes,
    )


def _num_ops(program: Program) -> int:
    """Return how many ops a rank runs in a step."""
    return sum(len(program.tasks[call.task].ops) for call in program.calls)
