"""Selection of the benchmarks that are relevant to one plan, so that a short budget repeats them often."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

from backends.execution.measuring.benchmarks import (
    CollectiveBenchmark,
    HandoffBenchmark,
    MessageBenchmark,
    WindowBenchmark,
)
from backends.execution.measuring.steps import StepKernels, timed_kernels
from sim.plan.facts.description import kernel_work
from sim.plan.words.op import Collective, Op, Recv, Send
from sim.plan.words.program import Plan

LARGER: Final = 8.0
"""Largest ratio of the FLOP of a step's largest kernel to the FLOP of the plan's largest kernel in a relevant step."""
FEWEST: Final = 12
"""Number of network benchmarks that a fit needs, held-out ones included. If fewer are relevant, all are measured."""


def concerning_steps(plan: Plan, steps: Sequence[StepKernels]) -> list[StepKernels]:
    """Return the steps with only kernels of the plan, from the smallest size to somewhat above the plan's size.

    If they lack a kernel that both the plan and another step have, all steps up to that size are returned.
    """
    wanted, most_flop = _kernels(plan), LARGER * _most_flop(plan)
    small = [step for step in steps if _most_flop(step.plan) <= most_flop] or list(steps[:1])
    ours = [step for step in small if _kernels(step.plan) <= wanted]
    known = frozenset[str]().union(*(_kernels(step.plan) for step in small))
    covered = frozenset[str]().union(*(_kernels(step.plan) for step in ours))
    return ours if wanted & known <= covered else small


def concerning_network(plan: Plan, network: Sequence[WindowBenchmark]) -> list[WindowBenchmark]:
    """Return handoffs, messages if the plan has any, and collectives of the plan's kinds and group sizes."""
    ops = list(_ops(plan))
    collectives = {(op.kind, _group_size(plan, op)) for op in ops if isinstance(op, Collective)}
    sends = any(isinstance(op, Send | Recv) for op in ops)

    def concerns(benchmark: WindowBenchmark) -> bool:
        if isinstance(benchmark, CollectiveBenchmark):
            return (benchmark.kind, benchmark.group) in collectives
        return isinstance(benchmark, HandoffBenchmark) or (isinstance(benchmark, MessageBenchmark) and sends)

    found = [benchmark for benchmark in network if concerns(benchmark)]
    return found if len(found) >= FEWEST else list(network)


def _kernels(plan: Plan) -> frozenset[str]:
    return frozenset(op.kernel for program in plan.programs for op in timed_kernels(program))


def _most_flop(plan: Plan) -> float:
    """Return the FLOP of a plan's largest kernel."""
    works = (kernel_work(program, op).flop for program in plan.programs for op in timed_kernels(program))
    return max(works, default=0.0)


def _ops(plan: Plan) -> Iterator[Op]:
    return (op for program in plan.programs for task in program.tasks.values() for op in task.ops)


def _group_size(plan: Plan, op: Collective) -> int:
    return prod(size for axis, size in plan.mesh.axes if axis in op.axes)
