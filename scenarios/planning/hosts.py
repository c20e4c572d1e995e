"""Prices of state on hosts, and the rules that refuse it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from scenarios.planning.openings import Openings
from scenarios.planning.small_scenarios import small_scenario
from scenarios.sweep.refusal import REFUSALS, one_line
from scenarios.workloads.steps.running import plan_of, run_plan
from sim.engine.prices.pricing import ClusterPricing
from sim.plan.words.buffer import BYTES_PER_ELEMENT, Buffer, Kind, Scope, Tier
from sim.plan.words.program import Plan, Program
from sim.planner.prices import HostLines, ProbeKey, line_through
from sim.planner.probing import host_work
from sim.planner.space import OFFLOADS, OffloadChoice

_LAYERS: Final = (1, 4)


class Hosts(Struct, frozen=True):
    """The prices of state on hosts.

    ``refused``: by number of ``OFFLOADS``, the rules that refuse it, without and with several pipeline ranks; "" where
    none does.
    """

    lines: HostLines = HostLines()
    refused: Mapping[int, tuple[str, str]] = MappingProxyType({})


def hosts_of(openings: Openings, pricing: ClusterPricing) -> Hosts:
    """Return the prices of hosts: lines through what models of few layers take on replicas alone."""
    refused = {kind: (_refused(openings, kind, 1), _refused(openings, kind, 2)) for kind in range(1, len(OFFLOADS))}
    if refused[OFFLOADS.index("optimizer")][0]:
        return Hosts(HostLines(), refused)
    (few_bytes, few), (many_bytes, many) = (_measured(openings, layers, pricing) for layers in _LAYERS)
    step, copies, adds, links, updates, loads, link_loads = (
        line_through({few_bytes: few_s, many_bytes: many_s}.__getitem__, few_bytes, many_bytes)
        for few_s, many_s in zip(few, many, strict=True)
    )
    room_bytes = pricing.cluster.node.host.memory_bytes / openings.ranks_per_node
    return Hosts(HostLines(step, copies, adds, links, updates, loads, link_loads, room_bytes), refused)


def _key_of(openings: Openings) -> ProbeKey:
    """Return the key with the smallest of every degree: replicas alone, but for what the scenario fixes."""
    choices = openings.choices()
    tensor, context, expert, microbatch, recompute = (
        choices[name][0] for name in ("tensor", "context", "expert", "microbatch_size", "recompute")
    )
    return tensor, context, expert, microbatch, recompute


def _refused(openings: Openings, kind: int, num_stages: int) -> str:
    """Return the rule that refuses state on the host, "" where none does."""
    tensor, context, *_ = key = _key_of(openings)
    if openings.sizes.world_size % (num_stages * tensor * context):
        return ""
    try:
        small_scenario(openings, key, num_stages, num_stages, offload=OFFLOADS[kind])
    except REFUSALS as error:
        return one_line(error)
    return ""


def _measured(openings: Openings, num_layers: int, pricing: ClusterPricing) -> tuple[int, tuple[float, ...]]:
    """Return the bytes of a rank's shard of parameters, and the seconds of each line of ``HostLines``."""
    (_, plain_s), (plan, hosted_s) = (_run(openings, num_layers, choice, pricing) for choice in ("none", "optimizer"))
    summed = small_scenario(openings, _key_of(openings), num_layers, 1, offload="optimizer", num_microbatches=2)
    work = host_work(plan_of(summed), pricing)
    gradients = _host_gradients(plan.programs[0])
    element_bytes = BYTES_PER_ELEMENT[openings.job.training.types.parameter]
    smaller = element_bytes / BYTES_PER_ELEMENT[gradients[0].dtype]
    return int(smaller * sum(buffer.num_bytes for buffer in gradients)), (
        hosted_s - plain_s, work.copies_s, work.adds_s, work.links_s, work.updates_s,
        smaller * work.copies_s, smaller * work.link_copies_s,
    )  # fmt: skip


def _host_gradients(program: Program) -> list[Buffer]:
    """Return the sums of gradients that a rank keeps on its host: those of its shard of parameters."""
    kept = (b for b in program.buffers.values() if b.tier is Tier.HOST and b.scope is Scope.PERSISTENT)
    return [buffer for buffer in kept if buffer.kind is Kind.GRADIENT]


def _run(openings: Openings, num_layers: int, choice: OffloadChoice, pricing: ClusterPricing) -> tuple[Plan, float]:
    """Return the plan of a micro-batch under ZeRO 2, and its seconds per step."""
    scenario = small_scenario(openings, _key_of(openings), num_layers, 1, offload=choice)
    plan = plan_of(scenario)
    return plan, run_plan(scenario, plan, pricing).iteration_time_s
