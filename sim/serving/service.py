"""A service: requests come, a router sends each to a replica, replicas answer; some fail, and some users give up."""

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import simpy
from msgspec import Struct, field
from msgspec.structs import replace

from sim.serving.batching import Batching
from sim.serving.blocks import BlockPool
from sim.serving.decoding.method import Decoding
from sim.serving.handover import Handover, LinkPrices, Links
from sim.serving.prices.cost import IterationCost
from sim.serving.records import Records
from sim.serving.replica import Replica
from sim.serving.requests import Requests
from sim.serving.routing import Router, RouterName
from sim.serving.setup import Setup
from sim.serving.split_replicas import DecodeReplica, PromptReplica


class Failure(Struct, frozen=True, kw_only=True):
    """A replica that stops and loses its memory at an instant, and is up again after so many seconds."""

    replica: int
    at_s: float
    lasts_s: float


class ServiceSpec(Struct, frozen=True, kw_only=True):
    """A service. ``num_blocks``: of each replica, of ``block_tokens`` tokens, in equal parts for its ``num_groups``
    groups of ranks, of which one serves a request. ``patience_s``: a request without its
    first token is cancelled after so long; None: users wait for ever. ``concurrency``: so many users, each of whom
    sends a request as soon as the one before has ended; None: requests come at their own times. ``request_s``: time
    that a request takes from its arrival to a replica's queue. ``prompt_replicas``: so many of the replicas, the first,
    compute prompts alone, and the others decode alone; keys and values move at the prices of ``links``.
    """

    num_replicas: int
    num_blocks: int
    num_groups: int = 1
    block_tokens: int = 16
    batching: Batching = field(default_factory=Batching)
    router: RouterName = "round_robin"
    decoding: Decoding = field(default_factory=Decoding)
    concurrency: int | None = None
    patience_s: float | None = None
    request_s: float = 0.0
    prompt_replicas: int = 0
    links: LinkPrices | None = None
    failures: tuple[Failure, ...] = ()
    seed: int = 0


class Served(Struct, frozen=True):
    """What came of the requests."""

    spec: ServiceSpec
    requests: Requests
    records: Records
    replicas: Sequence[Replica]
    makespan_s: float


class _World:
    """The processes of a service."""

    def __init__(self, spec: ServiceSpec, requests: Requests, cost: IterationCost) -> None:
        self.spec, self.requests = spec, requests
        self.env, self.records = simpy.Environment(), Records(len(requests))
        self.router, self.held, self.coming = Router(spec.router, spec.seed), list[int](), set[int]()
        self.last_s, self.next = 0.0, 0
        setup = Setup(requests, self.records, cost, spec.batching, spec.decoding, spec.seed, self._finished)
        sizes = spec.num_blocks, spec.block_tokens, requests.prefix_tokens, spec.num_groups
        pools = [BlockPool(*sizes) for _ in range(spec.num_replicas)]
        self.unplaced, self.handovers = list[Handover](), dict[int, Handover]()
        self.replicas: list[Replica] = []
        self.senders: list[PromptReplica] = []
        self.decoders: list[DecodeReplica] = []
        if spec.links is None:
            self.replicas += [Replica(index, self.env, setup, pool) for index, pool in enumerate(pools)]
            return
        self.links = Links(self.env, spec.links, spec.num_replicas)
        for index, pool in enumerate(pools):
            if index < spec.prompt_replicas:
                self.senders.append(PromptReplica(index, self.env, setup, pool, self._hand_over))
            else:
                self.decoders.append(DecodeReplica(index, self.env, setup, pool, self._fetch, self._send))
        self.replicas += self.senders

    def run(self) -> Served:
        """Return what came of the requests."""
        if self.spec.concurrency is None:
            self.env.process(self._arrivals())
        else:
            for _ in range(min(self.spec.concurrency, len(self.requests))):
                self.env.timeout(0.0).callbacks.append(self._send_next)
        for failure in self.spec.failures:
            self.env.process(self._fail(failure))
        self.env.run()
        return Served(self.spec, self.requests, self.records, self._all_replicas, self.last_s)

    @property
    def _all_replicas(self) -> Sequence[Replica]:
        """Return the replicas that requests are sent to, then those that only decode."""
        return [*self.replicas, *self.decoders]

    def _finished(self, request: int) -> None:
        del request
        self.last_s = self.env.now
        if self.spec.concurrency is not None:
            self.env.timeout(0.0).callbacks.append(self._send_next)

    def _send_next(self, _: simpy.Event) -> None:
        """Let a user who has nothing to wait for send the next request, if there is one."""
        if self.next < len(self.requests):
            request, self.next = self.next, self.next + 1
            self.requests.arrival_s[request] = self.env.now
            self._arrive(request)

    def _arrivals(self) -> Generator[simpy.Event, Any, None]:
        for request, arrival_s in enumerate(self.requests.arrival_s.tolist()):
            if arrival_s > self.env.now:
                yield self.env.timeout(arrival_s - self.env.now)
            self._arrive(request)

    def _arrive(self, request: int) -> None:
        """Let a request come: after the framework's own time it is sent to a replica."""
        if self.spec.request_s:
            self.coming.add(request)
            self.env.timeout(self.spec.request_s).callbacks.append(lambda _: self._send_if_coming(request))
        else:
            self._send(request)
        if self.spec.patience_s is not None:
            self.env.process(self._lose_patience(request, self.spec.patience_s))

    def _send_if_coming(self, request: int) -> None:
        """Send a request that was not cancelled on its way."""
        if request in self.coming:
            self.coming.remove(request)
            self._send(request)

    def _send(self, request: int) -> None:
        """Route a request to a replica that is up; hold it where none is."""
        up = [replica for replica in self.replicas if replica.is_up]
        if not up:
            self.held.append(request)
            return
        up[self.router.choose(up, request)].accept(request)

    def _lose_patience(self, request: int, patience_s: float) -> Generator[simpy.Event, Any, None]:
        yield self.env.timeout(patience_s)
        if self.records.emitted[request] or self.records.refused[request]:
            return
        self.records.cancelled[request] = True
        if request in self.coming:
            self.coming.remove(request)
        elif request in self.held:
            self.held.remove(request)
        else:
            self.replicas[int(self.records.replica[request])].cancel(request)
        self._finished(request)

    def _fail(self, failure: Failure) -> Generator[simpy.Event, Any, None]:
        yield self.env.timeout(failure.at_s)
        replica = self._all_replicas[failure.replica]
        if not replica.is_up:
            return
        lost = replica.fail()
        for handover in list(self.handovers.values()):
            if handover.source == failure.replica:
                self._call_off(handover)
        moved = replica.unplaced() if isinstance(replica, DecodeReplica) else []
        for request in lost:
            self._send(request)
        for handover in moved:
            handover.alive = False
            self._hand_over(handover.source, handover.request, handover.tokens, handover.left)
        yield self.env.timeout(failure.lasts_s)
        replica.is_up = True
        held, self.held = self.held, []
        for request in held:
            self._send(request)
        unplaced, self.unplaced = self.unplaced, []
        for handover in unplaced:
            self._hand_over(handover.source, handover.request, handover.tokens, handover.left)

    # --- from the replicas of prompts to those that decode -----------------------------------------------------

    def _hand_over(self, source: int, request: int, tokens: int, left: int) -> None:
        """Offer a computed prompt to the replica that decodes the fewest requests; keep it where none is up."""
        up = [replica for replica in self.decoders if replica.is_up]
        target = min(up, key=lambda replica: replica.outstanding) if up else None
        handover = Handover(request, tokens, left, source, -1 if target is None else target.index)
        self.handovers[request] = handover
        if target is None:
            self.unplaced.append(handover)
        else:
            target.offer(handover)

    def _fetch(self, handover: Handover) -> None:
        self.env.process(self._carry(handover))

    def _carry(self, handover: Handover) -> Generator[simpy.Event, Any, None]:
        yield from self.links.carried(handover)
        if not handover.alive:
            return
        del self.handovers[handover.request]
        self.senders[handover.source].release(handover.request)
        self.decoders[handover.target - self.spec.prompt_replicas].arrive(handover)

    def _call_off(self, handover: Handover) -> None:
        """Forget a handover whose keys and values are lost at their sender."""
        handover.alive = False
        del self.handovers[handover.request]
        if handover in self.unplaced:
            self.unplaced.remove(handover)
        else:
            self.decoders[handover.target - self.spec.prompt_replicas].withdraw(handover)


def serve(spec: ServiceSpec, requests: Requests, cost: IterationCost) -> Served:
    """Return what comes of requests at a service whose iterations take the times of ``cost``."""
    if spec.concurrency is not None:
        requests = replace(requests, arrival_s=np.zeros(len(requests)))
    return _World(spec, requests, cost).run()
