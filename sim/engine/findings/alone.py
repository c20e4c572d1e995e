"""The times of a plan's tasks when each runs alone. Schedules that are made for times are made from these."""

from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType

import numpy as np

from sim.engine.compiling.shape import NO_PATH, TaskShape, analyse
from sim.engine.prices.activity import Pricing
from sim.engine.prices.launching import launched
from sim.engine.prices.traffic import exchanges_bytes, signature
from sim.plan.facts.namesakes import sharing_tasks
from sim.plan.words.op import Op, Send
from sim.plan.words.program import Plan, Program, Task


def tasks_alone_s(
    plan: Plan,
    pricing: Pricing,
    is_wanted: Callable[[Task], bool] = lambda _: True,
    busy_s: Mapping[Hashable, float] = MappingProxyType({}),
) -> dict[str, float]:
    """Return how long one call of every wanted task takes alone, on the slowest of the ranks that run it.

    In seconds by task. Collectives find all members ready; a message counts until it has arrived. ``busy_s``: by
    ``signature``, for how long an op that ``is_shared`` keeps its busiest link busy, where others share that.
    """
    plan, shapes, found = sharing_tasks(plan), dict[int, TaskShape](), dict[str, float]()
    kinds = pricing.rank_kinds(plan)
    for program in plan.programs:
        ranks = np.array(plan.ranks_of(program))
        unlike = ranks[np.unique(kinds[ranks], return_index=True)[1]].tolist()
        for name, task in program.tasks.items():
            own = program.named(name)
            if not is_wanted(own):
                continue
            shape = shapes[id(task)] = shapes.get(id(task)) or analyse(task)
            slowest_s = max(_alone_s(plan, pricing, program, task, shape, rank, busy_s) for rank in unlike)
            found[own.name] = max(slowest_s, found.get(own.name, 0.0))
    return found


def is_shared(program: Program, op: Op) -> bool:
    """Return whether an op uses links that other groups, or ranks of the node, use at the same time for the same."""
    return exchanges_bytes(op, program) and not isinstance(op, Send)


def _alone_s(
    plan: Plan,
    pricing: Pricing,
    program: Program,
    task: Task,
    shape: TaskShape,
    rank: int,
    busy_s: Mapping[Hashable, float],
) -> float:
    """Return the longest path through a task's ops."""
    waits = shape.predecessors
    activities = launched(waits, pricing.launches_s(task), [pricing.price(plan, program, op, rank) for op in task.ops])
    ends_s: list[float] = []
    for op, activity, predecessors in zip(task.ops, activities, waits, strict=True):
        begin_s = max((ends_s[i] for i in predecessors), default=NO_PATH)
        shared_s = busy_s.get(signature(program, op), 0.0) if busy_s and is_shared(program, op) else 0.0
        ends_s.append(max(begin_s, 0.0) + activity.latency_s + max(activity.occupancy_s, shared_s))
    return max(ends_s)
