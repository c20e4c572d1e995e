"""What a rank computes for: its compute stream's busy seconds by purpose."""

from collections.abc import Mapping

import numpy as np

from sim.engine.compiling.tables import MAIN_STREAM
from sim.engine.running.run import SimulatedRun
from sim.plan.facts.work_shares import TaskShares, WorkShares


def computing_seconds(run: SimulatedRun, rank: int, shares: TaskShares) -> Mapping[str, float]:
    """Return the seconds of a step that one simulated rank computes, by what for: the fields of ``WorkShares``.

    ``shares``: those of the rank's program. The seconds add up to the compute stream's in ``breakdown``.
    """
    total_s = np.zeros(len(WorkShares._fields))
    tasks, parts = (run.task_times(rank), ()) if run.paced is not None else run.window(rank)
    for times in tasks:
        ops = run.facts.by_stream(times.task).get(MAIN_STREAM)
        if ops is None:
            continue
        of_task = shares[times.task.name]
        each = np.array([of_task[j] for j in ops.tolist()])
        starts_s, ends_s = times.starts_s[:, ops], times.ends_s[:, ops]
        if run.paced is not None:
            total_s += run.rank_paces(rank).counts_of(times) @ (ends_s - starts_s) @ each
        for part in parts:
            inside_s = ends_s.clip(part.begin_s, part.end_s) - starts_s.clip(part.begin_s, part.end_s)
            total_s += part.times * inside_s.sum(axis=0) @ each
    return dict(zip(WorkShares._fields, total_s.tolist(), strict=True))
