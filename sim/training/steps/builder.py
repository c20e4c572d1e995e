"""A dense-training job in, a plan out."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import cached_property, partial
from itertools import islice
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from sim.plan.functions import assigned_gradients, float8
from sim.plan.functions import token_slices as slicing
from sim.plan.functions.gradients import backpropagate
from sim.plan.functions.linear import Products, WeightGradient
from sim.plan.functions.tracing import MAIN_STREAM, Parameter, ProgramTracer, Record, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Initial, Kind, Scope
from sim.plan.words.calls import Calls
from sim.plan.words.layout import Layout, Shard
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective, CollectiveKind, Compute, Direction, Op, Recv, Send
from sim.plan.words.program import Call, Namesake, Phase, Plan, Program, Task
from sim.plan.words.stream import Purpose, stream_of
from sim.training.data import offload, operators, segments, sharding, tiered
from sim.training.data.axes import training_mesh
from sim.training.data.optimizer import write_step_end
from sim.training.layers import node_copies, rank_routing
from sim.training.pipeline import split, taking_turns
from sim.training.pipeline.calls import pipeline_calls, stream
from sim.training.pipeline.placement import Placement
from sim.training.pipeline.schedules import orders, placement
from sim.training.pipeline.token_slices import slice_calls
from sim.training.spec.job import DenseTraining, split_layers
from sim.training.spec.parallelism.mesh_axes import DATA_AXIS, EXPERT_AXIS, PIPELINE_AXIS
from sim.training.steps.countable import refuse_uncountable
from sim.training.steps.rank_content import RankContent, rank_contents, tells_programs
from sim.training.steps.transformer import TransformerBuilder
from sim.training.tensor.boundary import Boundary


def build_dense_training(
    job: DenseTraining, name: str, only: int | None = None, *, first_role: bool = False, shares_tasks: bool = False
) -> Plan:
    """Return the plan of one training step: one program per pipeline rank, or several if ranks of a stage differ.

    Sharers of a sequence may differ, and ranks to which unequal numbers of tokens are routed.

    ``only``: the pipeline rank whose programs alone are built. ``first_role``: of ranks to which unequal numbers of
    tokens are routed, only the first has its program. ``shares_tasks``: of programs that are equal but for names the
    first is written, whose buffers and tasks the others have; for plans that are simulated.
    """
    pipeline, mesh = job.parallel.pipeline, training_mesh(job.parallel)
    place, rank_orders = placement(pipeline), orders(pipeline, job.num_microbatches)
    ranks = range(len(rank_orders)) if only is None else (only,)
    calls = pipeline_calls(rank_orders, place, ranks)
    if pipeline.num_slices > 1:
        calls = slice_calls(calls, pipeline.num_slices)
    routings, programs = routings_of_roles(job, mesh), list[Program]()
    routings = [*islice(routings, 1)] if first_role else [*routings]
    has_middle = len(ranks) > 2  # the ranks of the first and of the last stage are like no other
    shares_tasks = shares_tasks and has_middle and routings == [None] and tells_programs(job, place)
    firsts: dict[tuple[RankContent, int], StageProgramBuilder] = {}
    contents = rank_contents(job, place, ranks, calls) if shares_tasks else [None] * len(ranks)
    for rank, of_rank, content in zip(ranks, calls, contents, strict=True):
        order = rank_orders[rank]
        splits = order.stages_of("W")
        pairs = taking_turns.overlapping_pairs(order) if pipeline.overlap_exchanges else frozenset[tuple[Call, Call]]()
        builders = [
            StageProgramBuilder(job, mesh, place, rank, splits, sharer, routing, pairs)
            for sharer in job.parallel.sequence.roles(causal=job.model.causal)
            for routing in routings
        ]
        for role, builder in enumerate(builders):
            first = builder if content is None else firsts.setdefault((content, role), builder)
            programs.append(builder.build(of_rank) if first is builder else first.build_like(builder, of_rank))
    return Plan(name, mesh, tuple(programs), job.seed, barrier=pipeline.has_barrier)


def routings_of_roles(job: DenseTraining, mesh: Mesh) -> "Iterable[rank_routing.RankRouting | None]":
    """Return the routing of each role that a forced routing makes of a pipeline rank; where none is forced, None."""
    routing, experts = job.routing, job.model.experts
    if routing is None or experts is None:
        return (None,)
    number, first = job.parallel.expert_nodes, experts.first_dense_layers
    nodes = node_copies.Nodes(number, experts.gating.limit(experts)) if number > 1 else None
    if experts.rank_load == "busiest":
        return (rank_routing.busiest_routing(routing, job.parallel, first, nodes),)
    return rank_routing.rank_routings(routing, mesh, first, experts.replicas, nodes)


class StageProgramBuilder(Struct, eq=False, dict=True):
    """Builds the program of one pipeline rank: its virtual stages, their backward, the end of the step.

    ``splits``: stages that run backwards in two parts. Both copies of a bidirectional pipeline are virtual stages.
    ``sharer``: the coordinates of the ranks along the axes of context parallelism, if those run other programs.
    Where sequences go through the pipeline in slices, each slice has tasks of its own. ``idle``: tasks that would have
    no ops, as a stage has no layers; they are neither written nor called. ``routing``: of experts, where it is forced.
    ``pairs``: calls of a forward and of a backward that take turns, piece by piece. ``casts``: of weights, by the
    forward that each precedes.
    """

    job: DenseTraining
    mesh: Mesh
    place: Placement
    rank: int
    splits: frozenset[int]
    sharer: Mapping[str, int] = {}
    routing: "rank_routing.RankRouting | None" = None
    pairs: "Set[taking_turns.Pair]" = frozenset()
    forwards: "dict[Pass, _Forward]" = {}
    input_gradients: "dict[Pass, Tensor]" = {}
    loss: Tensor | None = None
    idle: set[str] = set()
    casts: dict[str, str] = {}
    written: "_Written | None" = None

    @cached_property
    def tracer(self) -> ProgramTracer:
        """Return the tracer of the rank's program."""
        precision, role = self.job.training.types, dict[str, int]()
        if self.mesh.degree(PIPELINE_AXIS) > 1:
            role[PIPELINE_AXIS] = self.rank
        role |= self.routing.role if self.routing else {}
        return ProgramTracer(self.mesh, precision.parameter, precision.gradient, {**role, **self.sharer})

    @cached_property
    def model(self) -> TransformerBuilder:
        """Return the builder of the model's layers, of a whole sequence."""
        job = self.job
        return TransformerBuilder(
            job.model,
            job.training.microbatch_size,
            tensor=job.parallel.tensor,
            recompute=job.training.recompute,
            recompute_num_layers=job.training.recompute_num_layers,
            recompute_method=job.training.recompute_chosen or "block",
            recompute_layers=job.training.recompute_layers,
            loss_scale=1.0 / (job.gradient_scale * job.training.global_batch_size * job.model.sequence_length),
            products=(float8.Float8Products if job.training.types.casts else Products)(
                WeightGradient(
                    overlapped=job.parallel.tensor.overlaps_backward,
                    fused=job.training.fused_gradient_accumulation,
                    placeholder="kept" if job.training.gradient_placeholders else "none",
                )
            ),
            sequence=job.parallel.sequence,
            routing=self.routing,
            slices={name: choice.num_slices for name, choice in job.operator_choices.items()},
            whole_embedding_gradient=job.training.whole_embedding_gradient,
            checkpoint_early_stop=job.training.checkpoint_early_stop,
        )

    def build(self, pipeline_calls: Calls) -> Program:
        """Return the program with these forwards, backwards and messages."""
        groups, called = self._write_stages(), pipeline_calls.first_calls
        self.tracer.tasks = {name: task for name, task in self.tracer.tasks.items() if name in called}
        around = self._write_around(groups)
        if self.job.training.types.casts:
            self.casts = self._write_casts([name for name in called if name not in self.idle], groups)
        calls = self._calls(pipeline_calls, around)
        if self.pairs:
            self.tracer.tasks, calls = taking_turns.taking_turns(
                self.tracer.tasks, calls, self.pairs, self._sends_tokens
            )
        self.written = _Written(self.program(self.tracer.tasks, calls), pipeline_calls, around)
        return self.written.program

    def build_like(self, other: "StageProgramBuilder", pipeline_calls: Calls) -> Program:
        """Return the program of a rank of the same content, with the buffers and tasks that are written here.

        Where it makes the calls that are written here, it shares these, too.

        ``other``: the builder of that rank, which writes the program under its own names if these are asked for.
        """
        assert self.written is not None
        program, written_calls, around = self.written
        names = dict(zip(pipeline_calls.first_calls, written_calls.first_calls, strict=True))
        renamed = tuple(names.get(name, name) for name in pipeline_calls.names)
        own = Namesake(tuple(program.tasks), partial(other.build, pipeline_calls))
        found = Calls(renamed, *pipeline_calls.columns)
        calls = program.calls if found.key == written_calls.key else self._calls(found, around)
        return program.calling(calls, role=dict(other.tracer.role), own=own)

    def _calls(self, pipeline_calls: Calls, around: Callable[[Calls], Calls]) -> Calls:
        """Return all calls of a rank with these forwards, backwards and messages; all tasks are written."""
        calls = around(pipeline_calls.without(self.idle))
        if not self.casts:
            return calls
        first = calls.first_calls
        return calls.with_inserted({first[task]: [Call(cast)] for task, cast in self.casts.items()})

    def _sends_tokens(self, op: Op) -> bool:
        """Return whether an op exchanges tokens with ranks that have other experts, or hands them on in between."""
        if isinstance(op, Compute):
            return stream_of(op.stream).purpose is Purpose.EXPERT
        return isinstance(op, Collective) and op.kind is CollectiveKind.ALL_TO_ALL and op.axes == (EXPERT_AXIS,)

    def program(self, tasks: Mapping[str, Task], calls: Sequence[Call]) -> Program:
        """Return the rank's program of these tasks, its gradients assigned or cleared as the job wants it."""
        program = Program(dict(self.tracer.role), dict(self.tracer.buffers), dict(tasks), Calls.of(calls))
        refuse_uncountable(program)
        return assigned_gradients.assign_gradients(program) if self.job.training.set_gradients_to_none else program

    def _write_stages(self) -> dict[int, list[Parameter]]:
        """Write the tasks of all virtual stages; return their parameters by stage of the model."""
        groups = {stage % self.place.chain_length: self._write_forward(stage) for stage in self.place.stages[self.rank]}
        for stage in reversed(self.place.stages[self.rank]):
            for part in reversed(self._parts):
                self._write_backward(Pass(stage, part))
        return groups

    def _write_around(self, groups: Mapping[int, Sequence[Parameter]]) -> Callable[[Calls], Calls]:
        """Write what data parallelism does beside forwards and backwards; return what adds the calls of that."""
        if self.job.parallel.pipeline.schedule == "aiao":
            return segments.write_segments(self.job, self.tracer, self.place, self.rank, groups).around
        begin, end = map(Calls.of, self._write_step(groups))
        return lambda pipeline_calls: Calls.joined(begin, pipeline_calls, end)

    def _write_casts(self, called: Iterable[str], groups: Mapping[int, Sequence[Parameter]]) -> dict[str, str]:
        """Write the casts of every stage's weights; return each by the first forward of the stage, which it precedes.

        ``called``: the tasks in the order of their first calls.
        """
        result: dict[str, str] = {}
        waiting = dict(groups)
        for name in called:
            task = self.tracer.tasks[name]
            stage = task.stage % self.place.chain_length
            if task.phase is Phase.FORWARD and stage in waiting:
                t = TaskTracer(self.tracer, Scope.STEP)
                float8.cast_weights(t, waiting.pop(stage))
                if t.ops:  # none in a stage without layers, whose ends of the model are multiplied as they are
                    result[name] = self.tracer.add_task(f"cast_weights.{stage}", Phase.PREPARE, t.ops).name
        return result

    def _write_step(self, groups: Mapping[int, Sequence[Parameter]]) -> tuple[list[Call], list[Call]]:
        """Write what data parallelism does before and after forwards and backwards, and what it changes in them."""
        parallel, around = self.job.parallel, (self.job, self.tracer, self.place, self.rank, groups)
        if parallel.osdp is not None:
            begin, end = operators.write_operator_step(*around, self.job.operator_choices)
        elif parallel.memory is not None:
            begin, end = tiered.write_tiered_step(*around)
        elif parallel.sharding.offload is not None:
            return offload.write_offloaded_step(*around)
        elif parallel.zero_stage > 1 and parallel.num_replicas > 1:
            begin, end = sharding.write_sharded_step(*around)
        else:
            return write_step_end(*around)
        return [Call(task) for task in begin], [Call(task) for task in end]

    # --- one virtual stage ---------------------------------------------------------------------------------

    def _write_forward(self, stage: int) -> list[Parameter]:
        """Write a virtual stage's forward and its messages; return its parameters in the order of first use."""
        before = set(self.tracer.parameters)
        for part in self._parts:
            self._write_forward_pass(Pass(stage, part))
        return [p for source, p in self.tracer.parameters.items() if source not in before]

    def _write_forward_pass(self, now: "Pass") -> None:
        stage, index = now.stage, now.stage % self.place.chain_length
        model = replace(self.model, part=now.part, recompute=self.job.recompute_of(index))
        forward = TaskTracer(self.tracer, part=now.label)
        x, boundary = self._stage_input(forward, now, model)
        layers = split_layers(self.job.model.num_layers, self.job.parallel.pipeline)
        entry = _Entry(x, len(forward.tape))
        x = model.layers(forward, range(sum(layers[:index]), sum(layers[: index + 1])), x)
        output = self._stage_output(forward, stage, x, model)
        self._add_stage_task(now.task("forward"), Phase.FORWARD, forward.ops, stage)
        self.forwards[now] = _Forward(forward.tape, boundary, entry, output)
        if boundary is not None and self.place.hop(stage - 1):
            self._message("recv", "forward", now, boundary)
        if not self.place.is_last(stage) and self.place.hop(stage):
            self._message("send", "forward", now, output)

    def _write_backward(self, now: "Pass") -> None:
        """Write a virtual stage's backward, whole and in parts, and its messages; after that of the next stage."""
        stage, done, seed = now.stage, self.forwards[now], None
        backward = TaskTracer(self.tracer, part=now.label)
        if not self.place.is_last(stage):
            local, name = not self.place.hop(stage), f"output_gradient.{stage}{now.label}"
            seed = self.input_gradients[now.after] if local else self._boundary(name, done.output)
            if not local:  # as under autograd, nothing is recomputed before the gradient is there
                self._message("recv", "backward", now, seed)
                backward.wait_for(seed.name)
        target = self._backpropagate(backward, done, seed)
        self._add_stage_task(now.task("backward"), Phase.BACKWARD, backward.ops, stage)
        if stage in self.splits:
            inputs, weights = split.split_backward(backward.ops, {target.name})
            self._add_stage_task(now.task("backward_input"), Phase.BACKWARD_INPUT, inputs, stage)
            self._add_stage_task(now.task("backward_weight"), Phase.BACKWARD, weights, stage)
        if done.boundary is not None:
            self.input_gradients[now] = target
            if self.place.hop(stage - 1):
                self._message("send", "backward", now, target)

    def _add_stage_task(self, name: str, phase: Phase, ops: Sequence[Op], stage: int) -> None:
        """Add a task of a stage, or note that it is idle."""
        if ops:
            self.tracer.add_task(name, phase, ops, stage)
        else:
            self.idle.add(name)

    def _backpropagate(self, backward: TaskTracer, done: "_Forward", seed: Tensor | None) -> Tensor:
        """Write a stage's reverse pass; return the gradient of its input, or of the embedded tokens."""
        if done.boundary is not None:
            return backpropagate(backward, done.tape, {done.output: seed})[done.boundary]
        layers = backpropagate(backward, done.tape[done.entry.position :], {done.output: seed})
        target = layers[done.entry.tensor]
        backpropagate(backward, done.tape[: done.entry.position], {done.entry.tensor: target})
        return target

    def _stage_input(self, t: TaskTracer, now: "Pass", model: TransformerBuilder) -> tuple[Tensor, Tensor | None]:
        """Return the residual stream that enters a stage, and the boundary tensor it came as (None: tokens)."""
        stage = now.stage
        if self.place.is_first(stage):
            return model.embed(t), None
        if not self.place.hop(stage - 1):
            boundary = self.forwards[now.before].output
            return self._crossing.arrive(t, boundary), boundary
        shared, cut = ((axis, Shard(0)) for axis in model.rows.axes), self._crossing.layout
        layout = Layout(((DATA_AXIS, Shard(1)), *shared, *cut.placements))
        whole = (model.num_tokens, self.job.training.microbatch_size, self.job.model.hidden_size)
        shape, dtype = cut.local_shape(whole, self.mesh), self.job.training.types.activation
        boundary = self.tracer.tensor(Buffer(f"input.{stage}{now.label}", shape, dtype, Kind.ACTIVATION), layout)
        return self._crossing.arrive(t, boundary), boundary

    def _stage_output(self, t: TaskTracer, stage: int, x: Tensor, model: TransformerBuilder) -> Tensor:
        """Return the boundary tensor that leaves a stage, or the loss."""
        if not self.place.is_last(stage):
            return self._crossing.depart(t, x)
        return model.head(t, x, self._loss)

    @property
    def _loss(self) -> Tensor:
        """Return the loss, which all passes of the last stage add to."""
        if self.loss is None:
            dtype = "float64" if self.job.training.precision == "fp64" else "float32"
            initial = Initial("zeros", "loss")
            self.loss = self.tracer.tensor(
                Buffer("loss", (1,), dtype, Kind.WORKSPACE, Scope.PERSISTENT, initial=initial)
            )
        return self.loss

    @property
    def _parts(self) -> "tuple[slicing.TokenSlice | None, ...]":
        """Return the slices in which a sequence goes through the pipeline; None: it goes whole."""
        pipeline = self.job.parallel.pipeline
        return slicing.token_slices(pipeline.token_slices) if pipeline.num_slices > 1 else (None,)

    @property
    def _crossing(self) -> Boundary:
        """Return how the residual stream goes from stage to stage."""
        return self.job.parallel.tensor.boundary(scatters=self.job.parallel.pipeline.scatter_gather)

    def _boundary(self, name: str, like: Tensor) -> Tensor:
        return self.tracer.tensor(Buffer(name, like.shape, like.dtype, Kind.WORKSPACE), like.layout)

    def _message(self, verb: str, direction: str, now: "Pass", tensor: Tensor) -> None:
        """Write the task that sends or receives a boundary tensor of a stage."""
        stage, ahead = now.stage, (direction == "forward") == (verb == "send")
        first = stage if ahead else stage - 1
        if self.job.parallel.pipeline.blocking_messages:
            self._blocking_message(verb, direction, now, self.place.ranks[first : first + 2], tensor)
            return
        hop = self.place.hop(first)
        name, queue = f"{verb}_{direction}.{stage}", stream(verb, direction, hop)
        offset, way = hop if ahead else -hop, Direction(direction)
        if verb == "send":
            op: Send | Recv = Send(name, PIPELINE_AXIS, offset, way, (tensor.name,), queue)
        else:
            op = Recv(name, PIPELINE_AXIS, offset, way, (tensor.name,), queue)
        self.tracer.add_task(f"{name}{now.label}", Phase.SEND if verb == "send" else Phase.RECV, (op,), stage)

    def _blocking_message(self, verb: str, direction: str, now: "Pass", pair: tuple[int, ...], tensor: Tensor) -> None:
        """Write one rank's task of a message during which neither rank computes: a broadcast among the two."""
        name, root = f"{verb}_{direction}.{now.stage}", int(direction == "backward")
        reads, writes = ((tensor.name,), ()) if verb == "send" else ((), (tensor.name,))
        kind, axes = CollectiveKind.BROADCAST, (PIPELINE_AXIS,)
        op = Collective(name, kind, axes, reads, writes, MAIN_STREAM, members=pair, root=root)
        self.tracer.add_task(f"{name}{now.label}", Phase.SEND if verb == "send" else Phase.RECV, (op,), now.stage)


class _Written(NamedTuple):
    """The program that was written for these calls of its pipeline.

    ``around``: adds the calls of what data parallelism does to those of the pipeline.
    """

    program: Program
    pipeline_calls: Calls
    around: Callable[[Calls], Calls]


class Pass(Struct, frozen=True):
    """A virtual stage's way through a sequence, or through one slice of it."""

    stage: int
    part: "slicing.TokenSlice | None" = None

    @property
    def label(self) -> str:
        """Return what the names of its tasks and buffers end in."""
        return self.part.label if self.part else ""

    @property
    def before(self) -> "Pass":
        """Return the way through the stage before."""
        return replace(self, stage=self.stage - 1)

    @property
    def after(self) -> "Pass":
        """Return the way through the next stage."""
        return replace(self, stage=self.stage + 1)

    def task(self, kind: str) -> str:
        """Return the name of its task."""
        return f"{kind}.{self.stage}{self.label}"


class _Entry(Struct, frozen=True):
    """The input of a stage's first layer, and its place on the tape."""

    tensor: Tensor
    position: int


class _Forward(Struct, frozen=True):
    """A written forward: its tape, the boundary tensor that it came as (None: tokens), its entry and its output."""

    tape: list[Record]
    boundary: Tensor | None
    entry: _Entry
    output: Tensor
