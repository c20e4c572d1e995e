"""The times of a plan's tasks when each runs alone. Schedules that are made for times are made from these."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from sim.engine.compiling.shape import NO_PATH, TaskShape, analyse
from sim.engine.prices.activity import Activity, Pricing
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
    plan, found = sharing_tasks(plan), dict[str, float]()
    wanted = [[name for name in program.tasks if is_wanted(program.named(name))] for program in plan.programs]
    times_s = programs_alone_s(plan, pricing, wanted, busy_s)
    for program, names, of_program in zip(plan.programs, wanted, times_s, strict=True):
        for name, slowest_s in zip(names, of_program, strict=True):
            own = program.named(name).name
            found[own] = max(slowest_s, found.get(own, 0.0))
    return found


def programs_alone_s(
    plan: Plan,
    pricing: Pricing,
    wanted: Sequence[Sequence[str]],
    busy_s: Mapping[Hashable, float] = MappingProxyType({}),
) -> Iterator[list[float]]:
    """Yield the same for every program of a plan, which may share tasks. ``wanted``: the names of tasks, by program.

    Ranks that share tasks share their times where each distinct op takes equally long on all. What moves no bytes is
    priced once for all ranks of a kind.
    """
    kinds, shapes = pricing.rank_kinds(plan), dict[int, TaskShape]()
    of_kinds: dict[tuple[int, int], dict[int, Activity]] = {}
    known = dict[tuple[object, ...], list[float]]()
    first_of = [_first_of_kinds(kinds, plan.ranks_of(program)) for program in plan.programs]
    pricing.expect(plan, list(chain.from_iterable(map(dict.values, first_of))), wanted)
    for program, names, first in zip(plan.programs, wanted, first_of, strict=True):
        tasks, times_s = [program.tasks[name] for name in names], list[list[float]]()
        for kind, rank in first.items():
            of_kind = of_kinds.setdefault((id(program.distinct_ops), kind), {})
            prices = _prices(plan, pricing, program, names, rank, of_kind)
            lasting = chain.from_iterable((price.latency_s, price.occupancy_s) for price in prices.values())
            key = (id(program.tasks), *names, *lasting)
            if key not in known:
                shapes |= {id(task): analyse(task) for task in tasks if id(task) not in shapes}
                known[key] = [_alone_s(pricing, program, task, shapes[id(task)], prices, busy_s) for task in tasks]
            times_s.append(known[key])
        yield list(map(max, zip(*times_s, strict=True)))


def is_shared(program: Program, op: Op) -> bool:
    """Return whether an op uses links that other groups, or ranks of the node, use at the same time for the same."""
    return exchanges_bytes(op, program) and not isinstance(op, Send)


def _first_of_kinds(kinds: NDArray[np.int64], ranks: Sequence[int]) -> dict[int, int]:
    """Return the first of some ranks of each kind, by the kind."""
    backwards = ranks[::-1]
    return dict(zip(kinds[list(backwards)].tolist(), backwards, strict=True))


def _prices(
    plan: Plan, pricing: Pricing, program: Program, names: Sequence[str], rank: int, of_kind: dict[int, Activity]
) -> Mapping[int, Activity]:
    """Return the prices of the distinct ops of some tasks on a rank, by their places.

    ``of_kind``: those of ops that move no bytes, on any rank of its kind; what is found is added.
    """
    found = dict[int, Activity]()
    for place, op in program.distinct_ops.of_tasks(names).items():
        activity = of_kind.get(place)
        if activity is None:
            activity = pricing.price(plan, program, op, rank)
            if not exchanges_bytes(op, program):
                of_kind[place] = activity
        found[place] = activity
    return found


def _alone_s(
    pricing: Pricing,
    program: Program,
    task: Task,
    shape: TaskShape,
    prices: Mapping[int, Activity],
    busy_s: Mapping[Hashable, float],
) -> float:
    """Return the longest path through a task's ops. ``prices``: of the program's distinct ops."""
    waits = shape.predecessors
    own = map(prices.__getitem__, program.distinct_ops.of_task[task.name])
    activities = launched(waits, pricing.launches_s(task), list(own))
    ends_s: list[float] = []
    for op, activity, predecessors in zip(task.ops, activities, waits, strict=True):
        begin_s = max((ends_s[i] for i in predecessors), default=NO_PATH)
        shared_s = busy_s.get(signature(program, op), 0.0) if busy_s and is_shared(program, op) else 0.0
        ends_s.append(max(begin_s, 0.0) + activity.latency_s + max(activity.occupancy_s, shared_s))
    return max(ends_s)
