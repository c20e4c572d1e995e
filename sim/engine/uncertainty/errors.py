"""What is known of the errors of cost models: how large they are, and which calls of ops err alike."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sim.engine.critical_path import COPY, MESSAGE, kind_of
from sim.engine.variation import Variation
from sim.plan.description import collective_bytes, payload_bytes
from sim.plan.op import Collective, CollectiveKind, Compute, Op
from sim.plan.program import Program

NETWORK: Final = "network"
_COLLECTIVES: Final = frozenset(map(str, CollectiveKind))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelErrors:
    """Standard deviations of the logarithm of measured over predicted, all of them normal.

    ``sigma``: by kernel family, and of NETWORK, all errors of one call together; ``common`` is the part of that
    variance which all calls of a family share, from 0 to 1, the rest is of a kernel and shape, wherever it runs;
    ``step``: of the whole step, beside all of these. ``jitter``: by kernel family, how much devices of one type differ
    at random; ``drawn`` is what the predicted run has drawn of it already.
    """

    sigma: Mapping[str, float]
    common: float
    step: float
    jitter: Mapping[str, float] = field(default_factory=dict)
    drawn: Variation = field(default_factory=Variation)

    def of(self, kind: str) -> float:
        """Return a kind's standard deviation; of what moves bytes the network's, of stated times 0."""
        network = kind in {MESSAGE, COPY} or kind in _COLLECTIVES
        return self.sigma.get(NETWORK if network else kind, 0.0)


class ErrorClass(NamedTuple):
    """Calls that err alike: a kernel family, or what moves bytes, and what tells calls of it apart."""

    kind: str
    shape: Hashable


IN_FLIGHT: Final = ErrorClass(MESSAGE, None)
"""Of a message on its way whose op is not known."""


@dataclass(slots=True)
class ErrorClasses:
    """The classes of ops; each op is looked at once."""

    _known: dict[tuple[int, int], ErrorClass] = field(default_factory=dict)

    def of(self, program: Program, op: Op) -> ErrorClass:
        """Return an op's class. The program must live as long as this."""
        key = (id(program), id(op))
        if key not in self._known:
            self._known[key] = error_class(program, op)
        return self._known[key]


def error_class(program: Program, op: Op) -> ErrorClass:
    """Return an op's class: calls of one kernel on one shape, or as many bytes in groups along the same axes."""
    if isinstance(op, Compute):
        buffers = (program.buffers[name] for name in (*op.reads, *op.writes))
        return ErrorClass(kind_of(op), (op.kernel, *((buffer.shape, buffer.dtype) for buffer in buffers)))
    if isinstance(op, Collective):
        return ErrorClass(kind_of(op), (collective_bytes(program, op), op.axes))
    return ErrorClass(kind_of(op), payload_bytes(program, (*op.reads, *op.writes)))
