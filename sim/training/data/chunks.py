"""Chunks as units: parameters in the order of the model, packed into flat vectors of one length (Gemini).

A stage's parameters have chunks of their own, and so have experts that are split over ``ep``, since fewer ranks hold
them, and a tied table that two virtual stages use.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from msgspec.structs import replace

from sim.memory.chunks import best_chunk_elements, pack
from sim.memory.movement import Stay, still_there
from sim.memory.spec import ChunkSpec
from sim.plan.functions.tracing import Parameter
from sim.plan.words.buffer import BYTES_PER_ELEMENT
from sim.plan.words.op import Op
from sim.training.data.buckets import is_shared_out
from sim.training.data.homes import ON_DEVICE, ON_HOST, UPDATED_ON_HOST, Home
from sim.training.data.optimizer import StepEndWriter
from sim.training.data.units import Unit, make_unit
from sim.training.data.warm_up import Room
from sim.training.errors import SpecError


class ChunkStepEndWriter(StepEndWriter, frozen=True):
    """Writes the end of a step whose flat vectors are chunks. ``chunk_elements``: the length of a chunk."""

    chunk_elements: int = 0

    def piece_size(self, parameters: Sequence[Parameter]) -> int:
        """Return the elements of a rank's piece of a chunk, which may be longer than its parameters.

        A chunk that one rank alone holds has no empty end, since it is copied and not gathered.
        """
        own = StepEndWriter.piece_size(self, parameters)
        if not self.is_shared(parameters):
            return own
        return max(own, -(-self.chunk_elements // self.tracer.mesh.degree(*self.shard_axes(parameters))))


def chunk_elements(chunks: ChunkSpec, groups: Mapping[int, Sequence[Parameter]], hidden_size: int) -> int:
    """Return the length of a rank's chunks: the stated one, or the one that wastes least."""
    parameters = [p for group in groups.values() for p in group]
    if not parameters:
        return 0
    if chunks.chunk_bytes is not None:
        return max(1, chunks.chunk_bytes // BYTES_PER_ELEMENT[parameters[0].value.dtype])
    return best_chunk_elements([_length(p) for p in parameters], hidden_size)


def chunk_units(groups: Mapping[int, Sequence[Parameter]], length: int) -> list[Unit]:
    """Return the chunks of a rank's parameters, given by stage of the model, in the order of the model."""
    members: list[list[Parameter]] = []
    for group in groups.values():
        for is_apart in (False, True):
            alike = [p for p in group if is_shared_out(p) is is_apart]
            members += [[alike[i] for i in chunk] for chunk in pack([_length(p) for p in alike], length)]
    return [make_unit(f"chunk{i}", chunk) for i, chunk in enumerate(members)]


def chunk_homes(chunks: ChunkSpec, step_end: StepEndWriter, units: Sequence[Unit]) -> dict[str, Home]:
    """Return where chunks lie: the first ones on the host, until the stated fractions of the bytes do.

    Raises SpecError where a chunk that one rank alone holds is to lie on the device and to be updated on the host.
    """
    if chunks.placement == "auto":
        return {unit.name: ON_HOST for unit in units}
    total, before, homes = sum(unit.num_bytes for unit in units), 0, {}
    for unit in units:
        part = before / total
        before += unit.num_bytes
        home = ON_HOST if part < chunks.parameters else UPDATED_ON_HOST if part < chunks.optimizer else ON_DEVICE
        if home is UPDATED_ON_HOST and not step_end.is_shared(unit.parameters):
            rule = "a rank without replicas holds whole chunks, which it does not gather into others"
            remedy = "write parameters: 1, or use parallel.data.offload: optimizer in the place of memory"
            raise SpecError("memory.offload.optimizer", rule, remedy)
        homes[unit.name] = home
    return homes


def kept_chunks(
    chunks: ChunkSpec, passes: Sequence[Sequence[Op]], units: Sequence[Unit], room: Room, ahead: int
) -> frozenset[str]:
    """Return the chunks that backward finds on the device since forward.

    ``passes``: the ops of a forward and of its backward. ``ahead``: how many chunks come ahead; they need room, too.
    Raises BudgetError where chunks in use do not fit.
    """
    stays = list(_stays(passes, units, until_reduced=chunks.holds_gradients))
    moments, coming_bytes = _moments(passes, units), ahead * max(unit.num_bytes for unit in units)
    budgets_bytes = [room_bytes - coming_bytes for room_bytes in room.budgets(stays, moments)]
    found = still_there(stays, budgets_bytes)
    return frozenset(stay.unit for stay, is_there in zip(stays, found, strict=True) if is_there)


def _moments(passes: Sequence[Sequence[Op]], units: Sequence[Unit]) -> list[int]:
    """Return the places of the ops that read units, of all passes in a row."""
    values = {name for unit in units for name in unit.values}
    return [place for place, op in enumerate(op for ops in passes for op in ops) if not values.isdisjoint(op.reads)]


def _stays(passes: Sequence[Sequence[Op]], units: Sequence[Unit], *, until_reduced: bool) -> Iterator[Stay]:
    """Yield the stays of units in each pass, in the order of their first ops.

    ``until_reduced``: a stay ends with the last gradient of its unit, and not with the last use of the parameters.
    """
    unit_of, start = {name: unit for unit in units for name in unit.values}, 0
    adding_to = {name: unit for unit in units for name in unit.gradients} if until_reduced else {}
    for ops in passes:
        stays: dict[str, Stay] = {}
        for position, op in enumerate(ops, start):
            for unit in (unit_of[name] for name in op.reads if name in unit_of):
                stay = stays.get(unit.name) or Stay(unit.name, position, position, unit.num_bytes)
                stays[unit.name] = replace(stay, last=position)
            for unit in (adding_to[name] for name in op.writes if name in adding_to):
                if unit.name in stays:
                    stays[unit.name] = replace(stays[unit.name], last=position)
        yield from stays.values()
        start += len(ops)


def _length(parameter: Parameter) -> int:
    return prod(parameter.value.shape)
