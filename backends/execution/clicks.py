"""The check of executed steps of a click model. It needs no torch."""

from collections.abc import Sequence

from msgspec import Struct

from backends.execution.result import Execution
from sim.embedding.ids import Table
from sim.embedding.policies import Ints
from sim.embedding.rank_batch import RankBatch
from sim.embedding.step.spec import ClickStep
from sim.plan.words.buffer import Scope
from sim.plan.words.program import Plan


class ClickCheck(Struct, frozen=True, kw_only=True):
    """Steps that ran one after the other, to be compared with plain torch on whole tables.

    ``ids``: of each step, the rows that its batch reads, table after table. ``last``: the last step, with all its
    ``persistent`` buffers among its values. ``parts``: the ranks' parts of its batch.
    """

    step: ClickStep
    tables: Sequence[Table]
    ids: Sequence[Ints]
    last: Execution
    parts: Sequence[RankBatch]


def persistent(plan: Plan) -> frozenset[str]:
    """Return the buffers of a plan that outlive a step."""
    return frozenset(
        name
        for program in plan.programs
        for name, buffer in program.buffers.items()
        if buffer.scope is Scope.PERSISTENT
    )
