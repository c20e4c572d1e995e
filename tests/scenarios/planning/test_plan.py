import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from scenarios.cli import group
from scenarios.errors import ScenarioError
from scenarios.planning.openings import openings_of
from scenarios.planning.pricing import Priced
from scenarios.planning.search import Request, search
from scenarios.planning.studied import Studied, refusals, studied_of
from scenarios.reading.documents.yaml_tree import read_document
from scenarios.sweep.workers import ThisProcess
from scenarios.workloads.loading import load_step
from scenarios.workloads.steps.running import plan_of, run_plan
from sim.engine.running.memory import memory_use
from sim.planner.estimating import Prices, probe_keys

SCENARIO = """
name: small
seed: 0
cluster: {node: hgx-h100, num_nodes: 1}
model: {family: gpt, num_layers: 8, hidden_size: 2048, num_heads: 16, vocab_size: 32000, sequence_length: 1024}
training: {global_batch_size: 32}
"""


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scenario that leaves the whole strategy open."""
    path = tmp_path_factory.mktemp("plan") / "small.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def studied(scenario: Path) -> Studied:
    """The estimates of all its strategies."""
    return studied_of(openings_of(read_document(scenario)))


def test_estimates_are_near_the_engine(studied: Studied) -> None:
    """Over random strategies the median error is within 5 % in time and memory, the 90th percentile within 15 %."""
    rows = np.random.default_rng(3).permutation(len(studied.grid))[:24]
    time_errors, memory_errors = [], []
    for row in rows.tolist():
        scenario = studied.openings.scenario(studied.grid.strategy(row))
        plan = plan_of(scenario)
        peak = max(memory_use(program).peak_bytes for program in plan.programs)
        time_errors.append(abs(studied.estimates.time_s[row] / run_plan(scenario, plan).iteration_time_s - 1))
        memory_errors.append(abs(studied.estimates.memory_bytes[row] / peak - 1))
    for errors in (time_errors, memory_errors):
        assert np.median(errors) < 0.05, errors
        assert np.quantile(errors, 0.9) < 0.15, errors


def test_refused_strategies_are_counted_under_their_own_rules(studied: Studied) -> None:
    """Where probes are refused by different rules, each rule counts the strategies of its own probes."""
    tensor = {key: key[0] for key in probe_keys(studied.grid)[0]}
    rules = {key: f"rule of {degree}" for key, degree in tensor.items() if degree > 2}
    found = refusals(studied.grid, Priced(Prices({}, {}, 8, 2), rules))
    assert found == {f"refused: rule of {degree}": (studied.grid.tensor == degree).sum() for degree in (4, 8)}


def test_search_finds_the_optimum_of_all_simulations(scenario: Path) -> None:
    """On a space that can be simulated whole, the estimates' choice is the engine's, within 2 %."""
    fixed = ["parallel.tensor.degree=2", "training.microbatch_size=2", "training.recompute=none"]
    fixed += ["parallel.pipeline.schedule=1f1b"]
    auto = search(scenario, fixed, Request(), ThisProcess()).summary
    whole = search(scenario, fixed, Request(planner="exhaustive"), ThisProcess()).summary
    assert auto.plans[0].iteration_time_s <= 1.02 * whole.plans[0].iteration_time_s
    assert len(whole.plans) + sum(lost.number for lost in whole.lost) == whole.num_strategies > len(auto.plans)
    assert len(auto.plans) + sum(lost.number for lost in auto.lost) == auto.num_strategies


def test_best_plan_is_a_scenario_that_takes_the_stated_time(scenario: Path, tmp_path: Path) -> None:
    """``--out`` writes a scenario of the best plan, which keeps fixed keys; files are the same on every run."""
    texts = []
    for folder in ("first", "second"):
        command = ["plan", str(scenario), "--proofs", "1", "--jobs", "1", "--out", str(tmp_path / folder), "--json"]
        command += ["--set", "parallel.pipeline.degree=2", "--set", "parallel.data.zero_stage=auto"]
        result = CliRunner().invoke(group, command)
        assert result.exit_code == 0, result.output
        texts.append({path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()})
    assert texts[0] == texts[1]
    assert set(texts[0]) == {"plan.json", "best.yaml", "report.html"}
    summary = json.loads(texts[0]["plan.json"])
    assert summary["schema"] == "meshtwin.plan/1"
    assert yaml.safe_load(texts[0]["best.yaml"])["parallel"]["pipeline"]["degree"] == 2
    assert "parallel.pipeline.degree" not in summary["searched"]
    best = load_step(tmp_path / "first" / "best.yaml")
    assert run_plan(best, plan_of(best)).iteration_time_s == summary["plans"][0]["iteration_time_s"]
    times = [plan["iteration_time_s"] for plan in summary["plans"]]
    assert times == sorted(times)
    front = [plan["peak_memory_bytes"] for plan in summary["plans"] if plan["on_front"]]
    assert front == sorted(front, reverse=True)


def test_nothing_fits_says_what_would(scenario: Path) -> None:
    """Where nothing fits, the error has the leanest strategy's memory and the change under which one fits."""
    large = ["model.hidden_size=16384", "model.num_heads=128"]
    whole = [*large, "parallel.tensor.degree=1", "parallel.pipeline.degree=1", "parallel.data.zero_stage=0"]
    with pytest.raises(
        ScenarioError, match=r"the leanest of \d+ needs [\d.]+ GiB per rank.*\n.*leave out parallel.ten"
    ):
        search(scenario, whole, Request(), ThisProcess())


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("parallel.pipeline.schedule=zb_h1", "a search estimates 1f1b and interleaved_1f1b"),
        ("parallel.tensor.degree=3", "degrees have to multiply to 8 devices"),
        ("parallel.data.bucket=1 MiB", "a search of strategies does not know it"),
        ("training.global_batch_size=0", "global_batch_size"),
    ],
)
def test_what_cannot_be_searched_is_refused(scenario: Path, override: str, words: str) -> None:
    """Keys that estimates do not know, and mistakes in the file, are errors with the key and a remedy."""
    with pytest.raises(ScenarioError, match=words):
        search(scenario, [override], Request(), ThisProcess())


def test_scenario_of_another_kind_is_refused() -> None:
    """A textbook schedule has stated times and no strategy to price."""
    result = CliRunner().invoke(group, ["plan", "textbook-1f1b"])
    assert result.exit_code == 2
    assert "a scenario of textbook has no strategy to search" in result.output
