"""A rank's persistent tensors: parameters, gradients, optimizer state."""

from collections.abc import Mapping
from math import nan
from typing import Final

import torch
from torch import Tensor

from backends.execution.errors import ExecutionError
from backends.torch.kernels import DTYPES
from backends.torch.kernels.float8 import eight_bit_scale
from backends.torch.running.schedule import Slot
from backends.torch.values.copying import empty, place_of
from backends.torch.values.randomness import initial_normal
from backends.torch.values.slicing import flat_piece
from sim.plan.facts.slices import buffer_slice
from sim.plan.words.buffer import Buffer, Scope
from sim.plan.words.program import Plan, Program

_CONSTANTS: Final[Mapping[str, float]] = {"zeros": 0.0, "ones": 1.0}
"""The number that fills a buffer, by its initial method."""


def persistent_slots(
    plan: Plan, rank: int, device: torch.device, left: Mapping[str, Tensor] | None = None
) -> dict[str, Slot]:
    """Return a rank's persistent buffers with their initial values, or with the tensors left by earlier plans.

    ``left``: tensors of earlier plans by buffer name; None for the first plan. A later plan writes a buffer that is
    missing there before it reads the buffer; until then its floating-point elements are NaN.
    Raises ExecutionError for an unknown initial method.
    """
    program = plan.program_of(rank)
    slots: dict[str, Slot] = {}
    for name, buffer in program.buffers.items():
        if buffer.scope is Scope.PERSISTENT:
            slots[name] = Slot(buffer, kept=True)
            if left is None:
                tensor = _initial_tensor(plan, program, rank, buffer, device)
            else:
                tensor = left[name] if _fits(left.get(name), buffer, device) else _blank(buffer, device)
            slots[name].fill(tensor)
    return slots


def _fits(tensor: Tensor | None, buffer: Buffer, device: torch.device) -> bool:
    if tensor is None:
        return False
    expected = buffer.shape, DTYPES[buffer.dtype], place_of(buffer, device)
    return expected == (tuple(tensor.shape), tensor.dtype, tensor.device)


def _blank(buffer: Buffer, device: torch.device) -> Tensor:
    tensor = empty(buffer, DTYPES[buffer.dtype], device)
    return tensor.fill_(nan) if tensor.is_floating_point() else tensor.zero_()


def _initial_tensor(plan: Plan, program: Program, rank: int, buffer: Buffer, device: torch.device) -> Tensor:
    tensor, method = empty(buffer, DTYPES[buffer.dtype], device), buffer.initial.method if buffer.initial else "zeros"
    if method in _CONSTANTS:
        return tensor.fill_(_CONSTANTS[method])
    return tensor.copy_(_initial_values(plan, program, rank, buffer, device))


def _initial_values(plan: Plan, program: Program, rank: int, buffer: Buffer, device: torch.device) -> Tensor:
    initial = buffer.initial
    assert initial is not None
    if initial.method == "normal":
        shape = buffer.global_shape or buffer.shape
        starts, sizes = buffer_slice(buffer, plan.mesh, rank)
        return initial.scale * initial_normal(plan.seed, initial.source, shape, starts, sizes, device=device)
    if initial.method == "eight_bits":
        starts, sizes = buffer_slice(buffer, plan.mesh, rank)
        values, scale = _scaled(plan, buffer, device)
        return (values * scale)[tuple(slice(a, a + n) for a, n in zip(starts, sizes, strict=True))]
    if initial.method == "scale":
        _, scale = _scaled(plan, program.buffers[initial.of[0]], device)
        return (1.0 / scale).reshape(1)
    if initial.method == "shard":  # of source buffers' initial values, in their types; this rank may not keep them
        whole = [_initial_tensor(plan, program, rank, program.buffers[name], device) for name in initial.of]
        return flat_piece(whole, plan.mesh.index(rank, initial.axes), buffer.shape[0])
    raise ExecutionError(f"buffer {buffer.name!r}: unknown initial method {initial.method!r}")


def _scaled(plan: Plan, buffer: Buffer, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the whole tensor of a weight that is kept in eight bits, and the scale by which it is multiplied."""
    initial, shape = buffer.initial, buffer.global_shape
    assert initial is not None
    whole = initial.scale * initial_normal(plan.seed, initial.source, shape, [0] * len(shape), shape, device=device)
    return whole, eight_bit_scale(whole, DTYPES[buffer.dtype])
