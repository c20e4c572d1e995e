"""Collectives step by step on a topology: the yardstick of the one-activity model.

Every step of a step list is a message over its route. It occupies all links of the route at once, for its bytes; links
are shared max-min fairly among the messages under way; what has left arrives after the latencies of the route's links.
When a step starts, is one of three orders:

* ``pipeline``: its source holds what it sends (all terms of earlier rounds have arrived), and what it sends the same
  target before has left.
* ``ranks``: its source and target have done with all earlier rounds, as with MPI_Sendrecv: all that they send has left,
  and all that they get is there.
* ``lockstep``: all ranks have done with all earlier rounds.

Nothing else delays it: no launch, no protocol, no occupancy per message, no time to add.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import groupby
from typing import Literal

import numpy as np

from costmodels.collectives.steps import Step, StepList, relabelled, step_list
from sim.cluster.topology.topology import Topology

Order = Literal["pipeline", "ranks", "lockstep"]

SAME = 1 + 1e-9
"""Moments and rates this close are one."""


@dataclass(slots=True)
class Message:
    """A step on its way: the links it occupies, its bytes, what it still waits for, and who waits for it."""

    links: np.ndarray
    num_bytes: float
    latency_s: float
    waits: int
    after_leaving: list[int]
    after_arriving: list[int]


def stepwise_s(
    topology: Topology,
    devices: Sequence[int],
    case: StepList,
    chunk_bytes: float,
    *,
    order: Order,
) -> float:
    """Return how long a step list with chunks of one size takes; rank r lies on ``devices[r]``."""
    messages = _messages(topology, np.array(devices), case, chunk_bytes, order)
    fair = FairRates([message.links for message in messages], topology.bandwidth_bytes_per_s)
    arrivals: list[tuple[float, int]] = []
    now_s, under_way = 0.0, [i for i, message in enumerate(messages) if not message.waits]
    left = np.array([message.num_bytes for message in messages])
    finished = 0
    while under_way or arrivals:
        active = np.array(under_way, dtype=np.int64)
        rates = fair.of(active)
        ends_s = now_s + (left[active] / rates if len(active) else np.zeros(0))
        then_s = min(ends_s.min(initial=np.inf), arrivals[0][0] if arrivals else np.inf)
        left[active] -= rates * (then_s - now_s)
        done = ends_s <= then_s * SAME
        now_s, gone = then_s, active[done].tolist()
        under_way = active[~done].tolist()
        freed: list[int] = []
        for i in gone:
            freed += messages[i].after_leaving
            heappush(arrivals, (now_s + messages[i].latency_s, i))
        while arrivals and arrivals[0][0] <= now_s * SAME:
            freed += messages[heappop(arrivals)[1]].after_arriving
            finished += 1
        for i in freed:
            messages[i].waits -= 1
            if not messages[i].waits:
                under_way.append(i)
    assert finished == len(messages), "some steps wait for ever"
    return now_s


class FairRates:
    """The max-min fair rates of any of some routes at once; for routes that meet again they are known."""

    def __init__(self, routes: Sequence[np.ndarray], bandwidth: np.ndarray) -> None:
        numbers = dict[bytes, int]()
        self._number = np.array([numbers.setdefault(route.tobytes(), len(numbers)) for route in routes])
        self._routes, self._bandwidth = routes, bandwidth
        self._known: dict[bytes, np.ndarray] = {}

    def of(self, active: np.ndarray) -> np.ndarray:
        """Return the rates of some routes, each named by its place."""
        numbers = self._number[active]
        order = np.argsort(numbers, kind="stable")
        key = numbers[order].tobytes()
        if key not in self._known:
            self._known[key] = fair_rates([self._routes[i] for i in active[order].tolist()], self._bandwidth)
        rates = np.empty(len(active))
        rates[order] = self._known[key]
        return rates


def fair_rates(routes: Sequence[np.ndarray], bandwidth: np.ndarray) -> np.ndarray:
    """Return the max-min fair rate of each route: the most crowded link is shared out first, and so on."""
    rates = np.zeros(len(routes))
    if not routes:
        return rates
    flows = np.repeat(np.arange(len(routes)), [len(route) for route in routes])
    names, links = np.unique(np.concatenate(routes), return_inverse=True)
    free, open_flows = bandwidth[names].astype(float), np.ones(len(routes), bool)
    while open_flows.any():
        crowd = np.bincount(links[open_flows[flows]], minlength=len(names))
        share = np.full(len(names), np.inf)
        np.divide(free, crowd, out=share, where=crowd > 0)
        rate = share.min()
        full = share <= rate * SAME
        stopped = np.zeros(len(routes), bool)
        stopped[flows[full[links]]] = True
        stopped &= open_flows
        rates[stopped] = rate
        free -= rate * np.bincount(links[stopped[flows]], minlength=len(names))
        open_flows &= ~stopped
    return rates


def in_channels(
    one: StepList,
    ranks_per_node: tuple[int, ...],
    *,
    from_zero: bool = False,
    rings: Sequence[Sequence[int]] = (),
) -> StepList:
    """Return a step list run in one channel per rank of the smallest node, each with its part of the payload.

    Channel c visits every node's ranks in their order from the c-th around, or those of one node as the c-th of
    ``rings``. ``from_zero``: from rank 0 around them all.
    """
    starts = np.cumsum((0, *ranks_per_node[:-1])).tolist()
    nodes = [list(range(start, start + count)) for start, count in zip(starts, ranks_per_node, strict=True)]
    channels = len(rings) or (min(ranks_per_node) if len(nodes) > 1 else 1)
    found: list[Step] = []
    for channel in range(channels):
        order = [rank for node in nodes for rank in node[channel:] + node[:channel]]
        order = list(rings[channel]) if rings else order
        if from_zero:
            order = order[order.index(0) :] + order[: order.index(0)]
        found += relabelled(one.steps, order, range(channel * one.num_chunks, (channel + 1) * one.num_chunks))
    return step_list(one.kind, one.num_ranks, channels * one.num_chunks, found)


def _messages(
    topology: Topology, devices: np.ndarray, case: StepList, chunk_bytes: float, order: Order
) -> list[Message]:
    sources, targets = (np.array([getattr(s, end) for s in case.steps]) for end in ("source", "target"))
    routes = topology.routes(devices[sources], devices[targets])
    finite = np.isfinite(topology.bandwidth_bytes_per_s)
    messages = [
        Message(
            links=routes[i][finite[routes[i]]],
            num_bytes=len(step.chunks) * chunk_bytes,
            latency_s=float(topology.latency_s[routes[i]].sum()),
            waits=0,
            after_leaving=[],
            after_arriving=[],
        )
        for i, step in enumerate(case.steps)
    ]
    _wire(messages, case.steps, order)
    return messages


def _wire(messages: list[Message], steps: Sequence[Step], order: Order) -> None:
    """Tell every message who waits for it. Steps come in order of their rounds."""
    arrived: dict[object, list[int]] = defaultdict(list)
    left: dict[object, list[int]] = defaultdict(list)
    for _, one_round in groupby(enumerate(steps), key=lambda pair: pair[1].round):
        now = list(one_round)
        for i, step in now:
            before = {j for end in _leaving(step, order) for j in left[end]}
            data = {j for end in _arriving(step, order) for j in arrived[end]}
            for j in before:
                messages[j].after_leaving.append(i)
            for j in data:
                messages[j].after_arriving.append(i)
            messages[i].waits = len(before) + len(data)
        _note(now, arrived, left, order)


def _leaving(step: Step, order: Order) -> list[object]:
    """Return what must have left before a step starts: the last of its connection, or of its ends, or of all."""
    return {"pipeline": [(step.source, step.target)], "ranks": [step.source, step.target], "lockstep": ["all"]}[order]


def _arriving(step: Step, order: Order) -> list[object]:
    """Return what must have arrived before a step starts: its chunks, or the last round of its ends, or of all."""
    if order == "pipeline":
        return [(step.source, chunk) for chunk in step.chunks]
    return [step.source, step.target] if order == "ranks" else ["all"]


def _note(
    now: list[tuple[int, Step]], arrived: dict[object, list[int]], left: dict[object, list[int]], order: Order
) -> None:
    """Add a round to what has left and what arrives; of ranks and of all, only the last round counts."""
    if order != "pipeline":
        for _, step in now:
            left[step.source], arrived[step.target], left["all"], arrived["all"] = [], [], [], []
    for i, step in now:
        if order == "pipeline":
            left[step.source, step.target] = [i]
            for chunk in step.chunks:
                arrived[step.target, chunk].append(i)
            continue
        for end in (step.source, "all"):
            left[end].append(i)
        for end in (step.target, "all"):
            arrived[end].append(i)
