"""The times of a plan's tasks when each runs alone. Schedules that are made for times are made from these."""

from collections.abc import Callable

import numpy as np

from sim.engine.compiling.shape import NO_PATH, analyse
from sim.engine.prices.activity import Pricing
from sim.engine.prices.launching import launched
from sim.plan.words.program import Plan, Program, Task


def tasks_alone_s(plan: Plan, pricing: Pricing, is_wanted: Callable[[Task], bool] = lambda _: True) -> dict[str, float]:
    """Return how long one call of every wanted task takes alone, on the slowest of the ranks that run it.

    In seconds by task. Collectives find all members ready; a message counts until it has arrived.
    """
    kinds, found = pricing.rank_kinds(plan), dict[str, float]()
    for program in plan.programs:
        ranks = np.array(plan.ranks_of(program))
        unlike = ranks[np.unique(kinds[ranks], return_index=True)[1]].tolist()
        for name, task in program.tasks.items():
            if not is_wanted(task):
                continue
            slowest_s = max(_alone_s(plan, pricing, program, task, rank) for rank in unlike)
            found[name] = max(slowest_s, found.get(name, 0.0))
    return found


def _alone_s(plan: Plan, pricing: Pricing, program: Program, task: Task, rank: int) -> float:
    """Return the longest path through a task's ops."""
    waits = analyse(task).predecessors
    activities = launched(waits, pricing.launches_s(task), [pricing.price(plan, program, op, rank) for op in task.ops])
    ends_s: list[float] = []
    for activity, predecessors in zip(activities, waits, strict=True):
        begin_s = max((ends_s[i] for i in predecessors), default=NO_PATH)
        ends_s.append(max(begin_s, 0.0) + activity.duration_s)
    return max(ends_s)
