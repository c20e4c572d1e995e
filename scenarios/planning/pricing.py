"""Prices for the closed forms: probes of small plans, and lines through two sizes of each collective."""

from collections.abc import Sequence
from dataclasses import dataclass

from scenarios.planning.openings import Openings
from scenarios.sweep.refusal import REFUSALS, one_line
from scenarios.workloads.steps.running import plan_of
from sim.engine.prices.pricing import ClusterPricing
from sim.plan.words.program import Plan
from sim.planner.estimating import Line, LinkKey, Prices, ProbeKey, ReplicaLinks, link_keys, probe_keys
from sim.planner.probing import Probe, probe
from sim.planner.space import RECOMPUTE, Grid, Strategy

_SMALL_BYTES, _LARGE_BYTES = 64 * 2**20, 2**30


@dataclass(frozen=True, slots=True)
class Priced:
    """The prices of a grid, and why some strategies have none: by probe, the rule that refuses it."""

    prices: Prices
    refused: dict[ProbeKey, str]


def priced(openings: Openings, grid: Grid) -> Priced:
    """Return the prices of all strategies of a grid, each distinct probe and group priced once."""
    pricing = openings.anchor.pricing()
    assert isinstance(pricing, ClusterPricing)  # there is a cluster
    probes: dict[ProbeKey, Probe] = {}
    refused: dict[ProbeKey, str] = {}
    for key in probe_keys(grid)[0]:
        try:
            probes[key] = _probe(openings, key, pricing)
        except REFUSALS as error:
            refused[key] = one_line(error)
    links = {key: _links(key, pricing) for key in link_keys(grid)[0]}
    element_bytes = 2 if openings.job.training.low_precision_gradients else 4
    return Priced(Prices(probes, links, openings.sizes.num_layers, element_bytes), refused)


def _probe(openings: Openings, key: ProbeKey, pricing: ClusterPricing) -> Probe:
    """Return the probe of a key. Raises ScenarioError where the scenario's rules refuse it."""
    tensor, context, expert, _, _ = key
    one, two = (_small_plan(openings, key, layers, 1) for layers in (1, 2))
    halves = openings.sizes.world_size % (2 * tensor * context) == 0
    halves = halves and openings.sizes.world_size // (2 * tensor * context) % expert == 0
    staged = _small_plan(openings, key, 2, 2) if halves else None
    return probe(one, two, staged, pricing)


def _small_plan(openings: Openings, key: ProbeKey, num_layers: int, num_stages: int) -> Plan:
    """Return the plan of a micro-batch of a few layers, on all ranks."""
    tensor, context, expert, microbatch_size, recompute = key
    data = openings.sizes.world_size // (tensor * context * num_stages)
    strategy = Strategy(tensor, context, num_stages, 1, data, expert, 0, microbatch_size, RECOMPUTE[recompute])
    more = [
        f"training.global_batch_size={microbatch_size * data}", f"model.num_layers={num_layers}",
        f"parallel.pipeline.degree={num_stages}", "parallel.pipeline.schedule=1f1b",
        "parallel.pipeline.virtual_stages=1", f"parallel.data.degree={data}", "parallel.data.zero_stage=0",
    ]  # fmt: skip
    if openings.job.model.experts is not None:
        more.append("model.experts.first_dense_layers=0")
    return plan_of(openings.scenario(strategy, more))


def _links(key: LinkKey, pricing: ClusterPricing) -> ReplicaLinks:
    tensor, replicas = key
    group = range(0, tensor * replicas, tensor)
    return ReplicaLinks(*(_line(kind, group, pricing) for kind in ("all_reduce", "reduce_scatter", "all_gather")))


def _line(kind: str, group: Sequence[int], pricing: ClusterPricing) -> Line:
    """Return the line through a collective's times for two sizes, as large as those of gradients are."""
    if len(group) == 1:
        return Line(0.0, 0.0)
    small_s, large_s = (_seconds(kind, size, group, pricing) for size in (_SMALL_BYTES, _LARGE_BYTES))
    slope = max(0.0, (large_s - small_s) / (_LARGE_BYTES - _SMALL_BYTES))
    return Line(max(0.0, small_s - slope * _SMALL_BYTES), slope)


def _seconds(kind: str, num_bytes: int, group: Sequence[int], pricing: ClusterPricing) -> float:
    cost = pricing.network.collective(kind, num_bytes, group, pricing.algorithms.get(kind, "auto"))
    return cost.latency_s + max((seconds for _, seconds in cost.links), default=0.0)
