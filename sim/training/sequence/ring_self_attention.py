"""Sequence parallelism of Li et al. 2021: ring self-attention, with the scores of all keys kept.

Rank i of n has block i of n of every sequence and of its scores 1/n of the rows. It cuts no heads, so the number of
ranks has no other limit than tokens. Nothing is skipped under the causal mask, so all ranks compute the same.
"""

from collections.abc import Sequence
from typing import ClassVar

from sim.plan.functions.ring_self_attention import ring_self_attention
from sim.plan.functions.token_part import Scoring
from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.training.sequence.blocks import BlockMethod
from sim.training.sequence.method import AXIS, Shares
from sim.training.sequence.rules import check_blocks, check_keeps_scores, check_tokens


class RingSelfAttention(BlockMethod, frozen=True, kw_only=True):
    """Keys, then values go around a ring."""

    name: ClassVar[str] = "ring_self_attention"

    def check(self, shares: Shares) -> None:
        """Raise SpecError unless the ranks divide the tokens, and scores are kept."""
        check_keeps_scores(self.name, shares)
        check_blocks(shares.num_tokens, self.degree)
        check_tokens(shares.num_tokens // self.degree, shares.token_multiple)

    def attention(self, t: TaskTracer, name: str, qkv: Sequence[Tensor], scoring: Scoring) -> Tensor:
        """Return attention by kept scores of all keys."""
        return ring_self_attention(t, name, qkv, AXIS, causal=scoring.causal, dropout=scoring.dropout, cap=scoring.cap)
