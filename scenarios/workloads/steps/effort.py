"""The predicted cost of a step's simulation, once it is known which ranks are alike."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from scenarios.workloads.effort import Effort
from scenarios.workloads.steps.cost import REPEATING, num_nodes, num_task_ops
from sim.engine.folding.folding import Folding
from sim.engine.running.paced import MULTIPLE
from sim.engine.running.shorter import SectionForm, Shorter
from sim.engine.running.simulate import NUMBERS_OF_STEPS
from sim.plan.facts.sections import Cut
from sim.plan.words.calls import Calls, num_ops_of
from sim.plan.words.program import Program

_OP_S: Final = 10e-6
"""To price and compile an op of a task for one rank, and to run a node of the graph."""
_NODE_BYTES: Final = 700
_PROGRAM_BYTES: Final = 70e6
"""The program itself, with its libraries."""
_TRIED: Final = 5
"""As many shorter forms of a step are simulated where it may repeat itself in a way that has to be found."""


class _Form(Struct, frozen=True):
    """The programs of a step, by identity of the plan's own; those of the last of several steps may only begin it."""

    step: Mapping[int, Program]
    last: Mapping[int, Program]

    def num_nodes(self, programs: Sequence[Program], in_a_row: int) -> int:
        """Return about how many nodes of the engine's graph so many steps of some of the plan's programs become."""
        keys = list(map(id, programs))
        last = num_nodes(self.last[key] for key in keys)
        step = last if self.step is self.last else num_nodes(self.step[key] for key in keys)
        return (in_a_row - 1) * step + last


def effort_of(shorter: Shorter, folding: Folding, schedule: str, *, whole: bool = False) -> Effort:
    """Return what simulating a plan takes. Read off simulations of 20,000 to 300,000 nodes of the graph.

    ``shorter``: its shorter forms, which the simulation makes as well. ``whole``: it is known that the step does not
    repeat itself.
    """
    plan = shorter.plan
    programs = [plan.program_of(rank) for rank in folding.multiplicity]
    itself = {id(program): program for program in plan.programs}
    forms = [] if whole else _forms(shorter, schedule)
    forms = forms or [_Form(itself, itself)]
    in_a_row = 1 if plan.barrier else NUMBERS_OF_STEPS[0]
    nodes = sum(form.num_nodes(programs, in_a_row) for form in forms)
    return Effort(
        num_ranks=plan.mesh.size,
        num_simulated=len(programs),
        num_ops=sum(num_ops_of(forms[-1].step[id(program)]) for program in programs),
        time_s=_OP_S * (num_task_ops(programs) + nodes),
        memory_bytes=_PROGRAM_BYTES + _NODE_BYTES * nodes,
    )


def _forms(shorter: Shorter, schedule: str) -> list[_Form]:
    """Return the forms of a step that are simulated one after the other.

    There are none where it cannot repeat itself. How many it takes to see that it does is a guess.
    """
    left_out = shorter.times[: 1 if schedule in REPEATING else _TRIED]
    found = [form.programs for times in left_out if (form := shorter.without(times)) is not None]
    return [_Form(programs, programs) for programs in found] or _in_sections(shorter)


def _in_sections(shorter: Shorter) -> list[_Form]:
    """Return the shortest form of a step whose sections recur less often; without a barrier the last is only begun."""
    forms = list[_Form]()
    for form in shorter.section_forms(MULTIPLE)[:1]:
        if (cuts := shorter.in_sections(form)) is not None:
            step = {key: cut.program for key, cut in cuts.items()}
            forms.append(_Form(step, step if shorter.plan.barrier else _begun(form, cuts)))
    return forms


def _begun(form: SectionForm, cuts: Mapping[int, Cut]) -> Mapping[int, Program]:
    """Return the programs of a form's last step, which make at most their first calls."""
    first = {key: Calls.of(cut.program.calls)[: form.most_begun(cut)] for key, cut in cuts.items()}
    return {key: cut.program.calling(first[key]) for key, cut in cuts.items()}
