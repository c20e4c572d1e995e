"""The fewest replicas that are enough."""

from hypothesis import given
from hypothesis import strategies as st

from sim.serving.capacity import fewest_replicas


@given(st.integers(1, 300), st.integers(1, 400))
def test_fewest_is_enough_and_one_fewer_is_not(most: int, needed: int) -> None:
    """Where more is never worse the answer is exact, and numbers that are far too large are not tried."""
    tried: list[int] = []

    def meets(count: int) -> bool:
        tried.append(count)
        return count >= needed

    assert fewest_replicas(most, meets) == (needed if needed <= most else None)
    assert max(tried) <= min(most, 2 * needed)
    assert len(set(tried)) == len(tried) <= 18
