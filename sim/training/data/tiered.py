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
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sim.memory.movement import BudgetError, Earliest, Movement, Window
from sim.memory.spec import MemorySpec
from sim.plan.functions.tracing import Parameter, ProgramTracer, TaskTracer, Tensor
from sim.plan.words.buffer import BYTES_PER_ELEMENT, Buffer, Initial, Kind, Scope, Tier
from sim.plan.words.op import Compute, Copy, Op
from sim.plan.words.program import Phase
from sim.training.data.gathers import Shard, loaded
from sim.training.data.host_streams import HOST, TO_HOST, add_wait_for_gradients
from sim.training.data.optimizer import StepEndWriter, step_end_writer
from sim.training.data.sharding import ShardedStepWriter, gathering_of, shares_table, whole_buckets
from sim.training.data.units import Unit, layer_units
from sim.training.errors import SpecError
from sim.training.pipeline.placement import Placement
from sim.training.spec.job import DenseTraining

HOST_UPDATE: Final = "host_update"
"""The stream of updates beside the sums of other units' gradients."""
READ: Final = "nvme_read"
WRITE: Final = "nvme_write"
_STAGED: Final = 2
"""Number of units whose state is in the host's memory on its way from and to drives."""


def write_tiered_step(
    job: DenseTraining, tracer: ProgramTracer, place: Placement, rank: int, groups: Mapping[int, Sequence[Parameter]]
) -> tuple[list[str], list[str]]:
    """Write a program's step with its state in tiers of memory; its passes are written.

    ``groups``: the rank's parameters by stage of the model. Returns the names of the tasks before and after forwards
    and backwards, in call order. Raises SpecError where gathered parameters do not fit.
    """
    memory, apart = job.parallel.memory, shares_table(job)
    assert memory is not None
    step_end = step_end_writer(job, tracer, place, rank)
    parameters = [tracer.parameters[p.source] for group in groups.values() for p in group]
    units = layer_units(parameters, joins_ends=job.model.tied_embeddings and not apart, apart=apart, tied=False)
    cached = _cached(step_end, units, memory.cached_bytes)
    alone = [u for u in units if u.name in cached and not step_end.is_shared(u.parameters)]
    units = [unit for unit in units if unit not in alone]
    whole = whole_buckets({i: unit.parameters for i, unit in enumerate(alone)}, len(units), 0)
    writer = TieredStepWriter(job, tracer, step_end, units, gathering_of(job), whole, memory=memory, cached=cached)
    try:
        return writer.write()
    except BudgetError as error:
        rule = f"{error.unit} and what is used beside it take {error.needed_bytes:,} bytes, of {error.budget_bytes:,}"
        remedy = f"write {-(-error.needed_bytes // 1_000_000)} MB or more"
        raise SpecError("memory.gathered", rule, remedy) from error


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


@dataclass(slots=True, kw_only=True)
class TieredStepWriter(ShardedStepWriter):
    """Writes the step of one program.

    ``cached``: units whose shards stay on the device. ``staged``: by unit, in the order of updates, the buffers of its
    state in the host's memory.
    """

    memory: MemorySpec
    cached: frozenset[str]
    staged: list[tuple[str, ...]] = field(init=False, default_factory=list)

    # --- when units come -------------------------------------------------------------------------------------------

    @property
    def _movement(self) -> Movement:
        if self.memory.manager == "on_demand":
            return Window(0)
        if self.memory.manager == "deepspeed":
            return Window(self.job.parallel.sharding.units_ahead)
        largest = sorted(unit.num_bytes for unit in self.units)[-3:]
        return Earliest(self.memory.gathered_bytes or sum(largest))

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
            found[unit.name] = Shard(self.parameter_shards[unit.name].name, hops, unit.name not in self.cached)
        return found

    def _is_shared(self, unit: Unit) -> bool:
        return self.step_end.is_shared(unit.parameters)

    def _tier(self, unit: Unit) -> Tier:
        return Tier.DEVICE if unit.name in self.cached else Tier.HOST

    @property
    def _updates_at_once(self) -> bool:
        """Return whether a unit is updated as soon as its gradient is complete, beside the sums of others."""
        return self.memory.manager == "angel_ptm"

    def _state(self, unit: Unit, label: str, dtype: str, kind: Kind, method: str) -> Tensor:
        """Return a new persistent buffer for this rank's piece of a unit, in the unit's tier."""
        initial = Initial(method, of=unit.values, axes=self.step_end.shard_axes(unit.parameters))
        where = Scope.PERSISTENT, initial, self._tier(unit)
        return self.step_end.flat(f"{label}.{unit.name}", unit.parameters, dtype, kind, *where)

    def _gradient_shard(self, unit: Unit) -> Tensor:
        return self._state(unit, "gradient_shard", self.tracer.gradient_dtype, Kind.GRADIENT, "zeros")

    def _parameter_shard(self, unit: Unit, label: str, dtype: str) -> Tensor:
        return self._state(unit, f"shard{label}", dtype, Kind.PARAMETER, "shard")

    def _add_between(self, label: str, scope: Scope) -> None:
        """Add the buffers of shards that have come from the host."""
        written = {name for task in self.tracer.tasks.values() for op in task.ops for name in op.writes}
        for unit in self.units:
            name, shard = loaded(label, unit), self.parameter_shards[unit.name]
            if name in written:
                self.tracer.add_buffer(Buffer(name, shard.shape, shard.dtype, Kind.PARAMETER, scope))

    # --- gradients -------------------------------------------------------------------------------------------------

    def _write_begin(self) -> str:
        name = ShardedStepWriter._write_begin(self)
        hosted = {self.gradient_shards[unit.name].name for unit in self.units if unit.name not in self.cached}
        ops: list[Op] = []
        for op in self.tracer.tasks[name].ops:
            here, there = [n for n in op.writes if n not in hosted], [n for n in op.writes if n in hosted]
            ops += [_zero("zero_gradients", here, "compute")] if here else []
            ops += [_zero("zero_host_gradients", there, HOST)] if there else []
        self._replace(name, ops)
        return name

    def _microbatch_reduction(self, unit: Unit, piece: Tensor) -> list[Op]:
        """Return the ops that sum a micro-batch's gradients over the ranks and add this rank's piece to its total."""
        if unit.name in self.cached:
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
        hosted = [self.gradient_shards[unit.name].name for unit in self.units if unit.name not in self.cached]
        names = []
        if hosted and not self._updates_at_once:
            names.append(add_wait_for_gradients(self.tracer, hosted))
        order = list(reversed(self.units)) if self._updates_at_once else self.units
        for unit in order:
            t = TaskTracer(self.tracer, Scope.STEP)
            self._update_unit(t, unit, self.gradient_shards[unit.name])
            names += self.step_end.finish(f"optimizer.{unit.name}", Phase.OPTIMIZER, t)
        return names

    def _update_unit(self, t: TaskTracer, unit: Unit, gradient: Tensor) -> None:
        types, shard = self.job.training.types, self.parameter_shards[unit.name]
        on_host = unit.name not in self.cached
        tier = Tier.NVME if on_host and self.memory.optimizer_on_drives else self._tier(unit)
        state = [self._optimizer_state(unit, label, tier) for label in self.step_end.moments]
        if types.mixed:
            state.insert(0, self._optimizer_state(unit, "master", tier))
        here = self._read(t, unit, gradient, state) if tier is Tier.NVME else state
        self.step_end.optimize(t, f"shard.{unit.name}", gradient, [*here, shard] if types.mixed else [shard, *here])
        if on_host:
            t.ops[-1] = replace(t.ops[-1], stream=HOST_UPDATE if self._updates_at_once else HOST)
        if here is not state:
            t.emit(Copy(f"write.{unit.name}", _names(here), _names(state), WRITE))

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
            t.emit(Copy(f"read.{unit.name}", _names(state), _names(staged), READ))
        return staged


def _names(tensors: Sequence[Tensor]) -> tuple[str, ...]:
    return tuple(tensor.name for tensor in tensors)


def _zero(name: str, buffers: Sequence[str], stream: str) -> Compute:
    names = tuple(buffers)
    return Compute(name, "zero", names, names, stream=stream)
