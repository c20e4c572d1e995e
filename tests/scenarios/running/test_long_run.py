"""The ``reliability`` section of a scenario: the published run, what is printed and written, what is refused."""

import json
from pathlib import Path

import pytest
from scipy.stats import poisson

from scenarios.cli import main
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import SimulatedStep, simulate

ROOT = Path(__file__).parents[3]
LLAMA = ROOT / "scenarios" / "library" / "llama3-405b-54-days.yaml"

SMALL = """\
name: small
cluster: {node: dgx-a100-80g, num_nodes: 1, devices_per_node: 2}
model: {family: gpt, num_layers: 2, hidden_size: 1024, num_heads: 8, sequence_length: 512, vocab_size: 1024}
training: {global_batch_size: 8, microbatch_size: 2}
parallel: {data: {degree: auto}}
reliability:
  duration: 2 days
  mtbf_per_device: 20 h
  mtbf_of_job: 30 h
  checkpoint: {interval: 30 min, save: 20 s}
  restart: 5 min
  replications: 5
"""


@pytest.fixture(scope="module")
def llama() -> SimulatedStep:
    """Return the simulated 54 days."""
    return simulate(load_scenario(LLAMA))


def test_llama_3_is_interrupted_as_often_as_reported(llama: SimulatedStep) -> None:
    """419 interruptions in 54 days (arXiv 2407.21783, table 5) go in as an MTBF and come out as a count."""
    reliability = llama.as_json()["reliability"]
    assert reliability["mtbf_s"] == pytest.approx(54 * 86400 / 419, rel=1e-4)
    low, high = poisson(419).ppf([0.05, 0.95])
    assert low <= reliability["interruptions"]["mean"] <= high
    spread = (reliability["interruptions"]["low"], reliability["interruptions"]["high"])
    assert spread == pytest.approx((low, high), rel=0.03)
    assert reliability["expected"]["interruptions"] == pytest.approx(419, rel=1e-4)


def test_llama_3_trains_for_more_than_90_percent_of_the_time(llama: SimulatedStep) -> None:
    """Section 3.3.4 reports more than 90 % effective training time; so says the scenario with its assumptions."""
    reliability = llama.as_json()["reliability"]
    assert 0.9 < reliability["goodput"]["low"] < reliability["goodput"]["mean"] < 0.97
    assert reliability["goodput"]["mean"] == pytest.approx(reliability["expected"]["goodput"], abs=0.002)


@pytest.mark.parametrize(("restart", "save", "most"), [
    ("5 min", "20 s", 0.95), ("10 min", "10 s", 0.95), ("1 min", "2.8 s", 0.98),
])  # fmt: skip
def test_llama_3s_result_does_not_hang_on_one_assumption(restart: str, save: str, most: float) -> None:
    """With twice the assumed restart or twice the assumed save, expected goodput still exceeds 90 %; also of shorter
    steps."""
    overrides = [f"reliability.restart={restart}", f"reliability.checkpoint.save={save}", "reliability.replications=2"]
    overrides += ["training.global_batch_size=512"]
    expected = simulate(load_scenario(LLAMA, overrides)).as_json()["reliability"]["expected"]
    assert 0.9 < expected["goodput"] < most


def test_stated_values_reach_the_simulation(write) -> None:
    """Days, parts, stall and steps of the file are those of the run."""
    path = write(SMALL, ("save: 20 s", "save: 20 s, stall: 2 s"))
    scenario = load_scenario(path)
    assert scenario.reliability is not None
    assert scenario.reliability.duration_s == 2 * 86400
    reliability = simulate(scenario).as_json()["reliability"]
    assert reliability["mtbf_s"] == pytest.approx(3600 / (2 / 20 + 1 / 30))
    assert (reliability["stall_s"], reliability["background_s"]) == (2.0, 18.0)
    assert set(reliability["interruptions_by_part"]) == {"device", "job"}
    assert reliability["elapsed_s"] == {"mean": 172800.0, "low": 172800.0, "high": 172800.0}
    assert reliability["interval_s"] == pytest.approx(1800, rel=0.01)


def test_steps_take_the_simulated_step_time(write) -> None:
    """A job of so many steps takes their simulated time and more, and does all of them."""
    summary = simulate(load_scenario(write(SMALL, ("duration: 2 days", "steps: 1000000")))).as_json()
    reliability = summary["reliability"]
    assert reliability["steps"]["low"] == pytest.approx(1e6)
    assert reliability["time_s"]["useful"]["mean"] == pytest.approx(1e6 * summary["iteration_time_s"])
    assert reliability["elapsed_s"]["mean"] > 1e6 * summary["iteration_time_s"]


def test_spare_nodes_can_be_few(write) -> None:
    """With a node that is long in repair the job waits, and there is no closed form."""
    path = write(SMALL + "  spares: {num_nodes: 0, repair: 12 h}\n")
    reliability = simulate(load_scenario(path)).as_json()["reliability"]
    assert reliability["expected"] is None
    assert reliability["time_s"]["waiting"]["mean"] > 3600


def test_nothing_is_added_without_the_section(write) -> None:
    """A scenario that asks for a step gets a step."""
    path = write(SMALL[: SMALL.index("reliability:")])
    assert "reliability" not in simulate(load_scenario(path)).as_json()


def test_long_run_is_printed(write, capsys: pytest.CaptureFixture[str]) -> None:
    """The console shows goodput, interruptions, where the time goes and the interval, in words and units."""
    with pytest.raises(SystemExit) as caught:
        main([str(write(SMALL, ("interval: 30 min", "interval: auto")))])
    assert caught.value.code == 0
    words = capsys.readouterr().out
    for part in ("the long run", "goodput", "interruptions", "restarting", "Young", "Daly", "in closed form"):
        assert part in words
    assert "2 d" in words


@pytest.mark.parametrize("spares", ["", "  spares: {num_nodes: 0, repair: 12 h}\n"])
def test_report_shows_the_long_run(write, tmp_path: Path, spares: str) -> None:
    """The page has a card, a table and a chart of the long run; the curve only where there is a closed form."""
    result = simulate(load_scenario(write(SMALL + spares)))
    result.write(tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Goodput of the long run" in page
    assert "<h2>The long run</h2>" in page
    charts = json.loads(page.split("const charts = ", 1)[1].split(";\n", 1)[0])
    names = [trace["name"] for trace in charts["long-run"]["data"]]
    assert names == (["simulated"] if spares else ["closed form", "simulated"])
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["reliability"] == result.as_json()["reliability"]


def test_curve_peaks_at_the_best_interval(llama: SimulatedStep, tmp_path: Path) -> None:
    """The highest point of the chart's curve is the interval that ``auto`` chose, within a point's distance."""
    llama.write(tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    curve, simulated = json.loads(page.split("const charts = ", 1)[1].split(";\n", 1)[0])["long-run"]["data"]
    peak = max(range(len(curve["y"])), key=curve["y"].__getitem__)
    assert curve["x"][peak] == pytest.approx(simulated["x"][0], rel=0.04)
    assert curve["y"][peak] == pytest.approx(simulated["y"][0], abs=0.2)


def test_two_runs_are_the_same(write) -> None:
    """The reliability object of two runs is equal to the last digit, a sweep has its goodput; another seed gives
    another."""
    path = write(SMALL)
    found = simulate(load_scenario(path))
    assert found.row().goodput == found.as_json()["reliability"]["goodput"]["mean"]
    first, second = (simulate(load_scenario(path)).as_json()["reliability"] for _ in range(2))
    assert json.dumps(first) == json.dumps(second)
    assert simulate(load_scenario(path, ["seed=1"])).as_json()["reliability"] != first


BAD = [
    # old, new, line, key, rule, remedy
    ("restart: 5 min", "restart: 5", 11, "restart", "5 has no unit", "min, h, d"),
    ("restart: 5 min", "restrt: 5 min", 11, "restrt", "unknown key", "did you mean restart?"),
    ("save: 20 s", "saves: 20 s", 10, "checkpoint.saves", "unknown key", "did you mean save?"),
    ("interval: 30 min", "interval: soon", 10, "checkpoint.interval", "'soon'", "or write auto"),
    ("save: 20 s", "save: 20 s, stall: 30 s", 10, "checkpoint.stall", "stands still for 30 s", "at most 20 s"),
    ("interval: 30 min, save: 20 s", "interval: 30 s, save: 2 min, stall: 1 s", 10, "checkpoint.interval",
     "begins before the one before it is saved", "at least 119 s, or auto"),
    ("replications: 5", "replications: 1", 12, "replications", "at least 2", "at least 2"),
    ("duration: 2 days", "duration: 2 days\n  steps: 5", 8, "steps", "both stated", "one of"),
    ("  duration: 2 days\n", "", 6, "reliability", "neither duration nor steps", "one of"),
    ("  mtbf_per_device: 20 h\n  mtbf_of_job: 30 h\n", "", 6, "reliability", "nothing that could fail", "mtbf_per"),
    ("mtbf_of_job: 30 h", "mtbf_of_job: 1e-3 s", 12, "replications", "are expected per run",
     "a larger MTBF, or less work"),
    ("save: 20 s", "over_steps: 0", 10, "checkpoint.over_steps", "a number of steps lies between 1 and", "or auto"),
    ("save: 20 s", "over_steps: soon", 10, "checkpoint.over_steps", "is a whole number or auto, not 'soon'", "or auto"),
    ("replications: 5", "spares: {num_nodes: 4}", 12, "spares.repair", "required and missing", "add repair: to"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "line", "key", "rule", "remedy"), BAD)
def test_bad_reliability_is_refused(
    write, tmp_path: Path, capsys, old: str, new: str, line: int, key: str, rule: str, remedy: str
) -> None:
    """Each broken rule is reported with file, line, key, rule and remedy, exit code 2, and nothing is written."""
    path = write(SMALL, (old, new))
    with pytest.raises(SystemExit) as caught:
        main([str(path), "--out", str(tmp_path / "out")])
    message = capsys.readouterr().err.replace("\n   ", "")
    name = key if key == "reliability" else f"reliability.{key}"
    assert caught.value.code == 2
    assert f"{path}:{line}: {name}: " in message
    assert rule in message
    assert remedy in message
    assert not (tmp_path / "out").exists()


DRIVES = "drives: {capacity: 1 TB, bandwidth: 2 GB/s}"


def test_a_save_is_simulated_beside_steps(write) -> None:
    """Its cost is the snapshot and what steps lose to the writing; a slower drive has it written beside more steps."""
    found = []
    for rate in ("2 GB/s", "0.5 GB/s"):
        path = write(SMALL, ("save: 20 s", f"over_steps: auto, {DRIVES}".replace("2 GB/s", rate)))
        summary = simulate(load_scenario(path)).as_json()
        saving, study = summary["reliability"]["saving"], summary["reliability"]
        slower_s = saving["step_s"] - summary["iteration_time_s"]
        assert study["stall_s"] == pytest.approx(saving["snapshot_s"] + saving["over_steps"] * slower_s)
        assert study["background_s"] == pytest.approx(saving["over_steps"] * summary["iteration_time_s"])
        assert saving["node_bytes"] == pytest.approx(14 * summary["resolved"]["num_parameters"], rel=1e-6)
        found.append(saving)
    assert found[1]["writing_alone_s"] == pytest.approx(4 * found[0]["writing_alone_s"], rel=0.01)
    assert found[1]["over_steps"] > found[0]["over_steps"]


@pytest.mark.parametrize(
    ("checkpoint", "words"),
    [
        ("save: 20 s, over_steps: 3", "save states how long a save takes"),
        ("interval: 1 h", "nothing says how long a save takes"),
        ("over_steps: 3", "no drives are stated"),
        (f"over_steps: 3, stall: 1 s, {DRIVES}", "the simulation says how long training stands still"),
        ("over_steps: auto, drives: {capacity: 500 MB, bandwidth: 2 GB/s}", "two checkpoints of a node take"),
    ],
)
def test_saves_that_cannot_be_simulated_are_refused(write, capsys, checkpoint: str, words: str) -> None:
    """The message has the key and the rule; the exit code is 2."""
    path = write(SMALL, ("checkpoint: {interval: 30 min, save: 20 s}", f"checkpoint: {{{checkpoint}}}"))
    with pytest.raises(SystemExit) as caught:
        main([str(path)])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err
