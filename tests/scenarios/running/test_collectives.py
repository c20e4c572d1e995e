"""What ``--collectives`` takes, and what it refuses."""

import json
from pathlib import Path

import pytest

from costmodels.collectives.catalogue import STEP_LISTS
from scenarios.cli import main
from scenarios.errors import ScenarioError
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.executing.collectives import chosen_algorithms, kinds_of
from scenarios.workloads.steps.running import plan_of
from sim.plan.words.program import Plan

ROOT = Path(__file__).parents[3]
TINY = ROOT / "scenarios" / "library" / "tiny-gpt-2x2.yaml"


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Return a plan with all_reduce, all_gather and reduce_scatter."""
    return plan_of(load_scenario(TINY, ["parallel.tensor.sequence_parallel=true"]))


def test_native_is_none_and_explicit_the_first_of_each_kind(plan: Plan) -> None:
    """Only kinds by which ranks communicate are listed."""
    assert kinds_of(plan) == ("all_reduce", "all_gather", "reduce_scatter")
    assert chosen_algorithms("native", plan) is None
    assert chosen_algorithms("explicit", plan) == dict.fromkeys(kinds_of(plan), "ring")
    one = ["parallel.tensor.degree=1", "parallel.pipeline.degree=1", "cluster.devices_per_node=1"]
    alone = plan_of(load_scenario(TINY, one))
    assert chosen_algorithms("explicit", alone) == {}


def test_one_algorithm_for_all_kinds_or_one_per_kind(plan: Plan) -> None:
    """A named one counts for every kind; with kinds named, the others keep their first."""
    assert chosen_algorithms("explicit:direct", plan) == dict.fromkeys(kinds_of(plan), "direct")
    chosen = chosen_algorithms("explicit:all_reduce=tree,all_gather=bruck", plan)
    assert chosen == {"all_reduce": "tree", "all_gather": "bruck", "reduce_scatter": "ring"}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("stepwise", "is no way to run collectives;\n    write native, explicit"),
        ("explicit:", "is no way to run collectives"),
        ("native:ring", "is no way to run collectives"),
        ("explicit:rign", "no collective has a step list by 'rign';\n    did you mean ring"),
        ("explicit:tree", "the plan has all_gather, which has no step list by 'tree';\n    write explicit:all_g"),
        ("explicit:allreduce=ring", "there is no collective 'allreduce';\n    did you mean all_reduce"),
        ("explicit:all_to_all=bruck", "has no all_to_all;\n    leave it out; the plan's collectives: all_reduce"),
        ("explicit:all_reduce=ring,tree", "'tree' names no kind and algorithm"),
        ("explicit:all_reduce=in_switch", "has no step list by 'in_switch'"),
    ],
)  # fmt: skip
def test_other_words_are_refused(plan: Plan, text: str, rule: str) -> None:
    """Nothing falls back in silence: the option, the rule and the remedy are named."""
    with pytest.raises(ScenarioError) as caught:
        chosen_algorithms(text, plan)
    assert str(caught.value).startswith(f"--collectives {text}: ")
    assert rule in str(caught.value)


def test_documentation_lists_every_algorithm() -> None:
    """Each row of the table has the algorithms of its collective, in order."""
    lines = (ROOT / "docs" / "execution.md").read_text(encoding="utf-8").splitlines()
    for kind, algorithms in STEP_LISTS.items():
        row = next(line for line in lines if line.startswith("|") and f"`{kind}`" in line.split("|")[1])
        assert row.split("|")[2].strip() == ", ".join(f"`{name}`" for name in algorithms)


def test_tiny_gpt_passes_its_check_with_explicit_collectives(capsys: pytest.CaptureFixture[str]) -> None:
    """``execute --check`` of the tiny scenario, all_reduce by trees: same numbers, ops, bytes and memory."""
    with pytest.raises(SystemExit) as caught:
        main(["execute", str(TINY), "--check", "--json", "--collectives", "explicit:tree"])
    summary = json.loads(capsys.readouterr().out)
    assert caught.value.code in {0, None}
    assert summary["collectives"] == {"all_reduce": "tree"}
    verdicts = [summary[key] for key in ("check_passed", "same_work", "same_peak_memory", "passed")]
    assert all(verdicts), summary
    assert float(summary["max_relative_error"]) < 1e-9
