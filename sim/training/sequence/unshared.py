"""Sequences that nobody shares."""

from collections.abc import Sequence
from typing import ClassVar

from sim.plan.functions import basic as f
from sim.plan.functions.rows import Rows
from sim.plan.functions.token_part import Scoring
from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.plan.words.mesh import Axes
from sim.training.sequence.method import SequenceMethod, Shares


class Unshared(SequenceMethod, frozen=True, kw_only=True):
    """Every rank has all tokens of its sequences."""

    name: ClassVar[str] = "none"

    @property
    def axes(self) -> Axes:
        """Return none."""
        return ()

    def rows(self, num_tokens: int) -> Rows:
        """Return all tokens."""
        return Rows(num_tokens, num_tokens)

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Return the whole sequence."""
        return ((0,),)

    def check(self, shares: Shares) -> None:
        """Accept all sizes."""

    def attention(self, t: TaskTracer, name: str, qkv: Sequence[Tensor], scoring: Scoring) -> Tensor:
        """Return attention to a rank's own keys and values."""
        return whole_attention(t, name, qkv, scoring)


def whole_attention(t: TaskTracer, name: str, qkv: Sequence[Tensor], scoring: Scoring) -> Tensor:
    """Return attention of all queries to all keys and values of a sequence, which a rank has."""
    if scoring.fused:
        q, k, v = qkv
        return f.flash_attention(t, name, q, k, v, window=scoring.window, causal=scoring.causal)
    return f.core_attention(
        t, name, qkv, scoring.dropout, window=scoring.window, cap=scoring.cap, causal=scoring.causal
    )
