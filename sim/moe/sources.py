"""Routings that are stated: even, or by the shares of the experts. Those that are drawn are in ``skew.py``."""

import numpy as np
from msgspec import Struct

from sim.moe.errors import RoutingError
from sim.moe.routing import Routing, RoutingShape, dealt


class Even(Struct, frozen=True):
    """Every expert gets as many choices of every source, to one, in all steps."""

    def routing(self, shape: RoutingShape) -> Routing:
        """Return the even routing."""
        counts = dealt(shape.num_choices, np.full(shape.num_experts, 1.0 / shape.num_experts))
        return _everywhere(counts, shape)

    def later(self, _: int) -> "Even":
        """Return this routing, which stays."""
        return self


class Shares(Struct, frozen=True):
    """Every source's choices fall on the experts in stated shares, which add up to 1, in every layer and step."""

    shares: tuple[float, ...]

    def routing(self, shape: RoutingShape) -> Routing:
        """Return the routing with these shares. Raises RoutingError where they are not those of so many experts."""
        if len(self.shares) != shape.num_experts:
            rule = f"there are {len(self.shares)} shares for {shape.num_experts} experts"
            raise RoutingError(rule, "write a share for each expert")
        if abs(sum(self.shares) - 1.0) > 1e-6:
            raise RoutingError(f"the shares add up to {sum(self.shares):g}", "write shares that add up to 1")
        return _everywhere(dealt(shape.num_choices, self.shares), shape)

    def later(self, _: int) -> "Shares":
        """Return this routing, which stays."""
        return self


def _everywhere(counts: np.ndarray, shape: RoutingShape) -> Routing:
    """Return a routing with the same counts in all layers and of all sources."""
    return Routing(np.broadcast_to(counts, (shape.num_layers, shape.num_sources, shape.num_experts))).check(shape)
