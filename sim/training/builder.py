"""A dense-training job in, a plan out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sim.plan import functions as f
from sim.plan.buffer import Buffer, Initial, Kind, Scope
from sim.plan.gradients import backpropagate
from sim.plan.layout import Layout, Shard
from sim.plan.mesh import Mesh
from sim.plan.op import Direction, Recv, Send
from sim.plan.program import Call, Phase, Plan, Program
from sim.plan.tracing import Parameter, ProgramTracer, Record, TaskTracer, Tensor
from sim.training.data.axes import split_data_axis
from sim.training.data.operators import write_operator_step
from sim.training.data.optimizer import write_step_end
from sim.training.data.sharding import write_sharded_step
from sim.training.pipeline.calls import pipeline_calls, stream
from sim.training.pipeline.placement import Placement
from sim.training.pipeline.schedules import orders, placement
from sim.training.pipeline.split import split_backward
from sim.training.sharding import Choice
from sim.training.spec import DenseTraining, split_layers
from sim.training.transformer import DATA_AXIS, TENSOR_AXIS, TransformerBuilder

PIPELINE_AXIS = "pp"


def build_dense_training(job: DenseTraining, name: str) -> Plan:
    """Return the plan of one training step: one program per pipeline rank."""
    pipeline = job.parallel.pipeline
    degrees = {
        PIPELINE_AXIS: pipeline.degree,
        DATA_AXIS: job.parallel.data_degree,
        TENSOR_AXIS: job.parallel.tensor_degree,
    }
    axes = tuple((axis, degrees[axis]) for axis in job.parallel.axis_order)
    sharding = job.parallel.sharding
    mesh = Mesh(split_data_axis(axes, sharding.shard_degree, sharding.local_degree))
    place, rank_orders = placement(pipeline), orders(pipeline, job.num_microbatches)
    calls = pipeline_calls(rank_orders, place)
    programs = []
    for rank, order in enumerate(rank_orders):
        splits = frozenset(action.stage for action in order if action.kind == "W")
        programs.append(StageProgramBuilder(job, mesh, place, rank, splits).build(calls[rank]))
    return Plan(name, mesh, tuple(programs), job.seed)


@dataclass(slots=True)
class StageProgramBuilder:
    """Builds the program of one pipeline rank: its virtual stages, their backward, the end of the step.

    ``splits``: stages that run backwards in two parts. Both copies of a bidirectional pipeline are virtual stages.
    """

    job: DenseTraining
    mesh: Mesh
    place: Placement
    rank: int
    splits: frozenset[int]
    tracer: ProgramTracer = field(init=False)
    model: TransformerBuilder = field(init=False)
    forwards: "dict[int, _Forward]" = field(init=False)
    input_gradients: dict[int, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        job, precision = self.job, self.job.training.types
        self.forwards, self.input_gradients = {}, {}
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
            slices={name: choice.num_slices for name, choice in self.choices.items()},
        )

    @property
    def choices(self) -> dict[str, Choice]:
        """Return what OSDP chose, by operator; empty where it was not asked, or there is nothing to share."""
        osdp = self.job.parallel.osdp
        if osdp is None or self.job.parallel.data_degree == 1:
            return {}
        assert osdp.choices is not None, "OSDP has chosen nothing yet"
        return dict(osdp.choices)

    def build(self, pipeline_calls: Sequence[Call]) -> Program:
        """Return the program with these forwards, backwards and messages."""
        groups = self._write_stages()
        called = {call.task for call in pipeline_calls}
        self.tracer.tasks = {name: task for name, task in self.tracer.tasks.items() if name in called}
        begin, end = self._write_step(groups)
        calls = (*(Call(task) for task in begin), *pipeline_calls, *(Call(task) for task in end))
        role = {PIPELINE_AXIS: self.rank} if self.mesh.degree(PIPELINE_AXIS) > 1 else {}
        return Program(role, dict(self.tracer.buffers), dict(self.tracer.tasks), calls)

    def _write_stages(self) -> dict[int, list[Parameter]]:
        """Write the tasks of all virtual stages; return their parameters by stage of the model."""
        groups = {stage % self.place.chain_length: self._write_forward(stage) for stage in self.place.stages[self.rank]}
        for stage in reversed(self.place.stages[self.rank]):
            self._write_backward(stage)
        return groups

    def _write_step(self, groups: Mapping[int, Sequence[Parameter]]) -> tuple[list[str], list[str]]:
        """Write what data parallelism does before and after forwards and backwards, and what it changes in them."""
        if self.job.parallel.osdp is not None:
            return write_operator_step(self.job, self.tracer, self.place, groups, self.choices)
        shards = self.job.parallel.zero_stage > 1 and self.job.parallel.data_degree > 1
        write = write_sharded_step if shards else write_step_end
        return write(self.job, self.tracer, self.place, self.rank, groups)

    # --- one virtual stage ---------------------------------------------------------------------------------

    def _write_forward(self, stage: int) -> list[Parameter]:
        """Write a virtual stage's forward and its messages; return its parameters in the order of first use."""
        before = set(self.tracer.parameters)
        forward = TaskTracer(self.tracer)
        x, boundary = self._stage_input(forward, stage)
        layers = split_layers(self.job.model.num_layers, self.job.parallel.pipeline)
        index = stage % self.place.chain_length
        entry = _Entry(x, len(forward.tape))
        for layer in range(sum(layers[:index]), sum(layers[: index + 1])):
            x = self.model.layer(forward, layer, x)
        output = self._stage_output(forward, stage, x)
        self.tracer.add_task(f"forward.{stage}", Phase.FORWARD, forward.ops, stage)
        self.forwards[stage] = _Forward(forward.tape, boundary, entry, output)
        if boundary is not None and self.place.hop(stage - 1):
            self._message("recv", "forward", stage, boundary)
        if not self.place.is_last(stage) and self.place.hop(stage):
            self._message("send", "forward", stage, output)
        return [p for source, p in self.tracer.parameters.items() if source not in before]

    def _write_backward(self, stage: int) -> None:
        """Write a virtual stage's backward, whole and in parts, and its messages; after that of the next stage."""
        done, backward, seed = self.forwards[stage], TaskTracer(self.tracer), None
        if not self.place.is_last(stage):
            local = not self.place.hop(stage)
            seed = self.input_gradients[stage + 1] if local else self._boundary(f"output_gradient.{stage}", done.output)
            if not local:  # as under autograd, nothing is recomputed before the gradient is there
                self._message("recv", "backward", stage, seed)
                backward.wait_for(seed)
        target = self._backpropagate(stage, backward, done, seed)
        self.tracer.add_task(f"backward.{stage}", Phase.BACKWARD, backward.ops, stage)
        if stage in self.splits:
            inputs, weights = split_backward(backward.ops, {target.name})
            self.tracer.add_task(f"backward_input.{stage}", Phase.BACKWARD_INPUT, inputs, stage)
            self.tracer.add_task(f"backward_weight.{stage}", Phase.BACKWARD, weights, stage)
        if done.boundary is not None:
            self.input_gradients[stage] = target
            if self.place.hop(stage - 1):
                self._message("send", "backward", stage, target)

    def _backpropagate(self, stage: int, backward: TaskTracer, done: "_Forward", seed: Tensor | None) -> Tensor:
        """Write a stage's reverse pass; return the gradient of its input, or of the embedded tokens."""
        if done.boundary is not None:
            return backpropagate(backward, done.tape, {done.output: seed})[done.boundary]
        layers = backpropagate(backward, done.tape[done.entry.position :], {done.output: seed})
        target = layers[done.entry.tensor]
        backpropagate(backward, done.tape[: done.entry.position], {done.entry.tensor: target})
        return target

    def _stage_input(self, t: TaskTracer, stage: int) -> tuple[Tensor, Tensor | None]:
        """Return the residual stream that enters a stage, and the boundary tensor it came as (None: tokens)."""
        if self.place.is_first(stage):
            return self.model.embed(t), None
        if not self.place.hop(stage - 1):
            boundary = self.forwards[stage - 1].output
            return (f.all_gather(t, boundary, TENSOR_AXIS, 0) if self._scattered else boundary), boundary
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
        if not self.place.is_last(stage):
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

    def _message(self, verb: str, direction: str, stage: int, tensor: Tensor) -> None:
        """Write the task that sends or receives a boundary tensor of a stage."""
        ahead = (direction == "forward") == (verb == "send")
        hop = self.place.hop(stage if ahead else stage - 1)
        name, queue = f"{verb}_{direction}.{stage}", stream(verb, direction, hop)
        offset, way = hop if ahead else -hop, Direction(direction)
        if verb == "send":
            op: Send | Recv = Send(name, PIPELINE_AXIS, offset, way, (tensor.name,), queue)
        else:
            op = Recv(name, PIPELINE_AXIS, offset, way, (tensor.name,), queue)
        self.tracer.add_task(name, Phase.SEND if verb == "send" else Phase.RECV, (op,), stage)


@dataclass(frozen=True, slots=True)
class _Entry:
    """What enters a stage's first layer, and where on the tape that is."""

    tensor: Tensor
    position: int


@dataclass(frozen=True, slots=True)
class _Forward:
    """A written forward: its tape, the boundary tensor that it came as (None: tokens), its entry and its output."""

    tape: list[Record]
    boundary: Tensor | None
    entry: _Entry
    output: Tensor
