"""Real runs of PipeDream-2BW, and runs that must fail their check."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from backends.execution.request import ExecutionRequest
from sim.plan.words.program import Call, Plan
from sim.training.spec.job import DenseTraining, PipelineSpec
from sim.training.steps.delayed import build_delayed_training
from tests.backends.jobs import GPT, LLAMA, training

UNTIED: Mapping[str, Any] = {**GPT, "tied_embeddings": False}


def delayed(model: Mapping[str, Any] = UNTIED, **keys: Any) -> DenseTraining:
    """Return a training with gradients that are one step late."""
    return training(model=model, pipeline={"schedule": "pipedream_2bw"} | keys.pop("pipeline"), **keys)


DELAYED = {
    "2bw, pp4": delayed(pipeline={"degree": 4}, batch=(4, 1)),
    "2bw, pp2 x dp2, buckets": delayed(pipeline={"degree": 2}, data_degree=2, batch=(6, 1), bucket_bytes=4000),
    "2bw, llama, pp2 x tp2 sp, recompute full": delayed(
        LLAMA, pipeline={"degree": 2}, tensor_degree=2, sequence_parallel=True, batch=(3, 1), recompute="full"
    ),
    "2bw, pp2, gradients assigned": delayed(
        pipeline={"degree": 2}, batch=(2, 1), numbers={"set_gradients_to_none": True}
    ),
    "2bw, pp2 x cp2": delayed(LLAMA, pipeline={"degree": 2}, context_degree=2, batch=(3, 1)),
    "2bw, one pipeline rank, dp2 x tp2": delayed(pipeline={"degree": 1}, data_degree=2, tensor_degree=2),
}
TWO_RUNS = "2bw, pp4, two runs"


def _calling(plan: Plan, old: str, new: str) -> Plan:
    """Return a plan whose programs call other tasks."""
    programs = [
        replace(p, calls=tuple(Call(call.task.replace(old, new), call.microbatch) for call in p.calls))
        for p in plan.programs
    ]
    return replace(plan, programs=tuple(programs))


def _without(plan: Plan, prefix: str) -> Plan:
    """Return a plan without the ops whose names begin so."""
    programs = []
    for program in plan.programs:
        tasks = {
            name: replace(task, ops=tuple(op for op in task.ops if not op.name.startswith(prefix)))
            for name, task in program.tasks.items()
        }
        programs.append(replace(program, tasks=tasks))
    return replace(plan, programs=tuple(programs))


def _wrong_runs() -> dict[str, ExecutionRequest]:
    job, replicated = DELAYED["2bw, pp4"], DELAYED["2bw, pp2 x dp2, buckets"]
    plan, of_replicas = (build_delayed_training(j, "wrong") for j in (job, replicated))
    synchronous = replace(job, parallel=replace(job.parallel, pipeline=PipelineSpec(degree=4)))
    sums = frozenset(
        op.name for p in of_replicas.programs for task in p.tasks.values() for op in task.ops
        if op.name.startswith("all_reduce")
    )  # fmt: skip
    return {
        "2bw, wrong: against synchronous training": ExecutionRequest(plan=plan, check_against=synchronous),
        "2bw, wrong: older version not kept": ExecutionRequest(plan=_without(plan, "keep."), check_against=job),
        "2bw, wrong: forwards of the older version alone": ExecutionRequest(
            plan=_calling(plan, "newest.", "forward."), check_against=job
        ),
        "2bw, wrong: no gradient sync": ExecutionRequest(plan=of_replicas, check_against=replicated, mute=sums),
    }


def delayed_requests() -> dict[str, ExecutionRequest]:
    """Return every run of PipeDream-2BW, right and wrong."""
    right = {
        name: ExecutionRequest(plan=build_delayed_training(job, name), check_against=job)
        for name, job in DELAYED.items()
    }
    job = DELAYED["2bw, pp4"]
    twice = ExecutionRequest(plan=build_delayed_training(job, TWO_RUNS), check_against=job, iterations=2)
    return right | {TWO_RUNS: twice} | _wrong_runs()


WRONG = tuple(_wrong_runs())
