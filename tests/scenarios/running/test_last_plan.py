"""Several steps that share prices and compiled parts: each takes to the last bit as long as it does by itself."""

from itertools import permutations

from backends.simulated import repriced
from scenarios.library.shipped import FOLDER
from scenarios.workloads.loading import load_step
from scenarios.workloads.steps.last_plan import LastPlan
from scenarios.workloads.steps.running import run_step

DEGREES = (
    ("parallel.tensor.degree=2", "parallel.data.degree=1"),
    ("parallel.tensor.degree=4", "parallel.pipeline.degree=1", "parallel.data.degree=1"),
    ("parallel.tensor.degree=2", "parallel.pipeline.degree=1", "parallel.data.degree=2"),
)


def test_two_groups_of_two_ranks_are_not_taken_for_one_of_four() -> None:
    """Whatever the degrees of the step before, routes and times are those of the step's own groups."""
    steps = [load_step(FOLDER / "tiny-gpt-2x2.yaml", settings).decided() for settings in DEGREES]
    alone_s = [run_step(step).iteration_time_s for step in steps]
    for first, second in permutations(range(len(steps)), 2):
        last = LastPlan()
        for number in (first, second):
            step = steps[number]
            assert repriced(last.simulation(step), last.pricing(step)).iteration_time_s == alone_s[number]
