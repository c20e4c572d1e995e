"""Plans of PipeDream-2BW: several steps in a row, gradients one step late, two versions of the weights.

A parameter's buffer holds the version of one step before, with which forwards and backwards run. Beside it lies the
newest version; a step's update copies that over the older one, and moves it on. A copy costs what reading and writing
the weights costs; an implementation that swaps pointers saves it. Gradients are summed over replicas when they are all
there, and the rank waits for that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from sim.plan.functions.tracing import Parameter, TaskTracer
from sim.plan.words.buffer import Scope
from sim.plan.words.calls import Calls
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Compute, Op
from sim.plan.words.program import Phase, Plan, Program
from sim.training.data.buckets import Bucket, make_buckets
from sim.training.data.optimizer import StepEndWriter, step_end_writer
from sim.training.pipeline.actions import Order
from sim.training.pipeline.calls import pipeline_calls
from sim.training.pipeline.schedules import orders, placement
from sim.training.pipeline.two_versions import NUM_STEPS, with_updates
from sim.training.spec.job import DenseTraining, TextbookTraining
from sim.training.spec.parallelism.mesh_axes import PIPELINE_AXIS
from sim.training.steps.builder import StageProgramBuilder, routings_of_roles
from sim.training.steps.textbook import RankWriter


def build_delayed_training(job: DenseTraining, name: str) -> Plan:
    """Return the plan of a run of steps: one program per pipeline rank, or several if ranks of a stage differ."""
    parallel, place = job.parallel, placement(job.parallel.pipeline)
    mesh = Mesh(parallel.mesh_axes, parallel.tensor.blocks)
    calls = pipeline_calls(orders(parallel.pipeline, job.num_microbatches), place)
    programs = [
        DelayedProgramBuilder(job, mesh, place, rank, frozenset(), sharer, routing).build(calls[rank])
        for rank in range(place.num_ranks)
        for sharer in parallel.sequence.roles(causal=job.model.causal)
        for routing in routings_of_roles(job, mesh)
    ]
    return Plan(name, mesh, tuple(programs), job.seed, num_steps=NUM_STEPS, microbatches_per_step=job.num_microbatches)


class DelayedProgramBuilder(StageProgramBuilder):
    """Builds the program of one pipeline rank."""

    def build(self, pipeline_calls: Calls) -> Program:
        """Return the program with these forwards, backwards and messages, and an update after each step's."""
        groups = self._write_stages()
        [stage] = self.place.stages[self.rank]
        writer = step_end_writer(self.job, self.tracer, self.place, self.rank)
        clear = writer.write_zero()
        newest = {source: self._newest(parameter) for source, parameter in self.tracer.parameters.items()}
        self._write_newest_forward(stage, newest)
        updates = self._write_updates(writer, groups, newest)
        calls = with_updates(pipeline_calls, stage, self.job.num_microbatches, updates, clear, f"newest.{stage}")
        called = {call.task for call in calls}
        tasks = {name: task for name, task in self.tracer.tasks.items() if name in called}
        return self.program(tasks, calls)

    def _newest(self, parameter: Parameter) -> Parameter:
        """Add the newest version of a parameter, and say that the one that is used lies behind it."""
        buffer = self.tracer.buffers[parameter.value.name]
        assert buffer.initial is not None
        self.tracer.buffers[buffer.name] = replace(buffer, initial=replace(buffer.initial, delay=1))
        value = self.tracer.tensor(replace(buffer, name=f"{buffer.name}.newest"), parameter.value.layout)
        return Parameter(value, parameter.gradient, parameter.source)

    def _write_newest_forward(self, stage: int, newest: Mapping[str, Parameter]) -> None:
        """Write the forward that reads the newest version."""
        names = {self.tracer.parameters[source].value.name: p.value.name for source, p in newest.items()}
        ops = [_renamed(op, names) for op in self.tracer.tasks[f"forward.{stage}"].ops]
        self.tracer.add_task(f"newest.{stage}", Phase.FORWARD, ops, stage)

    def _write_updates(
        self, writer: StepEndWriter, groups: Mapping[int, Sequence[Parameter]], newest: Mapping[str, Parameter]
    ) -> list[str]:
        """Write synchronisation and optimizer, bucket by bucket, and the sum of the loss; return the tasks in order."""
        parallel = self.job.parallel
        buckets = make_buckets(
            {stage: [self.tracer.parameters[p.source] for p in group] for stage, group in groups.items()},
            bucket_bytes=parallel.bucket_bytes,
            overlap=parallel.overlap_gradient_sync,
            tied=False,
        )
        names = []
        for bucket in buckets:
            t = TaskTracer(self.tracer, Scope.STEP)
            writer.sync(t, bucket, sharded=False)
            names += writer.finish(f"gradient_sync.{bucket.index}", Phase.GRADIENT_SYNC, t)
        for bucket in buckets:
            t = TaskTracer(self.tracer, Scope.STEP)
            for parameter in bucket.parameters:
                used, new = parameter.value.name, newest[parameter.source].value.name
                t.emit(Compute(t.unique(f"keep.{parameter.source}"), "copy", (new, used), (used,)))
            writer.update(t, _of(bucket, newest))
            names += writer.finish(f"optimizer.{bucket.index}", Phase.OPTIMIZER, t)
        return names + writer.write_last_sums()


@dataclass(slots=True)
class DelayedRankWriter(RankWriter):
    """Writes one rank's program of a textbook workload, gradients synchronised after every step's backwards."""

    def _with_sync(self, order: Order, calls: Calls) -> Calls:
        [stage] = self.stages
        syncs = [call.task for call in self._write_sync(order)]
        return Calls.of(with_updates(calls, stage, self.job.num_microbatches, syncs))


def build_delayed_textbook(job: TextbookTraining, name: str) -> Plan:
    """Return the plan of a run of steps with stated times; a step takes m(tF+tB+tW) once the pipeline is full."""
    place, rank_orders = placement(job.pipeline), orders(job.pipeline, job.num_microbatches)
    calls = pipeline_calls(rank_orders, place)
    programs = []
    for rank, order in enumerate(rank_orders):
        role = {PIPELINE_AXIS: rank} if job.pipeline.degree > 1 else {}
        programs.append(DelayedRankWriter(job, place, place.stages[rank], set()).write(role, order, calls[rank]))
    mesh = Mesh(((PIPELINE_AXIS, job.pipeline.degree),))
    return Plan(name, mesh, tuple(programs), job.seed, num_steps=NUM_STEPS, microbatches_per_step=job.num_microbatches)


def _of(bucket: Bucket, newest: Mapping[str, Parameter]) -> Bucket:
    """Return a bucket with the newest versions of its parameters."""
    return replace(bucket, parameters=tuple(newest[p.source] for p in bucket.parameters))


def _renamed(op: Op, names: Mapping[str, str]) -> Op:
    """Return an op, of one task of its own, that reads other buffers."""
    return replace(op, reads=tuple(names.get(name, name) for name in op.reads))
