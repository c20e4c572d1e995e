"""simulate validate --here: sets of plans, the ranking, and the loop closed on this machine."""

import csv
import json
from pathlib import Path

import pytest
import scipy.stats
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from scenarios.command_line import group
from scenarios.errors import ScenarioError
from scenarios.here.plan_set import PACKAGED, read_plan_set
from scenarios.here.ranking import pick_of, ranking
from scenarios.here.this_machine import COLUMNS
from scenarios.reading.clusters.profile_file import read_profile
from scenarios.summaries.measured.here import PlanRow, Ranking
from scenarios.workloads.steps.running import plan_of
from sim.plan.checking.check import check

TIMES = st.lists(
    st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=2, max_size=12, unique_by=(lambda t: t[0],)
)

TINY = """
base:
  name: tiny
  cluster: {node: local-cpu, num_nodes: 1, devices_per_node: 2}
  model: {family: gpt, num_layers: 2, hidden_size: 32, num_heads: 2, sequence_length: 16, vocab_size: 64}
  training: {global_batch_size: 4, microbatch_size: 1, precision: fp32}
  parallel: {tensor: {degree: 1}, pipeline: {degree: 1}, data: {degree: 1}}
plans:
  replicas: {parallel.data.degree: 2}
  a pipeline: {parallel.pipeline.degree: 2}
thresholds: {mean: 1, worst: 1, ranking: 0}
"""


def run(*args: object) -> Result:
    """Run the command line."""
    return CliRunner().invoke(group, ["validate", "--here", *map(str, args)], catch_exceptions=False)


def written(folder: Path, text: str = TINY) -> Path:
    """Return the file of a set of plans."""
    path = folder / "plans.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def pairs_and_right(found: Ranking) -> tuple[int, int]:
    """Return how many pairs were compared, and how many are in the right order."""
    return found.pairs, found.right


@given(TIMES)
def test_ranking_of_all_pairs_is_kendalls_tau(times: list[tuple[float, float]]) -> None:
    """With every pair counted and no ties, right less wrong pairs over all of them are Kendall's tau (SciPy)."""
    measured, predicted = zip(*times, strict=True)
    found = ranking(measured, predicted, 0.0)
    assert found.pairs == len(times) * (len(times) - 1) // 2
    if len(set(predicted)) == len(predicted):
        tau = scipy.stats.kendalltau(measured, predicted).statistic
        assert (2 * found.right - found.pairs) / found.pairs == pytest.approx(tau)


@given(TIMES, st.floats(0, 2))
def test_ranking_leaves_out_near_pairs(times: list[tuple[float, float]], least: float) -> None:
    """Only pairs that differ by more count; a perfect prediction has all of them right, a reversed one none."""
    measured = [time for time, _ in times]
    far = sum(max(a, b) > (1 + least) * min(a, b) for i, a in enumerate(measured) for b in measured[:i])
    assert pairs_and_right(ranking(measured, measured, least)) == (far, far)
    assert pairs_and_right(ranking(measured, [-time for time in measured], least)) == (far, 0)


def row(plan: str, measured_s: float, predicted_s: float, width: float = 0.0) -> PlanRow:
    """Return a plan's row with an interval of a relative width to both sides."""
    low_s, high_s = predicted_s * (1 - width), predicted_s * (1 + width)
    return PlanRow(
        plan=plan, measured_s=measured_s, predicted_s=predicted_s, error=predicted_s / measured_s - 1, low_s=low_s,
        high_s=high_s, inside=low_s <= measured_s <= high_s, runs=1, spread=0.0,
    )  # fmt: skip


@given(TIMES)
def test_tau_without_intervals_is_kendalls(times: list[tuple[float, float]]) -> None:
    """Plans that are all told apart have SciPy's tau; the loss is that of the plan of least predicted time."""
    rows = [row(str(place), *pair) for place, pair in enumerate(times)]
    found, predicted = pick_of(rows), [pair[1] for pair in times]
    if len(set(predicted)) == len(predicted):
        assert found.tau == pytest.approx(scipy.stats.kendalltau(*zip(*times, strict=True)).statistic)
        assert found.pairs == len(times) * (len(times) - 1) // 2
        assert found.loss == pytest.approx(min(times, key=lambda t: t[1])[0] / min(t[0] for t in times) - 1)


def test_pairs_within_an_interval_do_not_count() -> None:
    """Of three plans two lie in each other's intervals: two pairs are left, of which one is in the wrong order."""
    found = pick_of([row("a", 1.0, 1.0, 0.1), row("b", 3.0, 1.05, 0.1), row("c", 2.0, 2.0, 0.1)])
    assert (found.pairs, found.tau, found.plan, found.fastest, found.loss) == (2, 0.0, "a", "a", 0.0)
    alike = pick_of([row("a", 1.5, 1.0, 0.5), row("b", 1.0, 1.2, 0.5)])
    assert (alike.pairs, alike.tau, alike.fastest, alike.loss) == (0, None, "b", 0.5)


def test_ranking_of_nothing_is_right() -> None:
    """Where no pair differs, nothing is in the wrong order; a pair that is predicted equal is."""
    assert ranking([1.0, 1.05], [2.0, 1.0]).fraction == 1.0
    assert pairs_and_right(ranking([1.0, 2.0], [1.0, 1.0])) == (1, 0)


def test_packaged_plans_are_many_and_valid() -> None:
    """At least twelve different plans come with the program, on two ranks, of every kind of parallelism."""
    plans = read_plan_set(PACKAGED)
    programs = {name: plan_of(scenario) for name, scenario in plans.scenarios.items()}
    for plan in programs.values():
        check(plan)
        assert plan.mesh.size == plans.num_ranks == 2
    assert len(programs) >= 12
    text = PACKAGED.read_text(encoding="utf-8")
    for word in (
        "zero_stage: 3",
        "sequence_parallel: true",
        "gpipe",
        "aiao",
        "zb_h1",
        "zb_v",
        "dualpipe_v",
        "terapipe",
    ):
        assert word in text


def test_loop_is_closed_in_seconds(tmp_path: Path) -> None:
    """Two tiny plans are run and predicted with a profile made meanwhile; summary, CSV and profile are written."""
    out = tmp_path / "out"
    result = run(written(tmp_path), "--budget", "5 s", "--out", out, "--json")
    assert result.exit_code in {0, 1}, result.output
    told = json.loads(result.stdout)
    assert result.exit_code == (0 if told["passed"] else 1)
    assert json.loads((out / "summary.json").read_text(encoding="utf-8")) == told
    assert [row["plan"] for row in told["plans"]] == ["replicas", "a pipeline"]
    for row in told["plans"]:
        assert 0 < row["measured_s"] < 10
        assert row["error"] == pytest.approx(row["predicted_s"] / row["measured_s"] - 1)
        assert row["low_s"] < row["predicted_s"] < row["high_s"]
        assert row["inside"] == (row["low_s"] <= row["measured_s"] <= row["high_s"])
        assert row["runs"] >= 1
    with (out / "plans.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert [float(row["measured_s"]) for row in rows] == [row["measured_s"] for row in told["plans"]]
    assert read_profile(out / "profile.yaml").measured is not None


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("thresholds:", "limits:", "thresholds: a set of plans needs a mapping here"),
        ("ranking: 0", "order: 0", "thresholds.ranking: thresholds are mean, worst, ranking"),
        ("worst: 1", "worst: 20", "thresholds.worst"),
        ("parallel.data.degree: 2", "parallel.data.degre: 2", "degre"),
        ("{parallel.pipeline.degree: 2}", "2", "a plan is a mapping of the keys"),
        ("{parallel.pipeline", "{cluster.node: dgx-2, parallel.pipeline", "its node is dgx-2"),
        ("parallel.data.degree: 2", "parallel.data.degree: 3", "replicas"),
    ],
)
def test_bad_sets_are_refused(old: str, new: str, problem: str, tmp_path: Path) -> None:
    """A set that is no set is refused with file and key, before anything runs."""
    with pytest.raises(ScenarioError) as refusal:
        read_plan_set(written(tmp_path, TINY.replace(old, new, 1)))
    assert problem in str(refusal.value)
    assert "plans.yaml" in str(refusal.value)


@pytest.mark.parametrize(
    "args",
    [["validate", "--here", "--markdown"], ["validate", "--here", "a", "b"], ["validate", "--budget", "5 s"]],
)
def test_options_of_one_way_are_refused_in_the_other(args: list[str]) -> None:
    """Tables and machines are validated in different ways; a word that belongs to the other one is not ignored."""
    result = CliRunner().invoke(group, args)
    assert result.exit_code == 2
    assert "--here" in result.output


def test_thresholds_are_the_stated_ones() -> None:
    """The packaged set passes with a mean of a tenth, a worst of a fifth, and nine of ten pairs in order."""
    stated = yaml.safe_load(PACKAGED.read_text(encoding="utf-8"))["thresholds"]
    assert stated == {"mean": 0.1, "worst": 0.2, "ranking": 0.9}
