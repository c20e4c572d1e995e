from itertools import product

import numpy as np
import pytest

from sim.planner.galvatron import Stages, best_plan
from sim.planner.layer_costs import Frame, FrameCosts, LayerStrategy, PartCosts

STRATEGIES = [LayerStrategy(*pair) for pair in product((False, True), (False, True))]


def random_stages(seed: int, *, pipeline: int = 1, room: int = 1024) -> Stages:
    """Return a frame with random costs, in whole units of memory."""
    draw = np.random.default_rng(seed)

    def part(number: int, most: int) -> PartCosts:
        seconds = (draw.uniform(0.1, 1.0, number) for _ in range(3))
        num_bytes = (draw.integers(0, most, number).astype(float) for _ in range(3))
        return PartCosts(*seconds, *num_bytes)

    frame = Frame(1, pipeline, 2, 1, int(draw.integers(1, 6)))
    nothing = PartCosts(*(np.zeros(1) for _ in range(6)))
    costs = FrameCosts(part(4, 160), part(1, 100), nothing, part(1, 100), 32.0, 0.01, 0.02)
    return Stages(frame, STRATEGIES, costs, float(room))


@pytest.mark.parametrize("seed", range(30))
def test_stages_get_the_fastest_strategies_that_fit(seed: int) -> None:
    """The layers of a stage are as fast as in the best of all combinations that fit, and fit; or none does."""
    stages, layer = random_stages(seed, pipeline=1 + seed % 2), random_stages(seed, pipeline=1 + seed % 2).costs.layer
    rounds, num_layers = stages.frame.num_microbatches, 1 + seed % 5
    for stage in range(stages.frame.pipeline):
        live = stages.num_live(stage)
        end = stages.costs.end(stage, stages.frame.pipeline)
        beside = float(end.memory_bytes(live)[0]) + stages.costs.gathered_bytes
        each_s, each = rounds * layer.pass_s + layer.once_s, layer.memory_bytes(live)
        fitting = [
            each_s[list(chosen)].sum()
            for chosen in product(range(4), repeat=num_layers)
            if beside + each[list(chosen)].sum() <= stages.room_bytes
        ]
        found = stages.solve(stage, num_layers)
        if not fitting:
            assert found is None
            continue
        assert found is not None
        assert found.memory_bytes == pytest.approx(beside + each[list(found.strategies)].sum())
        assert found.memory_bytes <= stages.room_bytes
        ends_s = rounds * float(end.pass_s[0]) + float(end.once_s[0])
        assert found.busy_s(rounds) == pytest.approx(min(fitting) + ends_s)


@pytest.mark.parametrize("seed", range(20))
def test_moves_between_stages_never_make_a_plan_slower(seed: int) -> None:
    """BMW's plan is no slower than Galvatron's on the same costs, has all layers, and fits."""
    stages = random_stages(100 + seed, pipeline=4, room=1024)
    even, moved = (best_plan(stages, 12, balancing, ends_sharded=False) for balancing in ("even", "moves"))
    if even is not None:
        assert moved is not None
        assert moved.time_s <= even.time_s
    if moved is not None:
        assert sum(moved.layers_per_stage) == len(moved.strategies) == 12
        assert moved.memory_bytes <= stages.room_bytes


def test_layers_move_away_from_a_slow_end() -> None:
    """Where the last stage also has an end that takes as long as three layers, BMW gives it fewer layers."""
    stages = random_stages(7, pipeline=4, room=100_000)
    ones = PartCosts(*(np.ones(4) for _ in range(6)))
    slow = PartCosts(np.full(1, 1.0), np.full(1, 5.0), *(np.ones(1) for _ in range(4)))
    nothing = PartCosts(*(np.zeros(1) for _ in range(6)))
    stages.costs = FrameCosts(ones, nothing, nothing, slow, 0.0, 0.0, 0.0)
    stages.frame = stages.frame._replace(num_microbatches=8)
    even, moved = (best_plan(stages, 16, balancing, ends_sharded=False) for balancing in ("even", "moves"))
    assert even is not None
    assert moved is not None
    assert even.layers_per_stage == (4, 4, 4, 4)
    assert moved.layers_per_stage[-1] < 4
    assert max(moved.layers_per_stage) <= 5
    assert moved.time_s < even.time_s
