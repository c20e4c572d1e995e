"""Advice on random scenarios is never false: 24 small ones here, others by hand (MESHTWIN_LAW_SEEDS=1000-1399)."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from scenarios.errors import ScenarioError
from scenarios.summaries.steps.advice import AdviceSummary, TriedChange
from scenarios.workloads.steps.advising.advise import advise
from scenarios.workloads.steps.cost import CostModel
from scenarios.workloads.steps.running import SimulatedStep, plan_of, simulate
from scenarios.workloads.steps.scenario import StepScenario
from scenarios.workloads.workload import with_changes
from tests.laws.random_scenarios import random_scenario

SEEDS = os.environ.get("MESHTWIN_LAW_SEEDS", "0-23")
_CLIMBED: Final = 15
"""One in so many seeds is changed as advised until nothing tried helps."""
_MOST_CHANGES: Final = 12
_DRAWS: Final = 3
"""Random scenarios, of one schedule, of which the cheapest is taken."""

KEYS: Final = {
    "training.microbatch_size": (1, 2, 4),
    "training.recompute": ("none", "selective", "full"),
    "parallel.tensor.sequence_parallel": ("true",),
    "parallel.tensor.collective_matmul": ("true",),
    "parallel.tensor.overlap_backward": ("true",),
    "parallel.pipeline.schedule": ("1f1b", "gpipe", "zb_h1", "zb_h2", "zb_auto"),
    "parallel.pipeline.scatter_gather": ("true",),
    "parallel.data.zero_stage": (0, 1, 2, 3),
    "parallel.data.overlap_gradient_sync": ("true",),
    "parallel.data.overlap_parameter_gather": ("true",),
    "parallel.context.method": ("p2p", "all_gather"),
}
"""Single keys with values that advice should know, written down here a second time."""
DEGREES: Final = ("tensor", "context", "pipeline")


def seeds() -> range:
    """Return the seeds to try: the first and the last of the environment's variable."""
    first, _, last = SEEDS.partition("-")
    return range(int(first), int(last or first) + 1)


def small_step(seed: int, folder: Path) -> SimulatedStep:
    """Return the cheapest of a few random scenarios of a seed, simulated."""
    drawn = [random_scenario(seed + 24_000 * draw, folder)[1] for draw in range(_DRAWS)]
    return simulate(min(drawn, key=_predicted_s))


def _predicted_s(scenario: StepScenario) -> float:
    """Return about how long a scenario takes to simulate, in seconds."""
    model, plan = CostModel(ranks_per_program=1.0, uneven=False), plan_of(scenario)
    return model.building_s(plan) + model.simulating_s(plan, scenario.pipeline.schedule)


def single_keys(scenario: StepScenario) -> Iterator[tuple[str, ...]]:
    """Yield the single keys that advice should know, and half and twice of each degree."""
    for key, values in KEYS.items():
        yield from ((f"{key}={value}",) for value in values)
    parallel = scenario.document.data["parallel"]
    for axis in DEGREES:
        degree = parallel.get(axis, {}).get("degree", 1)
        for other in {max(1, degree // 2), 2 * degree} if isinstance(degree, int) else ():
            yield (f"parallel.{axis}.degree={other}", "parallel.data.degree=auto")


def changed(scenario: StepScenario, overrides: tuple[str, ...]) -> SimulatedStep | None:
    """Return the changed scenario, read and simulated anew; None where it is refused."""
    try:
        return simulate(with_changes(scenario, overrides))
    except ScenarioError:
        return None


def check_change(found: SimulatedStep, change: TriedChange) -> None:
    """Fail unless the change fits as it is said to, and has the time and the gain that are named."""
    after = changed(found.scenario, change.set)
    assert after is not None
    assert after.summary.fits_memory == change.fits_memory
    assert after.summary.algorithm == found.summary.algorithm
    assert after.scenario.num_samples == found.scenario.num_samples
    if change.iteration_time_s is None or change.gain is None:
        assert change.fits_memory is False
        return
    tolerance = 0.05 if change.estimated else 0.01
    assert after.summary.iteration_time_s == pytest.approx(change.iteration_time_s, rel=tolerance)
    gain = found.summary.iteration_time_s / after.summary.iteration_time_s - 1.0
    assert change.gain == pytest.approx(gain, abs=tolerance * (1.0 + gain))


def check_causes(found: SimulatedStep, advice: AdviceSummary) -> None:
    """Fail unless each cause that is named costs something."""
    for cause in advice.causes:
        assert 0.01 <= cause.fraction < 1.0
        gone_s = found.summary.iteration_time_s - cause.iteration_time_s
        assert cause.fraction == pytest.approx(gone_s / found.summary.iteration_time_s)


def advised(found: SimulatedStep) -> AdviceSummary:
    """Return quick advice, or full advice where the quick one left changes untried."""
    advice = advise(found, "quick")
    return advise(found, "full") if advice.not_tried else advice


@pytest.mark.parametrize("seed", seeds())
def test_no_advice_is_false(tmp_path: Path, seed: int) -> None:
    """The best change and the slowest one that was tried, or one that does not fit, are what they are said to be."""
    found = small_step(seed, tmp_path)
    advice = advised(found)
    assert advice.not_tried == ()
    check_causes(found, advice)
    for change in {change.set: change for change in (advice.best, *advice.tried[-1:]) if change}.values():
        check_change(found, change)
    gains = [change.gain for change in advice.tried if change.gain is not None and change.fits_memory is not False]
    if found.summary.fits_memory and advice.best is None:
        assert max(gains, default=0.0) < 0.01
    elif found.summary.fits_memory:
        assert advice.best is not None
        assert advice.best.gain == max(gains)


@pytest.mark.parametrize("seed", seeds()[::_CLIMBED])
def test_nothing_helps_where_advice_says_so(tmp_path: Path, seed: int) -> None:
    """Changed as advised until nothing tried helps, no single key that advice knows adds more than 2 %."""
    found = small_step(seed, tmp_path)
    advice = advised(found)
    for _ in range(_MOST_CHANGES):
        if advice.best is None:
            break
        after = changed(found.scenario, advice.best.set)
        assert after is not None
        found, advice = after, advised(after)
    assert advice.best is None
    for overrides in single_keys(found.scenario):
        after = changed(found.scenario, overrides)
        if after is None or not after.summary.fits_memory or after.summary.algorithm != found.summary.algorithm:
            continue
        assert found.summary.iteration_time_s / after.summary.iteration_time_s - 1.0 <= 0.02, overrides
