"""OSDP: choose which operators of a job are sharded, from what they cost on its cluster.

The choice is the fastest that fits by the plan's own account of memory. The model of the search adds up what each
operator needs, and the least that a plan needs besides; where a plan needs more than that, what was left out is taken
from the memory that the search may use, and it searches again.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from costmodels.units import format_bytes
from sim.engine.activity import Pricing
from sim.engine.memory import memory_use
from sim.plan.op import Op
from sim.plan.program import Plan, Program
from sim.training.builder import build_dense_training
from sim.training.data.operator_costs import (
    OpSeconds,
    SliceCost,
    UniformPlan,
    options_of,
    parameters_of,
    slice_costs,
    uniform_choices,
)
from sim.training.data.operators import Choices, operator_slices
from sim.training.data.osdp import Option, cheapest, least_bytes
from sim.training.errors import SpecError
from sim.training.spec import DenseTraining


def with_sharding_chosen(job: DenseTraining, pricing: Pricing, device_bytes: int) -> DenseTraining:
    """Return a job with the operators chosen that it shards; itself where it leaves no choice, or has one already.

    ``device_bytes``: the memory of the smallest device, the limit where the job states none. Raises SpecError where
    nothing fits.
    """
    osdp = job.parallel.osdp
    if osdp is None or osdp.choices is not None or job.parallel.data_degree == 1:
        return job
    limit = device_bytes if osdp.memory_limit_bytes is None else osdp.memory_limit_bytes
    job = replace(job, parallel=replace(job.parallel, osdp=replace(osdp, memory_limit_bytes=limit)))
    options, rest_bytes = _options(job, pricing)
    budget = limit - rest_bytes
    while True:
        found = cheapest(list(options.values()), budget, osdp.gap)
        if found is None:
            raise _does_not_fit(options, limit, limit - budget)
        choices = {name: choice for name, choice in zip(options, found, strict=True) if choice.num_sharded}
        chosen = _choosing(job, choices)
        excess = memory_use(build_dense_training(chosen, "chosen").programs[0]).peak_bytes - limit
        if excess <= 0:
            return chosen
        budget -= max(excess, limit // 1000)  # so that a few plans are enough


def _options(job: DenseTraining, pricing: Pricing) -> tuple[dict[str, list[Option]], int]:
    """Return every operator's options, and the least that a rank needs beside them, in bytes.

    That is the least over the uniform plans: what is whole for a while need not be so when activations are most.
    """
    assert job.parallel.osdp is not None
    parameters = parameters_of(build_dense_training(_choosing(job, {}), "replicated").programs[0])
    costs: dict[bool, dict[int, Mapping[str, list[SliceCost]]]] = {False: {}, True: {}}
    rests = []
    for num_slices in sorted({1, *job.parallel.osdp.splits}):
        for sharded in (False, True):
            choices = uniform_choices(job, parameters, num_slices, sharded=sharded)
            plan = build_dense_training(_choosing(job, choices), "uniform")
            program = plan.programs[0]
            found = slice_costs(job, UniformPlan(choices, program), _alone(plan, pricing))
            pieces = [cost for row in found.values() for cost in row]
            needed = sum(c.held_bytes for c in pieces) + max(c.gathered_bytes for c in pieces)
            rests.append(memory_use(program).peak_bytes - needed)
            costs[sharded][num_slices] = found
    return options_of(costs[False], costs[True]), min(rests)


def _choosing(job: DenseTraining, choices: Choices) -> DenseTraining:
    """Return a job that shards as chosen."""
    assert job.parallel.osdp is not None
    osdp = replace(job.parallel.osdp, choices=tuple(choices.items()))
    return replace(job, parallel=replace(job.parallel, osdp=osdp))


def _alone(plan: Plan, pricing: Pricing) -> OpSeconds:
    def seconds(program: Program, op: Op) -> float:
        return pricing.price(plan, program, op, 0).duration_s

    return seconds


def summarise_choice(job: DenseTraining, program: Program) -> dict[str, Any]:
    """Return the ``osdp`` object of summary.json: the limit, how many operators there are, and which are sharded.

    Of each that is, into how many slices it is split and how many of them are sharded, in model order.
    """
    osdp = job.parallel.osdp
    assert osdp is not None
    choices = dict(osdp.choices or ())
    pieces = operator_slices(parameters_of(program), {}, tied_embeddings=job.model.tied_embeddings)
    operators = list(dict.fromkeys(piece.operator for piece in pieces))
    sharded = [
        {"operator": name, "num_slices": choices[name].num_slices, "num_sharded": choices[name].num_sharded}
        for name in operators
        if name in choices
    ]
    return {"memory_limit_bytes": osdp.memory_limit_bytes, "num_operators": len(operators), "sharded": sharded}


def _does_not_fit(options: Mapping[str, list[Option]], limit: int, rest_bytes: int) -> SpecError:
    least = least_bytes(list(options.values())) + rest_bytes
    return SpecError(
        "parallel.data.osdp",
        f"of all choices of operators to shard, the smallest needs {format_bytes(least)} per rank, and the limit is "
        f"{format_bytes(limit)}",
        "allow more splits, recompute more, or use more replicas, smaller micro-batches or tensor parallelism",
    )
