"""Which token chooses which experts, where only the numbers of choices are given."""

from collections.abc import Sequence
from math import gcd

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.moe.routing import Counts

_GOLDEN = 0.6180339887498949


class GroupLimit(Struct, frozen=True):
    """A token chooses ``of_each`` experts in each of ``top_groups`` of ``num_groups`` equal groups of experts.

    With a group for each expert, ``of_each`` is 1, and nothing is limited.
    """

    num_groups: int
    top_groups: int
    of_each: int

    def visits(self, counts: Counts) -> Counts:
        """Return how many tokens choose in each group, [..., group], of the choices [..., expert] of each expert."""
        total: Counts = counts.reshape(*counts.shape[:-1], self.num_groups, -1).sum(-1) // self.of_each
        return total

    def tokens_of_parts(self, counts: Counts, num_parts: int) -> Counts:
        """Return how many tokens choose in each of equal parts of the experts, [..., part], by ``forced_choices``.

        A part consists of whole groups. Its visits lie in a row, of which a token takes every T-th, so every token has
        one before any has two.
        """
        visits = self.visits(counts)
        num_tokens = visits.sum(-1, keepdims=True) // self.top_groups
        found: Counts = np.minimum(visits.reshape(*visits.shape[:-1], num_parts, -1).sum(-1), num_tokens)
        return found


def forced_choices(counts: Sequence[int], num_tokens: int, limit: GroupLimit | None = None) -> NDArray[np.int64]:
    """Return the experts [token, choice] of every token: expert e is chosen ``counts[e]`` times, by a token once.

    Counts add up to a multiple of ``num_tokens``, and none is larger. The choices lie in a row by expert, and a token
    takes every ``num_tokens``-th of it: an expert's run is too short for two of these. Neighbouring tokens begin far
    apart, so that every part of a sequence is routed about alike.

    ``limit``: tokens choose groups by this rule, and in each group the tokens that chose it choose experts by it. The
    counts are of such a limit; see ``within_groups``.
    """
    if limit is not None and limit.num_groups < len(counts):
        return _in_groups(np.asarray(counts, dtype=np.int64), num_tokens, limit)
    by_expert = np.repeat(np.arange(len(counts)), np.asarray(counts, dtype=np.int64))
    places = (np.arange(num_tokens) * _stride(num_tokens)) % num_tokens
    return by_expert.reshape(-1, num_tokens).T[places]


def _in_groups(counts: Counts, num_tokens: int, limit: GroupLimit) -> NDArray[np.int64]:
    """Return the choices of tokens that choose groups, and then experts in each."""
    visits, size = limit.visits(counts), len(counts) // limit.num_groups
    groups = forced_choices(visits.tolist(), num_tokens)
    chosen = np.empty((*groups.shape, limit.of_each), dtype=np.int64)
    for group in np.flatnonzero(visits):
        own = counts[group * size : (group + 1) * size]
        chosen[groups == group] = group * size + forced_choices(own.tolist(), int(visits[group]))
    return chosen.reshape(num_tokens, -1)


def _stride(num_tokens: int) -> int:
    """Return a step about 0.62 ``num_tokens`` long that reaches every token: it has no divisor in common with them."""
    stride = max(1, round(_GOLDEN * num_tokens))
    while gcd(stride, num_tokens) > 1:
        stride += 1
    return stride
