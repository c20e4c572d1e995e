"""Sweeps over random scenarios: points that share a plan have the results of points that are simulated alone."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from scenarios.sweep.point import measure
from scenarios.sweep.run import MOST_TOGETHER, parts_of
from scenarios.sweep.settings import Point
from scenarios.workloads.steps import last_plan
from scenarios.workloads.steps.scenario import StepScenario
from sim.engine.running import simulate as engine
from sim.plan.words.program import Plan
from tests.examples import examples
from tests.laws.random_scenarios import load, random_scenario, with_keys

PRICES: Final = (
    {"software__launch": "20 us"}, {"software__launch": None}, {"software__product_slowdown": 1.5},
    {"software__rank_skew": "30 us"}, {"cluster__stragglers": [{"device": 0, "slowdown": 1.7}]},
    {"cluster__stragglers": None}, {"network__algorithm": {"all_reduce": "ring"}},
)  # fmt: skip
"""Keys that change what ops take, and no plan."""


STEADY: Final = [
    {
        "name": "steady", "cluster": {"node": "hgx-h100", "num_nodes": 1, "devices_per_node": 2},
        "model": {"family": "gpt", "num_layers": 2, "hidden_size": 64, "num_heads": 4, "sequence_length": 32,
                  "vocab_size": 64},
        "training": {"global_batch_size": batch, "microbatch_size": 1, "precision": "bf16"},
        "parallel": {"pipeline": {"degree": 2}},
    }
    for batch in (64, 96, 200)
]  # fmt: skip


def points_of(seed: int, folder: Path) -> list[StepScenario]:
    """Return random points of a random scenario: under several prices, some of them of another job."""
    data, _ = random_scenario(seed, folder)
    random = Random(seed)
    other = with_keys(data, training__global_batch_size=2 * data["training"]["global_batch_size"])
    changes = [with_keys(random.choice((data, data, other)), **random.choice(PRICES)) for _ in range(3)]
    return [load(change, folder) for change in changes]


@pytest.mark.parametrize("seed", range(3, 3 + examples(2)))
def test_points_together_are_points_alone(seed: int, tmp_path: Path) -> None:
    """Whatever a plan was simulated under before, a row is to the last bit what the point has by itself."""
    scenarios = points_of(seed, tmp_path)
    assert measure(scenarios, False) == [found for one in scenarios for found in measure([one], False)]


def test_a_plan_is_prepared_once_for_several_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four points with two jobs, one after the other, two plans are checked and compiled."""
    prepared: list[Plan] = []
    whole: Callable[..., Any] = last_plan.simulation_of
    monkeypatch.setattr(
        last_plan, "simulation_of", lambda plan, like: (prepared.append(plan), whole(plan, like=like))[1]
    )
    data, _ = random_scenario(0, tmp_path)
    other = with_keys(data, training__global_batch_size=2 * data["training"]["global_batch_size"])
    slower = {"software__product_slowdown": 1.5}
    measure([load(with_keys(d, **more), tmp_path) for d in (data, other) for more in ({}, slower)], False)
    assert len(prepared) == 2


def test_another_batch_is_not_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that repeat themselves have the same short forms for all batches: they are compiled once."""
    made: list[Plan] = []
    whole: Callable[..., Any] = engine.compiled
    monkeypatch.setattr(
        engine, "compiled", lambda plan, *args, **keys: (made.append(plan), whole(plan, *args, **keys))[1]
    )
    alone = measure([load(STEADY[0], tmp_path)], False)
    forms = len(made)
    alone += [found for one in STEADY[1:] for found in measure([load(one, tmp_path)], False)]
    assert len(made) == 3 * forms
    assert measure([load(one, tmp_path) for one in STEADY], False) == alone
    assert len(made) == 3 * forms + forms


def test_points_of_one_job_go_to_one_worker(tmp_path: Path) -> None:
    """Parts hold points of one job, no more than a worker's share, and none is lost; of a batch they are in a row."""
    data, _ = random_scenario(0, tmp_path)
    jobs = [with_keys(data, seed=seed) for seed in range(3)]
    scenarios = [load(with_keys(job, software__launch=f"{n} us"), tmp_path) for n in range(4) for job in jobs]
    points = [(Point(index, (), {}), scenario) for index, scenario in enumerate(scenarios)]
    for num_jobs, longest in ((1, 4), (2, 4), (4, 2), (12, 1), (99, 1)):
        parts = parts_of(points, num_jobs)
        assert sorted(point.index for part in parts for point, _ in part) == list(range(12))
        assert {len({point.index % 3 for point, _ in part}) for part in parts} == {1}
        assert max(map(len, parts)) == longest <= MOST_TOGETHER
    batches = [Point(index, (), {}) for index in range(4)]
    [part] = parts_of(list(zip(batches, [load(one, tmp_path) for one in (STEADY[0], STEADY[1]) * 2], strict=True)), 1)
    assert [point.index % 2 for point, _ in part] in ([0, 0, 1, 1], [1, 1, 0, 0])
