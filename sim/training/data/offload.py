"""ZeRO-Offload (Ren et al. 2021, arXiv 2101.06840): gradients and optimizer on the host, parameters on the device.

As in ZeRO stage 2, gradients are reduce-scattered bucket by bucket during backward. Each rank copies its shard to its
host at once, on a stream of its own, and the host accumulates it, so the device keeps no gradients. The host waits for
all gradients, since a check for overflow or for the norm needs them all. It then updates its shards of the master
weights, and copies the new parameters of one bucket back while it updates the next bucket. Last, the parameters are
gathered. A rank without replicas does the same without the collectives.

With the delayed update (section 5.2) the host sets a step's gradients aside, and updates with them while the devices
compute the next step. The new parameters come after the last backward of that step.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from sim.plan.functions.tracing import Parameter, ProgramTracer, TaskTracer, Tensor
from sim.plan.words.buffer import Initial, Kind, Scope, Tier
from sim.plan.words.op import Collective, CollectiveKind, Compute, Copy, Op
from sim.plan.words.program import Call, Phase
from sim.training.data.buckets import Bucket
from sim.training.data.host_streams import HOST, HOST_UPDATE, TO_DEVICE, TO_HOST, add_wait_for_gradients
from sim.training.data.optimizer import StepEndWriter, step_end_writer
from sim.training.data.sharding import shares_table
from sim.training.data.units import Unit, bucket_units, with_own_buffers, with_reductions, with_table_apart, zeros
from sim.training.pipeline.placement import Placement
from sim.training.spec.job import DenseTraining
from sim.training.spec.parallelism.mesh_axes import DATA_AXIS


def write_offloaded_step(
    job: DenseTraining, tracer: ProgramTracer, place: Placement, rank: int, groups: Mapping[int, Sequence[Parameter]]
) -> tuple[list[Call], list[Call]]:
    """Move the gradients and the optimizer of a program, whose forwards and backwards are written, to the host.

    ``groups``: the rank's parameters by stage of the model. Returns the calls before and after forwards and backwards.
    """
    fresh = {stage: [tracer.parameters[p.source] for p in group] for stage, group in groups.items()}
    parted = with_table_apart(fresh, apart=shares_table(job))
    units = bucket_units(parted, bucket_bytes=job.parallel.bucket_bytes, tied=False)
    return OffloadedStepWriter(job, tracer, step_end_writer(job, tracer, place, rank), units).write()


@dataclass(slots=True)
class OffloadedStepWriter:
    """Writes the offloaded step of one program. ``gradients``: the host's sums of gradients, by unit."""

    job: DenseTraining
    tracer: ProgramTracer
    step_end: StepEndWriter
    units: Sequence[Unit]
    gradients: dict[str, Tensor] = field(init=False, default_factory=dict)

    def write(self) -> tuple[list[Call], list[Call]]:
        """Return the calls before and after forwards and backwards."""
        for unit in self.units:
            for name in unit.gradients:
                scope = Scope.MICROBATCH if self._each_microbatch else Scope.STEP
                self.tracer.buffers[name] = replace(self.tracer.buffers[name], scope=scope)
            self.gradients[unit.name] = self._kept(
                unit, "gradient_shard", self.tracer.gradient_dtype, Kind.GRADIENT, "zeros"
            )
        begin = self._write_begin()
        if self._each_microbatch:
            self._rewrite_backwards()
        end = [] if self._each_microbatch else self._write_sync()
        if not self.job.parallel.sharding.delayed_update:
            return _calls(begin), _calls([*end, *self._write_update(), *self.step_end.write_last_sums()])
        updates, loads = self._write_delayed_update()
        after = [*_calls(end), *_calls(loads, lag=1), *_calls(self.step_end.write_last_sums())]
        return [*_calls(updates, lag=1), *_calls(begin)], after

    # --- properties of the job -------------------------------------------------------------------------------------

    @property
    def _each_microbatch(self) -> bool:
        return self.job.parallel.sharding.syncs_each_microbatch

    @property
    def _accumulates(self) -> bool:
        """Return whether the host adds the gradients of several micro-batches."""
        return self._each_microbatch and self.job.num_microbatches > 1

    def _axes(self, unit: Unit) -> tuple[str, ...]:
        return self.step_end.shard_axes(unit.parameters)

    def _is_shared(self, unit: Unit) -> bool:
        return self.tracer.mesh.degree(*self._axes(unit)) > 1

    # --- buffers ---------------------------------------------------------------------------------------------------

    def _kept(self, unit: Unit, label: str, dtype: str, kind: Kind, method: str) -> Tensor:
        """Return a new buffer of the host for this rank's piece of a unit's parameters, or of their gradients."""
        initial = Initial(method, of=unit.values, axes=self._axes(unit))
        name = f"{label}.{unit.name}"
        return self.step_end.flat(name, unit.parameters, dtype, kind, Scope.PERSISTENT, initial, Tier.HOST)

    def _piece(self, unit: Unit, label: str, dtype: str, kind: Kind, scope: Scope, tier: Tier) -> Tensor:
        """Return a new buffer for this rank's piece of a unit; a persistent one starts with zeros."""
        return self.step_end.flat(f"{label}.{unit.name}", unit.parameters, dtype, kind, scope, tier=tier)

    # --- gradients -------------------------------------------------------------------------------------------------

    def _write_begin(self) -> list[str]:
        """Write what clears sums, where there are some: not for one micro-batch on a rank without the loss."""
        t = TaskTracer(self.tracer, Scope.STEP)
        if not self._each_microbatch:
            t.ops += [zeros(f"zeros.{unit.name}", [p.gradient for p in unit.parameters]) for unit in self.units]
        if self._accumulates:
            t.update("zero_host_gradients", "zero", (), list(self.gradients.values()))
            t.ops[-1] = replace(t.ops[-1], stream=HOST)
        if self.step_end.has_loss:
            t.update("zero_loss", "zero", (), [self.step_end.loss])
        return [self.tracer.add_task("zero_gradients", Phase.PREPARE, t.ops).name] if t.ops else []

    def _rewrite_backwards(self) -> None:
        """Send gradients to the host as soon as a backward has made them."""
        moves = {unit.name: list(self._to_host(unit, Scope.MICROBATCH)) for unit in self.units}
        sums = {name: gradient.name for name, gradient in self.gradients.items()}
        for name, task in list(self.tracer.tasks.items()):
            if task.phase is Phase.BACKWARD:
                self.tracer.tasks[name] = replace(task, ops=tuple(with_reductions(task.ops, self.units, moves, sums)))
        with_own_buffers(self.tracer, Phase.BACKWARD)

    def _write_sync(self) -> list[str]:
        """Write the copies of a step's accumulated gradients to the host."""
        names = []
        for unit in self.units:
            t = TaskTracer(self.tracer, Scope.STEP)
            t.ops += self._to_host(unit, Scope.STEP)
            names += self.step_end.finish(f"gradient_sync.{unit.name}", Phase.GRADIENT_SYNC, t)
        return names

    def _to_host(self, unit: Unit, scope: Scope) -> Iterator[Op]:
        """Yield the ops that sum a unit's gradients over the replicas, and bring this rank's piece to its host."""
        dtype, here = self.tracer.gradient_dtype, unit.gradients
        if self._is_shared(unit):
            here = (self._piece(unit, "gradient_piece", dtype, Kind.GRADIENT, scope, Tier.DEVICE).name,)
            kind = CollectiveKind.REDUCE_SCATTER
            yield Collective(f"reduce_scatter.{unit.name}", kind, self._axes(unit), unit.gradients, here, DATA_AXIS)
        for axis in unit.shard_axes:
            yield Collective(f"sum_{axis}.{unit.name}", CollectiveKind.ALL_REDUCE, (axis,), here, here, axis)
        total = self.gradients[unit.name].name
        if not self._accumulates:
            yield Copy(f"offload.{unit.name}", here, (total,), TO_HOST)
            return
        there = self._piece(unit, "host_gradient", dtype, Kind.GRADIENT, scope, Tier.HOST).name
        yield Copy(f"offload.{unit.name}", here, (there,), TO_HOST)
        yield Compute(f"accumulate.{unit.name}", "add", (there, total), (total,), stream=HOST)

    # --- optimizer -------------------------------------------------------------------------------------------------

    def _write_update(self) -> list[str]:
        """Write the host's optimizer step, and the copies of the new parameters to all devices."""
        names = [add_wait_for_gradients(self.tracer, [gradient.name for gradient in self.gradients.values()])]
        for index, unit in enumerate(self.units):
            t = TaskTracer(self.tracer, Scope.STEP)
            self._load(t, index, unit, self._update(t, unit, self.gradients[unit.name], HOST))
            names += self.step_end.finish(f"optimizer.{unit.name}", Phase.OPTIMIZER, t)
        return names

    def _write_delayed_update(self) -> tuple[list[str], list[str]]:
        """Write the update with the gradients of the step before, and the copies of its parameters to all devices.

        Return the names of the tasks of both: before forwards, and after backwards.
        """
        t, due = TaskTracer(self.tracer, Scope.STEP), dict[str, Tensor]()
        for unit in self.units:
            due[unit.name] = self._kept(unit, "gradient_due", self.tracer.gradient_dtype, Kind.GRADIENT, "zeros")
            made, aside = self.gradients[unit.name].name, due[unit.name].name
            t.emit(Compute(f"set_aside.{unit.name}", "copy", (made, aside), (aside,), stream=HOST))
        updates, loads = [self.tracer.add_task("set_gradients_aside", Phase.OPTIMIZER, t.ops).name], list[str]()
        for index, unit in enumerate(self.units):
            t = TaskTracer(self.tracer, Scope.STEP)
            updated = self._update(t, unit, due[unit.name], HOST_UPDATE)
            updates += self.step_end.finish(f"optimizer.{unit.name}", Phase.OPTIMIZER, t)
            t = TaskTracer(self.tracer, Scope.STEP)
            self._load(t, index, unit, updated)
            loads += self.step_end.finish(f"load.{unit.name}", Phase.OPTIMIZER, t)
        return updates, loads

    def _load(self, t: TaskTracer, index: int, unit: Unit, updated: Tensor) -> None:
        """Write the copies of a unit's new parameters to all devices."""
        if not self._is_shared(unit):
            t.emit(Copy(f"load.{unit.name}", (updated.name,), unit.values, TO_DEVICE))
            return
        piece = self._piece(unit, "shard", self.tracer.parameter_dtype, Kind.WORKSPACE, Scope.STEP, Tier.DEVICE)
        t.emit(Copy(f"load.{unit.name}", (updated.name,), (piece.name,), TO_DEVICE))
        self.step_end.gather(t, Bucket(index, unit.parameters), piece)

    def _update(self, t: TaskTracer, unit: Unit, gradient: Tensor, stream: str) -> Tensor:
        """Write the optimizer's step on the host's piece of a unit; return the parameters to copy to the devices."""
        types = self.job.training.types
        master = self._kept(unit, "shard.master", types.master, Kind.OPTIMIZER, "shard")
        common = (types.master, Kind.OPTIMIZER, Scope.PERSISTENT)
        moments = [self._piece(unit, f"shard.{label}", *common, Tier.HOST) for label in self.step_end.moments]
        copies = [self._kept(unit, "shard.updated", types.parameter, Kind.PARAMETER, "shard")] if types.mixed else []
        self.step_end.optimize(t, unit.name, gradient, [master, *moments, *copies])
        t.ops[-1] = replace(t.ops[-1], stream=stream)
        return copies[0] if copies else master


def _calls(names: Sequence[str], lag: int = 0) -> list[Call]:
    return [Call(name, lag=lag) for name in names]
