"""All runs that the tests of this room need: on four processes, launched once, or with all ranks in one process."""

from collections.abc import Callable, Iterator
from functools import cache, partial

from msgspec.structs import replace

from backends.execution.request import ExecutionRequest, ExplicitCollectives
from sim.plan.words.op import Collective, Compute, Copy, Op, Recv, Send
from sim.plan.words.program import Plan, Program
from sim.training.spec.job import DenseTraining, ShardingSpec
from sim.training.steps.builder import build_dense_training
from tests.backends.collective_plans import collective_requests, explicit_requests
from tests.backends.delayed_runs import delayed_requests
from tests.backends.expert_runs import EXACT, EXPERTS, MIXTURE, expert_requests, silent_expert_requests
from tests.backends.float8_runs import FLOAT8, float8_requests
from tests.backends.jobs import (
    AIAO,
    GPT,
    LLAMA,
    OFFLOAD,
    SGD,
    checked_trainings,
    sharded_operators,
    training,
    with_few_layers,
)
from tests.backends.latent_runs import LATENT_JOBS, latent_requests
from tests.backends.local_runs import local_requests
from tests.backends.mesh_runs import MESH_JOBS, SQUARE, wrong_roots
from tests.backends.plans import collective_plan, ring_plan, textbook_plan
from tests.backends.sequence_runs import SEQUENCE_JOBS
from tests.backends.variation_runs import VARIATION_JOBS

JOBS = checked_trainings() | LATENT_JOBS | EXPERTS | EXACT | VARIATION_JOBS | MESH_JOBS | SEQUENCE_JOBS
LOWER_PRECISIONS = {
    name: with_few_layers(training(tensor_degree=2, data_degree=2, zero_stage=stage, precision=precision))
    for name, precision, stage in (
        ("fp32", "fp32", 0), ("bf16 zero1", "bf16", 1), ("bf16 zero2", "bf16", 2), ("bf16 zero3", "bf16", 3),
        ("fp16", "fp16", 0),
    )
} | {
    "bf16 aiao zero1, sgd": training(data_degree=2, zero_stage=1, pipeline=AIAO, precision="bf16", numbers=SGD),
    "bf16 gradients, unfused": training(
        tensor_degree=2, data_degree=2, precision="bf16",
        numbers={"low_precision_gradients": True, "fused_gradient_accumulation": False},
    ),
} | FLOAT8  # fmt: skip
MUTED_MODEL = {**GPT, "num_layers": 2, "dropout": 0.0}
MUTED = {
    "tensor": training(model=MUTED_MODEL, tensor_degree=4, batch=(1, 1)),
    "sequence and zero": training(
        model=MUTED_MODEL, tensor_degree=2, sequence_parallel=True, data_degree=2, zero_stage=1, batch=(2, 1)
    ),
    "pipeline": training(
        model=MUTED_MODEL, tensor_degree=2, pipeline={"degree": 2, "scatter_gather": True}, batch=(2, 1)
    ),
    "data": training(model=MUTED_MODEL, data_degree=2, pipeline={"degree": 2}, batch=(2, 1)),
    "context": training(
        model={**LLAMA, "num_layers": 2}, data_degree=2, context_degree=2, context_method="all_gather", batch=(2, 1)
    ),
    "ring": training(model={**LLAMA, "num_layers": 2, "sequence_length": 16}, context_degree=4, batch=(1, 1)),
    "square": training(model=MUTED_MODEL, tensor=SQUARE, batch=(2, 2)),
    "copies": training(
        model={**LLAMA, "num_layers": 2}, data_degree=2, pipeline={"degree": 2, "schedule": "chimera"}, batch=(4, 1)
    ),
}
SHARDED = {
    "fsdp": training(
        model=MUTED_MODEL, tensor_degree=2, sequence_parallel=True, data_degree=2, zero_stage=3, batch=(2, 1)
    ),
    "hybrid": training(
        model=MUTED_MODEL, data_degree=4, zero_stage=3, batch=(8, 1), sharding=ShardingSpec(shard_degree=2)
    ),
    "no_sync": training(
        model={**LLAMA, "num_layers": 2}, data_degree=2, zero_stage=3, batch=(4, 1),
        sharding=ShardingSpec(gradient_sync="last_microbatch"),
    ),
    "fsdp context": training(
        model={**LLAMA, "num_layers": 1}, data_degree=2, context_degree=2, zero_stage=3, batch=(4, 1)
    ),
    "fsdp experts": training(
        model={**MIXTURE, "num_layers": 1}, data_degree=4, expert_degree=2, zero_stage=3, batch=(8, 1)
    ),
    "zero 2": training(model=MUTED_MODEL, data_degree=2, zero_stage=2, pipeline={"degree": 2}, batch=(4, 1)),
    "offload": training(
        model={**MUTED_MODEL, "num_layers": 1}, data_degree=2, zero_stage=2, batch=(4, 1), bucket_bytes=4000,
        sharding=OFFLOAD,
    ),
    "fsdp pipeline": training(model=MUTED_MODEL, data_degree=2, zero_stage=3, pipeline={"degree": 2}, batch=(4, 1)),
    "hierarchical": training(
        model={**MUTED_MODEL, "num_layers": 1}, data_degree=4, zero_stage=3, batch=(8, 1),
        sharding=ShardingSpec(local_degree=2),
    ),
    "osdp pipeline": training(
        model=MUTED_MODEL, data_degree=2, pipeline={"degree": 2}, batch=(4, 1),
        osdp=sharded_operators(layer0__qkv=(1, 1), layer1__fc2=(1, 1), embedding__word=(1, 1)),
    ),
    "osdp": training(
        model={**MUTED_MODEL, "num_layers": 1}, data_degree=2, batch=(4, 1),
        osdp=sharded_operators(layer0__qkv=(2, 1), layer0__fc2=(2, 2), embedding__word=(1, 1)),
    ),
}  # fmt: skip
"""Each of their collectives over the data-parallel ranks, or on their shards, and each copy, is silenced alone."""


_SLICES = {"degree": 2, "schedule": "terapipe", "token_slices": (3, 1, 4)}
SLICED = {
    "context": training(model={**LLAMA, "num_layers": 2}, data_degree=2, batch=(2, 1), pipeline=_SLICES),
    "start": training(model={**LLAMA, "num_layers": 2}, data_degree=2, batch=(2, 1), pipeline=_SLICES),
    "cached keys": training(model=MUTED_MODEL, data_degree=2, batch=(2, 1), pipeline=_SLICES),
    "cached values": training(model=MUTED_MODEL, data_degree=2, batch=(2, 1), pipeline=_SLICES),
}
"""Slices that are run wrongly: a mask one token off, positions that begin anew, gradients of caches not added up."""
DEFERRING = {
    "adam": training(data_degree=2, deferred_sync=0.3, pipeline=AIAO),
    "sgd": JOBS["aiao, pp2 v2 x dp2, llama, sgd"],
    "zero1": JOBS["aiao, pp2 v2 x dp2 zero1"],
    "gathers": JOBS["dp2 zero1 x pp2, gathers overlapped"],
}
WRONG_STEPS = {
    f"{what} ({name})": (name, what)
    for name, what in (
        ("adam", "deferred sync dropped"), ("adam", "optimizer before sync"), ("adam", "optimizer of the step itself"),
        ("adam", "cleared before summed"), ("adam", "wrong step count"), ("sgd", "deferred sync dropped"),
        ("sgd", "optimizer before sync"), ("zero1", "deferred sync dropped"), ("gathers", "deferred sync dropped"),
    )
}  # fmt: skip
"""What may go wrong where work is left to the next step; each must be noticed."""

RING_MESSAGES = (
    ("forward", "layer1.qkv.input.piece1"), ("forward", "layer0.fc2.term1"),
    ("backward", "layer1.fc1.regathered.piece1"), ("backward", "layer0.projection.output_gradient.piece1"),
)  # fmt: skip
"""Of collective matmuls, a message of each kind: each is silenced alone."""


def silenced(plan: Plan) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield one op, or pair of send and receive, of each kind that a plan communicates with, by what it does."""
    found: dict[tuple[object, ...], tuple[str, frozenset[str]]] = {}
    for program in plan.programs:
        for task in program.tasks.values():
            for op in task.ops:
                if isinstance(op, Collective):
                    key = (op.kind, op.reduction, op.axes, op.dim, bool(op.members), task.phase)
                    found.setdefault(key, (f"{op.kind} {op.name}", frozenset({op.name})))
                elif isinstance(op, Send | Recv) and op.axis.startswith("cp"):  # both ends are called alike
                    pair = frozenset({op.name.replace(".recv", ".send"), op.name.replace(".send", ".recv")})
                    key = (op.axis, op.direction, task.phase)
                    found.setdefault(key, (f"messages {op.direction} {task.phase} ring", pair))
                elif isinstance(op, Send | Recv):
                    here, there = op.name.split(".")
                    stage = int(there) + (1 if "forward" in here else -1) * (1 if isinstance(op, Send) else -1)
                    peer = here.replace("send", "x").replace("recv", "send").replace("x", "recv")
                    found.setdefault(
                        (op.direction,), (f"messages {op.direction}", frozenset({op.name, f"{peer}.{stage}"}))
                    )
    yield from found.values()


def every_data_collective(plan: Plan) -> dict[str, str]:
    """Return the name and kind of every collective that is for data parallelism."""
    return {
        op.name: str(op.kind)
        for program in plan.programs
        for task in program.tasks.values()
        for op in task.ops
        if isinstance(op, Collective) and (op.stream.startswith("dp") or op.name.startswith(("sum_tp.", "tie")))
    }


def every_copy(plan: Plan) -> list[str]:
    """Return the name of every copy between tiers of memory."""
    tasks = (task for program in plan.programs for task in program.tasks.values())
    return [op.name for task in tasks for op in task.ops if isinstance(op, Copy)]


def altered(plan: Plan, what: str) -> Plan:
    """Return a plan in which a collective reads another's shard or sums over other ranks, or slices are run wrongly."""
    programs = []
    for program in plan.programs:
        tasks = {
            name: replace(
                task, ops=tuple(new for op in task.ops for new in (*_forgotten(op, what), _altered(op, what)))
            )
            for name, task in program.tasks.items()
        }
        programs.append(replace(program, tasks=tasks))
    return replace(plan, programs=tuple(programs))


def _forgotten(op: Op, what: str) -> Iterator[Op]:
    """Yield what clears the gradient of a cache before a slice adds to it."""
    name = f"layer0.{what.removeprefix('cached ')}.gradient"  # there is none unless what is cached
    if isinstance(op, Compute) and name in op.reads and name in op.writes:
        yield Compute(f"{op.name}.forgotten", "zero", (name,), (name,))


def _altered(op: Op, what: str) -> Op:
    if isinstance(op, Compute) and what == "context" and op.kernel == "flash_attention" and op.attributes.get(what):
        return replace(op, attributes={**op.attributes, what: op.attributes[what] - 1})
    if isinstance(op, Compute) and what == "start" and op.kernel == "rotary" and what in op.attributes:
        return replace(op, attributes={**op.attributes, what: op.attributes[what] - 1})
    if isinstance(op, Collective) and what == "shard" and op.name == "regather.layer0":
        return replace(op, reads=("shard.layer1",))
    if isinstance(op, Collective) and what == "axes" and op.name == "replicas":
        return replace(op, axes=("dp_shard",))
    return op


def checked(plan: Plan, job: DenseTraining) -> ExecutionRequest:
    """Return a run that is compared with the reference: one step, or three where one leaves work to the next."""
    several = any(call.lag for program in plan.programs for call in program.calls)
    return ExecutionRequest(plan=plan, check_against=job, iterations=3 if several else 1)


def wrong_from_step_to_step(plan: Plan, what: str) -> Plan:
    """Return a plan that treats what is deferred from one step to the next in a wrong way."""
    return replace(plan, programs=tuple(_wrong_program(program, what) for program in plan.programs))


def _wrong_program(program: Program, what: str) -> Program:
    calls, tasks = list(program.calls), dict(program.tasks)
    optimizers = [call for call in calls if call.lag and call.task.startswith("optimizer.")]
    if what == "deferred sync dropped":
        calls = [call for call in calls if not call.task.startswith("deferred_")]
    elif what == "optimizer before sync":
        calls = [*optimizers, *(call for call in calls if call not in optimizers)]
    elif what == "optimizer of the step itself":
        calls = [call._replace(lag=0) if call in optimizers else call for call in calls]
    elif what == "cleared before summed":
        early = [call for call in calls if call.task.startswith("zero_gradients.")]
        calls = [*early, *(call for call in calls if call not in early)]
    elif what == "wrong step count":
        for call in optimizers:
            ops = [replace(op, attributes={**op.attributes, "step": 2}) for op in tasks[call.task].ops]
            tasks[call.task] = replace(tasks[call.task], ops=tuple(ops))
    return replace(program, calls=tuple(calls), tasks=tasks)


def silent_requests() -> dict[str, ExecutionRequest]:
    """Return the runs with one communication, or one copy, left out."""
    requests = {}
    for name, job in MUTED.items():
        plan = build_dense_training(job, name)
        for what, mute in silenced(plan):
            requests[f"without {what} ({name})"] = ExecutionRequest(plan=plan, check_against=job, mute=mute)
    ring = training(model=MUTED_MODEL, tensor_degree=2, sequence_parallel=True, collective_matmul=True, batch=(1, 1))
    plan = build_dense_training(ring, "ring")
    for direction, piece in RING_MESSAGES:
        requests[f"without messages {direction} {piece}"] = ExecutionRequest(
            plan=plan, check_against=ring, mute=frozenset({piece, f"{piece}.send"})
        )
    for name, job in SHARDED.items():
        plan = build_dense_training(job, name)
        for op_name, kind in every_data_collective(plan).items():
            requests[f"without {kind} {op_name} ({name})"] = ExecutionRequest(
                plan=plan, check_against=job, mute=frozenset({op_name})
            )
        for op_name in every_copy(plan):
            requests[f"without copy {op_name} ({name})"] = ExecutionRequest(
                plan=plan, check_against=job, mute=frozenset({op_name})
            )
    return requests


ON_PROCESSES = frozenset({
    "one rank", "tp4, recompute none", "tp2 sp x dp2, recompute none", "pp4 1f1b, recompute none",
    "dp2 zero1 x pp2, recompute none", "uneven layers, tied, pp2 x dp2", "llama, tp2 sp x dp2 zero1",
    "layers on two ranks each, pp2", "other axis order", "zb_v, scatter-gather, pp2 x tp2", "dualpipe, pp4",
    "custom, pp2 v2 x tp2", "terapipe, blocking messages, pp4", "gpipe, blocking messages, scatter-gather, pp2 x tp2",
    "aiao, pp2 v2 x dp2, llama, sgd", "dp2 zero1 x pp2, gathers overlapped", "zero2 dp4 breadth-first v2, tied",
    "zero3 dp4 by twos, hierarchical, llama, kept, no_sync", "osdp dp2 x pp2 interleaved, table whole",
    "cp2 x dp2, offload", "cp2 x dp2 zero1, cp outermost", "cp4 zero1, gathered", "two levels, 2 x 2",
    "ring self-attention on 4", "ulysses on 4", "qwen, collective matmul, tp2", "latent, experts, tp2 sp x ep2 zero1",
    "experts, ep2 zero3 in groups of 2", "experts, ep2 x pp2 zb_h1, unfused", "experts, exact, ep2 x dp2, drawn",
    "bf16 zero2", "bf16 aiao zero1, sgd", "fp16", "fp8, pp2 chimera x dp2",
    "2bw, pp2, gradients assigned", "local, overlapping, llama, scatter-gather, two layers on pp2 v2 x tp2",
    "2bw, wrong: older version not kept", "local, wrong: no messages forward", "wrong root: broadcast",
    "deferred sync dropped (sgd)",
})  # fmt: skip
"""Trainings that run on four processes: each way of communicating, each kind of stream and each algorithm once.

All others run with all ranks in one process. Kernels, plans and checks are the same there, and a run takes half of the
processor time.
"""


def process_requests() -> dict[str, ExecutionRequest]:
    """Return every run on four processes that the tests of this room need."""
    found = {name: make() for name, make in _trainings().items() if name in ON_PROCESSES}
    found |= {name: request for name, request in _derived_requests().items() if name in ON_PROCESSES}
    assert found.keys() == ON_PROCESSES, ON_PROCESSES - found.keys()
    several = JOBS["tp2 sp x dp2, recompute none"]
    found["three steps"] = ExecutionRequest(
        plan=build_dense_training(several, "three steps"), check_against=several, iterations=3
    )
    found["step timing"] = ExecutionRequest(plan=build_dense_training(several, "step timing"), timing="step")
    found["textbook"] = ExecutionRequest(plan=textbook_plan(0.05))
    found["collectives"] = ExecutionRequest(
        plan=collective_plan(), keep=frozenset(collective_plan().programs[0].buffers)
    )
    found["ring"] = ExecutionRequest(plan=ring_plan(), keep=frozenset(ring_plan().programs[0].buffers))
    found |= collective_requests() | explicit_requests(JOBS)
    found |= {f"real: {name}": SILENT[name] for name in SILENT_ON_PROCESSES}
    hybrid = SHARDED["hybrid"]
    found["hybrid as rings"] = replace(
        checked(build_dense_training(hybrid, "hybrid"), hybrid), explicit=ExplicitCollectives()
    )
    return found


def one_process_requests() -> dict[str, Callable[[], ExecutionRequest]]:
    """Return every run with all ranks in one process, by name: a function that builds its plan."""
    derived: dict[str, Callable[[], ExecutionRequest]] = {
        name: partial(_itself, request) for name, request in _derived_requests().items()
    }
    return {name: make for name, make in (_trainings() | derived).items() if name not in ON_PROCESSES}


def _trainings() -> dict[str, Callable[[], ExecutionRequest]]:
    """Return the runs of backpropagation, as it is."""
    return {name: partial(_training, name, job) for name, job in (JOBS | LOWER_PRECISIONS).items()}


def _training(name: str, job: DenseTraining) -> ExecutionRequest:
    return checked(build_dense_training(job, name), job)


def _itself(request: ExecutionRequest) -> ExecutionRequest:
    return request


DELAYED_UPDATE = training(
    model={**LLAMA, "num_layers": 2}, data_degree=2, zero_stage=2, pipeline={"degree": 2}, batch=(4, 1),
    bucket_bytes=4000, sharding=ShardingSpec(offload="optimizer", delayed_update=True),
)  # fmt: skip
"""ZeRO-Offload whose host updates a step late, in a pipeline."""


@cache
def _derived_requests() -> dict[str, ExecutionRequest]:
    """Return the runs of other algorithms, of several steps, and of plans that are wrong."""
    offloaded, hybrid = JOBS["offload dp2 x tp2 sp, recompute"], SHARDED["hybrid"]
    requests = {
        "three steps, offloaded": ExecutionRequest(
            plan=build_dense_training(offloaded, "three steps, offloaded"), check_against=offloaded, iterations=3
        ),
        "three steps, delayed update": ExecutionRequest(
            plan=build_dense_training(DELAYED_UPDATE, "three steps, delayed update"),
            check_against=DELAYED_UPDATE,
            iterations=3,
        ),
    }
    requests |= local_requests() | wrong_roots() | delayed_requests()
    requests |= float8_requests() | latent_requests() | expert_requests()
    for what, sliced in SLICED.items():
        plan = altered(build_dense_training(sliced, what), what)
        requests[f"altered {what}"] = ExecutionRequest(plan=plan, check_against=sliced)
    for name, what in WRONG_STEPS.values():
        plan = wrong_from_step_to_step(build_dense_training(DEFERRING[name], name), what)
        requests[f"{what} ({name})"] = checked(plan, DEFERRING[name])
    for what in ("shard", "axes"):
        plan = altered(build_dense_training(hybrid, "hybrid"), what)
        requests[f"altered {what}"] = ExecutionRequest(plan=plan, check_against=hybrid)
    return requests


SILENT = silent_requests() | silent_expert_requests()
"""Runs with one communication, or one copy, left out; all ranks of each are in one process."""
SILENT_ON_PROCESSES = tuple(
    f"without {what} (sequence and zero)"
    for what in ("all_reduce sum_tp", "all_gather layer0.norm1.all_gather", "reduce_scatter reduce_scatter")
)
"""Those that run on four processes, too: one of each kind."""
