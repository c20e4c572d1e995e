"""The times of tasks when each runs alone, of programs that share tasks."""

from typing import Any

import pytest

from sim.cluster.link_use import LinkUse
from sim.cluster.network import Network
from sim.engine.findings.alone import programs_alone_s
from sim.engine.prices.pricing import ClusterPricing
from sim.plan.facts.namesakes import sharing_tasks
from sim.plan.words.program import Phase, Plan, Task
from tests.sim.jobs import GPT, dense_plan, pricing_on

STAGES = 6
KEYS = {"pp": STAGES, "tp": 2, "m": STAGES, "model": GPT | {"num_layers": STAGES}}
OWN = dense_plan(**KEYS)
"""The stages of a pipeline, each with tasks of its own."""
SHARED = sharing_tasks(OWN)


def alone_s(plan: Plan, pricing: ClusterPricing, *phases: Phase) -> list[list[float]]:
    """Return how long the tasks of some phases take alone, by program; without a phase all tasks."""
    wanted = [[n for n, task in p.tasks.items() if not phases or task.phase in phases] for p in plan.programs]
    return list(programs_alone_s(plan, pricing, wanted))


@pytest.mark.parametrize("devices_per_node", [2, 3, 5, 8])
def test_stages_that_share_tasks_take_what_each_takes_with_its_own(devices_per_node: int) -> None:
    """To the last bit, also where some stages' groups lie within a node and some on two."""
    pricing = pricing_on("dgx-a100-80g", OWN.mesh.size, devices_per_node=devices_per_node)
    assert alone_s(SHARED, pricing) == alone_s(OWN, pricing)


def test_stages_whose_ops_last_alike_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the four inner stages one has its group on two nodes: the others share their times, and it has its own."""
    looked_at, launches_s = list[str](), ClusterPricing.launches_s

    def counted(self: ClusterPricing, task: Task) -> tuple[float, ...]:
        looked_at.append(task.name)
        return launches_s(self, task)

    monkeypatch.setattr(ClusterPricing, "launches_s", counted)
    pricing = pricing_on("dgx-a100-80g", OWN.mesh.size, devices_per_node=5)
    times_s = alone_s(SHARED, pricing, Phase.FORWARD)
    (first,), (second,), (across,), (fourth,), (fifth,), (last,) = times_s
    assert second == fourth == fifth < across
    assert len({first, second, across, last}) == len(looked_at) == 4


def test_what_the_wanted_tasks_exchange_is_asked_of_the_network_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kinds of collectives of all stages, and the last one's for the loss: gradients are not summed in forwards."""
    asked, collectives = list[tuple[str, int]](), Network.collectives

    def counted(self: Network, kind: str, num_bytes: int, groups: Any, *args: Any, **more: Any) -> LinkUse:
        asked.append((kind, len(groups)))
        return collectives(self, kind, num_bytes, groups, *args, **more)

    monkeypatch.setattr(Network, "collectives", counted)
    plan = sharing_tasks(dense_plan(**KEYS, dp=2, sequence_parallel=True))
    alone_s(plan, pricing_on("dgx-a100-80g", plan.mesh.size), Phase.FORWARD)
    assert asked == [("reduce_scatter", STAGES), ("all_gather", STAGES), ("all_reduce", 1)]
