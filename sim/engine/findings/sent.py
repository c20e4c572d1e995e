"""How many bytes a rank sends in one step: messages by their payload, collectives by the algorithm that is priced."""

from collections.abc import Mapping

import numpy as np

from costmodels.collectives.cost import collective_cost
from costmodels.collectives.flows import collective_flows, switch_parts
from costmodels.collectives.network import COLLNET
from sim.cluster.network import Network
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.plan_facts import counted_stream
from sim.engine.running.run import SimulatedRun
from sim.plan.facts.description import collective_bytes, pair_bytes, payload_bytes
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective, Send
from sim.plan.words.program import Program


def sent_bytes(run: SimulatedRun, pricing: ClusterPricing) -> dict[str, float]:
    """Return the bytes that the mean rank sends in a step, by what for: ``tp``, ``pp``, ``dp``, ...

    Keys are streams, and of messages their axis. A message is its payload. Of a collective a rank sends what the
    mean member of its group does by the algorithm's flows; what a protocol adds does not count. Without an algorithm
    named, it is the one that ends first on a network of the cluster's nominal latencies.
    """
    mesh = run.plan.mesh
    counter = _SentBytes(mesh, pricing)
    totals: dict[str, float] = {}
    for rank, program in run.programs.items():
        weight = run.folding.multiplicity[rank] / mesh.size
        for purpose, num_bytes in counter.of_calls(program, run.num_calls(rank), rank).items():
            totals[purpose] = totals.get(purpose, 0.0) + weight * num_bytes
    return dict(sorted(totals.items()))


class _SentBytes:
    """Bytes per op; collectives alike in group and payload are counted once."""

    def __init__(self, mesh: Mesh, pricing: ClusterPricing) -> None:
        self._mesh = mesh
        self._network: Network = pricing.network
        self._algorithms: Mapping[str, str] = pricing.algorithms
        self._known: dict[tuple[str, int, tuple[int, ...]], float] = {}
        self._ranks_per_node: dict[tuple[int, ...], tuple[int, ...]] = {}

    def of_calls(self, program: Program, num_calls: Mapping[str, int], rank: int) -> dict[str, float]:
        """Return the bytes that one rank sends in so many calls of each task, by purpose."""
        totals: dict[str, float] = {}
        for name, count in num_calls.items():
            for op in program.tasks[name].ops:
                if isinstance(op, Send | Collective):
                    purpose = op.axis if isinstance(op, Send) else counted_stream(op)
                    totals[purpose] = totals.get(purpose, 0.0) + count * self._of_op(program, op, rank)
        return totals

    def _of_op(self, program: Program, op: Send | Collective, rank: int) -> float:
        """Return the bytes that a rank sends in one call of an op."""
        if isinstance(op, Send):
            return float(payload_bytes(program, op.reads))
        group = op.group(self._mesh, rank)
        pairs = pair_bytes(program, op)
        if pairs is not None:
            return (pairs.total - int(np.trace(pairs.array))) / len(group)
        return self._of_collective(str(op.kind), collective_bytes(program, op), group)

    def _of_collective(self, kind: str, num_bytes: int, group: tuple[int, ...]) -> float:
        if num_bytes == 0:  # a barrier's token has no payload
            return 0.0
        if group not in self._ranks_per_node:
            self._ranks_per_node[group] = self._network.ranks_per_node(group)
        key = (kind, num_bytes, self._ranks_per_node[group])
        if key not in self._known:
            algorithm = self._algorithms.get(kind, "auto")
            cost = collective_cost(kind, num_bytes, key[2], self._network.parameters, algorithm)
            parts = float(collective_flows(kind, cost.algorithm, key[2]).parts.sum())
            if cost.algorithm in COLLNET:
                parts += len(group) * float(switch_parts(kind, np.ones(1), key[2])[0][0])
            self._known[key] = parts * num_bytes / len(group)
        return self._known[key]
