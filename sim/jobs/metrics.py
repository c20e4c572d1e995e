"""The measures by which schedulers are compared, from the record of a simulation."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.jobs.record import FinishedJob, Record


class MixMetrics(Struct, frozen=True, kw_only=True):
    """Measures of a job mix; seconds, GPU-seconds and fractions.

    ``mean_jct_s`` and so on: job completion times, from arrival to finish. ``mean_queueing_s``: from arrival to first
    start. ``mean_waiting_s``: all time without GPUs. ``utilisation``: GPU-seconds held, divided by those until all are
    free for good. ``useful_fraction``: of the held GPU-seconds with progress that was kept. ``num_failures``: stops of
    jobs by failures of nodes; ``lost_gpu_s``: progress that they undid; ``down_gpu_s``: of nodes that were down.
    ``mean_unfairness``: finish-time fairness of Themis, the completion time divided by that on an equal share of the
    cluster; ``unfair_fraction``: of jobs above 1.
    """

    num_jobs: int
    mean_jct_s: float
    median_jct_s: float
    p90_jct_s: float
    p99_jct_s: float
    mean_queueing_s: float
    mean_waiting_s: float
    makespan_s: float
    utilisation: float
    useful_fraction: float
    num_preemptions: int
    num_rescales: int
    num_failures: int
    restart_gpu_s: float
    idle_gpu_s: float
    lost_gpu_s: float
    down_gpu_s: float
    mean_unfairness: float
    unfair_fraction: float


def measure(record: Record) -> MixMetrics:
    """Return the measures of a record with at least one job."""
    jobs = record.jobs
    jcts_s = np.array([each.jct_s for each in jobs])
    held = sum(each.service_gpu_s for each in jobs)
    unfairness = finish_time_unfairness(record)
    median, p90, p99 = np.quantile(jcts_s, [0.5, 0.9, 0.99]).tolist()
    return MixMetrics(
        num_jobs=len(jobs),
        mean_jct_s=float(jcts_s.mean()),
        median_jct_s=median,
        p90_jct_s=p90,
        p99_jct_s=p99,
        mean_queueing_s=_mean([each.first_start_s - each.job.arrival_s for each in jobs]),
        mean_waiting_s=_mean([each.jct_s - each.held_s for each in jobs]),
        makespan_s=record.makespan_s,
        utilisation=held / (record.num_gpus * record.released_s),
        useful_fraction=sum(each.useful_gpu_s for each in jobs) / held,
        num_preemptions=sum(each.num_preemptions for each in jobs),
        num_rescales=sum(each.num_rescales for each in jobs),
        num_failures=sum(each.num_failures for each in jobs),
        restart_gpu_s=sum(each.restart_gpu_s for each in jobs),
        idle_gpu_s=sum(each.idle_gpu_s for each in jobs),
        lost_gpu_s=sum(each.lost_gpu_s for each in jobs),
        down_gpu_s=record.down_gpu_s,
        mean_unfairness=float(unfairness.mean()),
        unfair_fraction=float((unfairness > 1.0).mean()),
    )


def finish_time_unfairness(record: Record) -> NDArray[np.float64]:
    """Return each job's completion time divided by that on an equal share of the cluster (Themis, NSDI 2020).

    A job's share is the cluster divided by the mean number of unfinished jobs during its life. On a share of fewer GPUs
    than it asks for, a job takes turns: it is slower in proportion.
    """
    crowd = _mean_crowd(record.jobs)
    alone_s = np.array([each.job.duration_s for each in record.jobs])
    wanted = np.array([each.job.num_gpus for each in record.jobs])
    jcts_s = np.array([each.jct_s for each in record.jobs])
    ideal_s = alone_s * np.maximum(1.0, wanted * crowd / record.num_gpus)
    return np.asarray(jcts_s / ideal_s)


def _mean_crowd(jobs: Sequence[FinishedJob]) -> NDArray[np.float64]:
    """Return the mean number of unfinished jobs between each job's arrival and its finish."""
    arrivals = np.array([each.job.arrival_s for each in jobs])
    finishes = np.array([each.finish_s for each in jobs])
    instants = np.concatenate([arrivals, finishes])
    order = np.argsort(instants, kind="stable")
    instants = instants[order]
    steps = np.concatenate([np.ones(len(jobs)), -np.ones(len(jobs))])[order]
    crowd = np.cumsum(steps)
    area = np.concatenate([[0.0], np.cumsum(crowd[:-1] * np.diff(instants))])
    between = np.interp(finishes, instants, area) - np.interp(arrivals, instants, area)
    return np.asarray(between / (finishes - arrivals))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
