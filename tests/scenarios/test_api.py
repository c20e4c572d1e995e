"""meshtwin from Python: the same numbers as the command line, as objects."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from costmodels.units import format_time
from scenarios import api
from scenarios.errors import ScenarioError
from scenarios.summaries.steps.step import StepSummary
from scenarios.workloads.steps.executing.execution import ExecutedStep
from tests.scenarios.typed_results import execution_of
from traces.timeline import TimelineBuilder

ANY: Any = api
"""The module as a program without types calls it."""


@pytest.fixture(scope="module")
def step() -> api.Simulated:
    """Return the simulated tiny scenario."""
    return api.simulate("tiny-gpt-2x2", ["seed=3"])


def test_answers_are_typed_and_those_of_the_json(step: api.Simulated) -> None:
    """Every key of summary.json is a field; values are equal."""
    assert isinstance(step.summary, StepSummary)
    found = step.as_json()
    assert set(found) <= set(StepSummary.__struct_fields__)
    assert json.loads(json.dumps(found))["iteration_time_s"] == step.summary.iteration_time_s
    assert step.scenario.seed == 3


def test_timeline_is_a_table(step: api.Simulated) -> None:
    """A row per op, as long as the timeline; the last one ends with the step; no negative number stands for nothing."""
    frame = step.timeline
    assert len(frame) == len(step.outcome.timeline)
    assert frame.end_s.max() - frame.start_s.min() == pytest.approx(step.summary.iteration_time_s)
    assert (frame.duration_s >= 0).all()
    assert frame.microbatch.dropna().min() == 0
    assert {"compute", "all_reduce", "send", "recv"} <= set(frame.kind.cat.categories)


def test_notebooks_show_the_page_and_pictures_are_figures(step: api.Simulated, tmp_path) -> None:
    """The display is HTML without scripts; a figure can be saved; files are those of ``--out``."""
    shown = step._repr_html_()
    assert "Where the time goes" in shown
    assert "<script" not in shown
    assert "Drag to zoom" not in shown
    step.figure().savefig(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5_000
    step.write(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8")) == step.as_json()
    assert "Drag to zoom" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_results_print_in_three_lines(step: api.Simulated, tmp_path) -> None:
    """A prompt shows what a result is, the time of a step and the memory, and no columns of a timeline."""
    title, time, memory = repr(step).splitlines()
    assert title == "Simulated: Tiny GPT on 4 processes, 4 ranks"
    assert time.startswith(f"  step time: {format_time(step.summary.iteration_time_s)} (90 %: ")
    assert memory.startswith("  memory: ")
    assert memory.endswith(": fits, 2.00 GiB to spare")
    swept = api.sweep("textbook-1f1b", {"training.num_microbatches": [4, 8]}, jobs=1)
    assert repr(swept).splitlines()[0] == "Swept: 1F1B of the textbook, 4 stages, 8 micro-batches"
    assert format_time(swept.table.iteration_time_s[0]) in repr(swept)
    step.write(tmp_path / "a")
    same = api.compare(tmp_path / "a", tmp_path / "a")
    assert repr(same).startswith("Difference\n  step time: 131")
    assert all(len(repr(result)) < 300 for result in (step, swept, same))


def test_an_execution_is_shown_and_printed() -> None:
    """Step time, memory and work of an execution stand in a notebook and at a prompt."""
    timeline = TimelineBuilder().build()
    executed = ExecutedStep(name="a", summary=execution_of(iteration_time_s=2.5), simulated=timeline, timeline=timeline)
    ran = api.Ran(executed)
    title, time, memory = repr(ran).splitlines()
    assert title.startswith("Ran: ")
    assert title.endswith("run with torch")
    assert "2.5 s" in time
    assert memory.startswith("  memory: ")
    assert "2.5 s" in ran._repr_html_()


def test_a_loaded_scenario_takes_further_overrides() -> None:
    """``load`` returns what ``simulate`` takes; overrides add up; advice is found when asked for."""
    scenario = api.load("textbook-1f1b", ["training.num_microbatches=4"])
    short, long = api.simulate(scenario), api.simulate(scenario, ["training.num_microbatches=8"], advice="quick")
    assert short.summary.makespan_s < long.summary.makespan_s
    assert short.summary.advice is None
    assert long.summary.advice is not None
    with pytest.raises(ScenarioError, match="a list of texts, not one text"):
        api.load("textbook-1f1b", "seed=3")
    with pytest.raises(ScenarioError, match="did you mean"):
        api.simulate(scenario, ["parallel.pipelin.degree=2"])


@pytest.mark.parametrize(
    ("call", "names", "says"),
    [
        (lambda: ANY.load(3), "source=3: source", "expected `str` or `Path`, got `int`"),
        (lambda: ANY.load("quickstart", [1]), "overrides=[1]: overrides", "a list, each item a text"),
        (lambda: ANY.simulate("quickstart", detail="rank"), "detail='rank': detail", "one of 'op', 'task', or None"),
        (lambda: ANY.simulate("quickstart", fold="no"), "fold='no': fold", "give True or False"),
        (lambda: ANY.simulate("quickstart", advice="much"), "advice='much': advice", "one of 'quick', 'full'"),
        (lambda: ANY.simulate("jobs/tiresias-32-gpus", detail="op"), "detail='op'", "no ranks with a plan"),
        (lambda: ANY.sweep("quickstart", ["seed=1"]), "values", "from keys to lists"),
        (lambda: ANY.sweep("quickstart", {"seed": 1}), "values['seed']=1: seed", "give {'seed': [1]}"),
        (lambda: ANY.sweep("quickstart", {"training.precision": "bf16"}), "training.precision", "['bf16']"),
        (lambda: ANY.sweep("quickstart", {"seed": [object()]}), "values['seed']", "give texts, numbers"),
        (lambda: ANY.sweep("quickstart", {"seed": [1]}, jobs=0), "jobs=0: jobs", "a whole number from 1, or None"),
        (lambda: ANY.plan("quickstart", request={"goal": "time"}), "request", "give PlanRequest(...)"),
        (lambda: ANY.plan("quickstart", request=ANY.PlanRequest(goal="speed")), "request.goal", "'throughput'"),
        (lambda: ANY.plan("quickstart", request=ANY.PlanRequest(num_nodes=4)), "request.num_nodes=4", "a list"),
        (lambda: ANY.plan("quickstart", request=ANY.PlanRequest(num_proofs=0)), "num_proofs=0", "from 1 to 1000"),
        (lambda: ANY.plan("quickstart", request=ANY.PlanRequest(schedules=())), "schedules", "1f1b"),
        (lambda: ANY.execute("quickstart", options=ANY.ExecutionOptions(device="tpu")), "device", "'cpu', 'cuda'"),
        (lambda: ANY.execute("quickstart", options=ANY.ExecutionOptions(steps=1)), "steps=1", "from 2 to 1000"),
        (lambda: ANY.execute("quickstart", options=ANY.ExecutionOptions(record_routing="a.csv")), "a.csv", "Path"),
        (lambda: ANY.compare(1, 2), "first=1: first", "give the path as a text"),
        (lambda: ANY.compare("nowhere", "nowhere"), "nowhere", "there is no such file or folder"),
        (lambda: ANY.validate("nowhere.yaml"), "nowhere.yaml", "there is no such file"),
    ],
)  # fmt: skip
def test_an_argument_that_is_not_of_its_type_is_refused(call: Callable[[], object], names: str, says: str) -> None:
    """As the command line refuses a wrong option: a misspelt choice does not count as another one."""
    with pytest.raises(ScenarioError) as caught:
        call()
    assert names in str(caught.value)
    assert says in str(caught.value)


def test_results_are_written_to_folders_and_drawn_with_ranks(step: api.Simulated, tmp_path) -> None:
    """A file in a folder's place, or a picture of no rank, is refused with its argument."""
    (tmp_path / "a").write_text("")
    with pytest.raises(ScenarioError, match="is a file, not a directory"):
        step.write(tmp_path / "a")
    with pytest.raises(ScenarioError, match="max_ranks=0: max_ranks"):
        step.figure(max_ranks=0)


def test_a_sweep_is_a_table() -> None:
    """A row per point, the fastest first; what no scenario allows is told apart."""
    swept = api.sweep("textbook-1f1b", {"parallel.pipeline.schedule": ["gpipe", "1f1b", "interleaved_1f1b"]}, jobs=1)
    assert list(swept.table.iteration_time_s) == sorted(swept.table.iteration_time_s)
    assert set(swept.table["parallel.pipeline.schedule"]) == {"gpipe", "1f1b"}
    assert len(swept.refused) == 1
    assert "All points" in swept._repr_html_()


def test_two_results_compare(step: api.Simulated, tmp_path) -> None:
    """Folders that were written compare op by op; what explains the difference adds up to all of it."""
    step.write(tmp_path / "a")
    api.simulate("tiny-gpt-2x2", ["training.recompute=full"]).write(tmp_path / "b")
    difference = api.compare(tmp_path / "a", tmp_path / "b")
    assert difference.summary.makespan_error < 0
    assert difference.ops.share_fraction.sum() == pytest.approx(1.0)
    shown = difference._repr_html_()
    assert "op by op" in shown
    assert not re.search("<script|<button|Point at", shown)
