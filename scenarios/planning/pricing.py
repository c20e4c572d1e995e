"""Prices for the closed forms: probes of small plans, and lines through two sizes of each collective."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from types import MappingProxyType

import numpy as np
from msgspec import Struct

from scenarios.planning.hosts import Hosts, hosts_of
from scenarios.planning.openings import Openings
from scenarios.planning.small_scenarios import small_scenario
from scenarios.sweep.refusal import REFUSALS, one_line
from scenarios.workloads.steps.running import plan_of
from sim.cluster.link_use import LinkUse
from sim.engine.prices.pricing import ClusterPricing
from sim.plan.words.program import Plan
from sim.planner.prices import (
    FREE,
    CopyLink,
    Floats,
    Line,
    LinkKey,
    Prices,
    ProbeKey,
    ReplicaLinks,
    line_through,
    link_keys,
    probe_keys,
)
from sim.planner.probing import Probe, probe
from sim.planner.space import COPIED, SPLIT, Grid, Ints
from sim.training.pipeline.rules import Schedule

_PROBES_AT_ONCE = 4
_SMALL_BYTES, _LARGE_BYTES = 64 * 2**20, 2**30
_SMALL_MESSAGE_BYTES, _LARGE_MESSAGE_BYTES = 2**20, 2**26


class Priced(Struct, frozen=True):
    """The prices of a grid, and why some strategies have none: by probe, the rule that refuses it.

    ``whole``: by probe, the rule that refuses backwards in two parts. ``on_device``: the rules that
    refuse state on the host, as in ``Hosts``.
    """

    prices: Prices
    refused: dict[ProbeKey, str]
    whole: dict[ProbeKey, str]
    on_device: Mapping[int, tuple[str, str]] = MappingProxyType({})


def priced(openings: Openings, grid: Grid, workers: Executor) -> Priced:
    """Return the prices of all strategies of a grid, each distinct probe and group priced once.

    Probes are priced by ``workers``, some at a time.
    """
    keys = probe_keys(grid)[0]
    parts = [keys[begin : begin + _PROBES_AT_ONCE] for begin in range(0, len(keys), _PROBES_AT_ONCE)]
    splits = bool(grid.runs(SPLIT).any())
    asked = [workers.submit(_probes, openings, part, splits=splits) for part in parts]
    pricing = _pricing(openings)
    links = {key: _links(key, pricing) for key in link_keys(grid)[0]}
    stages = np.unique(grid.pipeline).tolist()
    hops = {num_stages: _hops(num_stages, openings.sizes.world_size, pricing) for num_stages in stages}
    ties = {num_stages: _ties(num_stages, openings.sizes.world_size, pricing) for num_stages in stages}
    element_bytes = 2 if openings.job.training.low_precision_gradients else 4
    found = list(zip(keys, (outcome for part in asked for outcome in part.result()), strict=True))
    probes = {key: outcome[0] for key, outcome in found if not isinstance(outcome, str)}
    refused = {key: outcome for key, outcome in found if isinstance(outcome, str)}
    whole = {key: outcome[1] for key, outcome in found if not isinstance(outcome, str) and outcome[1]}
    num_layers, overlaps = openings.sizes.num_layers, openings.overlaps
    hosts = hosts_of(openings, pricing) if (grid.offload > 0).any() else Hosts()
    with_copies = grid.rows(grid.runs(COPIED))
    replicas = set(zip(with_copies.tensor.tolist(), (with_copies.data * with_copies.context).tolist(), strict=True))
    copies = {key: _copies(key, openings.sizes.world_size, pricing) for key in sorted(replicas)}
    prices = Prices(probes, links, hops, ties, copies, num_layers, element_bytes, hosts.lines, overlaps)
    return Priced(prices, refused, whole, hosts.refused)


def _pricing(openings: Openings) -> ClusterPricing:
    pricing = openings.anchor.pricing()
    assert isinstance(pricing, ClusterPricing)  # there is a cluster
    return pricing


def _probes(openings: Openings, keys: Sequence[ProbeKey], *, splits: bool) -> list[tuple[Probe, str] | str]:
    """Return the probe of every key, or the rule that refuses it. Runs in whatever process it is sent to.

    ``splits``: with the two parts of backwards; beside the probe is the rule that refuses them, "" where none does.
    """
    pricing = _pricing(openings)
    found: list[tuple[Probe, str] | str] = []
    for key in keys:
        try:
            found.append(_probe(openings, key, pricing, splits=splits))
        except REFUSALS as error:
            found.append(one_line(error))
    return found


def _probe(openings: Openings, key: ProbeKey, pricing: ClusterPricing, *, splits: bool) -> tuple[Probe, str]:
    """Return the probe of a key, and what refuses its split. Raises ScenarioError where rules refuse the probe."""
    tensor, context, expert, _, _ = key
    one, two = (_small_plan(openings, key, layers, 1) for layers in (1, 2))
    halves = openings.sizes.world_size % (2 * tensor * context) == 0
    halves = halves and openings.sizes.world_size // (2 * tensor * context) % expert == 0
    staged = _small_plan(openings, key, 2, 2) if halves else None
    if not splits:
        return probe(one, two, staged, pricing), ""
    try:
        split_one, split_two = (_small_plan(openings, key, layers, 1, "zb_h1") for layers in (1, 2))
    except REFUSALS as error:
        return probe(one, two, staged, pricing), one_line(error)
    return probe(one, two, staged, pricing, (split_one, split_two)), ""


def _small_plan(
    openings: Openings, key: ProbeKey, num_layers: int, num_stages: int, schedule: Schedule = "1f1b"
) -> Plan:
    """Return the plan of a micro-batch of a few layers, on all ranks."""
    return plan_of(small_scenario(openings, key, num_layers, num_stages, schedule))


def _links(key: LinkKey, pricing: ClusterPricing) -> ReplicaLinks:
    step, replicas = key
    groups = np.arange(step)[:, None] + np.arange(0, step * replicas, step)
    return ReplicaLinks(
        *(_collective_line(kind, groups, pricing) for kind in ("all_reduce", "reduce_scatter", "all_gather"))
    )


def _collective_line(kind: str, groups: Ints, pricing: ClusterPricing) -> Line:
    """Return the line through the times of collectives of all groups at once, with sizes as gradients have them."""
    if groups.shape[1] == 1:
        return FREE
    algorithm = pricing.algorithms.get(kind, "auto")

    def seconds(num_bytes: int) -> float:
        use = pricing.network.collectives(kind, num_bytes, groups, algorithm)
        return float(_together_s(use, np.zeros_like(use.rows), 1)[0])

    return line_through(seconds, _SMALL_BYTES, _LARGE_BYTES)


def _hops(num_stages: int, world_size: int, pricing: ClusterPricing) -> Line:
    """Return the line through the mean time of messages from a stage to the next, of all ranks of the stage at once."""
    ranks = np.arange(world_size - world_size // num_stages)
    per_stage = world_size // num_stages
    if not len(ranks):
        return FREE

    def seconds(num_bytes: int) -> float:
        use = pricing.network.messages(num_bytes, ranks, ranks + per_stage)
        return float(_together_s(use, use.rows // per_stage, num_stages - 1).mean())

    return line_through(seconds, _SMALL_MESSAGE_BYTES, _LARGE_MESSAGE_BYTES)


def _ties(num_stages: int, world_size: int, pricing: ClusterPricing) -> Line:
    """Return the line through the time of an all_reduce of every rank of the first stage with one of the last."""
    first = np.arange(world_size // num_stages)
    last = first + world_size - world_size // num_stages
    groups = np.stack([first, last], axis=1) if num_stages > 1 else first[:, None]
    return _collective_line("all_reduce", groups, pricing)


def _copies(key: LinkKey, world_size: int, pricing: ClusterPricing) -> CopyLink:
    """Return the sums over two copies of the model, and what they share with those over replicas."""
    step, replicas = key
    stages = np.arange(world_size).reshape(-1, step * replicas)
    pairs = np.stack([stages[: len(stages) // 2], stages[: len(stages) // 2 - 1 : -1]], axis=-1).reshape(-1, 2)
    line, of_replicas = _collective_line("all_reduce", pairs, pricing), stages.reshape(-1, replicas, step)
    busy_s = [_busy_s(groups, pricing) for groups in (pairs, of_replicas.transpose(0, 2, 1).reshape(-1, replicas))]
    most = max(map(len, busy_s))
    both_s = np.sum([np.pad(found, (0, most - len(found))) for found in busy_s], axis=0)
    shorter_s, longer_s = sorted(float(found.max(initial=0.0)) for found in busy_s)
    return CopyLink(line, (float(both_s.max()) - longer_s) / shorter_s if shorter_s > 0 else 0.0)


def _busy_s(groups: Ints, pricing: ClusterPricing) -> Floats:
    """Return the seconds on every link of all_reduces of all groups at once."""
    if groups.shape[1] == 1:
        return np.zeros(1)
    algorithm = pricing.algorithms.get("all_reduce", "auto")
    use = pricing.network.collectives("all_reduce", _LARGE_BYTES, groups, algorithm)
    return np.bincount(use.links, weights=use.seconds).astype(np.float64)


def _together_s(use: LinkUse, cases: Ints, num_cases: int) -> Floats:
    """Return the seconds of every case, whose rows use links at the same time: the busiest link decides."""
    num_links = int(use.links.max(initial=0)) + 1
    pairs, which = np.unique(cases * num_links + use.links, return_inverse=True)
    busy_s = np.zeros(num_cases)
    np.maximum.at(busy_s, pairs // num_links, np.bincount(which, weights=use.seconds, minlength=len(pairs)))
    found: Floats = busy_s + use.latencies_s.max(initial=0.0)
    return found
