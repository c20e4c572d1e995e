"""Step times of recommendation models from scenario files."""

import json
from pathlib import Path

import pytest

from scenarios.cli import main
from scenarios.errors import ScenarioError
from scenarios.workloads.executing import ExecutionOptions
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.recommendation.step_time import StepTimeSummary
from tests.scenarios.refusing import refuse

FILE = """\
name: clicks
workload: recommendation
tables:
  - {name: users, num_rows: 40000, zipf: 1.05}
  - {name: items, num_rows: 10000, num_lookups: 2, zipf: 1.2}
embedding_dim: 64
trace: {batch_size: 256, num_batches: 6, num_unmeasured: 6}
cache: {fraction: 0.02}
model: {name: dlrm, bottom: [64], hidden: [128, 64]}
cluster: {node: hgx-h100, num_nodes: 1, devices_per_node: 1}
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """Return a small scenario with a timed step."""
    path = tmp_path_factory.mktemp("clicks") / "clicks.yaml"
    path.write_text(FILE, encoding="utf-8")
    return path


def step_of(path: Path, *overrides: str) -> StepTimeSummary:
    """Return the answers of a timed step."""
    scenario = load_scenario(path, overrides)
    return scenario.workload.simulate(scenario).summary.step


def test_parts_of_a_step_add_up(path: Path) -> None:
    """Computing and waiting of the mean rank are its step; samples per second follow from it."""
    found = step_of(path)
    assert found.computing_s + sum(found.waiting_s.values()) == pytest.approx(found.iteration_time_s)
    assert sum(found.critical_path_s.values()) == pytest.approx(found.iteration_time_s)
    assert found.samples_per_s == pytest.approx(256 / found.iteration_time_s)
    assert {"h2d", "d2h"} <= set(found.waiting_s)
    assert found.fits_memory
    assert found.host_memory_bytes == pytest.approx(50_000 * 64 * 4, rel=0.05)


def test_rows_on_the_device_cost_no_copies(path: Path) -> None:
    """With all rows on the device only ids are copied, and the step is the fastest; a slow host makes it slower."""
    cached, whole = step_of(path), step_of(path, "cache.fraction=1")
    assert whole.iteration_time_s < cached.iteration_time_s
    assert (whole.hit_rate, whole.host_memory_bytes) == (1.0, pytest.approx(8 * 256 * 3, abs=1024))
    assert whole.peak_memory_bytes > cached.peak_memory_bytes
    slow = step_of(path, "cache.host_bandwidth=10 MB/s")
    moved = load_scenario(path, ()).workload.simulate(load_scenario(path, ())).run
    rows = int((moved.rows_in + moved.rows_out)[cached.batch])
    assert slow.iteration_time_s - cached.iteration_time_s == pytest.approx(rows * 256 / 10e6, rel=0.05)


def test_fetching_first_lets_both_copies_run_at_once(path: Path) -> None:
    """Missing rows need not wait until rows that give way are on the host."""
    evicted, fetched = (step_of(path, f"cache.order={order}") for order in ("evict_first", "fetch_first"))
    assert fetched.iteration_time_s < evicted.iteration_time_s


@pytest.mark.parametrize("name", ["dlrm", "wide_deep", "deepfm", "dcn"])
@pytest.mark.parametrize("sharding", ["table", "row"])
def test_models_are_timed_on_several_devices(path: Path, name: str, sharding: str) -> None:
    """Two devices exchange sums of rows and add up dense gradients: over a slow network the step is slower."""
    settings = f"model={{name: {name}, hidden: [128, 64]}}", "cluster.devices_per_node=2", f"sharding={sharding}"
    fast, slow = step_of(path, *settings), step_of(path, *settings, "cluster.network={bandwidth: 0.01x, latency: 100x}")
    assert fast.num_ranks == 2
    assert slow.iteration_time_s > fast.iteration_time_s


def test_page_and_terminal_show_the_step(path: Path, tmp_path: Path, capsys) -> None:
    """The time, what it waits for, and the timeline of its ops."""
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as caught:
        main([str(path), "--out", str(out)])
    assert caught.value.code == 0
    assert "copies from the host" in capsys.readouterr().out
    found = json.loads((out / "summary.json").read_text(encoding="utf-8"))["step"]
    assert found["iteration_time_s"] > 0
    assert (out / "timeline.json.gz").exists()
    assert "Timeline of the step" in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("parameter_server={workers: 2}", "each has one of its own"),
        ("parameter_server={workers: 1, servers: 2}", "2 servers on 1 nodes"),
        ("model={name: dcn, bottom: [4]}", "bottom belongs to dlrm"),
        ("cluster.devices_per_node=3", "has no equal parts for 3 devices"),
        ("cluster.devices_per_node=4", "2 tables do not give each of 4 devices one"),
        ("sharding=diagonal", "sharding"),
        ("trace.batch_size=4096", "write 0.0"),
    ],
)
def test_steps_that_cannot_be_are_refused(path: Path, tmp_path: Path, capsys, override: str, words: str) -> None:
    """Keys that do not go together, and batches or tables that do not go on the devices."""
    assert words in refuse(capsys, tmp_path, str(path), "--set", override)


@pytest.mark.parametrize(
    ("key", "words"), [("cluster", "the time of a step needs a machine"), ("model", "without a model no step is timed")]
)
def test_a_step_needs_a_model_and_a_machine(path: Path, tmp_path: Path, capsys, key: str, words: str) -> None:
    """Neither is of use alone."""
    lines = [line for line in FILE.splitlines(keepends=True) if not line.startswith(f"{key}:")]
    (tmp_path / "half.yaml").write_text("".join(lines), encoding="utf-8")
    assert words in refuse(capsys, tmp_path, str(tmp_path / "half.yaml"))


def test_weights_beside_vectors_have_no_columns(path: Path, tmp_path: Path, capsys) -> None:
    """A row of DeepFM cannot be cut by column."""
    settings = ["model={name: deepfm}", "sharding=column", "cluster.devices_per_node=2"]
    words = refuse(capsys, tmp_path, str(path), *(word for one in settings for word in ("--set", one)))
    assert "which has no columns" in words


def test_steps_are_executed_as_simulated_and_checked(path: Path, tmp_path: Path) -> None:
    """Two ranks run steps on consecutive batches: rows that stay cached and rows that move end as plain torch says."""
    settings = ("cluster.node=local-cpu", "cluster.devices_per_node=2", "sharding=row", "trace.batch_size=32")
    arguments = ["execute", str(path), "--check", "--steps", "3", "--out", str(tmp_path)]
    arguments += [word for setting in settings for word in ("--set", setting)]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    found = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert ended.value.code == 0
    assert found["same_work"]
    assert found["same_peak_memory"]
    assert len(found["iteration_times_s"]) == 2
    assert found["checked_tensors"] > 20
    assert found["check_passed"]


def test_more_steps_than_batches_are_refused(path: Path, tmp_path: Path, capsys) -> None:
    """Steps are on the scenario's batches, of which there are twelve."""
    assert "12 batches" in refuse(capsys, tmp_path, "execute", str(path), "--steps", "13")


def test_steps_of_workers_with_servers_are_timed(path: Path, tmp_path: Path, capsys) -> None:
    """On a slow network a cache makes the step shorter; the page has its parts; processes of this machine have none."""
    settings = [
        *("parameter_server={workers: 2, servers: 1}", "cluster={node: hgx-h100, num_nodes: 2, devices_per_node: 1}"),
        *("cluster.network={bandwidth: 0.01x}", "cache={fraction: 0.2, policy: lfu}"),
    ]
    out, options = tmp_path / "out", [each for one in settings for each in ("--set", one)]
    with pytest.raises(SystemExit) as caught:
        main([str(path), "--out", str(out), *options])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert "without a cache, and layers on the servers" in printed
    assert printed.splitlines()[1].startswith("time per step")
    times = json.loads((out / "summary.json").read_text(encoding="utf-8"))["parameter_server"]["times"]
    assert times["step_s"] < times["uncached_step_s"]
    assert times["pull_s"] + times["local_s"] + times["push_s"] <= times["step_s"] * (1 + 1e-9)
    scenario = load_scenario(path, settings)
    with pytest.raises(ScenarioError, match="leave model and cluster out"):
        scenario.workload.execute(scenario, ExecutionOptions())
    assert "without a model" in refuse(
        capsys, tmp_path, str(path), *options, "--set", "model=null", "--set", "cluster=null"
    )


def test_a_slow_device_slows_all_workers_whose_gradients_are_summed(path: Path) -> None:
    """All workers' dense gradients are summed in every step, so each step takes as long as the slowest worker's."""
    cluster = "cluster={node: hgx-h100, num_nodes: 2, devices_per_node: 1, stragglers: [{device: 8, slowdown: 20}]}"
    steps = []
    for overrides in ((), (cluster,)):
        settings = ("cluster={node: hgx-h100, num_nodes: 2, devices_per_node: 1}", *overrides)
        scenario = load_scenario(path, (*settings, "parameter_server={workers: 2}"))
        steps.append(scenario.workload.simulate(scenario).summary.parameter_server.times)
    even, uneven = steps
    slowest_s = 20 * even.local_s
    assert uneven.local_s == pytest.approx((even.local_s + slowest_s) / 2)
    assert slowest_s < uneven.step_s < slowest_s + even.step_s
