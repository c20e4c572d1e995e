"""The longest common subsequence of ops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.comparison import sequence
from traces.comparison.sequence import Codes, common_subsequence, nth_to_nth

words = st.lists(st.integers(0, 4), max_size=14).map(lambda codes: np.array(codes, dtype=np.int64))


def longest(first: Codes, second: Codes) -> int:
    """Return the length of a longest common subsequence, by the textbook's table."""
    table = np.zeros((len(first) + 1, len(second) + 1), dtype=int)
    for i, one in enumerate(first):
        for j, other in enumerate(second):
            table[i + 1, j + 1] = table[i, j] + 1 if one == other else max(table[i, j + 1], table[i + 1, j])
    return int(table[-1, -1])


def is_common(first: Codes, second: Codes, left: Codes, right: Codes) -> bool:
    """Return whether two ascending lists of positions hold the same codes."""
    ascending = all(bool((np.diff(part) > 0).all()) for part in (left, right))
    return ascending and first[left].tolist() == second[right].tolist()


@pytest.mark.parametrize("whole_table", [1 << 27, 1])
@given(first=words, second=words)
def test_subsequence_is_a_longest_one(whole_table: int, first: Codes, second: Codes) -> None:
    """As long as the textbook's table says, whether the table is kept whole or divided; swapping swaps the result."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequence, "_MAX_BITS", whole_table)
        left, right = common_subsequence(first, second)
        back = common_subsequence(second, first)
    assert is_common(first, second, left, right)
    assert len(left) == longest(first, second)
    assert (back[0].tolist(), back[1].tolist()) == (right.tolist(), left.tolist())


@given(first=words, second=words)
def test_very_long_sequences_are_aligned_in_turn(first: Codes, second: Codes) -> None:
    """Past the largest table the result is still common and in order, though not always a longest one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequence, "_MAX_BITS", 0)
        patch.setattr(sequence, "MAX_CELLS", 0)
        left, right = common_subsequence(first, second)
    assert is_common(first, second, left, right)
    assert (len(left) > 0) == bool({*first.tolist()} & {*second.tolist()})


def test_long_sequences_with_gaps_are_aligned_completely() -> None:
    """Of 20,000 ops of 170 names a fiftieth is missing on one side: all others are found, in seconds at most."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, 170, 20_000)
    second = first[rng.random(len(first)) > 0.02]
    left, right = common_subsequence(first, second)
    assert len(left) == len(second)
    assert is_common(first, second, left, right)


@given(first=words, second=words)
def test_nth_meets_nth(first: Codes, second: Codes) -> None:
    """Each code is paired as often as both have it."""
    left, right = nth_to_nth(first, second)
    assert first[left].tolist() == second[right].tolist()
    assert len(left) == sum(min((first == code).sum(), (second == code).sum()) for code in range(5))
