"""Active experts of the dense-to-sparse gate against independent tables, and its schedules."""

import pytest

from sim.moe.dense_to_sparse import DenseToSparse, mean_active_experts
from sim.moe.errors import RoutingError

TABLE = {
    (16, 0.0): {1.0: 15.720, 0.5: 10.091, 0.2: 3.229},
    (16, 1.0): {2.0: 15.999, 0.7: 12.014, 0.3: 4.399, 0.1: 1.758},
    (16, 2.0): {1.0: 12.328, 0.5: 5.708, 0.2: 2.310},
    (8, 1.0): {2.0: 8.0, 0.5: 5.490, 0.1: 1.634},
}
"""Mean active experts of 200,000 tokens of another generator, by experts, deviation of scores, and temperature."""


@pytest.mark.parametrize(("num_experts", "deviation"), TABLE)
def test_active_experts_are_those_of_an_independent_table(num_experts: int, deviation: float) -> None:
    """Within 0.02 at every temperature."""
    for temperature, wanted in TABLE[num_experts, deviation].items():
        assert mean_active_experts(num_experts, temperature, deviation) == pytest.approx(wanted, abs=0.02)


def test_the_temperature_falls_to_its_end_and_stays() -> None:
    """Half way it is the geometric mean of start and end, or the arithmetic one; and one expert is left when hard."""
    keys = {"start": 2.0, "end": 0.5, "decay_steps": 1000}
    for decay, half in (("exponential", 1.0), ("linear", 1.25)):
        found = [DenseToSparse(decay=decay, step=step, **keys).temperature for step in (0, 500, 1000, 9000)]
        assert found == pytest.approx([2.0, half, 0.5, 0.5])
    counts = [DenseToSparse(step=step, hard_after=2000, **keys).active_experts(16) for step in (0, 500, 1000, 2000)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 1.0


def test_a_temperature_that_rises_is_refused() -> None:
    """The end is at most the start."""
    with pytest.raises(RoutingError, match=r"from 0\.5 to 1"):
        DenseToSparse(start=0.5, end=1.0)
