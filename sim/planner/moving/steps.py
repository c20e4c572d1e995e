"""The time of steps whose experts move, as sums of calls over layers and ranks (see ``docs/expert_placement.md``).

    sums = StepSums(job, pricing)
    seconds = sums.step_s(PlacedStep(counts, vexperts, arriving))

Between two exchanges ranks wait for the slowest. So a step is a walk through the calls of one rank, with a time for
each rank: kernels add to it, and exchanges bring all ranks to the same. Sums of gradients, sums over copies and copies
on their way share links with the exchanges.
"""

from collections.abc import Hashable, Mapping
from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.cluster.direct_exchanges import DirectExchanges
from sim.engine.prices.activity import Activity, is_link
from sim.engine.prices.pricing import ClusterPricing
from sim.planner.moving.arrivals import arrivals_s
from sim.planner.moving.chain import Exchange, Meeting, Run, Span
from sim.planner.moving.instants import Instant, after, latest_s
from sim.planner.moving.load import Mask, PlacedStep, rows_between
from sim.planner.moving.profile import StepProfile
from sim.planner.moving.row_times import places_of
from sim.planner.moving.rules import check_summable
from sim.planner.moving.tail import Holders, Updates, Waiting, by_holders, step_end_s, summed
from sim.planner.moving.traffic import Beside, Flow, flows_over
from sim.training.spec.job import DenseTraining

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


class _Calls(Struct, frozen=True, eq=False):
    """What the calls of a step take: spans by kernels [layer, rank], and exchanges, towards experts and back."""

    span_s: Mapping[tuple[str, ...], Floats]
    exchanges: tuple[list[Flow], list[Flow]]


class _Placed(Struct, frozen=True, eq=False):
    """What follows from which ranks hold which experts: ``groups`` of experts by holders, and the sums over copies.

    ``known_s``: times from the last exchange to the end of the step.
    """

    held: Mask
    groups: Mapping[Holders, int]
    copies: Mapping[Holders, Flow]
    known_s: dict[Hashable, float]


class StepSums:
    """The times of a job's steps under some prices."""

    def __init__(self, job: DenseTraining, pricing: ClusterPricing) -> None:
        """Raise SpecError for a job, or prices, whose steps are no sums of calls."""
        check_summable(job, pricing)
        self._profile, self._pricing = StepProfile(job, pricing), pricing
        self._first_layer = self._profile.experts.first_dense_layers
        self._exchanges = DirectExchanges(pricing.network, range(self._profile.num_ranks))
        self._sums = dict[tuple[Holders, int], Flow]()
        self._last: _Placed | None = None

    def step_s(self, step: PlacedStep) -> float:
        """Return the seconds from the common begin of a step to the end of its last rank."""
        calls, beside, profile = self._calls(step), Beside(records=bool(step.arriving.any())), self._profile
        held, arriving = step.held.sum((0, 2)), step.arriving.sum((0, 2))
        now_s: Instant = (held - profile.own_experts * profile.num_layers + arriving) * profile.clearing_s
        exchanged_s, ends_s = 0.0, dict[int, float]()
        for number, link in enumerate(profile.chain.links):
            if isinstance(link, Run | Span):
                now_s = after(now_s, ends_s.get(link.waits_for, 0.0))
                now_s = now_s + (link.seconds if isinstance(link, Run) else calls.span_s[link.kernels][self._at(link)])
                for flow in self._completed.get(number, ()):
                    beside.add(latest_s(now_s), flow)
                continue
            flow = self._meetings[number] if isinstance(link, Meeting) else calls.exchanges[link.back][self._at(link)]
            exchanged_s = beside.meet(flow, max(exchanged_s, latest_s(now_s)))
            ends_s[number] = exchanged_s
        waiting = Waiting(exchanged_s, latest_s(now_s), tuple(beside.ends_s), tuple(beside.rest()))
        return self._end_s(step, waiting, beside)

    def _end_s(self, step: PlacedStep, waiting: Waiting, beside: Beside) -> float:
        """Return when a step ends. What follows the last exchange takes as long in all steps of a placement."""
        placed = self._placed(step.held)
        if beside.records:
            sums = summed(waiting, placed.copies, beside.busy)
            late_s = arrivals_s(step, self._profile.state_bytes, self._pricing.network, beside.busy)
            return step_end_s(waiting.computed_s, sums, placed.groups, self._updates, late_s)
        since = waiting.since_exchanges()
        if since.key not in placed.known_s:
            sums = summed(since, placed.copies, None)
            placed.known_s[since.key] = step_end_s(since.computed_s, sums, placed.groups, self._updates, {})
        return waiting.exchanged_s + placed.known_s[since.key]

    def _placed(self, held: Mask) -> _Placed:
        """Return what follows from a placement; most steps have that of the one before."""
        if self._last is None or not np.array_equal(held, self._last.held):
            groups = by_holders(held)
            copies = {holders: self._sum(holders, number) for holders, number in groups.items() if len(holders) > 1}
            self._last = _Placed(held, groups, copies, {})
        return self._last

    def _at(self, link: Span | Exchange) -> int:
        return link.layer - self._first_layer

    def _calls(self, step: PlacedStep) -> _Calls:
        layers, ranks, experts = np.nonzero(step.rows)
        rank_of, of_copies = layers * step.rows.shape[1] + ranks, places_of(step.rows[layers, ranks, experts])
        of_ranks, span_s = places_of(step.rows.sum(2)), {}
        for kernels, (whole, copies) in self._profile.span_times.items():
            each_s = np.bincount(rank_of, copies.seconds(of_copies), minlength=of_ranks.size)
            span_s[kernels] = whole.seconds(of_ranks) + each_s.reshape(of_ranks.shape)
        demands = self._exchanges.demands(rows_between(step.counts, step.rows) * self._profile.row_bytes)
        latencies_s = demands.latencies_s + self._pricing.software.waiting_s(self._profile.num_ranks)
        there, back = (flows_over(latencies_s, link_s) for link_s in (demands.link_s, demands.back_link_s))
        return _Calls(span_s, (there, back))

    @cached_property
    def _meetings(self) -> Mapping[int, Flow]:
        links = enumerate(self._profile.chain.links)
        return {number: self._flow(link.activity) for number, link in links if isinstance(link, Meeting)}

    def _flow(self, activity: Activity) -> Flow:
        link_s = np.zeros((1, self._pricing.cluster.topology.num_links))
        for resource, seconds in activity.demands:
            if is_link(resource):
                link_s[0, resource[1]] = seconds
        [flow] = flows_over(np.array([activity.latency_s]), link_s)
        return flow

    @cached_property
    def _bucket_flows(self) -> list[Flow]:
        profile = self._profile
        return [self._flow(self._pricing.price(profile.plan, profile.program, op, 0)) for op in profile.sums]

    @cached_property
    def _completed(self) -> Mapping[int, list[Flow]]:
        """Return the sums of gradients that may begin once a call of the chain is over."""
        found = dict[int, list[Flow]]()
        for op, flow in zip(self._profile.sums[:-1], self._bucket_flows, strict=False):
            found.setdefault(max(self._profile.chain.written_at[name] for name in op.reads), []).append(flow)
        return found

    @cached_property
    def _updates(self) -> Updates:
        bucket_s, expert_s = self._profile.updates_s
        return Updates(bucket_s, expert_s, self._bucket_flows[-1])

    def _sum(self, holders: Holders, number: int) -> Flow:
        """Return the sum of the gradients of so many experts over the ranks that hold them."""
        if (holders, number) not in self._sums:
            num_bytes = round(number * self._profile.gradient_bytes)
            algorithm = self._pricing.algorithms.get("all_reduce", "auto")
            cost = self._pricing.network.collective("all_reduce", num_bytes, holders, algorithm)
            latency_s = cost.latency_s + self._pricing.software.waiting_s(len(holders))
            self._sums[holders, number] = self._flow(
                Activity(latency_s, tuple((("link", n), s) for n, s in cost.links))
            )
        return self._sums[holders, number]
