"""Strategies that are made for times: price a first plan, read how long its passes take, then decide.

The automatic zero-bubble order and the part of gradient synchronisation that aiao defers follow from the times of
forwards and backwards. A builder knows none, so a first plan, the same but for that decision, is built and priced.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from sim.engine.activity import Pricing
from sim.engine.alone import tasks_alone_s
from sim.training.builder import build_dense_training
from sim.training.pipeline.actions import Action
from sim.training.pipeline.deferral import deferred_part
from sim.training.pipeline.evaluate import ChainTimes, StageTimes
from sim.training.pipeline.schedules import orders
from sim.training.spec import DenseTraining


def decided(job: DenseTraining, pricing: Callable[[], Pricing]) -> DenseTraining:
    """Return the job with what follows from times decided, as builders need it; ``pricing`` is called only for that."""
    match job.parallel.pipeline.schedule:
        case "aiao" if job.parallel.deferred_sync is None and job.parallel.zero_stage == 0:
            return _with_deferral(job, pricing())
        case "zb_auto":
            return _with_order(job, pricing())
    return job


def _with_deferral(job: DenseTraining, pricing: Pricing) -> DenseTraining:
    """Defer as large a part as forwards are of the time of all passes."""
    first = replace(job, parallel=replace(job.parallel, deferred_sync=0.0))
    times_s = tasks_alone_s(build_dense_training(first, "first pass"), pricing)
    forward_s, backward_s = (_total_s(times_s, kind, job) for kind in ("forward", "backward"))
    return replace(job, parallel=replace(job.parallel, deferred_sync=deferred_part(forward_s, backward_s)))


def _with_order(job: DenseTraining, pricing: Pricing) -> DenseTraining:
    """Put the order that zb_auto finds for the times of every stage in the place of its name."""
    pipeline, m = job.parallel.pipeline, job.num_microbatches
    split = tuple(tuple(Action(kind, rank, i) for kind in "FIW" for i in range(m)) for rank in range(pipeline.degree))
    first = _with_actions(job, split)
    times_s = tasks_alone_s(build_dense_training(first, "first pass"), pricing)
    hop_s = max((seconds for name, seconds in times_s.items() if name.startswith("send_")), default=0.0)
    stages = [
        StageTimes(times_s[f"forward.{s}"], times_s[f"backward_input.{s}"], times_s[f"backward_weight.{s}"], hop_s)
        for s in range(pipeline.degree)
    ]
    return _with_actions(job, orders(pipeline, m, ChainTimes(tuple(stages))))


def _with_actions(job: DenseTraining, actions: Iterable[Iterable[Action]]) -> DenseTraining:
    rows = tuple(tuple(row) for row in actions)
    pipeline = replace(job.parallel.pipeline, schedule="custom", actions=rows, max_live_microbatches=0)
    return replace(job, parallel=replace(job.parallel, pipeline=pipeline))


def _total_s(times_s: dict[str, float], kind: str, job: DenseTraining) -> float:
    return sum(times_s[f"{kind}.{stage}"] for stage in range(job.parallel.pipeline.num_virtual_stages))
