"""Comparison of an executed rank's tensors with those of the dense reference."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite
from typing import Final, NamedTuple

import torch
from torch import Tensor

from backends.execution.result import CheckReport
from backends.torch.reference.dense import Reference
from backends.torch.running.interpreter import Interpreter
from backends.torch.values.slicing import cut, flat_piece
from sim.plan.facts.slices import buffer_slice
from sim.plan.words.buffer import Buffer, Kind, Scope
from sim.plan.words.op import Collective, CollectiveKind
from sim.plan.words.program import Program
from sim.training.spec.job import Precision

TOLERANCES: Final[Mapping[Precision, float]] = {"fp64": 1e-9, "fp32": 1e-3, "fp16": 0.05, "bf16": 0.2, "fp8": 0.5}
"""Tolerance of rounding on small models: an error relative to the largest element of its tensor."""


def kept_for_check(program: Program) -> frozenset[str]:
    """Return the buffers that a check reads after the step: summed gradients of that step, whole or sharded."""
    steps = {n for n, b in program.buffers.items() if b.kind is Kind.GRADIENT and b.scope is Scope.STEP}
    unsummed = {name for op in _flat_scatters(program) if op.reads != op.writes for name in op.reads}
    return frozenset(steps - unsummed) | {name for op in _gradient_scatters(program) for name in op.writes}


def check_rank(interpreter: Interpreter, reference: Reference, precision: Precision) -> CheckReport:
    """Compare a rank's loss, gradients, parameters and master copies with the reference's."""
    exact = precision == "fp64"
    errors: dict[str, float] = {}
    for pair in _pairs(interpreter, reference):
        doubtful = None
        if pair.moved_by is not None and not exact:
            gradient = pair.moved_by
            doubtful = gradient.part.abs() <= TOLERANCES[precision] * gradient.whole.abs().max()
        error = relative_error(pair.actual, pair.expected.part, doubtful, pair.expected.whole)
        errors[pair.name] = max(error, errors.get(pair.name, 0.0))
    return CheckReport(errors, TOLERANCES[precision])


def relative_error(
    actual: Tensor, expected: Tensor, ignored: Tensor | None = None, whole: Tensor | None = None
) -> float:
    """Return the largest difference, relative to the largest expected magnitude; infinity if any element is NaN.

    ``ignored``: elements that are not compared. Adam moves a parameter by the sign of its gradient; if the gradient is
    only rounding error, so is its sign.
    ``whole``: the tensor of which ``expected`` is a part; its largest magnitude is the divisor.
    """
    difference = actual.to(expected.device, torch.float64) - expected.to(torch.float64)
    if ignored is not None:
        difference = difference.masked_fill(ignored, 0.0)
    if not difference.numel():
        return 0.0
    largest, scale = _largest(difference), _largest(expected if whole is None else whole)
    if not isfinite(largest):
        return inf
    if largest == 0.0:
        return 0.0
    return largest / scale if scale else inf


def _largest(x: Tensor) -> float:
    """Return the largest magnitude of a tensor, NaN if any element is."""
    return float(torch.linalg.vector_norm(x, inf))


# --- what is compared with what ----------------------------------------------------------------------------


class Part(NamedTuple):
    """A part of a rank's slice of a reference tensor, together with the whole slice."""

    part: Tensor
    whole: Tensor


class Pair(NamedTuple):
    """A buffer or a part of it, its expected value, and, for a parameter, the gradient of its last update."""

    name: str
    actual: Tensor
    expected: Part
    moved_by: Part | None = None


def _pairs(interpreter: Interpreter, reference: Reference) -> Iterator[Pair]:
    program, slots = interpreter.program, interpreter.schedule.slots
    scatters = list(_gradient_scatters(program))
    unsummed = {name for op in scatters for name in op.reads}
    for (name, _), slot in slots.items():
        buffer = program.buffers[name]
        if slot.tensor is None or buffer.initial is None or name in program.released:
            continue
        if buffer.initial.source in reference.losses:
            loss = reference.losses[buffer.initial.source].reshape(slot.tensor.shape)
            yield Pair(name, slot.tensor, Part(loss, loss))
        elif buffer.initial.of:
            yield from _flat(interpreter, buffer, buffer.initial.of, buffer.initial.axes, slot.tensor, reference)
        elif buffer.global_shape and name not in unsummed:
            yield _whole(interpreter, buffer, slot.tensor, reference)
    for op in scatters:
        tensors = [tensor for name in op.writes if (tensor := slots[name, None].tensor) is not None]
        if len(tensors) == len(op.writes):
            yield from _scattered(interpreter, op, tensors, reference)


def _scattered(
    interpreter: Interpreter, op: Collective, tensors: Sequence[Tensor], reference: Reference
) -> Iterator[Pair]:
    """Yield pairs for a rank's piece of the summed gradients, in place or in a buffer of its own."""
    first = interpreter.program.buffers[op.writes[0]]
    if op.reads != op.writes:
        yield from _flat(interpreter, first, op.reads, op.axes, tensors[0], reference)
        return
    mesh = interpreter.plan.mesh
    size = -(-sum(tensor.numel() for tensor in tensors) // mesh.degree(*op.axes))
    piece = flat_piece(tensors, mesh.index(interpreter.rank, op.axes), size)
    pairs = _flat(interpreter, first, op.reads, op.axes, piece, reference)
    for name, pair in zip((*op.writes, op.writes[-1]), pairs, strict=True):  # the last one is the padding
        yield pair._replace(name=name)


def _gradient_scatters(program: Program) -> Iterator[Collective]:
    """Yield the collectives that sum a step's own gradients, except those whose result is added to kept shards."""
    for op in _flat_scatters(program):
        if op.reads == op.writes or program.buffers[op.writes[0]].scope is Scope.STEP:
            yield op


def _flat_scatters(program: Program) -> Iterator[Collective]:
    """Yield the collectives that give a rank its flat piece of a sum of gradients."""
    for task in program.tasks.values():
        for op in task.ops:
            flat = isinstance(op, Collective) and op.kind is CollectiveKind.REDUCE_SCATTER and op.dim is None
            if flat and all(program.buffers[name].kind is Kind.GRADIENT for name in op.reads):
                assert isinstance(op, Collective)
                yield op


def _whole(interpreter: Interpreter, buffer: Buffer, actual: Tensor, reference: Reference) -> Pair:
    gradient = _local(interpreter, buffer, reference.gradients)
    if buffer.kind is Kind.GRADIENT:
        return Pair(buffer.name, actual, Part(gradient, gradient))
    is_behind = buffer.initial is not None and buffer.initial.delay
    parameter = _local(interpreter, buffer, reference.previous if is_behind else reference.parameters)
    return Pair(buffer.name, actual, Part(parameter, parameter), Part(gradient, gradient))


def _local(interpreter: Interpreter, buffer: Buffer, tensors: Mapping[str, Tensor]) -> Tensor:
    assert buffer.initial is not None
    place = buffer_slice(buffer, interpreter.plan.mesh, interpreter.rank)
    return cut(tensors[buffer.initial.source], place)


def _flat(
    interpreter: Interpreter,
    buffer: Buffer,
    of: tuple[str, ...],
    axes: tuple[str, ...],
    actual: Tensor,
    reference: Reference,
) -> Iterator[Pair]:
    """Yield pairs for a flat piece, tensor by tensor, and for the zeros that pad the last piece."""
    size = actual.numel()
    start, position = interpreter.plan.mesh.index(interpreter.rank, axes) * size, 0
    for name in of:
        gradient, parameter = (
            _local(interpreter, interpreter.program.buffers[name], tensors).reshape(-1)
            for tensors in (reference.gradients, reference.parameters)
        )
        begin = min(max(start - position, 0), gradient.numel())
        end = min(max(start + size - position, 0), gradient.numel())
        own = actual[begin + position - start : end + position - start] if begin < end else actual[:0]
        moved_by, value = (Part(tensor[begin:end], tensor) for tensor in (gradient, parameter))
        yield (
            Pair(buffer.name, own, moved_by)
            if buffer.kind is Kind.GRADIENT
            else Pair(buffer.name, own, value, moved_by)
        )
        position += gradient.numel()
    padding = actual[max(position - start, 0) :]
    yield Pair(buffer.name, padding, Part(torch.zeros_like(padding), torch.zeros(1)))
