"""ZeRO stages 2 and 3 (Rajbhandari et al. 2020), FSDP (Zhao et al. 2023), and both in groups (HSDP, MiCS).

Stage 2: gradients are reduce-scattered bucket by bucket, and each rank keeps only its shard of their sum. Backward
waits, so that at most two buckets exist at once. Parameters stay whole, and their updated shards are gathered at the
end of a step.

Stage 3: parameters are sharded too. A unit, such as a layer, is gathered before it computes, freed, and gathered again
in backward. In a pipeline every pass gathers its own stage, or each stage is gathered once a step and kept
(``reshard_after_forward: false``).

With shards within groups, the groups' sums of gradients are all_reduced once a step, shard by shard. Every sum here is
linear, so the sum over micro-batches may come before or after it.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from sim.memory.movement import Movement, Window
from sim.plan.functions.float8 import cast_in_pass, drop_casts
from sim.plan.functions.tracing import Parameter, ProgramTracer, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Initial, Kind, Scope
from sim.plan.words.op import Collective, CollectiveKind, Compute, Op
from sim.plan.words.program import Phase
from sim.training.data.axes import replica_axes
from sim.training.data.buckets import Bucket, make_buckets
from sim.training.data.gathers import Gathers, Hops, Pass, Shard, between, gather
from sim.training.data.optimizer import EMBEDDING_STREAM, StepEndWriter
from sim.training.data.units import (
    END_UNIT,
    REGATHERED,
    Unit,
    bucket_units,
    layer_units,
    with_own_buffers,
    with_reductions,
    with_table_apart,
    zeros,
)
from sim.training.pipeline.actions import LETTERS
from sim.training.pipeline.placement import Placement
from sim.training.pipeline.schedules import orders
from sim.training.spec.job import DenseTraining
from sim.training.spec.parallelism.mesh_axes import DATA_AXIS, PIPELINE_AXIS

REPLICA_STREAM = "dp_replicas"


def write_sharded_step(
    job: DenseTraining, tracer: ProgramTracer, place: Placement, rank: int, groups: Mapping[int, Sequence[Parameter]]
) -> tuple[list[str], list[str]]:
    """Write a program's step with sharded gradients, and under stage 3 sharded parameters; its passes are written.

    ``groups``: the rank's parameters by stage of the model.

    Returns the names of the tasks before and after forwards and backwards, in call order.
    """
    ends = place.ranks[0], place.ranks[place.chain_length - 1]
    tied = job.model.tied_embeddings and ends[0] != ends[1] and rank in ends
    shared = shares_table(job)
    step_end = StepEndWriter(job, tracer, job.training.types, ends, ())
    fresh, alone = _by_sharing(step_end, groups)
    if job.parallel.zero_stage < 3:
        parted = with_table_apart(fresh, apart=shared)
        units = bucket_units(parted, bucket_bytes=job.parallel.bucket_bytes, tied=tied)
        whole = whole_buckets(alone, len(units), job.parallel.bucket_bytes)
        return ShardedStepWriter(job, tracer, step_end, units, whole=whole).write()
    parameters = [p for group in fresh.values() for p in group]
    joins_ends = job.model.tied_embeddings and not shared
    units = layer_units(parameters, joins_ends=joins_ends, apart=tied or shared, tied=tied)
    whole = whole_buckets(alone, len(units), 0)
    return ShardedStepWriter(job, tracer, step_end, units, gathering=gathering_of(job), whole=whole).write()


def _by_sharing(
    step_end: StepEndWriter, groups: Mapping[int, Sequence[Parameter]]
) -> tuple[dict[int, list[Parameter]], dict[int, list[Parameter]]]:
    """Return a program's parameters by stage: those to be sharded, and those that only this rank holds.

    The latter are experts, where expert parallelism spans all ranks that would share their shards.
    """
    found: tuple[dict[int, list[Parameter]], dict[int, list[Parameter]]] = {}, {}
    for stage, group in groups.items():
        fresh = [step_end.tracer.parameters[p.source] for p in group]
        shared = [step_end.tracer.mesh.degree(*step_end.shard_axes([p])) > 1 for p in fresh]
        for into, wanted in zip(found, (True, False), strict=True):
            into[stage] = [p for p, is_shared in zip(fresh, shared, strict=True) if is_shared is wanted]
    return found


def whole_buckets(groups: Mapping[int, Sequence[Parameter]], begin: int, bucket_bytes: int) -> list[Bucket]:
    """Return the buckets of parameters that are not sharded, counted from ``begin``."""
    buckets = make_buckets(groups, bucket_bytes=bucket_bytes, overlap=True, tied=False)
    return [replace(bucket, index=begin + bucket.index) for bucket in buckets]


class Gathering(Struct, frozen=True):
    """Lifetime of gathered parameters.

    ``kept``: units that stay gathered from forward to the backward of the same micro-batch; None means all units.
    ``once``: all units are gathered once a step, and kept until it has computed.
    """

    kept: frozenset[str] | None = frozenset()
    once: bool = False


def shares_table(job: DenseTraining) -> bool:
    """Return whether two virtual stages of one rank, the first and the last, both use the tied table."""
    pipeline = job.parallel.pipeline
    return job.model.tied_embeddings and pipeline.degree == 1 and pipeline.virtual_stages > 1


def gathering_of(job: DenseTraining) -> Gathering:
    """Return when stage 3 gathers its units.

    Where each backward directly follows its own forward, backward begins with the unit that ended forward, so that unit
    is kept. Other schedules run several forwards first, and a kept unit would take memory for each of their
    micro-batches.
    """
    pipeline, reshards = job.parallel.pipeline, job.parallel.sharding.reshards
    kinds = "".join(map(LETTERS.__getitem__, orders(pipeline, job.num_microbatches)[0].kinds.tolist()))
    if pipeline.degree > 1 or kinds != "FB" * job.num_microbatches:
        return Gathering(once=not reshards)
    return Gathering(frozenset({END_UNIT}) if reshards else None)


@dataclass(slots=True)
class ShardedStepWriter:
    """Writes the sharded step of one program, and rewrites its passes.

    ``gathering``: lifetime of the units' gathered parameters; None where parameters stay whole.
    ``whole``: parameters outside all units, replicated with their gradients and optimizer state.
    """

    job: DenseTraining
    tracer: ProgramTracer
    step_end: StepEndWriter
    units: Sequence[Unit]
    gathering: Gathering | None = None
    whole: Sequence[Bucket] = ()
    gradient_shards: dict[str, Tensor] = field(init=False, default_factory=dict)
    parameter_shards: dict[str, Tensor] = field(init=False, default_factory=dict)

    def write(self) -> tuple[list[str], list[str]]:
        """Return the names of the tasks before and after forwards and backwards."""
        gradient_scope = Scope.MICROBATCH if self._each_microbatch else Scope.STEP
        for unit in self.units:
            self.gradient_shards[unit.name] = self._gradient_shard(unit)
            self._rescope(unit.gradients, gradient_scope)
            if self.gathering is not None:
                self.parameter_shards[unit.name] = self._parameter_shard(unit, "", self.tracer.parameter_dtype)
                self._rescope(unit.values, Scope.STEP if self.gathering.once else Scope.MICROBATCH)
        begin = [self._write_begin()]
        if self.gathering is not None and self.units:
            begin += self._write_gather() if self.gathering.once else self._gather_parameters(self.gathering)
        if self._each_microbatch:
            self._reduce_each_microbatch()
        end = [*self._write_sync(), *self._write_update(), *self.step_end.write_sync_and_update(self.whole)]
        return begin, end

    # --- properties of the job -------------------------------------------------------------------------------------

    @property
    def _each_microbatch(self) -> bool:
        return self.job.parallel.sharding.syncs_each_microbatch

    def _hops(self, unit: Unit) -> Hops:
        """Return the axes of a unit's all_gathers."""
        return self.step_end.shard_hops(unit.parameters)

    @property
    def _shards(self) -> dict[str, Shard]:
        """Return this rank's piece of each unit's parameters."""
        units = {unit.name: unit for unit in self.units}
        return {name: Shard(shard.name, self._hops(units[name])) for name, shard in self.parameter_shards.items()}

    @property
    def _movement(self) -> Movement:
        """Return the policy that says when units are gathered."""
        return Window(self.job.parallel.sharding.units_ahead)

    @property
    def _joins_passes(self) -> bool:
        """Return whether a micro-batch's units are gathered for its forward and its backward as one pass."""
        return False

    # --- buffers ---------------------------------------------------------------------------------------------------

    def _rescope(self, names: Sequence[str], scope: Scope) -> None:
        for name in names:
            self.tracer.buffers[name] = replace(self.tracer.buffers[name], scope=scope)

    def _gradient_shard(self, unit: Unit) -> Tensor:
        initial = Initial("zeros", of=unit.values, axes=self.step_end.shard_axes(unit.parameters))
        name, dtype = f"gradient_shard.{unit.name}", self.tracer.gradient_dtype
        return self.step_end.flat(name, unit.parameters, dtype, Kind.GRADIENT, Scope.PERSISTENT, initial)

    def _parameter_shard(self, unit: Unit, label: str, dtype: str) -> Tensor:
        initial = Initial("shard", of=unit.values, axes=self.step_end.shard_axes(unit.parameters))
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

    def _write_gather(self) -> list[str]:
        """Write the task that gathers all units for a step."""
        shards = self._shards
        ops = [op for u in self.units for op in gather("all_gather", shards[u.name], u, {})]
        self._add_between("all_gather", Scope.STEP)
        return [self.tracer.add_task("gather_parameters", Phase.PREPARE, ops).name]

    def _gather_parameters(self, gathering: Gathering) -> list[str]:
        """Gather units in forward, and again in backward unless kept.

        Returns no task, as nothing is gathered before the step.
        """
        if self.job.training.types.casts:
            self._cast_in_passes()
        buffers = self.tracer.buffers
        begins = [Buffer(f"{label}.begin", (0,), "uint8", Kind.WORKSPACE) for label in ("all_gather", "regather")]
        held = frozenset(unit.name for unit in self.units if gathering.kept is None or unit.name in gathering.kept)
        names = {name: f"{name}{REGATHERED}" for unit in self.units if unit.name not in held for name in unit.values}
        forwards = {task: Pass("all_gather", ops, {}) for task, ops in self._rewritten(Phase.FORWARD)}
        backwards = {task: Pass("regather", ops, names) for task, ops in self._rewritten(Phase.BACKWARD)}
        if self._joins_passes:
            self._gather_in(forwards | backwards, held, begins[0].name)
        else:
            for task, one in forwards.items():
                self._gather_in({task: one}, frozenset(), begins[0].name)
            for task, one in backwards.items():
                self._gather_in({task: one}, held, begins[1].name)
        written = {name for task in self.tracer.tasks.values() for op in task.ops for name in op.writes}
        buffers.update({new: replace(buffers[old], name=new) for old, new in names.items() if new in written})
        buffers.update({begin.name: begin for begin in begins if begin.name in written})
        for label in ("all_gather", "regather"):
            self._add_between(label, Scope.MICROBATCH)
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            with_own_buffers(self.tracer, phase)
        return []

    def _gather_in(self, passes: Mapping[str, Pass], held: Set[str], begin: str) -> None:
        """Gather units in tasks that follow each other at once; see ``Gathers``."""
        gathers = Gathers(self._shards, held, self._movement, begin)
        for task, ops in zip(passes, gathers.into(list(passes.values()), self.units), strict=True):
            self._replace(task, ops)

    def _cast_in_passes(self) -> None:
        """Cast gathered parameters within each pass, so that no 8-bit copy outlives the parameters it was cast from."""
        parameters = [p for unit in self.units for p in unit.parameters]
        for phase, label in ((Phase.FORWARD, ".gathered"), (Phase.BACKWARD, REGATHERED)):
            for name, task in list(self.tracer.tasks.items()):
                if task.phase is phase:
                    self.tracer.tasks[name] = cast_in_pass(self.tracer, task, parameters, label)
        drop_casts(self.tracer, parameters)

    def _add_between(self, label: str, scope: Scope) -> None:
        """Add the buffers between the two all_gathers of a unit, where it has two."""
        written = {name for task in self.tracer.tasks.values() for op in task.ops for name in op.writes}
        for unit in self.units:
            name, shard = between(label, unit), self.parameter_shards[unit.name]
            _, *first = self._hops(unit)
            if first and (name in written or scope is Scope.STEP):
                shape = (self.tracer.mesh.degree(*chain(*first)) * shard.shape[0],)
                self.tracer.add_buffer(Buffer(name, shape, shard.dtype, Kind.PARAMETER, scope))

    def _reduce_each_microbatch(self) -> None:
        pieces = {}
        for unit in self.units:
            name, dtype = f"gradient_piece.{unit.name}", self.tracer.gradient_dtype
            pieces[unit.name] = self.step_end.flat(name, unit.parameters, dtype, Kind.GRADIENT, Scope.MICROBATCH)
        gathers = self.gathering is not None  # gathers run on the reductions' stream, so computing waits anyway
        sums = {} if gathers else {name: shard.name for name, shard in self.gradient_shards.items()}
        reductions = {unit.name: self._microbatch_reduction(unit, pieces[unit.name]) for unit in self.units}
        for task, ops in self._rewritten(Phase.BACKWARD):
            self._replace(task, self._reduced(ops, reductions, sums))
        with_own_buffers(self.tracer, Phase.BACKWARD)

    def _reduced(self, ops: Sequence[Op], reductions: Mapping[str, Sequence[Op]], sums: Mapping[str, str]) -> list[Op]:
        """Return a backward with its gradients reduced; see ``with_reductions``."""
        return with_reductions(ops, self.units, reductions, sums)

    def _microbatch_reduction(self, unit: Unit, piece: Tensor) -> list[Op]:
        """Return the ops that reduce-scatter a micro-batch's gradients and add the shard to the accumulated one.

        The addition runs on the stream of the collective, so that computing does not wait for it.
        """
        total = self.gradient_shards[unit.name].name
        addition = Compute(f"accumulate.{unit.name}", "add", (piece.name, total), (total,), stream=DATA_AXIS)
        return [*self._to_shard(unit, piece), addition]

    def _to_shard(self, unit: Unit, shard: Tensor) -> Iterator[Op]:
        """Yield the collectives that reduce a unit's gradients to this rank's shard."""
        names = tuple(p.gradient.name for p in unit.partial)
        for axis in unit.partial_axes:
            name = f"sum_{axis}.{unit.name}"
            yield Collective(name, CollectiveKind.ALL_REDUCE, (axis,), names, names, axis)
        name, axes = f"reduce_scatter.{unit.name}", self.step_end.shard_axes(unit.parameters)
        yield Collective(name, CollectiveKind.REDUCE_SCATTER, axes, unit.gradients, (shard.name,), DATA_AXIS)

    # --- beginning and end of the step -----------------------------------------------------------------------------

    def _write_begin(self) -> str:
        t = TaskTracer(self.tracer, Scope.STEP)
        cleared = [self.step_end.loss] if self.step_end.has_loss else []
        cleared += [p.gradient for bucket in self.whole for p in bucket.parameters]
        if self._each_microbatch:
            cleared += self.gradient_shards.values()
        else:
            t.ops += [zeros(f"zeros.{unit.name}", [p.gradient for p in unit.parameters]) for unit in self.units]
        if cleared:
            t.update("zero_gradients", "zero", (), cleared)
        return self.tracer.add_task("zero_gradients", Phase.PREPARE, t.ops).name

    def _write_sync(self) -> list[str]:
        """Write the remaining sums of the gradients, on the shards."""
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
            if self.gathering is not None:
                self._update_unit(t, unit, gradient)
            else:
                self.step_end.update_shard(t, Bucket(index, unit.parameters), [gradient])
            names += self.step_end.finish(f"optimizer.{unit.name}", Phase.OPTIMIZER, t)
        return names

    def _update_unit(self, t: TaskTracer, unit: Unit, gradient: Tensor) -> None:
        """Write the optimizer's step on this rank's shard of a unit."""
        types, name, shard = self.job.training.types, f"shard.{unit.name}", self.parameter_shards[unit.name]
        optimizer = (types.master, Kind.OPTIMIZER, Scope.PERSISTENT)
        moments = [
            self.step_end.flat(f"{name}.{label}", unit.parameters, *optimizer) for label in self.step_end.moments
        ]
        updated = [shard, *moments]
        if types.mixed:
            updated = [self._parameter_shard(unit, ".master", types.master), *moments, shard]
        self.step_end.optimize(t, name, gradient, updated)
