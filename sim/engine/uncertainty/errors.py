"""Known errors of cost models: their sizes, and the classes of calls that share an error."""

from collections.abc import Hashable, Mapping
from typing import Final

import msgspec
from msgspec import Struct, field

from costmodels.spread import NETWORK, Place, Spread, kernel_place, spread_family, transfer_place
from sim.engine.findings.critical_path import MESSAGE, kind_of
from sim.engine.prices.variation import Variation
from sim.engine.running.run import SimulatedRun
from sim.plan.facts.description import collective_bytes, kernel_signature, kernel_work, payload_bytes
from sim.plan.words.op import Collective, Compute, Op
from sim.plan.words.program import Program


class ModelErrors(Struct, frozen=True, kw_only=True):
    """Errors of the logarithm of measured over predicted, all of them normal.

    ``spread``: by kernel family, and of NETWORK; a family that is missing, as that of stated times, has no errors.
    ``step``: standard deviation of the whole step, beside all of these. ``jitter``: by kernel family, how much devices
    of one type differ at random; ``drawn`` is what the predicted run has drawn of it already.
    """

    spread: Mapping[str, Spread]
    step: float
    jitter: Mapping[str, float] = msgspec.field(default_factory=dict)
    drawn: Variation = msgspec.field(default_factory=Variation)


class ErrorClass(Struct, frozen=True, cache_hash=True):
    """A class of calls with one error: its family (NETWORK: transfers), its place in the family, its own key.

    A key of many tables, so its hash is found once. ``kernels``: the family of kernels that they are of, in which
    devices differ; empty for what moves bytes.
    """

    family: str
    place: Place
    shape: Hashable
    kernels: str = ""


IN_FLIGHT: Final = ErrorClass(NETWORK, transfer_place(MESSAGE, 1), None)
"""Of a message on its way whose op is not known."""


class ErrorClasses(Struct):
    """The classes of ops; each distinct op of a program, and each work of a shape, is looked at once.

    Programs must live as long as this.
    """

    _of_distinct: dict[int, list[ErrorClass]] = field(default_factory=dict)
    """Of programs, by the identity of what holds their distinct ops."""
    _kernels: dict[Hashable, ErrorClass] = field(default_factory=dict)

    def of_distinct(self, program: Program) -> list[ErrorClass]:
        """Return the classes of a program's distinct ops."""
        distinct = program.distinct_ops
        if id(distinct) not in self._of_distinct:
            self._of_distinct[id(distinct)] = [
                self._kernel(program, op) if isinstance(op, Compute) else _transfer(program, op) for op in distinct.ops
            ]
        return self._of_distinct[id(distinct)]

    def predicted_s(self, run: SimulatedRun) -> Mapping[ErrorClass, float]:
        """Return how long calls of every class of a run take alone, at most: also without those that they stand for."""
        found: dict[ErrorClass, float] = {}
        for rank, program in run.programs.items():
            classes, of_task = self.of_distinct(program), program.distinct_ops.of_task
            for name, priced in run.priced[rank].items():
                ops = zip(of_task[name], priced.activities, strict=True)
                for place, activity in dict(zip(priced.keys(of_task[name]), ops, strict=True)).values():
                    found[classes[place]] = max(found.get(classes[place], 0.0), activity.single_duration_s)
        return found

    def _kernel(self, program: Program, op: Compute) -> ErrorClass:
        key = kernel_signature(program, op)
        found = self._kernels.get(key)
        if found is None:
            buffers = map(program.buffers.__getitem__, op.reads + op.writes)
            shape = (op.kernel, *[(buffer.shape, buffer.dtype) for buffer in buffers])
            family = kind_of(op)
            place = kernel_place(family, op.kernel, kernel_work(program, op))
            found = self._kernels[key] = ErrorClass(spread_family(family), place, shape, family)
        return found


def _transfer(program: Program, op: Op) -> ErrorClass:
    if isinstance(op, Collective):
        kind, num_bytes = (str(op.kind), *op.axes), collective_bytes(program, op)
    else:
        kind, num_bytes = (kind_of(op),), payload_bytes(program, (*op.reads, *op.writes))
    return ErrorClass(NETWORK, transfer_place(kind, num_bytes), (kind, num_bytes))
