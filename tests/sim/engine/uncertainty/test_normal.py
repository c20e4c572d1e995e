"""Quantiles of drawn values, held to numpy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.uncertainty.normal import quantiles


@given(st.lists(st.floats(-1e9, 1e9), min_size=1), st.lists(st.floats(0.0, 1.0)))
def test_quantiles_follow_hazens_rule(values: list[float], probabilities: list[float]) -> None:
    """Between two sorted values a quantile lies on the line through the middles of their parts; numpy agrees."""
    expected = np.quantile(values, probabilities, method="hazen")
    assert quantiles(np.array(values), probabilities).tolist() == pytest.approx(expected.tolist(), rel=1e-9, abs=1e-6)
