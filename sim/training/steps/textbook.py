"""Textbook workloads: every forward and backward takes a stated time, nothing else is modelled.

Where sequences go through the pipeline in slices, a slice takes the share of these times that it has of the tokens.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from sim.plan.functions.token_slices import TokenSlice, token_slices
from sim.plan.words.buffer import Buffer, Kind, Scope
from sim.plan.words.calls import Calls
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Compute, Direction, Recv, Send
from sim.plan.words.program import Call, Phase, Plan, Program, Task
from sim.training.pipeline.actions import Order
from sim.training.pipeline.calls import pipeline_calls, stream
from sim.training.pipeline.placement import Placement
from sim.training.pipeline.schedules import orders, placement
from sim.training.pipeline.token_slices import slice_calls
from sim.training.spec.job import TextbookTraining
from sim.training.spec.parallelism.mesh_axes import PIPELINE_AXIS

SYNC_STREAM = "dp"


def build_textbook(job: TextbookTraining, name: str) -> Plan:
    """Return the plan of a textbook workload; a virtual stage takes its share of a stage's times."""
    degree, place = job.pipeline.degree, placement(job.pipeline)
    rank_orders = orders(job.pipeline, job.num_microbatches, job.times)
    calls = pipeline_calls(rank_orders, place, fenced=True)
    if job.pipeline.num_slices > 1:
        calls = slice_calls(calls, job.pipeline.num_slices)
    programs = []
    for rank, order in enumerate(rank_orders):
        splits = order.stages_of("W")
        writer = RankWriter(job, place, place.stages[rank], splits)
        programs.append(writer.write({PIPELINE_AXIS: rank} if degree > 1 else {}, order, calls[rank]))
    mesh = Mesh(((PIPELINE_AXIS, degree),))
    return Plan(name, mesh, tuple(programs), job.seed, barrier=job.pipeline.has_barrier)


@dataclass(slots=True)
class RankWriter:
    """Writes one rank's program. ``splits``: its stages that run a backward in two parts."""

    job: TextbookTraining
    place: Placement
    stages: Sequence[int]
    splits: Set[int]
    buffers: dict[str, Buffer] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)

    def write(self, role: Mapping[str, int], order: Order, calls: Calls) -> Program:
        """Return the program with these calls, gradients synchronised."""
        pipeline = self.job.pipeline
        parts = token_slices(pipeline.token_slices) if pipeline.num_slices > 1 else (None,)
        for stage in self.stages:
            for part in parts:
                self._write_stage(stage, part)
        called = calls.counts()
        self.tasks = {name: task for name, task in self.tasks.items() if name in called}
        return Program(role, self.buffers, self.tasks, self._with_sync(order, calls))

    def _with_sync(self, order: Order, calls: Calls) -> Calls:
        """Write the synchronisation of gradients; return all calls."""
        return Calls.joined(self._write_deferred_sync(), calls, self._write_sync(order))

    def _write_stage(self, stage: int, part: TokenSlice | None = None) -> None:
        times, place = self.job.times, self.place
        here = f"{stage}{_label(part)}"
        share = part.num_tokens / part.num_total if part else 1.0
        inputs, output = self._inputs(stage, part), self._buffer(f"output.{here}", Kind.ACTIVATION)
        saved = self._buffer(f"saved.{here}", Kind.ACTIVATION)
        gradient_in = self._output_gradient(stage, part)
        gradient_out = self._buffer(f"input_gradient.{here}", Kind.WORKSPACE)
        forward_s, backward_s = share * times.forward_s, share * (times.input_s + times.weight_s)
        self._delay(f"forward.{here}", Phase.FORWARD, (*inputs, *self._weights(stage)), output + saved, forward_s)
        sums, kept = self._accumulated(stage), saved + gradient_in
        self._delay(f"backward.{here}", Phase.BACKWARD, kept + sums, gradient_out + sums, backward_s)
        if stage in self.splits:
            self._delay(f"backward_input.{here}", Phase.BACKWARD_INPUT, kept, gradient_out, times.input_s)
            self._delay(f"backward_weight.{here}", Phase.BACKWARD, kept + sums, sums, times.weight_s)
        if gradient_in:
            self._delay(f"overlap_begin.{here}", Phase.PREPARE, gradient_in, (), 0.0)
        self._delay(f"overlap_end.{here}", Phase.PREPARE, output, output, 0.0)
        if not place.is_first(stage) and (hop := place.hop(stage - 1)):
            self._message("recv", "forward", here, -hop, inputs)
            self._message("send", "backward", here, -hop, gradient_out)
        if not place.is_last(stage) and (hop := place.hop(stage)):
            self._message("send", "forward", here, hop, output)
            self._message("recv", "backward", here, hop, gradient_in)

    # --- what a stage reads and writes ---------------------------------------------------------------------

    def _inputs(self, stage: int, part: TokenSlice | None = None) -> tuple[str, ...]:
        """Return what a forward reads: nothing, what was received, or what the stage before left on this rank."""
        if self.place.is_first(stage):
            return ()
        if self.place.hop(stage - 1):
            return self._buffer(f"input.{stage}{_label(part)}", Kind.ACTIVATION)
        return self._buffer(f"output.{stage - 1}{_label(part)}", Kind.ACTIVATION)

    def _output_gradient(self, stage: int, part: TokenSlice | None = None) -> tuple[str, ...]:
        if self.place.is_last(stage):
            return ()
        name = f"output_gradient.{stage}" if self.place.hop(stage) else f"input_gradient.{stage + 1}"
        return self._buffer(f"{name}{_label(part)}", Kind.WORKSPACE)

    def _accumulated(self, stage: int) -> tuple[str, ...]:
        """Return the gradient that a stage's backwards add to, where it is synchronised."""
        if not self.job.model.gradient_sync_s:
            return ()
        return self._buffer(f"gradient.{stage}", Kind.GRADIENT, Scope.PERSISTENT)

    def _weights(self, stage: int) -> tuple[str, ...]:
        """Return what forwards wait for: weights, which the synchronisation of the step before brings up to date."""
        if not self.job.model.gradient_sync_s:
            return ()
        return self._buffer(f"weights.{stage}", Kind.PARAMETER, Scope.PERSISTENT)

    def _deferred_part(self, stage: int) -> float:
        return self.job.deferred_part if stage != self.stages[0] else 0.0

    def _buffer(self, name: str, kind: Kind, scope: Scope = Scope.MICROBATCH) -> tuple[str, ...]:
        self.buffers[name] = Buffer(name, (1,), "float32", kind, scope)
        return (name,)

    # --- tasks ---------------------------------------------------------------------------------------------

    def _delay(
        self, name: str, phase: Phase, reads: tuple[str, ...], writes: tuple[str, ...], duration_s: float
    ) -> None:
        stage = _stage(name)
        op = Compute(name, "delay", reads, writes, {"duration_s": duration_s})
        self.tasks[name] = Task(name, phase, (op,), stage)

    def _message(self, verb: str, direction: str, here: str, offset: int, buffers: tuple[str, ...]) -> None:
        """Write the task that sends to, or receives from, the rank ``offset`` ahead."""
        name, ahead = f"{verb}_{direction}.{here}", offset if (verb == "send") == (direction == "forward") else -offset
        queue, way = stream(verb, direction, ahead), Direction(direction)
        if verb == "send":
            op: Send | Recv = Send(name, PIPELINE_AXIS, offset, way, buffers, queue)
        else:
            op = Recv(name, PIPELINE_AXIS, offset, way, buffers, queue)
        self.tasks[name] = Task(name, Phase.SEND if verb == "send" else Phase.RECV, (op,), _stage(name))

    # --- synchronisation of gradients with replicas --------------------------------------------------------

    def _write_sync(self, order: Order) -> list[Call]:
        """Write the synchronisation after the backwards; return its calls, the stage that is done first first."""
        total_s, share = self.job.model.gradient_sync_s, len(self.stages)
        if not total_s:
            return []
        last = {action.stage: index for index, action in enumerate(order) if action.kind in "BW"}
        if not self.job.overlap_gradient_sync:
            return [self._sync("gradient_sync", sorted(last), total_s)]
        calls = []
        for stage in sorted(last, key=last.__getitem__):
            rest = 1.0 - self._deferred_part(stage)
            calls.append(self._sync(f"gradient_sync.{stage}", [stage], rest * total_s / share))
        return calls

    def _write_deferred_sync(self) -> list[Call]:
        """Write what the step before left over; return its calls, in the order in which forwards need it."""
        total_s, share = self.job.model.gradient_sync_s, len(self.stages)
        deferred = [stage for stage in self.stages if total_s and self._deferred_part(stage)]
        return [
            self._sync(f"deferred_sync.{stage}", [stage], self._deferred_part(stage) * total_s / share, lag=1)
            for stage in deferred
        ]

    def _sync(self, name: str, stages: Sequence[int], duration_s: float, lag: int = 0) -> Call:
        reads = tuple(f"gradient.{stage}" for stage in stages)
        writes = tuple(f"weights.{stage}" for stage in stages)
        op = Compute(name, "delay", reads, writes, {"duration_s": duration_s}, SYNC_STREAM)
        self.tasks[name] = Task(name, Phase.GRADIENT_SYNC, (op,), stages[0] if len(stages) == 1 else -1)
        return Call(name, lag=lag)


def _label(part: TokenSlice | None = None) -> str:
    return part.label if part else ""


def _stage(name: str) -> int:
    """Return the stage that a task's name ends in, the slice not counted."""
    return int(name.partition("@")[0].rpartition(".")[2])
