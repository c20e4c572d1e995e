"""Which ranks are simulated, and whom each one stands for."""

from collections.abc import Mapping
from dataclasses import dataclass

from sim.plan.program import Plan


@dataclass(frozen=True, slots=True)
class Folding:
    """``stands_for`` maps every rank to the simulated rank of its class; ``multiplicity`` counts each class."""

    stands_for: Mapping[int, int]
    multiplicity: Mapping[int, int]
    folded: bool


def fold_by_role(plan: Plan) -> Folding:
    """Return one class per role: ranks that run one program on a homogeneous cluster cannot differ."""
    stands_for: dict[int, int] = {}
    multiplicity: dict[int, int] = {}
    for program in plan.programs:
        ranks = plan.ranks_of(program)
        stands_for.update(dict.fromkeys(ranks, ranks[0]))
        multiplicity[ranks[0]] = len(ranks)
    return Folding(stands_for, multiplicity, folded=True)


def no_fold(plan: Plan) -> Folding:
    """Return one class per rank."""
    ranks = range(plan.mesh.size)
    return Folding({r: r for r in ranks}, dict.fromkeys(ranks, 1), folded=False)
