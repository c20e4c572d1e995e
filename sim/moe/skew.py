"""Drawn routings: a skew over experts, by rank of popularity, that fluctuates and drifts from step to step.

The logarithm of an expert's share follows an Ornstein-Uhlenbeck process around a Zipf law of its rank; now and then
neighbours in rank change places. The sources of a step have shares of their own around the common ones (Dirichlet), and
their choices are drawn (multinomial), no expert more often than there are tokens. Loads of real routers fluctuate
smoothly like this (Nie et al. 2023, FlexMoE); Zipf laws over experts are a common test load for balancers.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.moe.routing import Counts, Routing, RoutingShape

Floats = NDArray[np.float64]


class Skew(Struct, frozen=True, kw_only=True):
    """A drawn routing; equal seeds draw equal ones.

    ``zipf``: the expert of rank r has a share in proportion to r^-zipf; 0: even, 1.26: ten of 64 have three quarters.
    ``fluctuation``: standard deviation of the logarithm of a share around that law; ``memory_steps``: steps in which it
    forgets. ``swap_probability``: that two neighbours in rank change places in a step, per layer. ``concentration``: of
    the sources' own shares around the common ones; None: all sources have the common ones. ``layer_correlation``: 0,
    each layer has its own popular experts; 1, all have the same. ``step``: the one that is taken, from 0.
    """

    zipf: float = 1.26
    fluctuation: float = 0.3
    memory_steps: float = 200.0
    swap_probability: float = 0.01
    concentration: float | None = 100.0
    layer_correlation: float = 0.0
    step: int = 0
    seed: int = 0

    def routing(self, shape: RoutingShape) -> Routing:
        """Return the routing of the step ``step``."""
        return next(islice(self.steps(shape), self.step, None))

    def later(self, steps: int) -> "Skew":
        """Return the drawn routing of so many steps later."""
        return replace(self, step=self.step + steps)

    def steps(self, shape: RoutingShape) -> Iterator[Routing]:
        """Yield the routings of step 0, 1, 2 and so on, without end."""
        for step, shares in enumerate(self.shares(shape.num_layers, shape.num_experts)):
            yield self._drawn(shares, shape, np.random.default_rng((self.seed, 1, step)))

    def shares(self, num_layers: int, num_experts: int) -> Iterator[Floats]:
        """Yield the common shares [layer, expert] of step 0, 1, 2 and so on, without end."""
        rng = np.random.default_rng((self.seed, 0))
        law = -self.zipf * np.log(np.arange(1, num_experts + 1))
        experts = np.argsort(self._noise(rng, num_layers, num_experts), axis=1)  # [layer, rank of popularity]
        rest = self.fluctuation * self._noise(rng, num_layers, num_experts)
        keep = 1.0 - 1.0 / self.memory_steps
        logits = _around(law, experts) + rest
        while True:
            weights = np.exp(logits - logits.max(1, keepdims=True))
            yield weights / weights.sum(1, keepdims=True)
            mean = _around(law, experts)
            fresh = self.fluctuation * np.sqrt(1.0 - keep**2) * self._noise(rng, num_layers, num_experts)
            logits = mean + keep * (logits - mean) + fresh
            self._swap(experts, rng)

    def _noise(self, rng: np.random.Generator, num_layers: int, num_experts: int) -> Floats:
        """Return normal numbers [layer, expert], correlated between layers."""
        common, own = rng.standard_normal(num_experts), rng.standard_normal((num_layers, num_experts))
        part = self.layer_correlation
        drawn: Floats = np.sqrt(part) * common + np.sqrt(1.0 - part) * own
        return drawn

    def _swap(self, experts: NDArray[np.int64], rng: np.random.Generator) -> None:
        """Let two neighbours in rank change places, in the layers where it happens."""
        num_layers, num_experts = experts.shape
        happens = rng.random(num_layers) < self.swap_probability
        places = rng.integers(0, num_experts - 1, num_layers)
        for layer in np.flatnonzero(happens):
            here = places[layer]
            experts[layer, [here, here + 1]] = experts[layer, [here + 1, here]]

    def _drawn(self, shares: Floats, shape: RoutingShape, rng: np.random.Generator) -> Routing:
        """Return choices of all sources drawn by the common shares [layer, expert]."""
        of_sources = np.broadcast_to(shares[:, None], (shape.num_layers, shape.num_sources, shape.num_experts))
        if self.concentration is not None:
            weights = rng.standard_gamma(self.concentration * of_sources)
            weights = np.where(weights.sum(2, keepdims=True) > 0.0, weights, of_sources)
            of_sources = weights / weights.sum(2, keepdims=True)
        counts = rng.multinomial(shape.num_choices, of_sources).astype(np.int64)
        for layer, source in np.argwhere(counts.max(2) > shape.num_tokens):
            counts[layer, source] = _within(counts[layer, source], shape.num_tokens, rng)
        return Routing(counts).check(shape)


def _around(law: Floats, experts: NDArray[np.int64]) -> Floats:
    """Return the law's value of each expert [layer, expert], given the experts in order of popularity."""
    return law[np.argsort(experts, axis=1)]


def _within(counts: Counts, num_tokens: int, rng: np.random.Generator) -> Counts:
    """Return counts of at most ``num_tokens``: what an expert has beyond these falls on the others' free places."""
    kept = np.minimum(counts, num_tokens)
    moved: Counts = rng.multivariate_hypergeometric(num_tokens - kept, int((counts - kept).sum()), method="marginals")
    return kept + moved
