"""Independent sources of errors: together they make the covariances that a profile states."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.spread import NETWORK, Place, Spread
from sim.engine.uncertainty.errors import ErrorClass, ModelErrors
from sim.engine.uncertainty.loadings import loadings
from tests.examples import examples

GEMM = Spread(deviation=((1e-5, 0.2), (1e-3, 0.1)), common=0.1, near=0.5, octaves=2.0)
WIRES = Spread(deviation=((1.0, 0.3),), common=0.2)


@settings(deadline=None, max_examples=examples(12))
@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 2)), min_size=1, max_size=10))
def test_sources_make_the_covariance_that_is_stated(shapes: set[tuple[int, int, int]]) -> None:
    """Of any products: common + near exp(-distance / octaves), and the rest of each alone; nothing over families."""
    classes = [ErrorClass("gemm", Place("", (float(x), float(y))), (x, y, kernel)) for x, y, kernel in sorted(shapes)]
    wire = ErrorClass(NETWORK, Place("all_reduce", (20.0,)), 0)
    errors = ModelErrors(spread={"gemm": GEMM, NETWORK: WIRES}, step=0.0)
    loaded = loadings([*classes, wire], dict.fromkeys(classes, 1e-4), errors)
    found = loaded.matrix @ loaded.matrix.T
    apart = np.array([[np.hypot(a.shape[0] - b.shape[0], a.shape[1] - b.shape[1]) for b in classes] for a in classes])
    expected = 0.15**2 * (0.1 + 0.5 * np.exp(-apart / 2.0) + 0.4 * np.eye(len(classes)))
    assert found[:-1, :-1] == pytest.approx(expected, abs=1e-9)
    assert found[-1, -1] == pytest.approx(0.09)
    assert found[-1, :-1] == pytest.approx(np.zeros(len(classes)))


def test_a_family_without_errors_has_no_sources() -> None:
    """Times that are stated do not err."""
    stated = ErrorClass("delay", Place("", (0.0,)), 0)
    loaded = loadings([stated], {}, ModelErrors(spread={"gemm": GEMM}, step=0.0))
    assert loaded.matrix.shape == (1, 0)
