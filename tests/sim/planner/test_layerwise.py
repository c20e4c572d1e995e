from itertools import combinations, pairwise, product

import numpy as np
import pytest

from sim.planner.decision_tree import decision_trees
from sim.planner.layerwise import balanced_partition, even_partition, fastest_choices


@pytest.mark.parametrize(("devices", "every", "pruned"), [
    (4, 13, 11), (8, 34, 22), (16, 73, 37), (32, 136, 56), (64, 229, 79),
])  # fmt: skip
def test_trees_are_as_many_as_published(devices: int, every: int, pruned: int) -> None:
    """There are as many trees as Galvatron counts, and on 8 devices 44 with and without checkpointing."""
    assert len(set(decision_trees(devices, pruned=False))) == every
    trees = decision_trees(devices)
    assert len(set(trees)) == pruned
    for tree in trees:
        degrees = [tree.degree(paradigm) for paradigm in ("data", "sharded_data", "tensor")]
        assert tree.pipeline * np.prod(degrees) == devices
    if devices == 8:
        assert len(set(product(trees, ("kept", "checkpointed")))) == 44


def test_trees_of_other_numbers_of_devices_are_refused() -> None:
    """Degrees are powers of two."""
    with pytest.raises(ValueError, match="not 12"):
        decision_trees(12)


@pytest.mark.parametrize("seed", range(60))
def test_choices_are_those_of_an_exhaustive_search(seed: int) -> None:
    """The dynamic program finds the time of the fastest combination that fits, and fits, or finds that none does."""
    draw = np.random.default_rng(seed)
    shape = int(draw.integers(1, 6)), int(draw.integers(1, 5))
    time_s, memory = draw.uniform(0.1, 2.0, shape), draw.integers(0, 12, shape)
    change_s = draw.uniform(0.0, 1.0, (shape[1], shape[1])) if draw.random() < 0.7 else None
    room = int(draw.integers(0, 8 * shape[0]))
    layers = np.arange(shape[0])

    def seconds(chosen: tuple[int, ...]) -> float:
        changes = 0.0 if change_s is None else sum(change_s[a, b] for a, b in pairwise(chosen))
        return float(time_s[layers, list(chosen)].sum() + changes)

    fitting = [c for c in product(range(shape[1]), repeat=shape[0]) if memory[layers, list(c)].sum() <= room]
    found = fastest_choices(time_s, memory, room, change_s)
    if not fitting:
        assert found is None
        return
    assert found is not None
    assert memory[layers, list(found.strategies)].sum() <= room
    assert found.time_s == pytest.approx(min(map(seconds, fitting)))
    assert seconds(found.strategies) == pytest.approx(found.time_s)


def test_nothing_fits_in_no_room() -> None:
    """Room that the ends of a stage have already used up fits no layer."""
    assert fastest_choices(np.ones((2, 2)), np.zeros((2, 2), dtype=np.int64), -1) is None


@pytest.mark.parametrize("seed", range(20))
def test_balanced_partition_is_that_of_an_exhaustive_search(seed: int) -> None:
    """No other partition has a cheaper costliest stage, where layers cost differently in every stage."""
    draw = np.random.default_rng(seed)
    num_stages = int(draw.integers(1, 5))
    num_layers = int(draw.integers(num_stages, 9))
    costs = draw.uniform(0.1, 2.0, (num_stages, num_layers))

    def costliest(layers: tuple[int, ...]) -> float:
        ends = np.cumsum((0, *layers))
        return float(max(costs[stage, ends[stage] : ends[stage + 1]].sum() for stage in range(num_stages)))

    every = [
        tuple(np.diff((0, *cuts, num_layers))) for cuts in combinations(range(1, num_layers), num_stages - 1)
    ]  # fmt: skip
    found = balanced_partition(costs)
    assert sum(found) == num_layers
    assert min(found) >= 1
    assert costliest(found) == pytest.approx(min(map(costliest, every)))


def test_even_partition_puts_more_layers_first() -> None:
    """Stages differ by one layer at most."""
    assert even_partition(11, 4) == (3, 3, 3, 2)
