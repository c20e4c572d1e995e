"""Methods in which a rank keeps its queries, and keys and values come from other ranks.

``zigzag``: rank i of n has chunks i and 2n-1-i of 2n, so under the causal mask all ranks compute equally many scores
(Megatron-LM, context parallelism; Grattafiori et al. 2024, Llama 3, section 3.3.2). All ranks run one program: kernels
learn the rank's chunks from its place along the axis. ``contiguous``: rank i has block i of n, and computes i + 1 of n
blocks of scores. Every place along the axis then has a program of its own.
"""

from collections.abc import Sequence
from typing import ClassVar

from sim.plan.functions.context import SharedSequence, gathering_attention
from sim.plan.functions.ring_attention import ring_attention
from sim.plan.functions.rows import Rows
from sim.plan.functions.token_part import Scoring
from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.plan.words.mesh import Axes
from sim.training.sequence.method import AXIS, Role, SequenceLayout, SequenceMethod, Shares
from sim.training.sequence.rules import check_blocks, check_chunks, check_tokens


class KeyExchange(SequenceMethod, frozen=True, kw_only=True):
    """Sequences in two chunks per rank, or in one block."""

    layout: SequenceLayout = "zigzag"

    @property
    def axes(self) -> Axes:
        """Return the one axis."""
        return ((AXIS, self.degree),)

    def rows(self, num_tokens: int) -> Rows:
        """Return a rank's two chunks, or its block."""
        own = num_tokens // self.degree
        if self.layout == "contiguous":
            return Rows(own, num_tokens, cut_over=(AXIS,))
        return Rows(own, num_tokens, dealt_over=AXIS)

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Return chunks i and 2n-1-i of rank i, or its block."""
        if self.layout == "contiguous":
            return tuple((index,) for index in range(self.degree))
        return tuple((index, 2 * self.degree - 1 - index) for index in range(self.degree))

    def roles(self, *, causal: bool) -> tuple[Role, ...]:
        """Return every place along the axis where ranks compute different numbers of blocks."""
        uneven = causal and self.layout == "contiguous"
        return tuple({AXIS: index} for index in range(self.degree)) if uneven else ({},)

    def check(self, shares: Shares) -> None:
        """Raise SpecError unless a sequence makes two chunks, or a block, per rank."""
        (check_blocks if self.layout == "contiguous" else check_chunks)(shares.num_tokens, self.degree)
        check_tokens(shares.num_tokens // self.degree, shares.token_multiple)

    def shared(self, scoring: Scoring) -> SharedSequence:
        """Return how a sequence and its scores lie over the ranks."""
        return SharedSequence(AXIS, self.degree, zigzag=self.layout == "zigzag", causal=scoring.causal)


class PointToPoint(KeyExchange, frozen=True, kw_only=True):
    """Keys and values go around a ring while attention is computed (Liu et al. 2023, Ring Attention)."""

    name: ClassVar[str] = "p2p"

    def attention(self, t: TaskTracer, name: str, qkv: Sequence[Tensor], scoring: Scoring) -> Tensor:
        """Return attention, a block of keys and values after the other."""
        return ring_attention(t, name, qkv, self.shared(scoring))


class AllGather(KeyExchange, frozen=True, kw_only=True):
    """Keys and values of all ranks are gathered before attention (Llama 3, section 3.3.2)."""

    name: ClassVar[str] = "all_gather"

    def attention(self, t: TaskTracer, name: str, qkv: Sequence[Tensor], scoring: Scoring) -> Tensor:
        """Return attention to gathered keys and values."""
        return gathering_attention(t, name, qkv, self.shared(scoring))
