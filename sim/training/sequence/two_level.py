"""Ulysses inside, a ring outside: heads are shared out among near ranks, keys and values go around far ones.

``inner_degree`` neighbours exchange tokens for heads, so together they have a ring rank's tokens of every head. A ring
goes through the ranks at one place of all groups of neighbours (Fang and Zhao 2024, USP; Megatron-LM's ``a2a+p2p``). So
the heads limit the inner degree alone, and a ring's messages have 1/``inner_degree`` of the heads.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

from sim.plan.functions.context import SharedSequence
from sim.plan.functions.ring_attention import ring_attention
from sim.plan.functions.rows import Rows
from sim.plan.functions.token_part import Scoring
from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.plan.words.mesh import Axes
from sim.training.sequence.method import Role, SequenceLayout, SequenceMethod, Shares
from sim.training.sequence.rules import check_blocks, check_chunks, check_heads, check_levels, check_tokens
from sim.training.sequence.ulysses import by_heads

_OUTER: Final = "cp_outer"
_INNER: Final = "cp_inner"
_INNER_KEY: Final = "parallel.context.inner_degree"


class TwoLevel(SequenceMethod, frozen=True, kw_only=True):
    """A ring of groups of ``inner_degree`` ranks that share out heads. ``layout``: how tokens lie along the ring."""

    inner_degree: int = 2
    layout: SequenceLayout = "zigzag"

    name: ClassVar[str] = "two_level"

    def __post_init__(self) -> None:
        check_levels(_INNER_KEY, self.degree, self.inner_degree)

    @property
    def ring_degree(self) -> int:
        """Return the number of groups."""
        return self.degree // self.inner_degree

    @property
    def axes(self) -> Axes:
        """Return the axis of the ring and that of heads, along which ranks are neighbours."""
        return ((_OUTER, self.ring_degree), (_INNER, self.inner_degree))

    def rows(self, num_tokens: int) -> Rows:
        """Return a rank's part of what its group has: two chunks, or a block."""
        own = num_tokens // self.degree
        if self.layout == "contiguous":
            return Rows(own, num_tokens, cut_over=(_OUTER, _INNER))
        return Rows(own, num_tokens, dealt_over=_OUTER, cut_over=(_INNER,))

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Return block i of rank i; or of 2n chunks, two neighbours of those that a group's two parts have."""
        if self.layout == "contiguous":
            return tuple((index,) for index in range(self.degree))
        found, inner = [], self.inner_degree
        for group in range(self.ring_degree):
            parts = [part * inner + i for part in (group, 2 * self.ring_degree - 1 - group) for i in range(inner)]
            found += [(parts[2 * i], parts[2 * i + 1]) for i in range(inner)]
        return tuple(found)

    def roles(self, *, causal: bool) -> tuple[Role, ...]:
        """Return every place along the ring where groups compute different numbers of blocks."""
        uneven = causal and self.layout == "contiguous"
        return tuple({_OUTER: index} for index in range(self.ring_degree)) if uneven else ({},)

    def check(self, shares: Shares) -> None:
        """Raise SpecError unless tokens divide over the ring and its groups, and heads over a group."""
        if self.layout == "zigzag":
            check_chunks(shares.num_tokens, self.ring_degree)
        check_blocks(shares.num_tokens, self.degree)
        check_tokens(shares.num_tokens // self.degree, shares.token_multiple)
        check_heads(_INNER_KEY, self.inner_degree, shares)

    def attention(self, t: TaskTracer, name: str, qkv: Sequence[Tensor], scoring: Scoring) -> Tensor:
        """Return ring attention of a group's tokens in a rank's share of the heads."""
        shared = SharedSequence(_OUTER, self.ring_degree, zigzag=self.layout == "zigzag", causal=scoring.causal)
        return by_heads(t, qkv, _INNER, lambda own: ring_attention(t, name, own, shared))
