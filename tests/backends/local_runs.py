"""Real runs of local updates, and runs that must fail their check."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from backends.execution.request import ExecutionRequest
from sim.plan.words.op import Recv, Send
from sim.plan.words.program import Plan
from sim.training.local.builder import build_local_training
from sim.training.spec.job import DenseTraining
from tests.backends.jobs import GPT, LLAMA, training

UNTIED: Mapping[str, Any] = {**GPT, "tied_embeddings": False}


def local(update: str, model: Mapping[str, Any] = UNTIED, **keys: Any) -> DenseTraining:
    """Return a training by local updates."""
    pipeline = {"schedule": "local"} | keys.pop("pipeline")
    numbers = {"method": "local", "local_update": update, **keys.pop("numbers", {})}
    return training(model=model, pipeline=pipeline, numbers=numbers, **keys)


LOCAL = {
    "local, greedy, pp4": local("greedy", pipeline={"degree": 4}, batch=(3, 1)),
    "local, greedy, llama, pp2 v2 x tp2 sp": local(
        "greedy", LLAMA, pipeline={"degree": 2, "virtual_stages": 2}, tensor_degree=2, sequence_parallel=True,
        batch=(2, 1),
    ),
    "local, greedy, pp2 x dp2 zero1, recompute full": local(
        "greedy", pipeline={"degree": 2}, data_degree=2, zero_stage=1, recompute="full"
    ),
    "local, overlapping, pp2 v2, gradients assigned": local(
        "overlapping", pipeline={"degree": 2, "virtual_stages": 2}, batch=(2, 1),
        numbers={"set_gradients_to_none": True, "fused_gradient_accumulation": False},
    ),
    "local, overlapping, pp4": local("overlapping", pipeline={"degree": 4}, batch=(3, 1)),
    "local, overlapping, llama, pp2 v2 x dp2": local(
        "overlapping", LLAMA, pipeline={"degree": 2, "virtual_stages": 2}, data_degree=2, recompute="selective"
    ),
    "local, greedy, two layers on pp4": local(
        "greedy", {**UNTIED, "num_layers": 2}, pipeline={"degree": 4}, batch=(2, 1)
    ),
    "local, overlapping, llama, scatter-gather, two layers on pp2 v2 x tp2": local(
        "overlapping", {**LLAMA, "num_layers": 2}, tensor_degree=2, batch=(2, 1),
        pipeline={"degree": 2, "virtual_stages": 2, "scatter_gather": True},
    ),
    "local, overlapping, scatter-gather, pp2 v2 x tp2": local(
        "overlapping", pipeline={"degree": 2, "virtual_stages": 2, "scatter_gather": True}, tensor_degree=2,
        batch=(2, 1), recompute="full",
    ),
}  # fmt: skip
STEPS = "local, overlapping, three steps"


def _messages(plan: Plan, direction: str) -> frozenset[str]:
    ops = [op for program in plan.programs for task in program.tasks.values() for op in task.ops]
    return frozenset(op.name for op in ops if isinstance(op, Send | Recv) and op.direction == direction)


def _without(plan: Plan, rank: int, task: str, op_name: str) -> Plan:
    """Return a plan in which a rank's task reads its own block's gradient where another is added to it."""
    programs = list(plan.programs)
    old = programs[rank].tasks[task]
    ops = tuple(replace(op, reads=(op.reads[0], op.reads[0])) if op.name == op_name else op for op in old.ops)
    programs[rank] = replace(programs[rank], tasks={**programs[rank].tasks, task: replace(old, ops=ops)})
    return replace(plan, programs=tuple(programs))


def _wrong_runs() -> dict[str, ExecutionRequest]:
    """Return runs whose check must fail: another kind of update, messages left out, the wrong gradient added."""
    greedy, overlapping = LOCAL["local, greedy, pp4"], LOCAL["local, overlapping, pp4"]
    plans = {job: build_local_training(job, "wrong") for job in (greedy, overlapping)}
    doubled = _without(plans[overlapping], 1, "backward.1", "output_gradient.1.both")
    return {
        "local, wrong: greedy for overlapping": ExecutionRequest(plan=plans[greedy], check_against=overlapping),
        "local, wrong: overlapping for greedy": ExecutionRequest(plan=plans[overlapping], check_against=greedy),
        "local, wrong: no messages forward": ExecutionRequest(
            plan=plans[greedy], check_against=greedy, mute=_messages(plans[greedy], "forward")
        ),
        "local, wrong: no messages backward": ExecutionRequest(
            plan=plans[overlapping], check_against=overlapping, mute=_messages(plans[overlapping], "backward")
        ),
        "local, wrong: own gradient twice": ExecutionRequest(plan=doubled, check_against=overlapping),
        "local, wrong: no gradient sync": ExecutionRequest(
            plan=(plan := build_local_training(job := LOCAL["local, overlapping, llama, pp2 v2 x dp2"], "wrong")),
            check_against=job,
            mute=frozenset(name for name in _collectives(plan) if name.startswith("all_reduce")),
        ),
    }


def _collectives(plan: Plan) -> set[str]:
    return {op.name for program in plan.programs for task in program.tasks.values() for op in task.ops}


def local_requests() -> dict[str, ExecutionRequest]:
    """Return every run of local updates, right and wrong."""
    right = {
        name: ExecutionRequest(plan=build_local_training(job, name), check_against=job) for name, job in LOCAL.items()
    }
    job = LOCAL["local, overlapping, pp4"]
    several = ExecutionRequest(plan=build_local_training(job, STEPS), check_against=job, iterations=3)
    return right | {STEPS: several} | _wrong_runs()


WRONG = tuple(_wrong_runs())
