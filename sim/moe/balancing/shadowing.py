"""FasterMoE's decision on which experts to shadow: to copy to every rank for one step (fastmoe shadow_policy.py)."""

import numpy as np
from msgspec import Struct

from sim.moe.routing import Counts


class ShadowPolicy(Struct, frozen=True, kw_only=True):
    """The layer and the rates that FasterMoE's estimate knows; it ignores the shadows' own work and gradients.

    ``expansion``: inner over outer width of an expert. ``element_bytes``: of a value that is sent.
    """

    hidden_size: int
    expansion: float
    bandwidth_bytes_per_s: float
    flop_per_s: float
    element_bytes: float

    def latency_s(self, by_expert: Counts, num_shadowed: int) -> float:
        """Return the estimated time with the hottest experts shadowed, for choices [expert]."""
        compute_s = 4.0 * self.expansion * self.hidden_size**2 / self.flop_per_s
        token_s = self.hidden_size * self.element_bytes / self.bandwidth_bytes_per_s
        model_s = 2.0 * self.expansion * self.hidden_size * token_s
        hottest = float(np.sort(by_expert)[::-1][num_shadowed])
        return (3.0 * compute_s + 4.0 * token_s) * hottest + num_shadowed * model_s

    def shadowed(self, by_expert: Counts) -> tuple[int, ...]:
        """Return the experts to shadow, hottest first, up to the first that does not help; never all of them."""
        num, least_s = 0, self.latency_s(by_expert, 0)
        while num + 1 < len(by_expert) and (time_s := self.latency_s(by_expert, num + 1)) < least_s:
            num, least_s = num + 1, time_s
        return tuple(np.argsort(-by_expert, kind="stable")[:num].tolist())
