"""Standard errors of fitted parameters: right on data whose truth is known, absent where data cannot tell."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.calibration.fitting import Parameter, fit
from costmodels.calibration.uncertainty import Estimate

TRUTH = {"rate": 5.0, "fixed": 2.0}
WITHIN_90 = 1.645


def fit_line(
    shuffler: np.random.Generator, count: int, noise: Callable[[np.ndarray], np.ndarray], *, by_length: bool = False
) -> dict[str, Estimate]:
    """Return a fixed time and a rate fitted to noisy times; ``noise``: of the sizes, the spread of the logarithm."""
    sizes = np.geomspace(1e-3, 1e3, count)
    times = (TRUTH["fixed"] + sizes / TRUTH["rate"]) * np.exp(noise(sizes) * shuffler.standard_normal(count))
    limits = [Parameter("rate", 1.0, 1e-2, 1e4), Parameter("fixed", 1.0, 1e-4, 1e3)]
    return fit(limits, lambda p: p["fixed"] + sizes / p["rate"], times.tolist(), by_length=by_length)


def even(size: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return noise that is the same for all sizes."""
    return lambda sizes: np.full_like(sizes, size)


@pytest.mark.parametrize(
    ("noise", "by_length"),
    [(even(0.05), False), (even(0.05), True), (lambda sizes: 0.15 / (1 + np.log10(1e3 / sizes)), False)],
    ids=["even", "by length", "uneven"],
)
def test_nine_of_ten_intervals_hold_the_truth(noise: Callable[[np.ndarray], np.ndarray], by_length: bool) -> None:
    """Over many noisy repetitions 90 % intervals hold the true values in about 90 % of cases, and standard errors are
    as large as estimates scatter: also where the noise differs between measurements, or their weights do.
    """
    shuffler = np.random.default_rng(5)
    found = [fit_line(shuffler, 40, noise, by_length=by_length) for _ in range(150)]
    off = {name: np.array([np.log(row[name].value / TRUTH[name]) for row in found]) for name in TRUTH}
    errors = {name: np.array([row[name].standard_error for row in found], dtype=float) for name in TRUTH}
    inside = np.mean([np.abs(off[name]) <= WITHIN_90 * errors[name] for name in TRUTH])
    assert 0.84 < inside < 0.95
    for name in TRUTH:
        assert off[name].std() == pytest.approx(errors[name].mean(), rel=0.25)


def test_errors_shrink_with_noise_and_with_the_root_of_the_number() -> None:
    """A quarter of the noise has a quarter of the standard error, four times as many measurements have half of it."""

    def mean_error(count: int, noise: float) -> np.ndarray:
        shuffler = np.random.default_rng(6)
        found = [fit_line(shuffler, count, even(noise)) for _ in range(25)]
        return np.mean([[row[name].standard_error for name in TRUTH] for row in found], axis=0)

    usual = mean_error(50, 0.04)
    assert mean_error(50, 0.01) == pytest.approx(usual / 4, rel=0.05)
    assert mean_error(200, 0.04) == pytest.approx(usual / 2, rel=0.1)


@given(offs=st.lists(st.floats(-0.02, 0.02), min_size=3, max_size=40), factor=st.floats(0.1, 10.0))
def test_one_factor_has_the_error_of_a_mean(offs: list[float], factor: float) -> None:
    """Of one factor alone the error is that of the mean of logarithms: root of the sum of squares, over n - 1."""
    found = fit(
        [Parameter("factor", 1.0, 1e-3, 1e3)], lambda p: [p["factor"]] * len(offs),
        [factor * np.exp(off) for off in offs], num_evaluations=200, outlier=100.0,
    )["factor"]  # fmt: skip
    around = np.array(offs) - np.mean(offs)
    expected = np.sqrt(np.sum(around**2)) / (len(offs) - 1)
    assert found.standard_error == pytest.approx(expected, rel=1e-2, abs=1e-5)


def test_what_the_data_cannot_tell_has_no_error() -> None:
    """Two factors that only their product shows, and a parameter without effect, have none; the others do."""
    sizes, shuffler = np.geomspace(1e-3, 1e3, 40), np.random.default_rng(1)
    times = (2.0 + sizes) * np.exp(0.03 * shuffler.standard_normal(40))
    names = ("one", "other", "idle", "fixed")
    found = fit(
        [Parameter(name, 0.5, 1e-3, 1e3) for name in names],
        lambda p: p["fixed"] + sizes * p["one"] * p["other"],
        times.tolist(),
    )
    assert {name for name in names if found[name].standard_error is None} == {"one", "other", "idle"}
    assert not any(found[name].at_limit for name in ("one", "other", "idle"))


def test_a_parameter_at_its_limit_has_no_error() -> None:
    """Where the search ends at a limit, the estimate says so, and the others' errors are as if it were known."""
    sizes, shuffler = np.geomspace(1e-3, 1e3, 40), np.random.default_rng(2)
    times = (2.0 + sizes) * np.exp(0.03 * shuffler.standard_normal(40))
    limits = [Parameter("slope", 0.5, 1e-3, 0.7), Parameter("fixed", 1.0, 1e-3, 1e3)]
    found = fit(limits, lambda p: p["fixed"] + sizes * p["slope"], times.tolist(), num_evaluations=200)
    alone = fit(limits[1:], lambda p: p["fixed"] + sizes * 0.7, times.tolist(), num_evaluations=200)
    assert found["slope"].at_limit
    assert found["slope"].standard_error is None
    assert found["slope"].value == pytest.approx(0.7, rel=0.02)
    assert found["fixed"].standard_error == pytest.approx(alone["fixed"].standard_error, rel=0.1)


def test_as_many_measurements_as_parameters_settle_nothing() -> None:
    """A fit through all measurements leaves nothing to tell its errors from."""
    found = fit(
        [Parameter("rate", 1.0, 1e-2, 1e4), Parameter("fixed", 1.0, 1e-4, 1e3)],
        lambda p: [p["fixed"] + size / p["rate"] for size in (1.0, 100.0)],
        [1.0, 20.0],
    )
    assert [estimate.standard_error for estimate in found.values()] == [None, None]
