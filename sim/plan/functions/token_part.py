"""The tokens that one task computes, where it is not all that its rank has, and how attention weighs values."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from sim.plan.functions.rows import Rows
from sim.plan.functions.tracing import TaskTracer, Tensor


class Scoring(Struct, frozen=True):
    """The weighing of values by attention.

    ``fused``: one kernel keeps the log-sum-exp of the scores, not the scores. ``causal``: a query sees the keys up to
    its own, else all. ``dropout``: probability that a weight is dropped. ``window``: keys that a query sees at most, 0:
    no fewer. ``cap``: scores stay softly below it, 0: they do not.
    """

    fused: bool
    causal: bool = True
    dropout: float = 0.0
    window: int = 0
    cap: float = 0.0


class TokenPart(Protocol):
    """Tokens whose queries see keys and values that other tasks have left in caches."""

    @property
    def label(self) -> str:
        """Return the suffix of the names of tasks and buffers."""

    @property
    def rows(self) -> Rows:
        """Return the positions of the tokens."""

    def cached(self, t: TaskTracer, name: str, x: Tensor) -> Tensor:
        """Write x, the tokens' rows of something, into the cache ``name``; return the cache."""

    def attention(self, t: TaskTracer, name: str, qkv: Sequence[Tensor], scoring: Scoring) -> Tensor:
        """Return the attention of the tokens' queries to caches of keys and values."""
