"""The predicted cost of a step's simulation, once it is known which ranks are alike."""

from collections.abc import Mapping, Sequence
from typing import Final

from scenarios.workloads.effort import Effort
from scenarios.workloads.steps.cost import REPEATING, num_nodes, num_task_ops
from sim.engine.folding.folding import Folding
from sim.engine.running.paced import MULTIPLE
from sim.engine.running.shorter import Shorter
from sim.engine.running.simulate import NUMBERS_OF_STEPS
from sim.plan.words.calls import num_ops_of
from sim.plan.words.program import Program

_OP_S: Final = 10e-6
"""To price and compile an op of a task for one rank, and to run a node of the graph."""
_NODE_BYTES: Final = 700
_PROGRAM_BYTES: Final = 70e6
"""The program itself, with its libraries."""
_TRIED: Final = 5
"""As many shorter forms of a step are simulated where it may repeat itself in a way that has to be found."""


def effort_of(shorter: Shorter, folding: Folding, schedule: str, *, whole: bool = False) -> Effort:
    """Return what simulating a plan takes. Read off simulations of 20,000 to 300,000 nodes of the graph.

    ``shorter``: its shorter forms, which the simulation makes as well. ``whole``: it is known that the step does not
    repeat itself.
    """
    plan = shorter.plan
    programs = [plan.program_of(rank) for rank in folding.multiplicity]
    itself = {id(program): program for program in plan.programs}
    possible = [itself] if whole else _forms(shorter, schedule) or [itself]
    forms = [[form[id(program)] for program in programs] for form in possible]
    in_a_row = 1 if plan.barrier else NUMBERS_OF_STEPS[0]
    nodes = [in_a_row * sum(map(num_nodes, form)) for form in forms]
    return Effort(
        num_ranks=plan.mesh.size,
        num_simulated=len(programs),
        num_ops=sum(map(num_ops_of, forms[-1])),
        time_s=_OP_S * (num_task_ops(programs) + sum(nodes)),
        memory_bytes=_PROGRAM_BYTES + _NODE_BYTES * sum(nodes),
    )


def _forms(shorter: Shorter, schedule: str) -> Sequence[Mapping[int, Program]]:
    """Return the forms of a step that are simulated one after the other, each by identity of the plan's own programs.

    There are none where it cannot repeat itself. How many it takes to see that it does is a guess.
    """
    left_out = shorter.times[: 1 if schedule in REPEATING else _TRIED]
    found = [form.programs for times in left_out if (form := shorter.without(times)) is not None]
    return found or _in_sections(shorter)


def _in_sections(shorter: Shorter) -> Sequence[Mapping[int, Program]]:
    """Return the shortest form of a step whose sections recur less often."""
    cuts = (shorter.in_sections(form) for form in shorter.section_forms(MULTIPLE)[:1])
    return [{key: cut.program for key, cut in found.items()} for found in cuts if found is not None]
