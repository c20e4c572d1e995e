"""A prompt's keys and values on their way from the replica that computed it to one that decodes.

Patel et al. 2024, Splitwise; Zhong et al. 2024, DistServe: prompts have replicas of their own, so that they never hold
up decoding. The prompt's replica emits the first token and keeps the blocks. As soon as a decoding replica has room it
reserves blocks, and the keys and values cross the links. Then the sender's blocks are free.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

import simpy


class LinkPrices(Protocol):
    """Times of messages between replicas, in seconds."""

    def transfer_s(self, source: int, target: int, tokens: int) -> float:
        """Return the time in which the keys and values of so many tokens move from one replica to another."""


@dataclass(slots=True, eq=False)
class Handover:
    """A request whose prompt is computed.

    ``tokens``: those computed; ``left``: those that it still wants. ``alive``: it was not called off.
    """

    request: int
    tokens: int
    left: int
    source: int
    target: int
    alive: bool = True


class Links:
    """The links of replicas. Each sends one prompt at a time, and receives one at a time, in the order of requests."""

    def __init__(self, world: simpy.Environment, prices: LinkPrices, num_replicas: int) -> None:
        self.world, self.prices = world, prices
        self.sending = [simpy.Resource(world) for _ in range(num_replicas)]
        self.receiving = [simpy.Resource(world) for _ in range(num_replicas)]

    def carried(self, handover: Handover) -> Generator[simpy.Event, Any, None]:
        """Take the time of a transfer, after waiting for both links; none where it was called off before it began."""
        with self.sending[handover.source].request() as sends:
            yield sends
            with self.receiving[handover.target].request() as receives:
                yield receives
                if handover.alive:
                    seconds = self.prices.transfer_s(handover.source, handover.target, handover.tokens)
                    yield self.world.timeout(seconds)
