"""The plan of transformers that train by local updates.

A block is a virtual stage, with v consecutive stages per rank. Each block has a loss and a head: a norm of the model's
family, and a vocabulary projection with a table of its own. The last block's head and loss are the model's. The paper
trains transformers with such heads and leaves the size of the heads open; a whole vocabulary is the most expensive
choice. Gradients are summed over the step's micro-batches and over replicas, and every block takes its optimizer step
once its own sum is complete. All losses have the same weight: each is the mean over the tokens of the global batch.
"""

from msgspec import field
from msgspec.structs import replace

from sim.plan.functions.gradients import backpropagate
from sim.plan.functions.tracing import Parameter, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Initial, Kind, Scope
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Op, on_other_buffers
from sim.plan.words.program import Phase, Plan
from sim.training.local.order import local_calls
from sim.training.pipeline.schedules import placement
from sim.training.pipeline.split import split_backward
from sim.training.spec.job import DenseTraining
from sim.training.steps.builder import Pass, StageProgramBuilder
from sim.training.steps.transformer import HeadNames, TransformerBuilder


def build_local_training(job: DenseTraining, name: str) -> Plan:
    """Return the plan of one training step: one program per pipeline rank."""
    parallel, place = job.parallel, placement(job.parallel.pipeline)
    mesh = Mesh(parallel.mesh_axes, parallel.tensor.blocks)
    programs = []
    for rank, stages in enumerate(place.stages):
        calls = local_calls(stages, place.num_stages, job.num_microbatches, job.training.update)
        programs.append(LocalProgramBuilder(job, mesh, place, rank, frozenset()).build(calls))
    return Plan(name, mesh, tuple(programs), job.seed, barrier=job.parallel.pipeline.has_barrier)


def head_names(stage: int, num_stages: int) -> HeadNames:
    """Return the names of a block's head; the last block's head has the names of the dense model's parameters."""
    labels, loss = f"labels.{stage}", f"loss.{stage}"
    if stage == num_stages - 1:
        return HeadNames("final_norm", "head", loss, labels)
    head = f"auxiliary{stage}"
    return HeadNames(f"{head}.norm", head, loss, labels)


class LocalProgramBuilder(StageProgramBuilder):
    """Builder of one pipeline rank's program: its blocks, their heads and backwards, the end of the step.

    ``outputs``: by block, the tensor that its head reads.
    ``own``: by block, the gradient of its own loss for that tensor.
    """

    outputs: dict[int, Tensor] = field(default_factory=dict)
    own: dict[int, Tensor] = field(default_factory=dict)

    def _write_stages(self) -> dict[int, list[Parameter]]:
        stages = self.place.stages[self.rank]
        self._add_loss()
        groups = {stage: self._write_forward(stage) for stage in stages}
        for stage in reversed(stages):
            groups[stage] += self._write_head(stage)
            self._write_block_backward(stage)
        return groups

    def _stage_output(self, t: TaskTracer, stage: int, x: Tensor, model: TransformerBuilder) -> Tensor:
        """Return the boundary tensor that leaves a block; the last block's head reads this tensor too."""
        self.outputs[stage] = x
        return x if self.place.is_last(stage) else self._crossing.depart(t, x)

    def _add_loss(self) -> None:
        """Add the sum of the losses of the rank's blocks."""
        dtype = "float64" if self.job.training.precision == "fp64" else "float32"
        initial = Initial("zeros", f"loss.{self.rank}")
        self.tracer.add_buffer(Buffer("loss", (1,), dtype, Kind.WORKSPACE, Scope.PERSISTENT, initial=initial))

    def _write_head(self, stage: int) -> list[Parameter]:
        """Write a block's loss and the loss's gradient for the block's output; return the head's parameters."""
        before, t = set(self.tracer.parameters), TaskTracer(self.tracer)
        buffer = self.tracer.buffers["loss"]
        x, loss = self.outputs[stage], Tensor(buffer.name, buffer.shape, buffer.dtype)
        loss = self.model.read_out(t, x, loss, head_names(stage, self.place.num_stages))
        self.own[stage] = backpropagate(t, tuple(t.tape), {loss: None})[x]
        self._add_stage_task(f"head.{stage}", Phase.HEAD, t.ops, stage)
        return [p for source, p in self.tracer.parameters.items() if source not in before]

    def _write_block_backward(self, stage: int) -> None:
        """Write a block's backward from its own loss; with overlapping updates also from the next block's loss."""
        overlapping = self.job.training.update == "overlapping"
        if overlapping and not self.place.is_last(stage):
            if not self.place.is_first(stage):
                self._write_input_gradient(stage)
            self._write_backward_of_both(stage)
            return
        t = TaskTracer(self.tracer)
        target = self._backpropagate_from(t, stage, self.own[stage])
        goes_back = overlapping and not self.place.is_first(stage)
        ops = self._needed(t.ops, target if goes_back else None)
        self._add_stage_task(f"backward.{stage}", Phase.BACKWARD, ops, stage)
        if goes_back:
            self._send_back(stage, target)

    def _write_input_gradient(self, stage: int) -> None:
        """Write the gradient of the block's own loss for its input, which only the previous block receives."""
        t = TaskTracer(self.tracer, suffix=".own")
        target = self._backpropagate_from(t, stage, self.own[stage])
        inputs, _ = split_backward(t.ops, {target.name})
        ops = [self._discarding(op) for op in inputs]
        self._add_stage_task(f"backward_input.{stage}", Phase.BACKWARD_INPUT, ops, stage)
        self._send_back(stage, target)

    def _discarding(self, op: Op) -> Op:
        """Return the op with its gradients of parameters discarded.

        The kernel of a norm adds these up together with the gradient of the norm's input. The gradients that count come
        from the whole backward.
        """
        gradients = {parameter.gradient.name for parameter in self.tracer.parameters.values()}
        names = {name: f"{name}.discarded" for name in op.writes if name in gradients}
        for name, other in names.items():
            if other not in self.tracer.buffers:
                old = self.tracer.buffers[name]
                self.tracer.add_buffer(Buffer(other, old.shape, old.dtype, Kind.WORKSPACE, Scope.PERSISTENT))
        return on_other_buffers(op, names)

    def _write_backward_of_both(self, stage: int) -> None:
        local, own, t = not self.place.hop(stage), self.own[stage], TaskTracer(self.tracer)
        if local:
            gradient = self.input_gradients[Pass(stage + 1)]
        else:
            gradient = self._boundary(f"output_gradient.{stage}", self.forwards[Pass(stage)].output)
            self._message("recv", "backward", Pass(stage), gradient)
            t.wait_for(gradient.name)
        gradient = self._crossing.arrive_back(t, gradient)
        name = f"output_gradient.{stage}.both"
        (both,) = t.compute(name, "add", (own, gradient), (own.layout,), kind=Kind.WORKSPACE)
        self._backpropagate_from(t, stage, both)
        self._add_stage_task(f"backward.{stage}", Phase.BACKWARD, self._needed(t.ops, None), stage)

    def _backpropagate_from(self, t: TaskTracer, stage: int, gradient: Tensor) -> Tensor:
        """Write a block's reverse pass from the gradient of its head's input.

        Return the gradient of the block's input.
        """
        done, output = self.forwards[Pass(stage)], self.outputs[stage]
        tape = [record for record in done.tape if output not in record.inputs]  # without the slice that is sent
        return self._backpropagate(t, replace(done, tape=tape, output=output), gradient)

    def _needed(self, ops: list[Op], target: Tensor | None) -> list[Op]:
        """Return the ops that gradients of parameters need, and the ops that ``target`` needs, if given."""
        wanted = {parameter.gradient.name for parameter in self.tracer.parameters.values()}
        return split_backward(ops, wanted | ({target.name} if target else set()))[0]

    def _send_back(self, stage: int, gradient: Tensor) -> None:
        """Send the gradient of a block's input to the previous block."""
        self.input_gradients[Pass(stage)] = gradient
        if self.place.hop(stage - 1):
            self._message("send", "backward", Pass(stage), gradient)
