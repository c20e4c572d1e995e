"""Searches that keep their simulations, and searches that end when their time is up."""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
from click.testing import CliRunner

from scenarios.command_line import group
from scenarios.errors import ScenarioError
from scenarios.planning.kept import KEPT_PROOFS, kept_proofs
from scenarios.planning.proof import prove
from scenarios.planning.request import Request
from scenarios.planning.resources import Resources
from scenarios.planning.search import search
from scenarios.summaries.planning import PlanSummary
from scenarios.sweep.workers import ThisProcess

P = ParamSpec("P")
T = TypeVar("T")

SMALL = """
name: small
seed: 0
cluster: {node: hgx-h100, num_nodes: 1}
model:
  {family: gpt, num_layers: 4, hidden_size: 1024, num_heads: 16, sequence_length: 512, vocab_size: 8192}
training: {global_batch_size: 16, recompute: none}
parallel: {tensor: {degree: 2}}
"""


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model on one node."""
    path = tmp_path_factory.mktemp("resumed") / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path


class Counting(ThisProcess):
    """This process; it counts strategies that it simulates, and ends with an error after ``most``."""

    def __init__(self, most: int = 1_000) -> None:
        self.most = most
        self.simulated = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call here."""
        if fn is not prove:
            return super().submit(fn, *args, **kwargs)
        if self.simulated == self.most:
            raise KeyboardInterrupt
        self.simulated += 1
        return super().submit(fn, *args, **kwargs)


def found(scenario: Path, workers: Counting, folder: Path) -> PlanSummary:
    """The search, with what the folder keeps."""
    with kept_proofs(folder) as kept:
        return search(scenario, [], Request(num_proofs=2), Resources(workers, kept)).summary


def test_a_search_that_was_cut_off_simulates_nothing_twice(scenario: Path, tmp_path: Path) -> None:
    """Cut off after two simulations, a search does the others; the answer is that of one run."""
    whole = Counting()
    answer = search(scenario, [], Request(num_proofs=2), Resources(whole)).summary
    with pytest.raises(KeyboardInterrupt):
        found(scenario, Counting(2), tmp_path)
    rest, none = Counting(), Counting()
    assert found(scenario, rest, tmp_path) == answer
    assert rest.simulated == whole.simulated - 2
    assert found(scenario, none, tmp_path) == answer
    assert none.simulated == 0


def test_a_search_ends_when_its_time_is_up(scenario: Path) -> None:
    """Without time only the first strategies are simulated, until one fits; all others are counted as lost."""
    workers, ticks = Counting(), list[int]()
    resources = Resources(workers, ends_at_s=0.0, tick=lambda: ticks.append(1))
    summary = search(scenario, [], Request(num_proofs=1), resources).summary
    assert workers.simulated == len(ticks) == len(summary.plans) == 1
    assert len(summary.plans) + sum(lost.number for lost in summary.lost) == summary.num_strategies
    assert any(lost.reason == "may fit and be better, but the time was up" for lost in summary.lost)


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "7",
        '{"key": "a"}',
        '{"key": "a", "proof": {"memory_bytes": "x"}}',
        '{"key": "a", "proof": {"memory_bytes": 1, "time_s": NaN}}',
        '{"key": "a", "proof": {"memory_bytes": 1, "interval_s": [1.0, Infinity]}}',
        '{"key": "a", "proof": {"memory_bytes": 1, "time_s": 0.0}}',
        '{"key": "a", "proof": {"memory_bytes": 0}}',
        '{"key": "a", "proof": {"memory_bytes": 1, "time_s": 1.0, "interval_s": [2.0, 1.0]}}',
        '{"key": "a", "proof": {"memory_bytes": 1, "tims": 1.0}}',
        '{"key": "a", "proof": {"memory_bytes": 1}, "refused": "x"}',
        "x" * 70_000,
    ],
)
def test_damaged_lines_are_refused(line: str, tmp_path: Path) -> None:
    """A line that is no simulation is an error with file and line, and so are those of another version."""
    with kept_proofs(tmp_path):
        pass
    path = tmp_path / KEPT_PROOFS
    head = path.read_text(encoding="utf-8")
    path.write_text(f"{head}{line}\n", encoding="utf-8")
    with (
        pytest.raises(ScenarioError, match=r"proofs\.jsonl:2: .* no line of a search's simulations"),
        kept_proofs(tmp_path),
    ):
        pass
    path.write_text(head.replace('"version": "', '"version": "9'), encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"proofs\.jsonl:1: .* another version"), kept_proofs(tmp_path):
        pass


@pytest.mark.parametrize(
    ("budget", "words"), [("60", "has no unit"), ("1 ms", "a search takes 1 s to"), ("soon", "soon")]
)
def test_wrong_budgets_are_refused(budget: str, words: str, scenario: Path) -> None:
    """A budget without a unit, or outside its limits, is exit code 2 with the option's name."""
    result = CliRunner().invoke(group, ["plan", str(scenario), "--budget", budget])
    assert result.exit_code == 2
    assert "--budget" in result.output
    assert words in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--planner megatron --proofs 9", "--proofs: megatron ends with the first strategy by its rules that fits"),
        ("--planner megatron --budget 9s", "--budget: megatron ends with the first strategy"),
        ("--planner megatron --schedules gpipe", "--schedules: megatron knows 1f1b and interleaved_1f1b alone"),
        ("--planner osdp --schedules gpipe", "--schedules: osdp has replicas alone, and no pipelines"),
        ("--planner osdp --proofs 9", "--proofs: osdp simulates all of its strategies"),
        ("--planner exhaustive --proofs 9", "--proofs: exhaustive simulates all strategies"),
        ("--planner osdp --sensitivity", "--sensitivity: the plans of osdp are not searched again"),
    ],
)
def test_options_that_a_planner_does_not_read_are_refused(options: str, words: str, scenario: Path) -> None:
    """With the reason, and before anything is simulated."""
    done = CliRunner().invoke(group, ["plan", str(scenario), "--jobs", "1", *options.split()])
    assert done.exit_code == 2
    assert words in done.output
    assert "leave it out, or --planner auto" in done.output
