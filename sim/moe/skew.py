"""Drawn routings: a skew over experts, by rank of popularity, that fluctuates and drifts from step to step.

The logarithm of an expert's share follows an Ornstein-Uhlenbeck process around a Zipf law of its rank; now and then
neighbours in rank change places. The sources of a step have shares of their own around the common ones (Dirichlet), and
their choices are drawn (multinomial), no expert more often than there are tokens. Loads of real routers fluctuate
smoothly like this (Nie et al. 2023, FlexMoE); Zipf laws over experts are a common test load for balancers.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sim.moe.routing import Counts, Routing, RoutingShape

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
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
    _reached: "_Reached" = field(default_factory=lambda: _Reached(), compare=False, repr=False)  # noqa: PLW0108
    """How far the shares are drawn; later steps of the same skew go on from there."""

    def routing(self, shape: RoutingShape) -> Routing:
        """Return the routing of the step ``step``; steps one after the other take as long as one walk through them."""
        drift = self._reached.drift(dataclasses.replace(self, step=0), shape.num_layers, shape.num_experts, self.step)
        return self._of(drift, shape)

    def later(self, steps: int) -> "Skew":
        """Return the drawn routing of so many steps later."""
        return dataclasses.replace(self, step=self.step + steps)

    def steps(self, shape: RoutingShape) -> Iterator[Routing]:
        """Yield the routings of step 0, 1, 2 and so on, without end."""
        drift = Drift(self, shape.num_layers, shape.num_experts)
        while True:
            yield self._of(drift, shape)
            drift.advance()

    def shares(self, num_layers: int, num_experts: int) -> Iterator[Floats]:
        """Yield the common shares [layer, expert] of step 0, 1, 2 and so on, without end."""
        drift = Drift(self, num_layers, num_experts)
        while True:
            yield drift.shares
            drift.advance()

    def _of(self, drift: "Drift", shape: RoutingShape) -> Routing:
        return self._drawn(drift.shares, shape, np.random.default_rng((self.seed, 1, drift.step)))

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


class Drift:
    """The common shares of a skew as they drift from step to step. ``step``: the one that is reached."""

    def __init__(self, skew: Skew, num_layers: int, num_experts: int) -> None:
        self.step = 0
        self._skew, self._shape = skew, (num_layers, num_experts)
        self._rng = np.random.default_rng((skew.seed, 0))
        self._law = -skew.zipf * np.log(np.arange(1, num_experts + 1))
        self._experts = np.argsort(self._noise(), axis=1)  # [layer, rank of popularity]
        self._logits = _around(self._law, self._experts) + skew.fluctuation * self._noise()

    @property
    def shares(self) -> Floats:
        """Return the shares [layer, expert] of this step."""
        weights = np.exp(self._logits - self._logits.max(1, keepdims=True))
        found: Floats = weights / weights.sum(1, keepdims=True)
        return found

    def advance(self) -> None:
        """Go on to the next step."""
        skew, keep = self._skew, 1.0 - 1.0 / self._skew.memory_steps
        mean = _around(self._law, self._experts)
        fresh = skew.fluctuation * np.sqrt(1.0 - keep**2) * self._noise()
        self._logits = mean + keep * (self._logits - mean) + fresh
        self._swap()
        self.step += 1

    def _noise(self) -> Floats:
        """Return normal numbers [layer, expert], correlated between layers."""
        num_layers, num_experts = self._shape
        common = self._rng.standard_normal(num_experts)
        own = self._rng.standard_normal((num_layers, num_experts))
        part = self._skew.layer_correlation
        drawn: Floats = np.sqrt(part) * common + np.sqrt(1.0 - part) * own
        return drawn

    def _swap(self) -> None:
        """Let two neighbours in rank change places, in the layers where it happens."""
        num_layers, num_experts = self._shape
        happens = self._rng.random(num_layers) < self._skew.swap_probability
        places = self._rng.integers(0, num_experts - 1, num_layers)
        for layer in np.flatnonzero(happens):
            here = places[layer]
            self._experts[layer, [here, here + 1]] = self._experts[layer, [here + 1, here]]


@dataclass(slots=True)
class _Reached:
    """The last drift that was drawn, and of what; what is asked next mostly follows it."""

    _key: tuple[Skew, int, int] | None = None
    _drift: Drift | None = None

    def drift(self, skew: Skew, num_layers: int, num_experts: int, step: int) -> Drift:
        """Return the drift of a skew at a step, drawn on from the last one where that was the same and earlier."""
        key = (skew, num_layers, num_experts)
        if self._drift is None or self._key != key or self._drift.step > step:
            self._key, self._drift = key, Drift(skew, num_layers, num_experts)
        while self._drift.step < step:
            self._drift.advance()
        return self._drift


def _around(law: Floats, experts: NDArray[np.int64]) -> Floats:
    """Return the law's value of each expert [layer, expert], given the experts in order of popularity."""
    return law[np.argsort(experts, axis=1)]


def _within(counts: Counts, num_tokens: int, rng: np.random.Generator) -> Counts:
    """Return counts of at most ``num_tokens``: what an expert has beyond these falls on the others' free places."""
    kept = np.minimum(counts, num_tokens)
    moved: Counts = rng.multivariate_hypergeometric(num_tokens - kept, int((counts - kept).sum()), method="marginals")
    return kept + moved
