"""Prices of an optimizer on the host, and the rules that refuse it."""

from typing import Final

from msgspec import Struct

from scenarios.planning.openings import Openings
from scenarios.planning.small_scenarios import small_scenario
from scenarios.sweep.refusal import REFUSALS, one_line
from scenarios.workloads.steps.running import plan_of, run_plan
from sim.engine.prices.pricing import ClusterPricing
from sim.plan.words.buffer import Kind, Scope, Tier
from sim.plan.words.program import Plan
from sim.planner.prices import FREE, Line, ProbeKey, line_through
from sim.planner.probing import host_round_s
from sim.planner.space import OffloadChoice

_KEY: Final[ProbeKey] = (1, 1, 1, 1, 0)
"""Replicas alone, with the smallest micro-batch."""
_LAYERS: Final = (1, 4)
_ROUNDS: Final = (1, 2, 6)
"""Micro-batches: one, and two numbers whose difference says what each further one takes."""
_SLOWER: Final = 1.02
"""From this ratio on, micro-batches follow each other as fast as the host allows."""


class Hosts(Struct, frozen=True):
    """What a step takes longer, and a micro-batch keeps a host busy, by the bytes of a rank's shard of parameters.

    ``refused``: the rules that refuse it, without and with several pipeline ranks; "" where none does.
    """

    step: Line
    rounds: Line
    refused: tuple[str, str]


NO_HOSTS: Final = Hosts(FREE, FREE, ("", ""))


def hosts_of(openings: Openings, pricing: ClusterPricing) -> Hosts:
    """Return the prices of hosts: lines through what models of few layers take on replicas alone."""
    try:
        (few_bytes, few_s, few_round_s), (many_bytes, many_s, many_round_s) = (
            _measured(openings, layers, pricing) for layers in _LAYERS
        )
    except REFUSALS as error:
        return Hosts(FREE, FREE, (one_line(error), one_line(error)))
    step, rounds = (
        line_through({few_bytes: few, many_bytes: many}.__getitem__, few_bytes, many_bytes)
        for few, many in ((few_s, many_s), (few_round_s, many_round_s))
    )
    return Hosts(step, rounds, ("", _refused_in_pipelines(openings)))


def _refused_in_pipelines(openings: Openings) -> str:
    """Return the rule that refuses an optimizer on the host where there are several pipeline ranks."""
    if openings.sizes.world_size % 2:
        return ""
    try:
        small_scenario(openings, _KEY, 2, 2, offload="optimizer")
    except REFUSALS as error:
        return one_line(error)
    return ""


def _measured(openings: Openings, num_layers: int, pricing: ClusterPricing) -> tuple[int, float, float]:
    """Return the bytes of a rank's shard, what a step takes longer, and what a micro-batch takes on the host."""
    plain, hosted = (
        [_run(openings, num_layers, choice, rounds, pricing) for rounds in _ROUNDS] for choice in ("none", "optimizer")
    )
    buffers = hosted[0][0].programs[0].buffers.values()
    held = (b for b in buffers if b.kind is Kind.PARAMETER and b.tier is Tier.DEVICE and b.scope is Scope.PERSISTENT)
    num_bytes = sum(buffer.num_bytes for buffer in held)
    period_s, host_period_s = ((runs[2][1] - runs[1][1]) / (_ROUNDS[2] - _ROUNDS[1]) for runs in (plain, hosted))
    waits_for_host = host_period_s > _SLOWER * period_s
    round_s = host_period_s if waits_for_host else host_round_s(hosted[1][0], pricing)
    return num_bytes // openings.sizes.world_size, hosted[0][1] - plain[0][1], round_s


def _run(
    openings: Openings, num_layers: int, choice: OffloadChoice, num_microbatches: int, pricing: ClusterPricing
) -> tuple[Plan, float]:
    """Return a plan under ZeRO 2, and its seconds per step."""
    scenario = small_scenario(openings, _KEY, num_layers, 1, offload=choice, num_microbatches=num_microbatches)
    plan = plan_of(scenario)
    return plan, run_plan(scenario, plan, pricing).iteration_time_s
