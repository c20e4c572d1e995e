"""Methods in which a rank keeps its queries, and keys and values come from other ranks.

Rank i of n has chunks i and 2n-1-i of 2n, so under the causal mask all ranks compute equally many scores (Megatron-LM,
context parallelism; Grattafiori et al. 2024, Llama 3, section 3.3.2). All ranks run one program: kernels learn the
rank's chunks from its place along the axis.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sim.plan.functions.context import SharedSequence, gathering_attention
from sim.plan.functions.ring_attention import ring_attention
from sim.plan.functions.rows import Rows
from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.plan.words.mesh import Axes
from sim.training.sequence.method import AXIS, Scoring, SequenceMethod, Shares
from sim.training.sequence.rules import check_chunks, check_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyExchange(SequenceMethod):
    """Sequences in two chunks per rank."""

    @property
    def axes(self) -> Axes:
        """Return the one axis."""
        return ((AXIS, self.degree),)

    def rows(self, num_tokens: int) -> Rows:
        """Return a rank's two chunks."""
        return Rows(num_tokens // self.degree, num_tokens, dealt_over=AXIS)

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Return chunks i and 2n-1-i of rank i."""
        return tuple((index, 2 * self.degree - 1 - index) for index in range(self.degree))

    def check(self, shares: Shares) -> None:
        """Raise SpecError unless a sequence makes two chunks per rank."""
        check_chunks(shares.num_tokens, self.degree)
        check_tokens(shares.num_tokens // self.degree, shares.token_multiple)

    @property
    def shared(self) -> SharedSequence:
        """Return how a sequence lies over the ranks."""
        return SharedSequence(AXIS, self.degree)


@dataclass(frozen=True, slots=True, kw_only=True)
class PointToPoint(KeyExchange):
    """Keys and values go around a ring while attention is computed (Liu et al. 2023, Ring Attention)."""

    name: ClassVar[str] = "p2p"

    def attention(self, t: TaskTracer, name: str, qkv: Sequence[Tensor], scoring: Scoring) -> Tensor:
        """Return attention, a block of keys and values after the other."""
        return ring_attention(t, name, qkv, self.shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllGather(KeyExchange):
    """Keys and values of all ranks are gathered before attention (Llama 3, section 3.3.2)."""

    name: ClassVar[str] = "all_gather"

    def attention(self, t: TaskTracer, name: str, qkv: Sequence[Tensor], scoring: Scoring) -> Tensor:
        """Return attention to gathered keys and values."""
        return gathering_attention(t, name, qkv, self.shared)
