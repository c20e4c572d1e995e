"""DeepSpeed-Ulysses: attention has all tokens of some heads, all else some tokens of all heads (Jacobs et al. 2023).

Rank i of n has block i of n of every sequence. One all_to_all each of queries, keys and values brings the tokens of all
ranks together, for 1/n of the heads. One of the result brings it back. So attention sees whole sequences, as without
sharing, and a rank sends 4 (n - 1) / n of a tensor of its own tokens. Tensor parallelism cuts the heads first.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from sim.plan.functions import basic as f
from sim.plan.functions.token_part import Scoring
from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.training.sequence.blocks import BlockMethod
from sim.training.sequence.method import AXIS, Shares
from sim.training.sequence.rules import DEGREE_KEY, check_blocks, check_heads, check_tokens
from sim.training.sequence.unshared import whole_attention

_TOKENS: Final = 0
_HEADS: Final = 2
"""The dimensions of [s, b, n, d] that ranks share out, in turn."""


class Ulysses(BlockMethod, frozen=True, kw_only=True):
    """Ranks that share out tokens, and in attention heads."""

    name: ClassVar[str] = "ulysses"

    def check(self, shares: Shares) -> None:
        """Raise SpecError unless the ranks divide the tokens, and the heads of keys and values."""
        check_blocks(shares.num_tokens, self.degree)
        check_tokens(shares.num_tokens // self.degree, shares.token_multiple)
        check_heads(DEGREE_KEY, self.degree, shares)

    def attention(self, t: TaskTracer, name: str, qkv: Sequence[Tensor], scoring: Scoring) -> Tensor:
        """Return attention of all tokens in 1/n of the heads, exchanged before and after."""
        return by_heads(t, qkv, AXIS, lambda own: whole_attention(t, name, own, scoring))


def by_heads(
    t: TaskTracer, qkv: Sequence[Tensor], axis: str, attention: Callable[[Sequence[Tensor]], Tensor]
) -> Tensor:
    """Return the attention of the tokens of all ranks along an axis, of which each makes that of its heads."""
    own = [f.all_to_all(t, x, axis, _HEADS) for x in qkv]
    return f.all_to_all(t, attention(own), axis, _TOKENS)
