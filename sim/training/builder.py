"""A dense-training job in, a plan out."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sim.plan import functions as f
from sim.plan.buffer import Buffer, Initial, Kind, Scope
from sim.plan.gradients import backpropagate
from sim.plan.layout import Layout, Shard
from sim.plan.mesh import Mesh
from sim.plan.op import Direction, Recv, Send
from sim.plan.program import Call, Phase, Plan, Program
from sim.plan.tracing import Parameter, ProgramTracer, TaskTracer, Tensor
from sim.training.data.optimizer import write_step_end
from sim.training.pipeline.calls import pipeline_calls
from sim.training.pipeline.schedules import orders, placement
from sim.training.spec import DenseTraining, split_layers
from sim.training.transformer import DATA_AXIS, TENSOR_AXIS, TransformerBuilder

PIPELINE_AXIS = "pp"


def build_dense_training(job: DenseTraining, name: str) -> Plan:
    """Return the plan of one training step: one program per pipeline rank."""
    degrees = {
        PIPELINE_AXIS: job.parallel.pipeline.degree,
        DATA_AXIS: job.parallel.data_degree,
        TENSOR_AXIS: job.parallel.tensor_degree,
    }
    mesh = Mesh(tuple((axis, degrees[axis]) for axis in job.parallel.axis_order))
    pipeline = job.parallel.pipeline
    calls = pipeline_calls(orders(pipeline, job.num_microbatches), placement(pipeline))
    programs = tuple(StageProgramBuilder(job, mesh, rank).build(calls[rank]) for rank in range(pipeline.degree))
    return Plan(name, mesh, programs, job.seed)


@dataclass(slots=True)
class StageProgramBuilder:
    """Builds the program of one pipeline rank: its virtual stages, their backward, the end of the step."""

    job: DenseTraining
    mesh: Mesh
    rank: int
    tracer: ProgramTracer = field(init=False)
    model: TransformerBuilder = field(init=False)

    def __post_init__(self) -> None:
        job, precision = self.job, self.job.training.types
        self.tracer = ProgramTracer(self.mesh, precision.parameter, precision.gradient)
        self.model = TransformerBuilder(
            job.model,
            job.training.microbatch_size,
            tensor_parallel=job.parallel.tensor_degree > 1,
            sequence_parallel=job.parallel.sequence_parallel,
            recompute=job.training.recompute,
            loss_scale=1.0 / (job.training.global_batch_size * job.model.sequence_length),
            weight_gradient=f.WeightGradient(
                overlapped=job.parallel.overlap_tensor_backward, fused=job.training.fused_gradient_accumulation
            ),
        )

    def build(self, pipeline_calls: Sequence[Call]) -> Program:
        """Return the program with these forwards, backwards and messages."""
        stages = range(self.rank, self.num_stages, self.mesh.degree(PIPELINE_AXIS))
        groups = {stage: self._write_stage(stage) for stage in stages}
        begin, end = write_step_end(self.job, self.tracer, self.rank, groups)
        calls = (*(Call(task) for task in begin), *pipeline_calls, *(Call(task) for task in end))
        role = {PIPELINE_AXIS: self.rank} if self.mesh.degree(PIPELINE_AXIS) > 1 else {}
        return Program(role, dict(self.tracer.buffers), dict(self.tracer.tasks), calls)

    @property
    def num_stages(self) -> int:
        """Return the number of virtual stages over all ranks."""
        return self.job.parallel.pipeline.num_virtual_stages

    # --- one virtual stage ---------------------------------------------------------------------------------

    def _write_stage(self, stage: int) -> list[Parameter]:
        """Write a virtual stage's tasks; return its parameters in the order of first use."""
        before = set(self.tracer.parameters)
        forward = TaskTracer(self.tracer)
        x, boundary = self._stage_input(forward, stage)
        layers = split_layers(self.job.model.num_layers, self.job.parallel.pipeline)
        first = sum(layers[:stage])
        for index in range(first, first + layers[stage]):
            x = self.model.layer(forward, index, x)
        output = self._stage_output(forward, stage, x)
        self.tracer.add_task(f"forward.{stage}", Phase.FORWARD, forward.ops, stage)

        backward = TaskTracer(self.tracer)
        seed = None if stage == self.num_stages - 1 else self._boundary(f"output_gradient.{stage}", output)
        if seed is not None:  # as under autograd, nothing is recomputed before the gradient is there
            backward.wait_for(seed)
        gradients = backpropagate(backward, forward.tape, {output: seed})
        self.tracer.add_task(f"backward.{stage}", Phase.BACKWARD, backward.ops, stage)

        if boundary is not None:
            self._message("forward", stage, boundary, send=False)
            self._message("backward", stage, gradients[boundary], send=True)
        if seed is not None:
            self._message("forward", stage, output, send=True)
            self._message("backward", stage, seed, send=False)
        return [p for source, p in self.tracer.parameters.items() if source not in before]

    def _stage_input(self, t: TaskTracer, stage: int) -> tuple[Tensor, Tensor | None]:
        """Return the residual stream that enters a stage, and the boundary tensor it came as (None: tokens)."""
        if stage == 0:
            return self.model.embed(t), None
        model, scattered = self.job.model, self._scattered
        layout = Layout(((DATA_AXIS, Shard(1)),))
        parts = self.mesh.degree(TENSOR_AXIS) if scattered or self.model.sequence_parallel else 1
        if parts > 1:
            layout = layout.with_(TENSOR_AXIS, Shard(0))
        shape = (model.sequence_length // parts, self.job.training.microbatch_size, model.hidden_size)
        dtype = self.job.training.types.activation
        boundary = self.tracer.tensor(Buffer(f"input.{stage}", shape, dtype, Kind.ACTIVATION), layout)
        return (f.all_gather(t, boundary, TENSOR_AXIS, 0) if scattered else boundary), boundary

    def _stage_output(self, t: TaskTracer, stage: int, x: Tensor) -> Tensor:
        """Return the boundary tensor that leaves a stage, or the loss."""
        if stage < self.num_stages - 1:
            return f.slice_(t, x, TENSOR_AXIS, 0) if self._scattered else x
        dtype = "float64" if self.job.training.precision == "fp64" else "float32"
        loss = Buffer("loss", (1,), dtype, Kind.WORKSPACE, Scope.PERSISTENT, initial=Initial("zeros", "loss"))
        return self.model.head(t, x, self.tracer.tensor(loss))

    @property
    def _scattered(self) -> bool:
        parallel = self.job.parallel
        return parallel.pipeline.scatter_gather and parallel.tensor_degree > 1 and not parallel.sequence_parallel

    def _boundary(self, name: str, like: Tensor) -> Tensor:
        return self.tracer.tensor(Buffer(name, like.shape, like.dtype, Kind.WORKSPACE), like.layout)

    def _message(self, direction: str, stage: int, tensor: Tensor, *, send: bool) -> None:
        """Write the task that sends or receives a boundary tensor of a stage."""
        ahead = (direction == "forward") == send
        verb, phase = ("send", Phase.SEND) if send else ("recv", Phase.RECV)
        name = f"{verb}_{direction}.{stage}"
        stream, offset = f"pp_{verb}_{direction}", 1 if ahead else -1
        way = Direction(direction)
        if send:
            op: Send | Recv = Send(name, PIPELINE_AXIS, offset, way, (tensor.name,), stream)
        else:
            op = Recv(name, PIPELINE_AXIS, offset, way, (tensor.name,), stream)
        self.tracer.add_task(name, phase, (op,), stage)
