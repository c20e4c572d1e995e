"""The beginning and the end of a training step: clear gradients, synchronise them, update parameters.

ZeRO stage 0: all_reduce of every bucket; each rank updates all its parameters. ZeRO stage 1 (Rajbhandari et al. 2020):
reduce_scatter of every bucket; each rank updates its flat piece with its piece of the optimizer state; all_gather of
the updated parameters. Both collectives and the update work in place, as in Megatron-LM's distributed optimizer: a
rank's piece of a bucket is a part of its gradients, and of its parameters.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from math import prod

from msgspec import Struct

from sim.plan.functions.biased_experts import router_biases
from sim.plan.functions.tracing import Parameter, ProgramTracer, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Initial, Kind, Scope, Tier
from sim.plan.words.layout import REPLICATED
from sim.plan.words.op import Collective, CollectiveKind, Compute
from sim.plan.words.program import Call, Phase
from sim.training.data.axes import shard_axes, shard_hops, sum_axes
from sim.training.data.buckets import Bucket, is_shared_out, make_buckets
from sim.training.pipeline.placement import Placement
from sim.training.spec.job import DenseTraining, Optimizer
from sim.training.spec.parallelism.mesh_axes import DATA_AXIS, EXPERT_AXIS, PIPELINE_AXIS
from sim.training.spec.precision import PrecisionTypes

EMBEDDING_STREAM = "embedding"
COPIES_STREAM = "copies"

MOMENTS: Mapping[Optimizer, tuple[str, ...]] = {"adam": ("exp_avg", "exp_avg_sq"), "sgd": ()}
"""The moments that each optimizer keeps for every parameter."""


def write_step_end(
    job: DenseTraining, tracer: ProgramTracer, place: Placement, rank: int, groups: Mapping[int, Sequence[Parameter]]
) -> tuple[list[Call], list[Call]]:
    """Write the tasks before and after a rank's forwards and backwards; return their calls.

    ``groups``: the rank's parameters by stage of the model.
    """
    parallel, writer = job.parallel, step_end_writer(job, tracer, place, rank)
    buckets = make_buckets(
        {stage: [tracer.parameters[p.source] for p in group] for stage, group in groups.items()},
        bucket_bytes=parallel.bucket_bytes,
        overlap=parallel.overlap_gradient_sync,
        tied=writer.holds_tied(rank),
    )
    end = [Call(name) for name in writer.write_sync_and_update(buckets)]
    gathers = writer.write_deferred_gathers(buckets) if writer.defers_gathers else []
    return [*gathers, Call(writer.write_zero())], end


def step_end_writer(job: DenseTraining, tracer: ProgramTracer, place: Placement, rank: int) -> "StepEndWriter":
    """Return the writer for the program of a pipeline rank."""
    ends = place.ranks[0], place.ranks[place.chain_length - 1]
    copies = tuple(sorted({rank, place.num_ranks - 1 - rank})) if place.num_copies > 1 else ()
    return StepEndWriter(job, tracer, job.training.types, ends, copies)


class StepEndWriter(Struct, frozen=True, dict=True):
    """Writes the tasks at the beginning and the end of one program's step.

    ``ends``: the pipeline ranks of the model's first and last stage.
    ``copies``: with two copies of the model, the two pipeline ranks that hold the same stages; else empty.
    """

    job: DenseTraining
    tracer: ProgramTracer
    precision: PrecisionTypes
    ends: tuple[int, int]
    copies: tuple[int, ...]

    def holds_tied(self, rank: int) -> bool:
        """Return whether a pipeline rank holds one of two copies of the tied embedding."""
        return self.job.model.tied_embeddings and self.ends[0] != self.ends[1] and rank in self.ends

    def write_zero(self, kept: Collection[str] = ()) -> str:
        """Write the task that clears loss and gradients before a step, except the gradients of ``kept``."""
        t = TaskTracer(self.tracer, Scope.STEP)
        cleared = [p.gradient for source, p in self.tracer.parameters.items() if source not in kept]
        if self.has_loss:
            cleared.append(self.loss)
        t.update("zero_gradients", "zero", (), cleared)
        return self.tracer.add_task("zero_gradients", Phase.PREPARE, t.ops).name

    def write_sync_and_update(self, buckets: Sequence[Bucket]) -> list[str]:
        """Write gradient synchronisation and optimizer, bucket by bucket."""
        names = []
        for bucket in buckets:
            t = TaskTracer(self.tracer, Scope.STEP)
            self._check_and_prescale(t, bucket)
            self.sync(t, bucket, sharded=self.shards(bucket))
            names += self.finish(f"gradient_sync.{bucket.index}", Phase.GRADIENT_SYNC, t)
        for bucket in buckets:
            t = TaskTracer(self.tracer, Scope.STEP)
            gradients = [p.gradient for p in bucket.parameters]
            if not self.shards(bucket):
                self.update(t, bucket)
            elif self.defers_gathers:
                self.update_piece(t, bucket, gradients)
            else:
                self.update_shard(t, bucket, gradients)
            names += self.finish(f"optimizer.{bucket.index}", Phase.OPTIMIZER, t)
        return names + self.write_last_sums()

    def write_deferred_gathers(self, buckets: Sequence[Bucket]) -> list[Call]:
        """Write the all_gathers that the next step's forwards run, in the order in which forwards need them."""
        calls = []
        for bucket in reversed([bucket for bucket in buckets if self.shards(bucket)]):
            t = TaskTracer(self.tracer, Scope.STEP)
            self.gather(t, bucket)
            names = self.finish(f"deferred_gather.{bucket.index}", Phase.OPTIMIZER, t)
            calls += [Call(name, lag=1) for name in names]
        return calls

    def _check_and_prescale(self, t: TaskTracer, bucket: Bucket) -> None:
        """Write the norm and the scaling of a bucket before its sum (Megatron-LM, param_and_grad_buffer.py)."""
        gradients = [p.gradient for p in bucket.parameters]
        if self.job.training.check_gradients:
            name = f"gradient_check.{bucket.index}"
            (norm,) = t.compute(name, "squared_norm", gradients, (REPLICATED,), kind=Kind.WORKSPACE)
            t.wait_for(norm.name)  # the host reads the norm, to find a NaN
        self._prescale(t, gradients)

    def _prescale(self, t: TaskTracer, tensors: Sequence[Tensor]) -> None:
        if self.job.gradient_scale != 1.0:
            t.update("prescale", "scale", (), tensors, factor=self.job.gradient_scale)

    # --- pieces --------------------------------------------------------------------------------------------

    def write_last_sums(self) -> list[str]:
        """Write the sums over copies and replicas that are not of gradients: of choices of experts, and of the loss."""
        return [*self._write_router_biases(), *self._write_loss_sync()]

    def _write_router_biases(self) -> list[str]:
        """Write the new biases of routers, from the choices of all ranks; one sum for all layers, as in Megatron-LM."""
        states, experts = router_biases(self.tracer), self.job.model.experts
        if not states or experts is None:
            return []
        t, counts = TaskTracer(self.tracer, Scope.STEP), [state.counts for state in states]
        if self.copies:
            self.all_reduce(t, "choices_of_copies", counts, (PIPELINE_AXIS,), COPIES_STREAM, self.copies)
        if self.data_degree > 1:
            self.all_reduce(t, "choices", counts, sum_axes(self.tracer.mesh), DATA_AXIS)
        for state in states:
            t.update(
                f"{state.bias.name}.update", "update_bias", (), (state.bias, state.counts),
                rate=experts.bias_update_rate,
            )  # fmt: skip
        return self.finish("router_bias", Phase.OPTIMIZER, t)

    def _write_loss_sync(self) -> list[str]:
        """Write the sum of the loss over copies and replicas, where this program computes it."""
        if not self.has_loss:
            return []
        t = TaskTracer(self.tracer, Scope.STEP)
        self._prescale(t, [self.loss])
        if self.copies:
            self.all_reduce(t, "loss_of_copies", [self.loss], (PIPELINE_AXIS,), COPIES_STREAM, self.copies)
        if shared := self.job.parallel.tensor.loss_axes:
            self.all_reduce(t, "loss_of_samples", [self.loss], shared, shared[0])
        if self.data_degree > 1:
            self.all_reduce(t, "loss", [self.loss], sum_axes(self.tracer.mesh), DATA_AXIS)
        return self.finish("loss_sync", Phase.GRADIENT_SYNC, t)

    @property
    def data_degree(self) -> int:
        """Return the number of ranks that hold the same parameters."""
        return self.tracer.mesh.degree(*sum_axes(self.tracer.mesh))

    @property
    def defers_gathers(self) -> bool:
        """Return whether the next step gathers the parameters that this step updates."""
        return self.job.parallel.overlap_parameter_gather and self.data_degree > 1

    def shards(self, bucket: Bucket) -> bool:
        """Return whether ZeRO-1 shards the optimizer state of a bucket, which needs replicas."""
        axes = sum_axes(self.tracer.mesh, of_experts=bucket.of_experts)
        return self.job.parallel.zero_stage == 1 and self.tracer.mesh.degree(*axes) > 1

    def shard_axes(self, parameters: Sequence[Parameter]) -> tuple[str, ...]:
        """Return the axes over which the flat pieces of some parameters are sharded."""
        return shard_axes(self.tracer.mesh, of_experts=is_shared_out(parameters[0]))

    def is_shared(self, parameters: Sequence[Parameter]) -> bool:
        """Return whether several ranks share out the state of some parameters."""
        return self.tracer.mesh.degree(*self.shard_axes(parameters)) > 1

    def shard_hops(self, parameters: Sequence[Parameter]) -> tuple[tuple[str, ...], ...]:
        """Return the axes of ``shard_axes`` as one tuple per all_gather; see ``axes.shard_hops``."""
        return shard_hops(self.tracer.mesh, of_experts=is_shared_out(parameters[0]))

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

    def sync(self, t: TaskTracer, bucket: Bucket, *, sharded: bool, span: tuple[int, int] | None = None) -> None:
        """Write a bucket's collectives.

        ``sharded``: reduce_scatter, as a rank needs only its flat piece of the sum; else all_reduce.
        ``span``: the elements to sum over replicas now; None means all.
        """
        gradients = [p.gradient for p in bucket.parameters]
        if bucket.partial_axes:
            self.all_reduce(t, f"sum_{bucket.partial_axes[0]}", gradients, bucket.partial_axes, bucket.partial_axes[0])
        if bucket.tied:
            self.all_reduce(t, "tie", gradients, (PIPELINE_AXIS,), EMBEDDING_STREAM, tuple(sorted(self.ends)))
        elif self.copies:
            self.all_reduce(t, "copies", gradients, (PIPELINE_AXIS,), COPIES_STREAM, self.copies)
        if len(bucket.holders) > 1:
            self.all_reduce(t, "sum_of_replicas", gradients, (EXPERT_AXIS,), EXPERT_AXIS, bucket.holders)
        axes = sum_axes(self.tracer.mesh, of_experts=bucket.of_experts)
        if self.tracer.mesh.degree(*axes) == 1:
            return
        if not sharded:
            self.sum_replicas(t, "all_reduce", gradients, axes, span)
            return
        names, name = tuple(g.name for g in gradients), t.unique("reduce_scatter")
        t.emit(Collective(name, CollectiveKind.REDUCE_SCATTER, axes, names, names, DATA_AXIS))

    def all_reduce(
        self,
        t: TaskTracer,
        name: str,
        tensors: Sequence[Tensor],
        axes: tuple[str, ...],
        stream: str,
        members: tuple[int, ...] = (),
    ) -> None:
        """Write the sum of some tensors over axes, as one flat vector, in place."""
        names = tuple(tensor.name for tensor in tensors)
        op = Collective(t.unique(name), CollectiveKind.ALL_REDUCE, axes, names, names, stream, members=members)
        t.emit(op)

    def sum_replicas(
        self,
        t: TaskTracer,
        name: str,
        tensors: Sequence[Tensor],
        axes: tuple[str, ...],
        span: tuple[int, int] | None = None,
    ) -> None:
        """Write the sum over replicas of the elements ``span`` of the flattened tensors; None means all elements.

        Tensors outside the span take no part.
        """
        if span is None:
            return self.all_reduce(t, name, tensors, axes, DATA_AXIS)
        touched: list[str] = []
        start = begin = 0
        for tensor in tensors:
            end = start + tensor.spec.num_elements
            if end > span[0] and start < span[1]:
                begin = begin if touched else start
                touched.append(tensor.name)
            start = end
        if touched:
            names, part = tuple(touched), (span[0] - begin, span[1] - begin)
            t.emit(Collective(t.unique(name), CollectiveKind.ALL_REDUCE, axes, names, names, DATA_AXIS, span=part))
        return None

    def update(self, t: TaskTracer, bucket: Bucket) -> None:
        """Write the optimizer's step on a bucket's whole parameters."""
        for parameter in bucket.parameters:
            self._update(t, parameter)

    def _update(self, t: TaskTracer, parameter: Parameter) -> None:
        """Write the optimizer's step on a whole parameter, with a master copy under mixed precision."""
        source, buffer = parameter.source, self.tracer.buffers[parameter.value.name]
        common = (buffer.shape, self.precision.master, Kind.OPTIMIZER, Scope.PERSISTENT)
        moments = [
            self.tracer.tensor(Buffer(f"{source}.{label}", *common, initial=Initial("zeros", source)))
            for label in self.moments
        ]
        if not self.precision.mixed:
            self.optimize(t, source, parameter.gradient, [parameter.value, *moments])
            return
        master = self.tracer.tensor(
            Buffer(
                f"{source}.master", *common,
                initial=buffer.initial, global_shape=buffer.global_shape, layout=buffer.layout, part=buffer.part,
            )
        )  # fmt: skip
        self.optimize(t, source, parameter.gradient, [master, *moments, parameter.value])

    def update_shard(self, t: TaskTracer, bucket: Bucket, gradients: Sequence[Tensor]) -> None:
        """Write the optimizer's step on this rank's flat piece of a bucket, and the all_gather of all pieces.

        ``gradients``: this rank's summed piece, or the bucket's gradients in which that piece is summed.
        """
        self.update_piece(t, bucket, gradients)
        self.gather(t, bucket)

    def update_piece(self, t: TaskTracer, bucket: Bucket, gradients: Sequence[Tensor]) -> None:
        """Write the optimizer's step on this rank's flat piece of a bucket's parameters, in place."""
        name, rule = f"shard.{bucket.index}", self.job.training.optimizer
        state, values = self._piece_state(bucket, name), [p.value for p in bucket.parameters]
        reads = tuple(tensor.name for tensor in (*state, *gradients, *values))
        writes = tuple(tensor.name for tensor in (*state, *values))
        attributes = {
            "axes": self.shard_axes(bucket.parameters), "size": self.piece_size(bucket.parameters),
            "num_gradients": len(gradients), "num_parameters": len(values), **self._numbers,
        }  # fmt: skip
        t.emit(Compute(t.unique(f"{rule}.{name}"), f"{rule}_piece", reads, writes, attributes))

    def _piece_state(self, bucket: Bucket, name: str) -> list[Tensor]:
        """Return the optimizer's state of a piece: under mixed precision a master copy, then the moments."""
        kept = (bucket.parameters, self.precision.master, Kind.OPTIMIZER, Scope.PERSISTENT)
        moments = [self.flat(f"{name}.{label}", *kept) for label in self.moments]
        if not self.precision.mixed:
            return moments
        of = tuple(p.value.name for p in bucket.parameters)
        initial = Initial("shard", of=of, axes=self.shard_axes(bucket.parameters))
        return [self.flat(f"{name}.master", *kept, initial=initial), *moments]

    def gather(self, t: TaskTracer, bucket: Bucket, piece: Tensor | None = None) -> None:
        """Write the all_gather of all ranks' pieces into a bucket's parameters; ``piece`` None means in place."""
        writes = tuple(p.value.name for p in bucket.parameters)
        reads = writes if piece is None else (piece.name,)
        gather, axes = t.unique("all_gather"), self.shard_axes(bucket.parameters)
        t.emit(Collective(gather, CollectiveKind.ALL_GATHER, axes, reads, writes, DATA_AXIS))

    def flat(
        self, name: str, parameters: Sequence[Parameter], dtype: str, kind: Kind, scope: Scope,
        initial: Initial | None = None, tier: Tier = Tier.DEVICE,
    ) -> Tensor:  # fmt: skip
        """Return a new buffer for this rank's flat piece of some parameters; a persistent one starts with zeros."""
        if scope is Scope.PERSISTENT and initial is None:
            initial = Initial("zeros")
        shape = (self.piece_size(parameters),)
        return self.tracer.tensor(Buffer(name, shape, dtype, kind, scope, tier, initial))

    def piece_size(self, parameters: Sequence[Parameter]) -> int:
        """Return the number of elements of a rank's flat piece of some parameters."""
        total = sum(prod(p.value.shape) for p in parameters)
        return -(-total // self.tracer.mesh.degree(*self.shard_axes(parameters)))

    @property
    def moments(self) -> tuple[str, ...]:
        """Return the names of the moments that the optimizer keeps for every parameter."""
        return MOMENTS[self.job.training.optimizer]

    def optimize(self, t: TaskTracer, name: str, gradient: Tensor, updated: Sequence[Tensor]) -> None:
        """Write one optimizer step; ``updated``.

        The parameter, its moments, and its low-precision copy if there is one.
        """
        rule = self.job.training.optimizer
        t.optimize(f"{rule}.{name}", rule, gradient, updated, **self._numbers)

    @cached_property
    def _numbers(self) -> Mapping[str, float]:
        """Return the attributes of the optimizer's kernel."""
        training = self.job.training
        first_step = {"step": 1} if training.optimizer == "adam" else {}
        return {**training.optimizer_numbers, **first_step}
