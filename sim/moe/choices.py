"""Which token chooses which experts, where only the numbers of choices are given."""

from collections.abc import Sequence
from math import gcd

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0.6180339887498949


def forced_choices(counts: Sequence[int], num_tokens: int) -> NDArray[np.int64]:
    """Return the experts [token, choice] of every token: expert e is chosen ``counts[e]`` times, by a token once.

    Counts add up to a multiple of ``num_tokens``, and none is larger. The choices lie in a row by expert, and a token
    takes every ``num_tokens``-th of it: an expert's run is too short for two of these. Neighbouring tokens begin far
    apart, so that every part of a sequence is routed about alike.
    """
    by_expert = np.repeat(np.arange(len(counts)), np.asarray(counts, dtype=np.int64))
    places = (np.arange(num_tokens) * _stride(num_tokens)) % num_tokens
    return by_expert.reshape(-1, num_tokens).T[places]


def _stride(num_tokens: int) -> int:
    """Return a step about 0.62 ``num_tokens`` long that reaches every token: it has no divisor in common with them."""
    stride = max(1, round(_GOLDEN * num_tokens))
    while gcd(stride, num_tokens) > 1:
        stride += 1
    return stride
