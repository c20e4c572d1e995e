"""Does an executed rank hold what the dense reference says it should?"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Final

import torch
from torch import Tensor

from backends.torch.interpreter import Interpreter
from backends.torch.reference import Reference
from backends.torch.slicing import flat_piece, local_slice
from sim.plan.buffer import Buffer, Kind, Scope
from sim.plan.op import Collective, CollectiveKind
from sim.plan.program import Program
from sim.training.spec import Precision

TOLERANCES: Final[Mapping[Precision, float]] = {"fp64": 1e-9, "fp32": 1e-3, "fp16": 0.05, "bf16": 0.2}
"""The largest error, relative to the largest element of a tensor, that rounding may explain on small models."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The largest error of every tensor, relative to the largest element of the reference's whole tensor."""

    errors: Mapping[str, float]
    tolerance: float

    @property
    def worst(self) -> tuple[str, float]:
        """Return the tensor that is furthest off, and how far; it is ("", 0) where nothing was compared."""
        return max(self.errors.items(), key=lambda item: item[1], default=("", 0.0))

    @property
    def passed(self) -> bool:
        """Return whether all errors are within the tolerance."""
        return all(error <= self.tolerance for error in self.errors.values())


def kept_for_check(program: Program) -> frozenset[str]:
    """Return the step's buffers that a check needs after the step: sharded sums of gradients that are not kept."""
    return frozenset(op.writes[0] for op in _gradient_scatters(program))


def check_rank(interpreter: Interpreter, reference: Reference, precision: Precision) -> CheckReport:
    """Compare a rank's loss, gradients, parameters and master copies with the reference's."""
    exact = precision == "fp64"
    errors = {}
    for name, actual, expected, gradient in _pairs(interpreter, reference):
        doubtful = None
        if gradient is not None and not exact:
            doubtful = gradient.abs() <= TOLERANCES[precision] * gradient.abs().max()
        errors[name] = relative_error(actual, expected, doubtful)
    return CheckReport(errors, TOLERANCES[precision])


def relative_error(actual: Tensor, expected: Tensor, ignored: Tensor | None = None) -> float:
    """Return the largest difference over the largest expected magnitude; infinite where anything is not a number.

    ``ignored`` marks elements that are not compared: Adam moves a parameter by the sign of its gradient, which is
    a matter of rounding where the gradient is nothing but rounding.
    """
    difference = (actual.to(torch.float64) - expected.to(torch.float64)).abs()
    if ignored is not None:
        difference = difference.masked_fill(ignored, 0.0)
    if not difference.numel():
        return 0.0
    largest, scale = float(difference.max()), float(expected.abs().max())
    if not isfinite(float(difference.sum())):
        return inf
    if largest == 0.0:
        return 0.0
    return largest / scale if scale else inf


# --- what is compared with what ----------------------------------------------------------------------------

Pair = tuple[str, Tensor, Tensor, Tensor | None]
"""Buffer, this rank's tensor, what it should be, and for parameters the gradient that moved them."""


def _pairs(interpreter: Interpreter, reference: Reference) -> Iterator[Pair]:
    program, slots = interpreter.program, interpreter.schedule.slots
    scatters = list(_gradient_scatters(program))
    unsummed = {name for op in scatters for name in op.reads}
    for (name, _), slot in slots.items():
        buffer = program.buffers[name]
        if buffer.scope is not Scope.PERSISTENT or slot.tensor is None or buffer.initial is None:
            continue
        if buffer.initial.source == "loss":
            yield name, slot.tensor, reference.loss.reshape(slot.tensor.shape), None
        elif buffer.initial.of:
            index = interpreter.plan.mesh.index(interpreter.rank, buffer.initial.axes)
            expected, gradient = (
                _flat(interpreter, buffer.initial.of, tensors, index, buffer.shape[0])
                for tensors in (reference.parameters, reference.gradients)
            )
            if buffer.kind is Kind.GRADIENT:
                yield name, slot.tensor, gradient, None
            else:
                yield name, slot.tensor, expected, gradient
        elif buffer.global_shape and name not in unsummed:
            yield _whole(interpreter, buffer, slot.tensor, reference)
    for op in scatters:
        tensor = slots[op.writes[0], None].tensor
        if tensor is not None:
            index = interpreter.plan.mesh.index(interpreter.rank, op.axes)
            yield op.writes[0], tensor, _flat(interpreter, op.reads, reference.gradients, index, tensor.numel()), None


def _gradient_scatters(program: Program) -> Iterator[Collective]:
    """Yield what makes a step's own sums of gradients; those that are accumulated in kept shards are not among them."""
    for task in program.tasks.values():
        for op in task.ops:
            flat = isinstance(op, Collective) and op.kind is CollectiveKind.REDUCE_SCATTER and op.dim is None
            if flat and all(program.buffers[name].kind is Kind.GRADIENT for name in op.reads):
                assert isinstance(op, Collective)
                if program.buffers[op.writes[0]].scope is Scope.STEP:
                    yield op


def _whole(interpreter: Interpreter, buffer: Buffer, actual: Tensor, reference: Reference) -> Pair:
    assert buffer.initial is not None
    gradient = _local(interpreter, buffer, reference.gradients)
    if buffer.kind is Kind.GRADIENT:
        return buffer.name, actual, gradient, None
    return buffer.name, actual, _local(interpreter, buffer, reference.parameters), gradient


def _local(interpreter: Interpreter, buffer: Buffer, tensors: Mapping[str, Tensor]) -> Tensor:
    assert buffer.initial is not None
    place = local_slice(buffer.global_shape, buffer.layout, interpreter.plan.mesh, interpreter.rank)
    return place.of(tensors[buffer.initial.source])


def _flat(
    interpreter: Interpreter, names: tuple[str, ...], tensors: Mapping[str, Tensor], index: int, size: int
) -> Tensor:
    buffers = interpreter.program.buffers
    pieces = [_local(interpreter, buffers[name], tensors).reshape(-1) for name in names]
    return flat_piece(torch.cat(pieces), index, size)
