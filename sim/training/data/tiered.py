"""ZeRO-3 with parameters, gradients and optimizer state in the host's memory, as of a manager of tiered memory.

Each rank keeps its shards on its host. A unit's shard comes to the device over that rank's own link and is gathered
there (ZeRO-Infinity's bandwidth-centric partitioning; Rajbhandari et al. 2021, arXiv 2104.07857, section 6.1). Shards
of gradients go to the host during backward, and the host updates the parameters. Managers differ in when units come,
what stays on the device, and when the host begins to update:

``on_demand``: a unit comes when it is needed.
``deepspeed``: a window of units comes ahead (``parallel.data.prefetch``). The host updates once it has all gradients.
``angel_ptm`` (Nie et al., VLDB 2023): units come as early as memory allows by their lifetimes, over forward and
    backward together. The first units stay on the device with their whole state, as far as there is room. The host
    updates a unit as soon as its gradient is complete.
``gemini`` (Colossal-AI): units are chunks of one length. Their shards lie where the placement puts them; the host
    updates its chunks once it has all gradients. See ``chunks.py``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from sim.memory.movement import BudgetError, Earliest, Movement, Window
from sim.memory.spec import MemorySpec
from sim.plan.functions.tracing import Parameter, ProgramTracer, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Initial, Kind, Scope, Tier
from sim.plan.words.op import Compute, Copy, Op
from sim.plan.words.program import Phase
from sim.training.data.gathers import Shard, from_drives, loaded
from sim.training.data.homes import ON_DEVICE, UPDATED_ON_HOST, Home
from sim.training.data.host_streams import HOST, HOST_UPDATE, READ, TO_DEVICE, TO_HOST, WRITE, add_wait_for_gradients
from sim.training.data.optimizer import step_end_writer
from sim.training.data.payloads import with_gradients_in_payloads
from sim.training.data.sharding import ShardedStepWriter, gathering_of, whole_buckets
from sim.training.data.tier_layout import gathered_bytes, layout_of
from sim.training.data.units import Unit
from sim.training.data.warm_up import STEADY_FRACTION, WARM_UP_FRACTION, Room, noted_bytes
from sim.training.errors import SpecError
from sim.training.pipeline.placement import Placement
from sim.training.spec.job import DenseTraining

_STAGED: Final = 2
"""Number of units whose state is in the host's memory on its way from and to drives."""


def write_tiered_step(
    job: DenseTraining, tracer: ProgramTracer, place: Placement, rank: int, groups: Mapping[int, Sequence[Parameter]]
) -> tuple[list[str], list[str]]:
    """Write a program's step with its state in tiers of memory; its passes are written.

    ``groups``: the rank's parameters by stage of the model. Returns the names of the tasks before and after forwards
    and backwards, in call order. Raises SpecError where gathered parameters do not fit.
    """
    memory = job.parallel.memory
    assert memory is not None
    try:
        return _written(job, tracer, place, rank, groups)
    except BudgetError as error:
        rule = f"{error.unit} and what is used beside it take {error.needed_bytes:,} bytes, of {error.budget_bytes:,}"
        if memory.chunks is not None and memory.chunks.capacity_bytes is not None:
            rule += ", which a warm-up step leaves them of the device's memory"
            remedy = "recompute more, write smaller micro-batches or chunks, or state memory.gathered"
            raise SpecError("memory.placement", rule, remedy) from error
        remedy = f"write {-(-error.needed_bytes // 1_000_000)} MB or more"
        raise SpecError("memory.gathered", rule, remedy) from error


def _written(
    job: DenseTraining, tracer: ProgramTracer, place: Placement, rank: int, groups: Mapping[int, Sequence[Parameter]]
) -> tuple[list[str], list[str]]:
    memory = job.parallel.memory
    assert memory is not None
    room = _room(job, tracer, place, rank, groups)
    layout = layout_of(job, tracer, step_end_writer(job, tracer, place, rank), groups, room)
    step_end, homes = layout.step_end, layout.homes
    alone = [u for u in layout.units if homes[u.name] is ON_DEVICE and not step_end.is_shared(u.parameters)]
    units = [unit for unit in layout.units if unit not in alone]
    whole = whole_buckets({i: unit.parameters for i, unit in enumerate(alone)}, len(units), 0)
    return TieredStepWriter(job, tracer, step_end, units, layout.gathering, whole, memory=memory, homes=homes).write()


def _room(
    job: DenseTraining, tracer: ProgramTracer, place: Placement, rank: int, groups: Mapping[int, Sequence[Parameter]]
) -> Room | None:
    """Return the room for chunks that stay on the device: the stated one, or what a warm-up step leaves of the device.

    None where no chunk stays. Raises BudgetError where chunks in use do not even fit in the warm-up step.
    """
    memory = job.parallel.memory
    assert memory is not None
    chunks = memory.chunks
    if chunks is None or chunks.placement == "static" or not gathering_of(job).kept:
        return None
    if memory.gathered_bytes is not None:
        return Room(memory.gathered_bytes)
    capacity_bytes = chunks.capacity_bytes
    assert capacity_bytes is not None  # decided
    first = replace(memory, gathered_bytes=int(WARM_UP_FRACTION * capacity_bytes))
    warm = replace(tracer, buffers=dict(tracer.buffers), parameters=dict(tracer.parameters), tasks=dict(tracer.tasks))
    _written(replace(job, parallel=replace(job.parallel, memory=first)), warm, place, rank, groups)
    parameters = [tracer.parameters[p.source].value.name for group in groups.values() for p in group]
    return Room(int(STEADY_FRACTION * capacity_bytes), noted_bytes(tracer, warm, parameters))


@dataclass(slots=True, kw_only=True)
class TieredStepWriter(ShardedStepWriter):
    """Writes the step of one program.

    ``homes``: of the shards of each unit. ``staged``: by unit, in the order of updates, the buffers of its state in
    the host's memory.
    """

    memory: MemorySpec
    homes: Mapping[str, Home]
    staged: list[tuple[str, ...]] = field(init=False, default_factory=list)

    # --- when units come -------------------------------------------------------------------------------------------

    @property
    def _movement(self) -> Movement:
        if self.memory.manager == "on_demand":
            return Window(0)
        if self.memory.manager == "deepspeed":
            return Window(self.job.parallel.sharding.units_ahead)
        if self.memory.manager == "gemini":
            return Window(self.job.parallel.sharding.prefetch or 0)
        return Earliest(gathered_bytes(self.memory, self.units))

    @property
    def _joins_passes(self) -> bool:
        """Return whether a backward follows its forward at once, and a plan covers both."""
        return self.memory.manager == "angel_ptm" and self.gathering is not None and bool(self.gathering.kept)

    # --- buffers ---------------------------------------------------------------------------------------------------

    @property
    def _shards(self) -> dict[str, Shard]:
        found = {}
        for unit in self.units:
            hops = self._hops(unit) if self._is_shared(unit) else ()
            found[unit.name] = Shard(self.parameter_shards[unit.name].name, hops, self._parameter_tier(unit))
        return found

    def _is_shared(self, unit: Unit) -> bool:
        return self.step_end.is_shared(unit.parameters)

    def _home(self, unit: Unit) -> Home:
        return self.homes[unit.name]

    def _parameter_tier(self, unit: Unit) -> Tier:
        """Return the tier of a unit's parameters between uses."""
        home = self._home(unit).parameters
        return Tier.NVME if home is Tier.HOST and self.memory.parameters_on_drives else home

    def _is_updated_on_host(self, unit: Unit) -> bool:
        return self._home(unit).optimizer is Tier.HOST

    @property
    def _host_gradients(self) -> list[str]:
        """Return the sums of gradients in the host's memory."""
        return [self.gradient_shards[unit.name].name for unit in self.units if self._is_updated_on_host(unit)]

    @property
    def _updates_at_once(self) -> bool:
        """Return whether a unit is updated as soon as its gradient is complete, beside the sums of others."""
        return self.memory.manager == "angel_ptm"

    def _state(self, unit: Unit, label: str, dtype: str, kind: Kind, method: str, tier: Tier) -> Tensor:
        """Return a new persistent buffer for this rank's piece of a unit, which starts as ``method`` says."""
        initial = Initial(method, of=unit.values, axes=self.step_end.shard_axes(unit.parameters))
        where = Scope.PERSISTENT, initial, tier
        return self.step_end.flat(f"{label}.{unit.name}", unit.parameters, dtype, kind, *where)

    def _gradient_shard(self, unit: Unit) -> Tensor:
        kept = self.tracer.gradient_dtype, Kind.GRADIENT, "zeros", self._home(unit).optimizer
        return self._state(unit, "gradient_shard", *kept)

    def _parameter_shard(self, unit: Unit, label: str, dtype: str) -> Tensor:
        return self._state(unit, f"shard{label}", dtype, Kind.PARAMETER, "shard", self._parameter_tier(unit))

    def _add_between(self, label: str, scope: Scope) -> None:
        """Add the buffers of shards that have come from drives to the host, and to the device."""
        written = {name for task in self.tracer.tasks.values() for op in task.ops for name in op.writes}
        for unit in self.units:
            shard = self.parameter_shards[unit.name]
            for name, tier in ((loaded(label, unit), Tier.DEVICE), (from_drives(label, unit), Tier.HOST)):
                if name in written:
                    self.tracer.add_buffer(Buffer(name, shard.shape, shard.dtype, Kind.PARAMETER, scope, tier=tier))

    # --- gradients -------------------------------------------------------------------------------------------------

    def _write_begin(self) -> str:
        name = ShardedStepWriter._write_begin(self)
        hosted = set(self._host_gradients)
        ops: list[Op] = []
        for op in self.tracer.tasks[name].ops:
            here, there = [n for n in op.writes if n not in hosted], [n for n in op.writes if n in hosted]
            ops += [_zero("zero_gradients", here, "compute")] if here else []
            ops += [_zero("zero_host_gradients", there, HOST)] if there else []
        self._replace(name, ops)
        return name

    def _reduced(self, ops: Sequence[Op], reductions: Mapping[str, Sequence[Op]], sums: Mapping[str, str]) -> list[Op]:
        """Return a backward with its gradients reduced, from the gathered chunks where these hold them."""
        if self.memory.chunks is not None and self.memory.chunks.holds_gradients:
            return with_gradients_in_payloads(ops, self.units, reductions)
        return ShardedStepWriter._reduced(self, ops, reductions, sums)

    def _microbatch_reduction(self, unit: Unit, piece: Tensor) -> list[Op]:
        """Return the ops that sum a micro-batch's gradients over the ranks and add this rank's piece to its total."""
        if not self._is_updated_on_host(unit):
            return ShardedStepWriter._microbatch_reduction(self, unit, piece)
        summed, here, total = list(self._to_shard(unit, piece)), piece.name, self.gradient_shards[unit.name].name
        if not self._is_shared(unit):
            summed, reads = summed[:-1], unit.gradients
            self.tracer.buffers.pop(here)
        else:
            reads = (here,)
        dtype, there = self.tracer.gradient_dtype, f"host_{here}"
        self.step_end.flat(there, unit.parameters, dtype, Kind.GRADIENT, Scope.MICROBATCH, tier=Tier.HOST)
        down = Copy(f"offload.{unit.name}", reads, (there,), TO_HOST)
        return [*summed, down, Compute(f"accumulate.{unit.name}", "add", (there, total), (total,), stream=HOST)]

    # --- optimizer -------------------------------------------------------------------------------------------------

    def _write_update(self) -> list[str]:
        """Write the updates: at once, in the order of backward, or once the host has all gradients and their norm."""
        hosted, names = self._host_gradients, []
        if hosted and not self._updates_at_once:
            names.append(add_wait_for_gradients(self.tracer, hosted))
        order = list(reversed(self.units)) if self._updates_at_once else self.units
        for unit in order:
            t = TaskTracer(self.tracer, Scope.STEP)
            self._update_unit(t, unit, self.gradient_shards[unit.name])
            names += self.step_end.finish(f"optimizer.{unit.name}", Phase.OPTIMIZER, t)
        return names

    def _update_unit(self, t: TaskTracer, unit: Unit, gradient: Tensor) -> None:
        types, shard, home = self.job.training.types, self._updated(unit), self._home(unit)
        on_host = home.optimizer is Tier.HOST
        tier = Tier.NVME if on_host and self.memory.optimizer_on_drives else home.optimizer
        state = [self._optimizer_state(unit, label, tier) for label in self.step_end.moments]
        if types.mixed:
            state.insert(0, self._optimizer_state(unit, "master", tier))
        updated = [*state, shard] if types.mixed else [shard, *state]
        on_drives = [x for x in updated if self.tracer.buffers[x.name].tier is Tier.NVME]
        staged = dict(zip(_names(on_drives), self._read(t, unit, gradient, on_drives), strict=True))
        self.step_end.optimize(t, f"shard.{unit.name}", gradient, [staged.get(x.name, x) for x in updated])
        if on_host:
            t.ops[-1] = replace(t.ops[-1], stream=HOST_UPDATE if self._updates_at_once else HOST)
        for read in _of_one_type(on_drives):
            here = tuple(staged[x.name].name for x in read)
            t.emit(Copy(f"write.{unit.name}{_suffix(read, on_drives)}", here, _names(read), WRITE))
        if on_host and home.parameters is Tier.DEVICE:
            t.emit(Copy(f"load.{unit.name}", (shard.name,), (self.parameter_shards[unit.name].name,), TO_DEVICE))

    def _updated(self, unit: Unit) -> Tensor:
        """Return the shard of parameters that the optimizer writes: beside its state, or the unit's own."""
        if self._home(unit) is not UPDATED_ON_HOST:
            return self.parameter_shards[unit.name]
        kept = self.tracer.parameter_dtype, Kind.PARAMETER, "shard", Tier.HOST
        return self._state(unit, "shard.updated", *kept)

    def _optimizer_state(self, unit: Unit, label: str, tier: Tier) -> Tensor:
        """Return a new persistent buffer for this rank's piece of a unit's master weights or of a moment."""
        initial = None
        if label == "master":
            initial = Initial("shard", of=unit.values, axes=self.step_end.shard_axes(unit.parameters))
        kept = (self.job.training.types.master, Kind.OPTIMIZER, Scope.PERSISTENT, initial, tier)
        return self.step_end.flat(f"shard.{unit.name}.{label}", unit.parameters, *kept)

    def _read(self, t: TaskTracer, unit: Unit, gradient: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
        """Write the read of a unit's state into the host's memory, once its gradient and room are there."""
        staged = [
            self.step_end.flat(f"{s.name}.staged", unit.parameters, s.dtype, Kind.OPTIMIZER, Scope.STEP, tier=Tier.HOST)
            for s in state
        ]
        if staged:
            left = self.staged[-_STAGED] if len(self.staged) >= _STAGED else ()
            self.staged.append(_names(staged))
            t.emit(Compute(f"read.{unit.name}.wait", "delay", (gradient.name, *left), (), {"duration_s": 0.0}, READ))
        for read in _of_one_type(state):
            there = tuple(one.name for one, source in zip(staged, state, strict=True) if source in read)
            t.emit(Copy(f"read.{unit.name}{_suffix(read, state)}", _names(read), there, READ))
        return staged


def _of_one_type(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return tensors by the type of their elements: one copy moves elements of one type."""
    types = dict.fromkeys(tensor.dtype for tensor in tensors)
    return [[tensor for tensor in tensors if tensor.dtype == dtype] for dtype in types]


def _suffix(part: Sequence[Tensor], whole: Sequence[Tensor]) -> str:
    return "" if len(part) == len(whole) else f".{part[0].dtype}"


def _names(tensors: Sequence[Tensor]) -> tuple[str, ...]:
    return tuple(tensor.name for tensor in tensors)


def _zero(name: str, buffers: Sequence[str], stream: str) -> Compute:
    names = tuple(buffers)
    return Compute(name, "zero", names, names, stream=stream)
