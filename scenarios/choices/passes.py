"""What follows from how long forwards and backwards take: the order of zb_auto, what aiao defers."""

import math
from collections.abc import Iterable

from msgspec.structs import replace

from scenarios.choices.first_plan import one_microbatch
from sim.engine.findings.alone import programs_alone_s, tasks_alone_s
from sim.engine.prices.activity import Pricing
from sim.plan.words.program import Phase, Plan
from sim.training.pipeline.actions import Action
from sim.training.pipeline.deferral import deferred_part
from sim.training.pipeline.evaluate import ChainTimes, StageTimes
from sim.training.pipeline.schedules import orders
from sim.training.spec.job import DenseTraining, OpenTraining
from sim.training.spec.parallelism.mesh_axes import PIPELINE_AXIS
from sim.training.steps.builder import build_dense_training


def with_deferral(job: OpenTraining, pricing: Pricing) -> DenseTraining:
    """Return a job under aiao that defers as large a part as forwards are of the time of all passes."""
    first = one_microbatch(job.decided(replace(job.parallel, deferred_sync=0.0)))
    plan = build_dense_training(first, "first pass", shares_tasks=True)
    passes_s = _passes_s(plan, pricing)
    part = deferred_part(passes_s[Phase.FORWARD], passes_s[Phase.BACKWARD])
    return job.decided(replace(job.parallel, deferred_sync=part))


def _passes_s(plan: Plan, pricing: Pricing) -> dict[Phase, float]:
    """Return how long forwards and backwards take, of all stages: each task on the slowest of its ranks."""
    slowest_s: dict[Phase, dict[tuple[int, str], float]] = {Phase.FORWARD: {}, Phase.BACKWARD: {}}
    wanted = [[name for name, task in program.tasks.items() if task.phase in slowest_s] for program in plan.programs]
    for program, names, times_s in zip(plan.programs, wanted, programs_alone_s(plan, pricing, wanted), strict=True):
        rank = program.role.get(PIPELINE_AXIS, 0)
        for name, seconds in zip(names, times_s, strict=True):
            of_phase = slowest_s[program.tasks[name].phase]
            of_phase[rank, name] = max(seconds, of_phase.get((rank, name), 0.0))
    return {phase: math.fsum(of_phase.values()) for phase, of_phase in slowest_s.items()}


def with_order(job: OpenTraining, pricing: Pricing) -> DenseTraining:
    """Return a job with the order that zb_auto finds for the times of every stage in the place of its name."""
    pipeline = job.parallel.pipeline
    split = [[Action(kind, rank, 0) for kind in "FIW"] for rank in range(pipeline.degree)]
    first = _with_actions(one_microbatch(job), split)
    times_s = tasks_alone_s(build_dense_training(first, "first pass"), pricing)
    hop_s = max((seconds for name, seconds in times_s.items() if name.startswith("send_")), default=0.0)
    stages = [
        StageTimes(times_s[f"forward.{s}"], times_s[f"backward_input.{s}"], times_s[f"backward_weight.{s}"], hop_s)
        for s in range(pipeline.degree)
    ]
    return _with_actions(job, orders(pipeline, job.num_microbatches, ChainTimes(tuple(stages))))


def _with_actions(job: OpenTraining, actions: Iterable[Iterable[Action]]) -> DenseTraining:
    rows = tuple(tuple(row) for row in actions)
    pipeline = replace(
        job.parallel.pipeline, schedule="custom", actions=rows, max_live_microbatches=0, kept_for_weights=1.0
    )
    return job.decided(replace(job.parallel, pipeline=pipeline))
