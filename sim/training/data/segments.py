"""Gradient synchronisation and optimizer of all-in-all-out (Fold3D; Li et al. 2023), segment by segment.

A rank's segments are its stages. A segment's gradients are summed over replicas during other segments' compute: one
part under the next segment's backwards, the rest at the beginning of the next step, under its forwards. Right before
its own first forward, the segment is updated and its gradients are cleared. So every forward sees the parameters of
synchronous training: gradients are summed before they are used, and cleared only after use.

With ZeRO-1 gradients are reduce-scattered and parameters updated in the same step; only the all_gather of the
parameters is deferred to the next step. A rank's first segment, whose forward comes first, defers nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from msgspec.structs import replace

from sim.plan.functions.tracing import Parameter, ProgramTracer, TaskTracer
from sim.plan.words.buffer import Scope
from sim.plan.words.calls import Calls
from sim.plan.words.program import Call, Phase
from sim.training.data.axes import sum_axes
from sim.training.data.buckets import Bucket, make_buckets
from sim.training.data.optimizer import StepEndWriter, step_end_writer
from sim.training.pipeline.placement import Placement
from sim.training.spec.job import DenseTraining


@dataclass(slots=True)
class SegmentCalls:
    """Calls around a rank's forwards and backwards. ``before``: by stage, the calls ahead of its first forward."""

    begin: list[Call] = field(default_factory=list)
    before: dict[int, list[Call]] = field(default_factory=dict)
    end: list[Call] = field(default_factory=list)

    def around(self, calls: Calls) -> Calls:
        """Return a rank's calls, with these calls inserted at their places."""
        first = calls.first_calls
        inserted = {first[f"forward.{stage}"]: before for stage, before in self.before.items()}
        return Calls.joined(self.begin, calls.with_inserted(inserted), self.end)


def write_segments(
    job: DenseTraining, tracer: ProgramTracer, place: Placement, rank: int, groups: Mapping[int, Sequence[Parameter]]
) -> SegmentCalls:
    """Write a rank's tasks other than forwards and backwards; return their calls.

    ``groups``: the rank's parameters by stage.
    """
    writer = step_end_writer(job, tracer, place, rank)
    numbers, segments = count(), {}
    for stage in sorted(groups, reverse=True):
        fresh = {stage: [tracer.parameters[p.source] for p in groups[stage]]}
        buckets = make_buckets(
            fresh, bucket_bytes=0, overlap=True, tied=writer.holds_tied(rank)
        )  # fmt: skip
        segments[stage] = [replace(bucket, index=next(numbers)) for bucket in buckets]
    return SegmentWriter(job, tracer, writer, segments).write()


@dataclass(slots=True)
class SegmentWriter:
    """Writes the tasks of one program. ``segments``: buckets by stage, in the order in which they are complete.

    A tied embedding is summed over two pipeline ranks once both have its gradient, at the end of the step. Its sum is
    not deferred.
    """

    job: DenseTraining
    tracer: ProgramTracer
    step_end: StepEndWriter
    segments: Mapping[int, Sequence[Bucket]]
    calls: SegmentCalls = field(init=False, default_factory=SegmentCalls)

    def write(self) -> SegmentCalls:
        """Return the calls of all tasks."""
        calls, sharded = self.calls, self.job.parallel.zero_stage == 1 and self.step_end.data_degree > 1
        part = self._deferred_part
        tied = [bucket for buckets in self.segments.values() for bucket in buckets if bucket.tied]
        kept: set[str] = set()
        updates: list[Call] = []
        for stage, buckets in self.segments.items():
            own = [bucket for bucket in buckets if not bucket.tied]
            defers = stage != min(self.segments) and part > 0
            if sharded:
                updates += self._shard(stage, own, defers=defers)
            elif defers:
                kept.update(p.source for bucket in own for p in bucket.parameters)
                self._split(stage, own, part)
            else:
                updates += self._whole(str(stage), own)
        updates += self._whole("tied", tied, sharded=sharded)
        calls.begin.insert(0, Call(self.step_end.write_zero(kept)))
        calls.end += [*updates, *(Call(name) for name in self.step_end.write_last_sums())]
        return calls

    @property
    def _deferred_part(self) -> float:
        """Return the fraction of a segment's synchronisation in the next step; with ZeRO-1 it is 1, all all_gathers."""
        if self.step_end.data_degree == 1:
            return 0.0
        if self.job.parallel.zero_stage == 1:
            return 1.0
        return self.job.deferred_part

    # --- segments that defer nothing -------------------------------------------------------------------------------

    def _whole(self, name: str, buckets: Sequence[Bucket], *, sharded: bool = False) -> list[Call]:
        """Write a segment's synchronisation at the end of the step; return the calls of its update, also at the end."""
        sync, update = TaskTracer(self.tracer, Scope.STEP), TaskTracer(self.tracer, Scope.STEP)
        for bucket in buckets:
            self.step_end.sync(sync, bucket, sharded=sharded)
            if sharded:
                self.step_end.update_shard(update, bucket, [p.gradient for p in bucket.parameters])
            else:
                self.step_end.update(update, bucket)
        self.calls.end += self._calls(f"gradient_sync.{name}", Phase.GRADIENT_SYNC, sync)
        return self._calls(f"optimizer.{name}", Phase.OPTIMIZER, update)

    # --- replicated parameters: a part of the sum is deferred ------------------------------------------------------

    def _split(self, stage: int, buckets: Sequence[Bucket], part: float) -> None:
        """Write a segment's update and its two sums: the first now, the rest at the beginning of the next step."""
        now, later, update = (TaskTracer(self.tracer, Scope.STEP) for _ in range(3))
        for bucket in buckets:
            total = sum(p.gradient.spec.num_elements for p in bucket.parameters)
            first = round((1.0 - part) * total)
            if bucket.partial_axes or first == total:  # also summed over other axes, and small
                self.step_end.sync(now, bucket, sharded=False)
            else:
                gradients = [p.gradient for p in bucket.parameters]
                if first:
                    self.step_end.sync(now, bucket, sharded=False, span=(0, first))
                axes = sum_axes(self.tracer.mesh)
                self.step_end.sum_replicas(later, "all_reduce_deferred", gradients, axes, (first, total))
            self.step_end.update(update, bucket)
        zero = TaskTracer(self.tracer, Scope.STEP)
        zero.update("zero_gradients", "zero", (), [p.gradient for bucket in buckets for p in bucket.parameters])
        calls = self.calls
        calls.end += self._calls(f"gradient_sync.{stage}", Phase.GRADIENT_SYNC, now)
        calls.begin[:0] = self._calls(f"deferred_sync.{stage}", Phase.GRADIENT_SYNC, later, lag=1)
        calls.before[stage] = [
            *self._calls(f"optimizer.{stage}", Phase.OPTIMIZER, update, lag=1),
            *self._calls(f"zero_gradients.{stage}", Phase.PREPARE, zero),
        ]

    # --- sharded optimizer state: the all_gather is deferred -------------------------------------------------------

    def _shard(self, stage: int, buckets: Sequence[Bucket], *, defers: bool) -> list[Call]:
        """Write a segment's reduce_scatters; return the calls of its update.

        ``defers``: the next step runs the all_gathers.
        """
        if not defers:
            return self._whole(str(stage), buckets, sharded=True)
        sync, update, gather = (TaskTracer(self.tracer, Scope.STEP) for _ in range(3))
        for bucket in buckets:
            self.step_end.sync(sync, bucket, sharded=True)
            self.step_end.update_piece(update, bucket, [p.gradient for p in bucket.parameters])
            self.step_end.gather(gather, bucket)
        self.calls.end += self._calls(f"gradient_sync.{stage}", Phase.GRADIENT_SYNC, sync)
        self.calls.begin[:0] = self._calls(f"deferred_gather.{stage}", Phase.OPTIMIZER, gather, lag=1)
        return self._calls(f"optimizer.{stage}", Phase.OPTIMIZER, update)

    def _calls(self, name: str, phase: Phase, t: TaskTracer, lag: int = 0) -> list[Call]:
        return [Call(task, lag=lag) for task in self.step_end.finish(name, phase, t)]
