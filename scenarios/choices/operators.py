"""OSDP: the choice of sharded operators of a job, from their costs on its cluster.

The choice is the fastest one that fits by the plan's own account of memory. The search adds up the memory of each
operator and the least other memory of a plan. If the real plan needs more, the difference is taken from the memory of
the search, and it searches again.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from msgspec import Struct
from msgspec.structs import replace

from costmodels.units import format_bytes
from scenarios.summaries.steps.step import OperatorSharding, ShardedOperator
from sim.engine.prices.activity import Pricing
from sim.engine.running.memory import memory_use
from sim.plan.words.op import Op
from sim.plan.words.program import Plan, Program
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
from sim.training.spec.job import DenseTraining, OpenTraining
from sim.training.spec.parallelism.sharding import Choice
from sim.training.steps.builder import build_dense_training


def with_sharding_chosen(job: OpenTraining, pricing: Pricing, device_bytes: int) -> DenseTraining:
    """Return a job under OSDP with the operators chosen that it shards.

    ``device_bytes``: the memory of the smallest device, the limit where the job states none. Of a pipeline every rank
    has its own operators, and the limit for itself. Raises SpecError where nothing fits.
    """
    osdp = job.parallel.osdp
    assert osdp is not None
    limit = device_bytes if osdp.memory_limit_bytes is None else osdp.memory_limit_bytes
    return chosen_within(job, limit, options_of_ranks(job, pricing))


def chosen_within(job: OpenTraining, limit: int, ranks: "Sequence[RankOptions]") -> DenseTraining:
    """Return a job with the fastest choice of which every rank's plan keeps to a limit, in bytes.

    ``ranks``: what every pipeline rank may choose from. Raises SpecError where nothing fits.
    """
    osdp = job.parallel.osdp
    assert osdp is not None
    job = replace(job, parallel=replace(job.parallel, osdp=replace(osdp, memory_limit_bytes=limit)))
    searches = [RankSearch(rank.options, limit - rank.beside_bytes) for rank in ranks]
    while True:
        chosen = _choosing(job, choices_of_ranks(searches, limit, osdp.gap))
        programs = build_dense_training(chosen, "chosen").programs
        excesses = [memory_use(program).peak_bytes - limit for program in programs]
        if max(excesses) <= 0:
            return chosen
        for search, excess in zip(searches, excesses, strict=True):
            if excess > 0:
                search.budget_bytes -= max(excess, limit // 1000)  # so that a few plans are enough


class RankOptions(Struct, frozen=True):
    """The options of one pipeline rank's operators, and the least memory in bytes that its plan needs beside them."""

    options: dict[str, list[Option]]
    beside_bytes: int


@dataclass(slots=True)
class RankSearch:
    """The options of one pipeline rank's operators, and the memory that these may use."""

    options: dict[str, list[Option]]
    budget_bytes: int

    def cheapest(self, fixed: Choices, gap: float) -> "tuple[float, dict[str, Choice]] | None":
        """Return the least time with some operators' choices given, and the choices; None where nothing fits."""
        rows = {
            name: [option for option in row if option.choice == fixed.get(name, option.choice)]
            for name, row in self.options.items()
        }
        found = cheapest(list(rows.values()), self.budget_bytes, gap)
        if found is None:
            return None
        choices = dict(zip(rows, found, strict=True))
        return sum(o.time_s for name, row in rows.items() for o in row if o.choice == choices[name]), choices


def choices_of_ranks(searches: Sequence[RankSearch], limit: int, gap: float) -> Choices:
    """Return the choices: on every rank the fastest that fits.

    A tied table lies on two ranks, and both make the same choice for it: the one under which the slowest rank is
    fastest.
    """
    held = Counter(name for search in searches for name in search.options)
    shared = [name for name, count in held.items() if count > 1]
    alternatives = product(*([option.choice for option in _row(searches, name)] for name in shared))
    best_s, best = math.inf, None
    for given in alternatives:
        found = [search.cheapest(dict(zip(shared, given, strict=True)), gap) for search in searches]
        plans = [plan for plan in found if plan is not None]
        if len(plans) == len(searches) and max(time_s for time_s, _ in plans) < best_s:
            best_s, best = max(time_s for time_s, _ in plans), [choices for _, choices in plans]
    if best is None:
        raise _does_not_fit(searches, limit)
    return {name: choice for choices in best for name, choice in choices.items() if choice.num_sharded}


def _row(searches: Sequence[RankSearch], name: str) -> list[Option]:
    return next(search.options[name] for search in searches if name in search.options)


def options_of_ranks(job: OpenTraining, pricing: Pricing) -> list[RankOptions]:
    """Return what every pipeline rank may choose from, whatever the limit.

    What it needs beside is the least over the uniform plans: what is whole for a while need not be so when activations
    are most.
    """
    assert job.parallel.osdp is not None
    programs = build_dense_training(_choosing(job, {}), "replicated").programs
    parameters = [name for program in programs for name in parameters_of(program)]
    costs: list[dict[bool, dict[int, Mapping[str, list[SliceCost]]]]] = [{False: {}, True: {}} for _ in programs]
    rests: list[list[int]] = [[] for _ in programs]
    for num_slices in sorted({1, *job.parallel.osdp.splits}):
        for sharded in (False, True):
            choices = uniform_choices(job, parameters, num_slices, sharded=sharded)
            plan = build_dense_training(_choosing(job, choices), "uniform")
            for rank, program in enumerate(plan.programs):
                found = slice_costs(job, UniformPlan(choices, program), _alone(plan, program, pricing))
                pieces = [cost for row in found.values() for cost in row]
                needed = sum(c.held_bytes for c in pieces) + max(c.gathered_bytes for c in pieces)
                rests[rank].append(memory_use(program).peak_bytes - needed)
                costs[rank][sharded][num_slices] = found
    return [RankOptions(options_of(c[False], c[True]), min(r)) for c, r in zip(costs, rests, strict=True)]


def _choosing(job: OpenTraining, choices: Choices) -> DenseTraining:
    """Return a job that shards as chosen."""
    assert job.parallel.osdp is not None
    osdp = replace(job.parallel.osdp, choices=tuple(choices.items()))
    return job.decided(replace(job.parallel, osdp=osdp))


def _alone(plan: Plan, program: Program, pricing: Pricing) -> OpSeconds:
    """Return how long ops take alone on the first rank of a program."""
    rank = plan.ranks_of(program)[0]

    def seconds(program: Program, op: Op) -> float:
        return pricing.price(plan, program, op, rank).duration_s

    return seconds


def summarise_choice(job: DenseTraining, plan: Plan) -> OperatorSharding:
    """Return the limit if prices chose, how many operators there are, and which are sharded, in model order."""
    osdp = job.parallel.osdp
    assert osdp is not None
    choices = dict(osdp.choices or ())
    parameters = [name for program in plan.programs for name in parameters_of(program)]
    pieces = operator_slices(parameters, {}, tied_embeddings=job.model.tied_embeddings)
    operators = list(dict.fromkeys(piece.operator for piece in pieces))
    sharded = tuple(
        ShardedOperator(operator=name, num_slices=choices[name].num_slices, num_sharded=choices[name].num_sharded)
        for name in operators
        if name in choices
    )
    return OperatorSharding(memory_limit_bytes=osdp.memory_limit_bytes, num_operators=len(operators), sharded=sharded)


def _does_not_fit(searches: Sequence[RankSearch], limit: int) -> SpecError:
    least = max(limit - search.budget_bytes + least_bytes(list(search.options.values())) for search in searches)
    return SpecError(
        "parallel.data.osdp",
        f"of all choices of operators to shard, the smallest needs {format_bytes(least)} per rank, and the limit is "
        f"{format_bytes(limit)}",
        "allow more splits, recompute more, or use more replicas, smaller micro-batches or tensor parallelism",
    )
