"""Routers: the replica that a new request goes to."""

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

RouterName = Literal["round_robin", "random", "least_outstanding", "prefix"]


class Target(Protocol):
    """A replica as routers see it."""

    @property
    def outstanding(self) -> int:
        """Return the requests that wait or run there."""

    def known_pieces(self, request: int) -> int:
        """Return how many first pieces of a request's prompt are in its memory."""


class Router:
    """A router with its own place in the turn and its own random numbers."""

    def __init__(self, name: RouterName, seed: int) -> None:
        self.name = name
        self.turn = 0
        self.generator = np.random.default_rng((seed, 0x526F7574))

    def choose(self, replicas: Sequence[Target], request: int) -> int:
        """Return the index of the replica for a request; of equal ones the first.

        ``least_outstanding``: that with the fewest unfinished requests. ``prefix``: that which knows most of the
        prompt, and of those the one with the fewest unfinished requests.
        """
        if self.name == "random":
            return int(self.generator.integers(len(replicas)))
        if self.name == "round_robin":
            self.turn += 1
            return (self.turn - 1) % len(replicas)
        loads = [replica.outstanding for replica in replicas]
        if self.name == "least_outstanding":
            return loads.index(min(loads))
        ranks = [(-replica.known_pieces(request), load) for replica, load in zip(replicas, loads, strict=True)]
        return ranks.index(min(ranks))
