"""The beginning and the end of a training step: clear gradients, synchronise them, update parameters.

ZeRO stage 0: all_reduce of every bucket, each rank updates all its parameters.
ZeRO stage 1 (Rajbhandari et al. 2020): reduce_scatter of every bucket, each rank updates its flat piece
with its piece of the optimizer state, all_gather of the updated parameters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from sim.plan.buffer import Buffer, Initial, Kind, Scope
from sim.plan.op import Collective, CollectiveKind
from sim.plan.program import Phase
from sim.plan.tracing import Parameter, ProgramTracer, TaskTracer, Tensor
from sim.training.data.axes import data_axes, shard_axes
from sim.training.data.buckets import Bucket, make_buckets
from sim.training.pipeline.placement import Placement
from sim.training.precision import PrecisionTypes
from sim.training.spec import DenseTraining
from sim.training.transformer import DATA_AXIS

PIPELINE_AXIS = "pp"
EMBEDDING_STREAM = "embedding"
COPIES_STREAM = "copies"


def write_step_end(
    job: DenseTraining, tracer: ProgramTracer, place: Placement, rank: int, groups: Mapping[int, Sequence[Parameter]]
) -> tuple[list[str], list[str]]:
    """Write the tasks before and after a rank's forwards and backwards; return their names in call order.

    ``groups``: the rank's parameters by stage of the model.
    """
    parallel = job.parallel
    ends = place.ranks[0], place.ranks[place.chain_length - 1]
    holds_tied = job.model.tied_embeddings and ends[0] != ends[1] and rank in ends
    fresh = {stage: [tracer.parameters[p.source] for p in group] for stage, group in groups.items()}
    buckets = make_buckets(
        fresh,
        bucket_bytes=parallel.bucket_bytes,
        overlap=parallel.overlap_gradient_sync,
        data_axis=DATA_AXIS,
        tied=holds_tied,
    )
    copies = tuple(sorted({rank, place.num_ranks - 1 - rank})) if place.num_copies > 1 else ()
    writer = StepEndWriter(job, tracer, job.training.types, ends, copies)
    return [writer.write_zero()], writer.write_sync_and_update(buckets)


@dataclass(frozen=True, slots=True)
class StepEndWriter:
    """Writes the tasks of one program's step end.

    ``ends``: the pipeline ranks of the model's first and last stage. ``copies``: the two pipeline ranks that hold the
    same stages, of two copies of the model; empty where there is one copy.
    """

    job: DenseTraining
    tracer: ProgramTracer
    precision: PrecisionTypes
    ends: tuple[int, int]
    copies: tuple[int, ...]

    def write_zero(self) -> str:
        """Write the task that clears the gradients (and the loss) before a step."""
        t = TaskTracer(self.tracer, Scope.STEP)
        cleared = [p.gradient for p in self.tracer.parameters.values()]
        if self.has_loss:
            cleared.append(self.loss)
        t.update("zero_gradients", "zero", (), cleared)
        return self.tracer.add_task("zero_gradients", Phase.PREPARE, t.ops).name

    def write_sync_and_update(self, buckets: Sequence[Bucket]) -> list[str]:
        """Write gradient synchronisation and optimizer, bucket by bucket."""
        sharded = self.job.parallel.zero_stage == 1 and self.data_degree > 1
        names, shards = [], {}
        for bucket in buckets:
            t = TaskTracer(self.tracer, Scope.STEP)
            shards[bucket.index] = self._sync(t, bucket, sharded=sharded)
            names += self.finish(f"gradient_sync.{bucket.index}", Phase.GRADIENT_SYNC, t)
        for bucket in buckets:
            t = TaskTracer(self.tracer, Scope.STEP)
            shard = shards[bucket.index]
            if shard is None:
                for parameter in bucket.parameters:
                    self._update(t, parameter)
            else:
                self.update_shard(t, bucket, shard)
            names += self.finish(f"optimizer.{bucket.index}", Phase.OPTIMIZER, t)
        return names + self.write_loss_sync()

    # --- pieces --------------------------------------------------------------------------------------------

    def write_loss_sync(self) -> list[str]:
        """Write the sum of the loss over copies and replicas, where this program computes it."""
        if not self.has_loss:
            return []
        t = TaskTracer(self.tracer, Scope.STEP)
        if self.copies:
            self.all_reduce(t, "loss_of_copies", [self.loss], (PIPELINE_AXIS,), COPIES_STREAM, self.copies)
        if self.data_degree > 1:
            self.all_reduce(t, "loss", [self.loss], data_axes(self.tracer.mesh), DATA_AXIS)
        return self.finish("loss_sync", Phase.GRADIENT_SYNC, t)

    @property
    def data_degree(self) -> int:
        """Return the number of data-parallel replicas."""
        return self.tracer.mesh.degree(*data_axes(self.tracer.mesh))

    @property
    def shard_axes(self) -> tuple[str, ...]:
        """Return the axes over which flat pieces are shared out."""
        return shard_axes(self.tracer.mesh)

    @property
    def has_loss(self) -> bool:
        """Return whether this program computes the loss."""
        return "loss" in self.tracer.buffers

    @property
    def loss(self) -> Tensor:
        """Return the accumulated loss."""
        buffer = self.tracer.buffers["loss"]
        return Tensor(buffer.name, buffer.shape, buffer.dtype)

    def finish(self, name: str, phase: Phase, t: TaskTracer) -> list[str]:
        """Add a task unless it is empty; return its name, if any."""
        return [self.tracer.add_task(name, phase, t.ops).name] if t.ops else []

    def _sync(self, t: TaskTracer, bucket: Bucket, *, sharded: bool) -> Tensor | None:
        """Write a bucket's collectives; return this rank's flat piece of the sum where it is sharded."""
        gradients = [p.gradient for p in bucket.parameters]
        for axis in bucket.partial_axes:
            self.all_reduce(t, f"sum_{axis}", gradients, (axis,), axis)
        if bucket.tied:
            self.all_reduce(t, "tie", gradients, (PIPELINE_AXIS,), EMBEDDING_STREAM, tuple(sorted(self.ends)))
        elif self.copies:
            self.all_reduce(t, "copies", gradients, (PIPELINE_AXIS,), COPIES_STREAM, self.copies)
        if self.data_degree == 1:
            return None
        if not sharded:
            self.all_reduce(t, "all_reduce", gradients, (DATA_AXIS,), DATA_AXIS)
            return None
        name, dtype = f"gradient_shard.{bucket.index}", gradients[0].dtype
        shard = self.flat(name, bucket.parameters, dtype, Kind.GRADIENT, Scope.STEP)
        reads = tuple(g.name for g in gradients)
        name = t.unique("reduce_scatter")
        t.emit(Collective(name, CollectiveKind.REDUCE_SCATTER, (DATA_AXIS,), reads, (shard.name,), DATA_AXIS))
        return shard

    def all_reduce(
        self,
        t: TaskTracer,
        name: str,
        tensors: Sequence[Tensor],
        axes: tuple[str, ...],
        stream: str,
        members: tuple[int, ...] = (),
    ) -> None:
        """Write the sum of some tensors, as one flat vector, in place."""
        names = tuple(tensor.name for tensor in tensors)
        op = Collective(t.unique(name), CollectiveKind.ALL_REDUCE, axes, names, names, stream, members=members)
        t.emit(op)

    def _update(self, t: TaskTracer, parameter: Parameter) -> None:
        """Write Adam on a whole parameter, with a master copy under mixed precision."""
        source, buffer = parameter.source, self.tracer.buffers[parameter.value.name]
        common = (buffer.shape, self.precision.master, Kind.OPTIMIZER, Scope.PERSISTENT)
        moments = [
            self.tracer.tensor(Buffer(f"{source}.{label}", *common, initial=Initial("zeros", source)))
            for label in ("exp_avg", "exp_avg_sq")
        ]
        if not self.precision.mixed:
            self.adam(t, source, parameter.gradient, [parameter.value, *moments])
            return
        master = self.tracer.tensor(
            Buffer(
                f"{source}.master", *common,
                initial=buffer.initial, global_shape=buffer.global_shape, layout=buffer.layout, part=buffer.part,
            )
        )  # fmt: skip
        self.adam(t, source, parameter.gradient, [master, *moments, parameter.value])

    def update_shard(self, t: TaskTracer, bucket: Bucket, gradient: Tensor) -> None:
        """Write Adam on this rank's flat piece of a bucket, and the gather of the updated parameters."""
        values, parameters = [p.value for p in bucket.parameters], bucket.parameters
        name = f"shard.{bucket.index}"
        (piece,) = t.compute(
            name, "shard", values, (values[0].layout,), kind=Kind.WORKSPACE,
            axes=self.shard_axes, parts=self.tracer.mesh.degree(*self.shard_axes),
        )  # fmt: skip
        dtype, persistent = self.precision.master, (Kind.OPTIMIZER, Scope.PERSISTENT)
        moments = [self.flat(f"{name}.{label}", parameters, dtype, *persistent) for label in ("exp_avg", "exp_avg_sq")]
        updated = [piece, *moments]
        if self.precision.mixed:
            initial = Initial("shard", of=tuple(v.name for v in values), axes=self.shard_axes)
            updated = [self.flat(f"{name}.master", parameters, dtype, *persistent, initial=initial), *moments, piece]
        self.adam(t, name, gradient, updated)
        writes = tuple(v.name for v in values)
        gather = t.unique("all_gather")
        t.emit(Collective(gather, CollectiveKind.ALL_GATHER, self.shard_axes, (piece.name,), writes, DATA_AXIS))

    def flat(
        self, name: str, parameters: Sequence[Parameter], dtype: str, kind: Kind, scope: Scope,
        initial: Initial | None = None,
    ) -> Tensor:  # fmt: skip
        """Return a new buffer for this rank's flat piece of some parameters; a persistent one starts with zeros."""
        total = sum(prod(p.value.shape) for p in parameters)
        shape = (-(-total // self.tracer.mesh.degree(*self.shard_axes)),)
        if scope is Scope.PERSISTENT and initial is None:
            initial = Initial("zeros")
        return self.tracer.tensor(Buffer(name, shape, dtype, kind, scope, initial=initial))

    def adam(self, t: TaskTracer, name: str, gradient: Tensor, updated: Sequence[Tensor]) -> None:
        """Write one Adam step; ``updated``: parameter, two moments, and a low-precision copy if there is one."""
        training = self.job.training
        t.adam(
            f"adam.{name}",
            gradient,
            updated,
            learning_rate=training.learning_rate,
            beta1=training.adam_beta1,
            beta2=training.adam_beta2,
            epsilon=training.adam_epsilon,
            step=1,
        )
