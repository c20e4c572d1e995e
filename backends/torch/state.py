"""A rank's persistent tensors: parameters, gradients, optimizer state."""

from collections.abc import Mapping

import torch
from torch import Tensor

from backends.torch.errors import ExecutionError
from backends.torch.kernels import DTYPES
from backends.torch.randomness import initial_normal
from backends.torch.schedule import Slot
from backends.torch.slicing import flat_piece, local_slice
from sim.plan.buffer import Buffer, Scope
from sim.plan.program import Plan, Program


def persistent_slots(plan: Plan, program: Program, rank: int, device: torch.device) -> dict[str, Slot]:
    """Return a rank's persistent buffers, filled with their initial values.

    Raises ExecutionError for a way to start that is not known.
    """
    slots: dict[str, Slot] = {}
    names = [name for name, buffer in program.buffers.items() if buffer.scope is Scope.PERSISTENT]
    for name in sorted(names, key=lambda n: _needs_others(program.buffers[n])):
        buffer = program.buffers[name]
        tensor = torch.empty(buffer.shape, dtype=DTYPES[buffer.dtype], device=device)
        tensor.copy_(_initial_values(plan, rank, buffer, slots, device))
        slots[name] = Slot(buffer, kept=True)
        slots[name].fill(tensor)
    return slots


def _needs_others(buffer: Buffer) -> bool:
    return buffer.initial is not None and buffer.initial.method == "shard"


def _initial_values(plan: Plan, rank: int, buffer: Buffer, slots: Mapping[str, Slot], device: torch.device) -> Tensor:
    initial = buffer.initial
    if initial is None or initial.method == "zeros":
        return torch.zeros(buffer.shape, device=device)
    if initial.method == "ones":
        return torch.ones(buffer.shape, device=device)
    if initial.method == "normal":
        shape = buffer.global_shape or buffer.shape
        starts, sizes = local_slice(shape, buffer.layout, plan.mesh, rank)
        return initial.scale * initial_normal(plan.seed, initial.source, shape, starts, sizes, device=device)
    if initial.method == "shard":
        return flat_shard(initial.of, slots, plan.mesh.index(rank, initial.axes), buffer.shape[0])
    raise ExecutionError(f"buffer {buffer.name!r}: unknown initial method {initial.method!r}")


def flat_shard(names: tuple[str, ...], slots: Mapping[str, Slot], index: int, size: int) -> Tensor:
    """Return a piece of the flattened concatenation of some buffers."""
    tensors = [slots[name].tensor for name in names]
    return flat_piece(torch.cat([t.reshape(-1) for t in tensors if t is not None]), index, size)
