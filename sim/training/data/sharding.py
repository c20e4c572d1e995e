"""ZeRO stages 2 and 3 (Rajbhandari et al. 2020), FSDP (Zhao et al. 2023), and both in groups (HSDP, MiCS).

Stage 2: gradients are reduce-scattered, bucket by bucket, and only this rank's shard of their sum is kept; parameters
stay whole, and their updated shards are gathered at the end of a step. Stage 3: parameters are shards too. A unit, a
layer, is gathered before it computes, freed, and gathered again in backward.

Where shards are shared out within groups, the groups' sums of gradients are all_reduced once a step, shard by shard.
Every sum here is linear, so it may be made before or after the sum over micro-batches.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sim.plan.buffer import Initial, Kind, Scope
from sim.plan.op import Collective, CollectiveKind, Compute, Op
from sim.plan.program import Phase
from sim.plan.tracing import Parameter, ProgramTracer, TaskTracer, Tensor
from sim.training.data.axes import replica_axes, shard_axis
from sim.training.data.buckets import Bucket
from sim.training.data.optimizer import EMBEDDING_STREAM, PIPELINE_AXIS, StepEndWriter
from sim.training.data.units import END_UNIT, Gathers, Unit, bucket_units, layer_units, with_reductions, zeros
from sim.training.pipeline.placement import Placement
from sim.training.spec import DenseTraining
from sim.training.transformer import DATA_AXIS

REPLICA_STREAM = "dp_replicas"


def write_sharded_step(
    job: DenseTraining, tracer: ProgramTracer, place: Placement, rank: int, groups: Mapping[int, Sequence[Parameter]]
) -> tuple[list[str], list[str]]:
    """Shard a program's gradients (and parameters), whose forwards and backwards are written.

    ``groups``: the rank's parameters by stage of the model. Returns the names of the tasks before and after forwards
    and backwards, in call order.
    """
    ends = place.ranks[0], place.ranks[place.chain_length - 1]
    tied = job.model.tied_embeddings and ends[0] != ends[1] and rank in ends
    fresh = {stage: [tracer.parameters[p.source] for p in group] for stage, group in groups.items()}
    if job.parallel.zero_stage == 3:
        parameters = [p for group in fresh.values() for p in group]
        units = layer_units(parameters, tied_embeddings=job.model.tied_embeddings)
    else:
        units = bucket_units(fresh, bucket_bytes=job.parallel.bucket_bytes, tied=tied)
    writer = ShardedStepWriter(job, tracer, StepEndWriter(job, tracer, job.training.types, ends, ()), units)
    return writer.write()


@dataclass(slots=True)
class ShardedStepWriter:
    """Rewrites and writes the tasks of one program."""

    job: DenseTraining
    tracer: ProgramTracer
    step_end: StepEndWriter
    units: Sequence[Unit]
    gradient_shards: dict[str, Tensor] = field(init=False, default_factory=dict)
    parameter_shards: dict[str, Tensor] = field(init=False, default_factory=dict)

    def write(self) -> tuple[list[str], list[str]]:
        """Return the names of the tasks before and after forwards and backwards."""
        gradient_scope = Scope.MICROBATCH if self._each_microbatch else Scope.STEP
        for unit in self.units:
            self.gradient_shards[unit.name] = self._gradient_shard(unit)
            self._rescope(unit.gradients, gradient_scope)
            if self._shards_parameters:
                self.parameter_shards[unit.name] = self._parameter_shard(unit, "", self.tracer.parameter_dtype)
                self._rescope(unit.values, Scope.MICROBATCH)
        if self._shards_parameters:
            self._gather_parameters()
        if self._each_microbatch:
            self._reduce_each_microbatch()
        return [self._write_begin()], [*self._write_sync(), *self._write_update(), *self.step_end.write_loss_sync()]

    # --- what is asked for -----------------------------------------------------------------------------------------

    @property
    def _each_microbatch(self) -> bool:
        return self.job.parallel.sharding.syncs_each_microbatch

    @property
    def _shards_parameters(self) -> bool:
        return self.job.parallel.zero_stage == 3

    @property
    def _axis(self) -> str:
        return shard_axis(self.tracer.mesh)

    # --- buffers ---------------------------------------------------------------------------------------------------

    def _rescope(self, names: Sequence[str], scope: Scope) -> None:
        for name in names:
            self.tracer.buffers[name] = replace(self.tracer.buffers[name], scope=scope)

    def _gradient_shard(self, unit: Unit) -> Tensor:
        initial = Initial("zeros", of=unit.values, axes=(self._axis,))
        name, dtype = f"gradient_shard.{unit.name}", self.tracer.gradient_dtype
        return self.step_end.flat(name, unit.parameters, dtype, Kind.GRADIENT, Scope.PERSISTENT, initial)

    def _parameter_shard(self, unit: Unit, label: str, dtype: str) -> Tensor:
        initial = Initial("shard", of=unit.values, axes=(self._axis,))
        kind = Kind.OPTIMIZER if label else Kind.PARAMETER
        return self.step_end.flat(f"shard.{unit.name}{label}", unit.parameters, dtype, kind, Scope.PERSISTENT, initial)

    # --- forwards and backwards ------------------------------------------------------------------------------------

    def _rewritten(self, phase: Phase) -> Iterator[tuple[str, tuple[Op, ...]]]:
        """Yield the tasks of a phase, and their ops."""
        for name, task in list(self.tracer.tasks.items()):
            if task.phase is phase:
                yield name, task.ops

    def _replace(self, task: str, ops: Sequence[Op]) -> None:
        self.tracer.tasks[task] = replace(self.tracer.tasks[task], ops=tuple(ops))

    def _gather_parameters(self) -> None:
        """Gather units in forward, and those that are not kept once more in backward.

        The last unit that forward computes with is the first in backward, so it stays.
        """
        sharding, buffers = self.job.parallel.sharding, self.tracer.buffers
        shards = {name: shard.name for name, shard in self.parameter_shards.items()}
        entry = None if self._each_microbatch else self.units[0].gradients[0]
        forward = Gathers(self._axis, "all_gather", shards, {}, frozenset(), sharding.units_ahead, entry)
        for task, ops in self._rewritten(Phase.FORWARD):
            self._replace(task, forward.into(ops, self.units))
        held = frozenset(unit.name for unit in self.units if unit.name == END_UNIT or not sharding.reshards)
        names = {name: f"{name}.regathered" for unit in self.units if unit.name not in held for name in unit.values}
        backward = Gathers(self._axis, "regather", shards, names, held, sharding.units_ahead, "")
        for task, ops in self._rewritten(Phase.BACKWARD):
            self._replace(task, backward.into(ops, self.units))
        written = {name for task in self.tracer.tasks.values() for op in task.ops for name in op.writes}
        buffers.update({new: replace(buffers[old], name=new) for old, new in names.items() if new in written})

    def _reduce_each_microbatch(self) -> None:
        pieces = {}
        for unit in self.units:
            name, dtype = f"gradient_piece.{unit.name}", self.tracer.gradient_dtype
            pieces[unit.name] = self.step_end.flat(name, unit.parameters, dtype, Kind.GRADIENT, Scope.MICROBATCH)
        for task, ops in self._rewritten(Phase.BACKWARD):
            reductions = {unit.name: self._microbatch_reduction(unit, pieces[unit.name]) for unit in self.units}
            self._replace(task, with_reductions(ops, self.units, reductions))

    def _microbatch_reduction(self, unit: Unit, piece: Tensor) -> list[Op]:
        """Return the ops that add the shard of a micro-batch's gradients to what was accumulated.

        The addition runs on the stream of the collective, so that nothing that computes has to wait.
        """
        total = self.gradient_shards[unit.name].name
        addition = Compute(f"accumulate.{unit.name}", "add", (piece.name, total), (total,), stream=DATA_AXIS)
        return [*self._to_shard(unit, piece), addition]

    def _to_shard(self, unit: Unit, shard: Tensor) -> Iterator[Op]:
        """Yield the collectives that bring a unit's gradients into this rank's shard."""
        names = tuple(p.gradient.name for p in unit.partial)
        for axis in unit.partial_axes:
            name = f"sum_{axis}.{unit.name}"
            yield Collective(name, CollectiveKind.ALL_REDUCE, (axis,), names, names, axis)
        name = f"reduce_scatter.{unit.name}"
        kind = CollectiveKind.REDUCE_SCATTER
        yield Collective(name, kind, (self._axis,), unit.gradients, (shard.name,), DATA_AXIS)

    # --- beginning and end of the step -----------------------------------------------------------------------------

    def _write_begin(self) -> str:
        t = TaskTracer(self.tracer, Scope.STEP)
        cleared = [self.step_end.loss] if self.step_end.has_loss else []
        if self._each_microbatch:
            cleared += self.gradient_shards.values()
        else:
            t.ops += [zeros(f"zeros.{unit.name}", [p.gradient for p in unit.parameters]) for unit in self.units]
        if cleared:
            t.update("zero_gradients", "zero", (), cleared)
        return self.tracer.add_task("zero_gradients", Phase.PREPARE, t.ops).name

    def _write_sync(self) -> list[str]:
        """Write what is left of the gradients' sums, on the shards."""
        names = []
        for unit in self.units:
            t, shard = TaskTracer(self.tracer, Scope.STEP), self.gradient_shards[unit.name]
            if not self._each_microbatch:
                t.ops += self._to_shard(unit, shard)
            for axis in unit.shard_axes:
                self.step_end.all_reduce(t, f"sum_{axis}", [shard], (axis,), axis)
            if unit.tied:
                members = tuple(sorted(self.step_end.ends))
                self.step_end.all_reduce(t, "tie", [shard], (PIPELINE_AXIS,), EMBEDDING_STREAM, members)
            if replicas := replica_axes(self.tracer.mesh):
                self.step_end.all_reduce(t, "replicas", [shard], replicas, REPLICA_STREAM)
            names += self.step_end.finish(f"gradient_sync.{unit.name}", Phase.GRADIENT_SYNC, t)
        return names

    def _write_update(self) -> list[str]:
        names = []
        for index, unit in enumerate(self.units):
            t, gradient = TaskTracer(self.tracer, Scope.STEP), self.gradient_shards[unit.name]
            if self._shards_parameters:
                self._update_unit(t, unit, gradient)
            else:
                self.step_end.update_shard(t, Bucket(index, unit.parameters), gradient)
            names += self.step_end.finish(f"optimizer.{unit.name}", Phase.OPTIMIZER, t)
        return names

    def _update_unit(self, t: TaskTracer, unit: Unit, gradient: Tensor) -> None:
        """Write Adam on this rank's shard of a unit."""
        types, name, shard = self.job.training.types, f"shard.{unit.name}", self.parameter_shards[unit.name]
        optimizer = (types.master, Kind.OPTIMIZER, Scope.PERSISTENT)
        moments = [
            self.step_end.flat(f"{name}.{label}", unit.parameters, *optimizer) for label in ("exp_avg", "exp_avg_sq")
        ]
        updated = [shard, *moments]
        if types.mixed:
            updated = [self._parameter_shard(unit, ".master", types.master), *moments, shard]
        self.step_end.adam(t, name, gradient, updated)
