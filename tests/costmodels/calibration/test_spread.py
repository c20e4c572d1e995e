"""How far calls lie from predictions, and which err alike: what is stated, and what measured calls show."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.calibration.spread import Erred, spread_of, widened
from costmodels.errors import CatalogueError
from costmodels.profile import SPREAD, load_profile, packaged_entry, parse_profile
from costmodels.spread import Place, Spread, transfer_place
from tests.examples import examples


def spread(deviation: dict[float, float], **parts: float) -> Spread:
    """Return errors with deviations by predicted seconds."""
    return Spread(deviation=tuple(deviation.items()), **({"common": 0.0} | parts))


def measured(true: Spread, places: list[Place], predicted_s: list[float], seed: int) -> list[Erred]:
    """Return calls whose errors are drawn with a covariance that is written out here once more."""
    random = np.random.default_rng(seed)
    octaves, series = np.array([p.octaves for p in places]), np.array([str(p.series) for p in places])
    apart, same = np.linalg.norm(octaves[:, None] - octaves, axis=-1), series[:, None] == series
    covariance = true.common + true.near * same * np.exp(-apart / true.octaves) + true.own * np.eye(len(places))
    normal = np.linalg.cholesky(covariance) @ random.standard_normal(len(places))
    deviations = [true.at(seconds) for seconds in predicted_s]
    return [
        Erred(place, seconds, seconds * math.exp(deviation * error))
        for place, seconds, deviation, error in zip(places, predicted_s, deviations, normal.tolist(), strict=True)
    ]


def test_between_stated_lengths_a_deviation_goes_with_the_logarithm() -> None:
    """Half way in decades is half way in deviation; beyond both ends it stays."""
    found = spread({1e-5: 0.2, 1e-3: 0.1})
    assert [found.at(seconds) for seconds in (0.0, 1e-5, 1e-4, 1e-3, 1.0)] == pytest.approx([0.2, 0.2, 0.15, 0.1, 0.1])


def test_neighbours_share_less_the_farther_apart_and_nothing_over_series() -> None:
    """Correlations are exp(-distance / octaves) in a series, 0 between two."""
    places = [Place("a", (0.0, 0.0)), Place("a", (3.0, 4.0)), Place("b", (0.0, 0.0))]
    found = spread({1.0: 0.1}, near=1.0, octaves=2.0).correlation(places)
    decayed = math.exp(-2.5)
    assert found == pytest.approx(np.array([[1, decayed, 0], [decayed, 1, 0], [0, 0, 1]]))


@settings(deadline=None, max_examples=examples(8))
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=12),
    st.floats(0.1, 16.0),
)
def test_what_neighbours_share_is_a_covariance(found: list[tuple[str, int, int]], octaves: float) -> None:
    """Whatever the places, correlations have no negative eigenvalue: there are errors that have them."""
    places = [Place(series, (float(x), float(y))) for series, x, y in found]
    matrix = spread({1.0: 0.1}, near=1.0, octaves=octaves).correlation(places)
    assert np.linalg.eigvalsh(matrix).min() > -1e-9


def test_an_estimate_finds_what_errors_were_drawn_with() -> None:
    """Deviations by length, the shared part and its distance: those of the middle one of five drawn sets."""
    true = spread({3e-5: 0.2, 3e-3: 0.05}, near=0.6, octaves=0.6)
    grid = [Place("", (x / 4, y / 4)) for x in range(25) for y in range(25)]
    found = []
    for seed in range(5):
        lengths = np.random.default_rng(seed).permutation(np.geomspace(1e-5, 1e-2, len(grid))).tolist()
        one = spread_of(measured(true, grid, lengths, seed))
        found.append((one.at(3e-5), one.at(3e-3), one.near, one.octaves, one.common))
    short, long, near, octaves, common = np.median(found, axis=0)
    assert (short, long) == pytest.approx((0.2, 0.06), rel=0.2)  # the longest half-decade is 0.05, that before 0.075
    assert (near, octaves) == pytest.approx((0.6, 0.6), rel=0.4)
    assert common < 0.1


def test_what_all_series_share_is_told_from_what_one_shares() -> None:
    """Over many drawn sets of 12 series, the mean of ``common`` is what it was drawn with."""
    true = spread({1.0: 0.1}, common=0.4, near=0.4, octaves=4.0)
    places = [transfer_place(series, 1 << power) for series in range(12) for power in range(10, 30, 2)]
    found = [spread_of(measured(true, places, [1e-3] * len(places), seed)) for seed in range(60)]
    assert np.mean([one.common * one.at(1e-3) ** 2 for one in found]) == pytest.approx(0.4 * 0.01, rel=0.35)
    assert 0.3 < np.mean([one.near for one in found]) < 0.75


def test_errors_that_share_nothing_are_each_call_s_own() -> None:
    """Independent errors leave next to nothing for neighbours and the family."""
    places = [Place("", (x / 4, y / 4)) for x in range(25) for y in range(25)]
    found = spread_of(measured(spread({1.0: 0.1}), places, [1e-3] * len(places), seed=3))
    assert found.own > 0.9


def test_of_few_calls_half_is_common() -> None:
    """Twenty calls do not show who errs alike: what is taken then is the assumption."""
    few = measured(spread({1.0: 0.1}), [transfer_place("x", 1 << power) for power in range(20)], [1e-3] * 20, seed=0)
    found = spread_of(few)
    assert (found.common, found.near) == (0.5, 0.0)
    assert found.at(1.0) == pytest.approx(0.1, rel=0.5)


def test_a_much_measured_series_counts_as_much_as_another() -> None:
    """Forty calls that are 10 % off and one that is exact: the mean square is half of that of the forty.

    As calls weigh (1/40 each, and 1) they are 1 / (1/4/40 + 1/4) = 3.9 calls that weigh alike.
    """
    many = [Erred(transfer_place("many", 1 << 20), 1e-3, 1.1e-3)] * 40
    found = spread_of([*many, Erred(transfer_place("one", 1 << 20), 1e-3, 1e-3)])
    assert found.at(1e-3) == pytest.approx(widened(math.log(1.1) / math.sqrt(2), 4 / (1 + 1 / 40)))


@pytest.mark.parametrize("count", [1, 2, 5, 30])
def test_a_deviation_of_few_errors_holds_nine_of_ten_others(count: int) -> None:
    """Whatever few errors happened to be, another one lies within 1.645 deviations in 90 % of cases."""
    errors = np.random.default_rng(count).standard_normal((100_000, count + 1))
    deviations = np.sqrt(np.mean(errors[:, 1:] ** 2, axis=1)) * widened(1.0, count)
    assert np.mean(np.abs(errors[:, 0]) < 1.6448536 * deviations) == pytest.approx(0.9, abs=0.004)


def test_a_constant_chosen_for_the_calls_themselves_hides_nothing() -> None:
    """Series whose mean error is taken away have the variance that they were drawn with, in the mean over many."""
    random, found = np.random.default_rng(0), []
    for _ in range(300):
        errors = random.normal(0.0, 0.1, 6)
        measured_s = np.exp(np.repeat(errors - errors.mean(), 5))
        calls = [Erred(Place(i // 5, (float(i % 5),)), 1.0, seconds) for i, seconds in enumerate(measured_s.tolist())]
        found.append((spread_of(calls, num_fitted=1).at(1.0) / widened(1.0, 30)) ** 2)
    assert np.mean(found) == pytest.approx(0.01, rel=0.1)


@settings(deadline=None, max_examples=examples(10))
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0, 40), st.floats(1e-6, 1.0), st.floats(-0.5, 0.5)),
        min_size=1, max_size=50,
    )
)  # fmt: skip
def test_any_calls_have_errors_that_can_be(found: list[tuple[str, float, float, float]]) -> None:
    """Whatever was measured, deviations are finite, and what is shared is no more than there is."""
    calls = [Erred(Place(name, (at,)), seconds, seconds * math.exp(error)) for name, at, seconds, error in found]
    estimate = spread_of(calls)
    assert all(math.isfinite(deviation) and deviation >= 0.0 for _, deviation in estimate.deviation)
    assert min(estimate.common, estimate.near, estimate.own) >= 0.0
    assert estimate.common + estimate.near <= 1.0 + 1e-9


def test_nothing_is_said_of_neighbours_nearer_than_any_measured() -> None:
    """Independent errors of calls an octave apart: they share nothing, not even what is nearer than an octave."""
    places = [Place("", (float(x), float(y), float(z))) for x in range(9) for y in range(9) for z in range(9)]
    for seed in range(3):
        found = spread_of(measured(spread({1.0: 0.1}), places, [1e-3] * len(places), seed))
        assert found.near * math.exp(-0.1 / found.octaves) < 0.15


@pytest.mark.parametrize("name", ["a100", "b200", "cpu", "h100", "h200", "v100"])
def test_every_packaged_profile_states_the_errors_of_every_family(name: str) -> None:
    """Each with its source; a deviation is more than 0, and no more is shared than there is."""
    profile = load_profile(name)
    assert set(profile.spread) == set(SPREAD)
    for found in profile.spread.values():
        assert min(deviation for _, deviation in found.deviation) > 0.0
        assert found.common + found.near <= 1.002
    assert profile.step_spread > 0.0


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"source": " "}, "spread gemm needs a source"),
        ({"deviation": {"10": 0.1}}, "no unit"),
        ({"deviation": {"10 us": -0.1}}, "'10 us' must be a number from 0"),
        ({"deviation": {}}, "needs a deviation"),
        ({"common": 0.7, "near": 0.7, "octaves": 1.0}, "may be 1 together"),
        ({"near": 0.2}, "has no 'octaves'"),
        (None, "spread has no 'gemm'"),
    ],
)
def test_errors_that_cannot_be_are_refused(change: dict[str, Any] | None, problem: str) -> None:
    """A profile whose errors have no source, no unit, or parts of more than a whole says which."""
    entry = dict(packaged_entry("v100"))
    section = dict(entry["spread"])
    if change is None:
        del section["gemm"]
    else:
        section["gemm"] = {**section["gemm"], **change}
    with pytest.raises(CatalogueError, match=problem):
        parse_profile("mine", {**entry, "spread": section})
