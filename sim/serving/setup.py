"""What all replicas of a service share."""

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from sim.serving.batching import Batching
from sim.serving.decoding.method import Decoding, Ints
from sim.serving.prices.cost import IterationCost
from sim.serving.records import Records
from sim.serving.requests import Requests
from sim.serving.rows.drawn import DrawnRows
from sim.serving.rows.row import Rows
from sim.serving.rows.steady import SteadyRows


class Setup(Struct, frozen=True):
    """What all replicas of a service share. ``finished``: called with every request that is done."""

    requests: Requests
    records: Records
    cost: IterationCost
    batching: Batching
    decoding: Decoding
    seed: int
    finished: Callable[[int], None]

    def rows(self, block_tokens: int) -> Rows:
        """Return an empty batch of rows with blocks of so many tokens."""
        if self.decoding.is_plain:
            return SteadyRows(block_tokens)
        return DrawnRows(block_tokens, self.decoding.positions, self._drawn)

    def _drawn(self, requests: Ints, steps: Ints, count: int) -> Ints:
        """Return the tokens of requests' next steps [count, rows]; ``steps``: those since they joined their batch."""
        numbers = self.records.steps[requests] + steps + np.arange(count)[:, None]
        return self.decoding.drawn(self.seed, requests, numbers)
