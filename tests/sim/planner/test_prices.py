import numpy as np
import pytest

from sim.planner.prices import distinct_rows


@pytest.mark.parametrize("most", [2, 100, 1 << 40])
def test_distinct_rows_are_those_of_numpy(most: int) -> None:
    """Rows by one number each are those by all of their columns, in the same order, however large they are."""
    columns = np.random.default_rng(1).integers(0, most, (5, 300)) * np.random.default_rng(2).integers(0, 2, (5, 300))
    rows, numbers = np.unique(columns.T, axis=0, return_inverse=True)
    found = distinct_rows(*columns)
    assert found[0] == rows.tolist()
    assert (found[1] == numbers.ravel()).all()
