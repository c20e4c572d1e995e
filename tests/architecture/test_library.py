"""Every scenario that comes with meshtwin runs, and its answer is possible."""

import math
from pathlib import Path

import pytest

from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import simulate

FOLDER = Path(__file__).parents[2] / "scenarios" / "library"
EVERY = sorted([*FOLDER.glob("*.yaml"), *FOLDER.glob("papers/*.yaml")])
TABLES = [path for path in EVERY if "workload: recommendation" in path.read_text(encoding="utf-8")]
LIBRARY = [path for path in EVERY if path not in TABLES]
SMALLER = {
    "compare-schedules": ("training.global_batch_size=16",),
    "deepseek-v3-2048-h800": ("training.global_batch_size=4096", "model.num_layers=32"),
    "fold3d-530b-2520-a100": ("training.global_batch_size=315",),
    "gpt-1t-3072": ("training.global_batch_size=192",),
    "llama3-405b-54-days": ("training.global_batch_size=512",),
    "terapipe-gpt3-13b": (
        "model.sequence_length=512",
        "training.global_batch_size=8",
        "parallel.pipeline.slice_granularity=32",
    ),
}
"""Scenarios of much time, with fewer micro-batches or layers, or shorter sequences: they run the same code."""

TOO_LARGE = {"deepseek-v3-2048-h800"}
"""Scenarios that say themselves that they do not fit: what the run did about it is not built."""

FEWER = (
    "tables=[{name: C3, num_rows: 101312}, {name: C9, num_rows: 3}]",
    "trace={batch_size: 1024, num_batches: 2, num_unmeasured: 8}",
)
"""Tables of a hundredth of the rows."""


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: path.stem)
def test_library_scenario_runs(path: Path) -> None:
    """It simulates; fractions are fractions; busy and waiting time make up the step; it fits its machine."""
    summary = simulate(load_scenario(path, SMALLER.get(path.stem, ()))).as_json()
    step_s = summary["iteration_time_s"]
    assert step_s > 0
    assert 0 <= summary["bubble_fraction"] + summary["exposed_communication_fraction"] < 1
    for role in summary["roles"]:
        assert math.isclose(role["busy_s"]["compute"] + sum(role["exposed_s"].values()), step_s, rel_tol=1e-9)
    assert sum(role["num_ranks"] for role in summary["roles"]) == summary["world_size"]
    if summary["mfu"] is not None:
        assert 0 < summary["mfu"] <= summary["hfu"] * (1 + 1e-12)  # equal where nothing is computed again
        assert summary["hfu"] < 1
        assert summary["fits_memory"] == (path.stem not in TOO_LARGE)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_library_tables_run(path: Path) -> None:
    """A cache of embedding rows: its step waits for copies or servers, and finds fewer rows than the best."""
    assert len(load_scenario(path).tables) == 26
    scenario = load_scenario(path, FEWER)
    found = scenario.workload.simulate(scenario).summary
    assert 0 < found.hit_rate < found.static_hit_rate < 1
    if found.step is None:
        times = found.parameter_server.times
        assert 0 < times.pull_s + times.local_s + times.push_s <= times.step_s * (1 + 1e-9)
        assert times.step_s < times.uncached_step_s < times.uncached_servers_step_s
        return
    assert found.step.fits_memory
    spent_s = found.step.computing_s + sum(found.step.waiting_s.values())
    assert math.isclose(spent_s, found.step.iteration_time_s, rel_tol=1e-9)
