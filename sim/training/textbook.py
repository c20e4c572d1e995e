"""Textbook workloads: every forward and backward takes a stated time, nothing else is modelled."""

from sim.plan.buffer import Buffer, Kind
from sim.plan.mesh import Mesh
from sim.plan.op import Compute, Direction, Recv, Send
from sim.plan.program import Phase, Plan, Program, Task
from sim.training.pipeline.calls import stage_calls
from sim.training.pipeline.schedules import Order, orders
from sim.training.spec import TextbookTraining

PIPELINE_AXIS = "pp"


def build_textbook(job: TextbookTraining, name: str) -> Plan:
    """Return the plan of a textbook workload; a virtual stage takes its share of a stage's times."""
    degree = job.pipeline.degree
    all_orders = orders(job.pipeline, job.num_microbatches)
    programs = tuple(_program(job, rank, all_orders[rank]) for rank in range(degree))
    return Plan(name, Mesh(((PIPELINE_AXIS, degree),)), programs, job.seed)


def _program(job: TextbookTraining, rank: int, order: Order) -> Program:
    num_stages, degree = job.pipeline.num_virtual_stages, job.pipeline.degree
    buffers: dict[str, Buffer] = {}
    tasks: dict[str, Task] = {}
    for stage in range(rank, num_stages, degree):
        _add_stage(job, stage, buffers, tasks)
    return Program(
        {PIPELINE_AXIS: rank} if degree > 1 else {}, buffers, tasks, tuple(stage_calls(order, degree, num_stages))
    )


def _add_stage(job: TextbookTraining, stage: int, buffers: dict[str, Buffer], tasks: dict[str, Task]) -> None:
    model, share = job.model, job.pipeline.virtual_stages
    last = stage == job.pipeline.num_virtual_stages - 1
    forward_s = model.forward_s / share
    backward_s = (model.backward_input_s + model.backward_weight_s) / share

    def buffer(name: str, kind: Kind) -> tuple[str, ...]:
        buffers[f"{name}.{stage}"] = Buffer(f"{name}.{stage}", (1,), "float32", kind)
        return (f"{name}.{stage}",)

    def task(phase: Phase, op: Compute | Send | Recv) -> None:
        tasks[op.name] = Task(op.name, phase, (op,), stage)

    inputs = buffer("input", Kind.ACTIVATION) if stage else ()
    output, saved = buffer("output", Kind.ACTIVATION), buffer("saved", Kind.ACTIVATION)
    output_gradient = () if last else buffer("output_gradient", Kind.WORKSPACE)
    input_gradient = buffer("input_gradient", Kind.WORKSPACE)
    task(Phase.FORWARD, Compute(f"forward.{stage}", "delay", inputs, output + saved, {"duration_s": forward_s}))
    task(
        Phase.BACKWARD,
        Compute(f"backward.{stage}", "delay", saved + output_gradient, input_gradient, {"duration_s": backward_s}),
    )
    forward, backward = Direction.FORWARD, Direction.BACKWARD
    if stage:
        task(Phase.RECV, Recv(f"recv_forward.{stage}", PIPELINE_AXIS, -1, forward, inputs, "pp_recv_forward"))
        task(
            Phase.SEND, Send(f"send_backward.{stage}", PIPELINE_AXIS, -1, backward, input_gradient, "pp_send_backward")
        )
    if not last:
        task(Phase.SEND, Send(f"send_forward.{stage}", PIPELINE_AXIS, 1, forward, output, "pp_send_forward"))
        task(
            Phase.RECV, Recv(f"recv_backward.{stage}", PIPELINE_AXIS, 1, backward, output_gradient, "pp_recv_backward")
        )
