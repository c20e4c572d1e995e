"""The layout of state in tiers of memory: what moves as one unit, where its shards lie, how long it stays gathered."""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from sim.memory.spec import ChunkSpec, MemorySpec
from sim.plan.functions.tracing import Parameter, ProgramTracer
from sim.plan.words.buffer import BYTES_PER_ELEMENT
from sim.training.data.chunks import ChunkStepEndWriter, chunk_elements, chunk_homes, chunk_units, kept_chunks
from sim.training.data.homes import ON_DEVICE, ON_HOST, Home
from sim.training.data.optimizer import StepEndWriter
from sim.training.data.sharding import Gathering, gathering_of, shares_table
from sim.training.data.units import Unit, layer_units, with_table_apart
from sim.training.data.warm_up import Room, passes_of
from sim.training.spec.job import DenseTraining


class TierLayout(Struct, frozen=True):
    """``step_end``: knows how long the flat vectors of units are. ``homes``: of the shards of each unit."""

    step_end: StepEndWriter
    units: Sequence[Unit]
    homes: Mapping[str, Home]
    gathering: Gathering


def layout_of(
    job: DenseTraining,
    tracer: ProgramTracer,
    step_end: StepEndWriter,
    groups: Mapping[int, Sequence[Parameter]],
    room: Room | None,
) -> TierLayout:
    """Return the layout that the manager of memory makes; the program's passes are written.

    ``groups``: the rank's parameters by stage of the model. ``room``: for gathered chunks, where these stay from a
    forward to its backward; None: they do not. Raises BudgetError where parameters in use do not fit.
    """
    memory = job.parallel.memory
    assert memory is not None
    fresh = {stage: [tracer.parameters[p.source] for p in group] for stage, group in groups.items()}
    if memory.chunks is not None:
        return _chunks(job, step_end, fresh, memory.chunks, room)
    parameters, apart = [p for group in fresh.values() for p in group], shares_table(job)
    units = layer_units(parameters, joins_ends=job.model.tied_embeddings and not apart, apart=apart, tied=False)
    cached = _cached(step_end, units, memory.cached_bytes)
    homes = {unit.name: ON_DEVICE if unit.name in cached else ON_HOST for unit in units}
    return TierLayout(step_end, units, homes, gathering_of(job))


def _cached(step_end: StepEndWriter, units: Sequence[Unit], cached_bytes: int) -> frozenset[str]:
    """Return the units, in the order of need, whose shards of all state together fit in a number of bytes."""
    types, left, names = step_end.precision, cached_bytes, []
    state = (types.parameter, *([types.master] if types.mixed else []), *[types.master] * len(step_end.moments))
    for unit in units:
        dtypes = (*state, unit.parameters[0].gradient.dtype)
        left -= step_end.piece_size(unit.parameters) * sum(BYTES_PER_ELEMENT[dtype] for dtype in dtypes)
        if left < 0:
            break
        names.append(unit.name)
    return frozenset(names)


def _chunks(
    job: DenseTraining,
    step_end: StepEndWriter,
    groups: Mapping[int, Sequence[Parameter]],
    chunks: ChunkSpec,
    room: Room | None,
) -> TierLayout:
    """Return the layout of Gemini. Chunks may stay from a forward to its backward where that follows at once."""
    length = chunk_elements(chunks, groups, job.model.hidden_size)
    known = {name: getattr(step_end, name) for name in StepEndWriter.__struct_fields__}
    step_end = ChunkStepEndWriter(**known, chunk_elements=length)
    units = chunk_units(with_table_apart(groups, apart=shares_table(job)), length)
    gathering = gathering_of(job)
    if units and gathering.kept:
        passes, ahead = [task.ops for task in passes_of(step_end.tracer)], job.parallel.sharding.prefetch or 0
        kept = {units[-1].name} if room is None else kept_chunks(chunks, passes, units, room, ahead)
        gathering = replace(gathering, kept=frozenset(kept))
    return TierLayout(step_end, units, chunk_homes(chunks, step_end, units), gathering)


def gathered_bytes(memory: MemorySpec, units: Sequence[Unit]) -> int:
    """Return the device memory for gathered units: the stated bytes, or those of the three largest units."""
    return memory.gathered_bytes or sum(sorted(unit.num_bytes for unit in units)[-3:])
