from itertools import product

import numpy as np
import pytest

from sim.planner.alpa import fastest_partition
from sim.planner.galvatron import best_plan
from tests.sim.planner.test_galvatron import random_stages


@pytest.mark.parametrize("seed", range(40))
def test_a_partition_is_that_of_trying_all(seed: int) -> None:
    """Over all numbers of layers of every stage no pipeline is faster; stages that do not fit are never chosen."""
    draw = np.random.default_rng(seed)
    num_stages, num_layers, rounds = (int(draw.integers(*bounds)) for bounds in ((1, 5), (1, 8), (1, 9)))
    stage_s = draw.uniform(0.1, 1.0, (num_stages, num_layers + 1)) * np.arange(num_layers + 1)
    stage_s[draw.random(stage_s.shape) < 0.2] = np.inf
    stage_s[:, 0] = np.inf

    def step_s(layers: tuple[int, ...]) -> float:
        times_s = [stage_s[stage, number] for stage, number in enumerate(layers)]
        return float(sum(times_s) + (rounds - 1) * max(times_s)) if np.isfinite(times_s).all() else np.inf

    all_of_them = [c for c in product(range(1, num_layers + 1), repeat=num_stages) if sum(c) == num_layers]
    least_s = min(map(step_s, all_of_them), default=np.inf)
    found = fastest_partition(stage_s, rounds)
    if found is None:
        assert not np.isfinite(least_s)
    else:
        assert sum(found) == num_layers
        assert step_s(found) == pytest.approx(least_s, rel=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_a_plan_is_no_slower_than_even_stages(seed: int) -> None:
    """Alpa's plan has all layers, fits, and takes no longer than Galvatron's on the same costs."""
    stages = random_stages(200 + seed, pipeline=3, room=1024)
    even, exact = (best_plan(stages, 9, balancing, ends_sharded=False) for balancing in ("even", "exact"))
    if even is not None:
        assert exact is not None
        assert exact.time_s <= even.time_s
    if exact is not None:
        assert sum(exact.layers_per_stage) == len(exact.strategies) == 9
        assert exact.memory_bytes <= stages.room_bytes
