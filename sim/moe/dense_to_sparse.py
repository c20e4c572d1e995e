"""The dense-to-sparse gate: many experts per token at first, one in the end (Nie et al. 2021, arXiv 2112.14397).

A token's weights are a Gumbel softmax of its scores at a temperature; experts with a weight above ``THRESHOLD`` are
active. The temperature falls from step to step, and with it the number of active experts. Schedules and threshold are
those of the authors' code (EvoMoE, fairseq/modules/moe/topkgate.py).

    gate = DenseToSparse(decay_steps=10_000, step=5_000)
    gate.temperature                       # 0.71
    gate.active_experts(num_experts=16)    # 12 of 16, of random scores
"""

from functools import lru_cache
from typing import Final, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.moe.errors import RoutingError

Decay = Literal["exponential", "linear"]
THRESHOLD: Final = 0.001
_NUM_SAMPLES: Final = 200_000
_NUM_NUMBERS: Final = 1 << 23


class DenseToSparse(Struct, frozen=True, kw_only=True):
    """The schedule of the gate, and the step at which it is taken.

    ``decay_steps``: steps in which the temperature falls from ``start`` to ``end``, where it stays. ``hard_after``: the
    step from which on the best expert alone is active; None: never. ``score_deviation``: standard deviation of a
    token's scores, which says how many experts are expected to be active.
    """

    start: float = 1.0
    end: float = 0.5
    decay: Decay = "exponential"
    decay_steps: int = 10_000
    hard_after: int | None = None
    step: int = 0
    score_deviation: float = 1.0

    def __post_init__(self) -> None:
        if self.end > self.start:
            rule = f"the temperature must not rise, and it goes from {self.start:g} to {self.end:g}"
            raise RoutingError(rule, "write an end of at most the start")

    @property
    def is_hard(self) -> bool:
        """Return whether the best expert alone is active at this step."""
        return self.hard_after is not None and self.step >= self.hard_after

    @property
    def temperature(self) -> float:
        """Return the temperature at this step."""
        part = min(1.0, self.step / self.decay_steps)
        if self.decay == "linear":
            return self.start + part * (self.end - self.start)
        return float(self.start * (self.end / self.start) ** part)

    def active_experts(self, num_experts: int) -> float:
        """Return how many experts of a token are active on the mean, for scores that are normal and independent."""
        return 1.0 if self.is_hard else mean_active_experts(num_experts, self.temperature, self.score_deviation)


@lru_cache(maxsize=64)
def mean_active_experts(num_experts: int, temperature: float, score_deviation: float) -> float:
    """Return the mean number of experts above the threshold: of drawn tokens, always the same ones.

    200,000 tokens up to 41 experts, fewer beyond that; the standard error is below 0.02.
    """
    weights = _drawn_scores(num_experts, score_deviation) / temperature
    weights -= weights.max(1, keepdims=True)
    np.exp(weights, out=weights)
    return float((weights > THRESHOLD * weights.sum(1, keepdims=True)).sum(1).mean())


@lru_cache(maxsize=1)
def _drawn_scores(num_experts: int, deviation: float) -> NDArray[np.float64]:
    """Return scores with their Gumbel noise, of shape (tokens, experts); a schedule asks step by step."""
    rng = np.random.default_rng(0)
    shape = (min(_NUM_SAMPLES, max(1, _NUM_NUMBERS // num_experts)), num_experts)
    scores = rng.standard_normal(shape)
    scores *= deviation
    scores += rng.gumbel(size=shape)
    return scores
