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
    for name, seconds in run.seconds_of_ops[rank].items():
        task = run.programs[rank].tasks[name]
        if (ops := run.facts.by_stream(task).get(MAIN_STREAM)) is not None:
            total_s += seconds[ops] @ run.facts.purposes(task, shares[name])
    return dict(zip(WorkShares._fields, total_s.tolist(), strict=True))
