"""meshtwin from Python: the commands as functions, with results as objects that notebooks show.

    from scenarios import api

    step = api.simulate("quickstart", ["parallel.tensor.degree=4"])
    step.summary.iteration_time_s            # seconds; every answer of summary.json, typed
    step.timeline.groupby("kind").busy_s     # a pandas DataFrame, a row per op or task
    api.sweep("quickstart", {"parallel.tensor.degree": [2, 4, 8]}).table

A scenario is a path, the name of one that comes with the program, or what ``load`` returned. Bad input raises
``ScenarioError``: its text names file, line, key, rule and remedy. docs/python.md lists all functions and results.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from matplotlib.figure import Figure
from msgspec import Meta
from msgspec.structs import asdict

from backends.execution.errors import ExecutionError
from scenarios.arguments import origin_of, path_of, refuse_wrong, refuse_wrong_fields
from scenarios.comparing.comparison import Compared, compared
from scenarios.comparing.comparison import run as compare_files
from scenarios.errors import Origin, ScenarioError
from scenarios.library.shipped import found
from scenarios.planning.files import write_plan
from scenarios.planning.page import plan_blocks
from scenarios.planning.request import Request as PlanRequest
from scenarios.planning.resources import Resources
from scenarios.planning.search import Found, search
from scenarios.report.pages.side_by_side import difference_blocks
from scenarios.report.pictures.pipeline_figure import pipeline_figure
from scenarios.report.rendering.brief import brief_text
from scenarios.report.rendering.notebook import notebook_html
from scenarios.results.folder import refuse_unwritable
from scenarios.results.result import Result
from scenarios.summaries.as_json import as_json
from scenarios.summaries.comparing.comparison import ComparisonSummary
from scenarios.summaries.measured.execution import ExecutionSummary
from scenarios.summaries.measured.validation import Validation
from scenarios.summaries.planning import PlanSummary
from scenarios.summaries.steps.advice import AdviceLevel
from scenarios.summaries.sweep import RefusedPoint, SweepSummary
from scenarios.sweep.page import sweep_blocks
from scenarios.sweep.run import Sweep, prepare, run
from scenarios.sweep.settings import read_settings
from scenarios.sweep.workers import available_cores, local_workers
from scenarios.validation import published
from scenarios.workloads.executing import ExecutionOptions
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.executing.execution import ExecutedStep
from scenarios.workloads.steps.executing.execution import run as execute_step
from scenarios.workloads.steps.scenario import step_of
from scenarios.workloads.workload import Detail, Outcome, Scenario, Summary, refuse_without_plan, with_changes
from sim.planner.space import SCHEDULES
from traces.errors import TraceError
from traces.frame import frame_of
from traces.timeline import Timeline

__all__ = [
    "Difference",
    "ExecutionError",
    "ExecutionOptions",
    "PlanRequest",
    "Planned",
    "Ran",
    "Scenario",
    "ScenarioError",
    "Simulated",
    "Swept",
    "Validation",
    "compare",
    "execute",
    "load",
    "plan",
    "simulate",
    "sweep",
    "validate",
]

Source = Scenario | Path | str
Count = Annotated[int, Meta(ge=1)]


@dataclass(frozen=True)
class Simulated:
    """A simulated scenario. The last line of a notebook's cell shows it as its page does."""

    scenario: Scenario
    outcome: Outcome

    @property
    def summary(self) -> Summary:
        """Return the answers: a frozen dataclass, in SI units that its fields' names end in."""
        return self.outcome.summary

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """Return a row per op or task: rank, stream, name, kind, start and end in seconds, bytes, FLOP.

        Every micro-batch has its rows; ``timeline.parquet`` holds what repeats once. Raises ValueError for a kind of
        work that has no timeline.
        """
        return frame_of(_timeline(self.outcome))

    def figure(self, *, max_ranks: int = 8) -> Figure:
        """Return a picture of the timeline as a matplotlib figure: a line per rank, numbers are micro-batches."""
        refuse_wrong("max_ranks", max_ranks, Count)
        return pipeline_figure(_timeline(self.outcome), title=self.scenario.name, max_ranks=max_ranks)

    def as_json(self) -> dict[str, Any]:
        """Return the answers as summary.json holds them."""
        return self.outcome.as_json()

    def write(self, out: Path | str) -> None:
        """Write the files of ``simulate --out``: summary.json, report.html, timeline.parquet, timeline.json.gz."""
        self.outcome.write(_writable(out))

    def __repr__(self) -> str:
        return brief_text("Simulated", self.outcome.blocks(drawn=False))

    def _repr_html_(self) -> str:
        return notebook_html(self.outcome.blocks())


@dataclass(frozen=True)
class Swept:
    """A finished sweep."""

    sweep: Sweep

    @cached_property
    def table(self) -> pd.DataFrame:
        """Return a row per point, the best first: the keys that were set, then the results."""
        return pd.DataFrame([{**point.set, **as_json(point.results)} for point in self.summary.points])

    @property
    def summary(self) -> SweepSummary[Any]:
        """Return the answers: a frozen dataclass, its fields as in sweep.json."""
        return self.sweep.summary

    @property
    def refused(self) -> Sequence[RefusedPoint]:
        """Return the points that no scenario allows, each with its reason."""
        return self.summary.refused

    def as_json(self) -> dict[str, Any]:
        """Return the answers as sweep.json holds them."""
        return self.sweep.as_json()

    def __repr__(self) -> str:
        return brief_text("Swept", sweep_blocks(self.sweep.summary))

    def _repr_html_(self) -> str:
        return notebook_html(sweep_blocks(self.sweep.summary, self.sweep.pictures))


@dataclass(frozen=True)
class Planned:
    """A finished search of strategies."""

    found: Found

    @property
    def summary(self) -> PlanSummary:
        """Return the answers: a frozen record, its fields as in plan.json."""
        return self.found.summary

    @cached_property
    def table(self) -> pd.DataFrame:
        """Return a row per simulated plan, the best first: the searched keys, then times, memory, dollars, joules."""
        return pd.DataFrame([{**plan.set, **_without_set(as_json(plan))} for plan in self.summary.plans])

    @property
    def best(self) -> Sequence[str]:
        """Return the best plan as overrides of the scenario, for the functions of this module."""
        return [f"{key}={json.dumps(value)}" for key, value in self.summary.plans[0].set.items()]

    def as_json(self) -> dict[str, Any]:
        """Return the answers as plan.json holds them."""
        return self.found.as_json()

    def write(self, out: Path | str) -> None:
        """Write the files of ``plan --out``: plan.json, best.yaml, report.html."""
        write_plan(self.found, _writable(out))

    def __repr__(self) -> str:
        return brief_text("Planned", plan_blocks(self.summary))

    def _repr_html_(self) -> str:
        return notebook_html(plan_blocks(self.summary))


@dataclass(frozen=True)
class Ran:
    """A plan that ran on real devices, beside its simulation."""

    executed: ExecutedStep

    @property
    def summary(self) -> ExecutionSummary:
        """Return the answers: a frozen dataclass, its fields as in summary.json."""
        return self.executed.summary

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """Return a row per op: when it ran."""
        return frame_of(self.executed.timeline)

    @cached_property
    def simulated_timeline(self) -> pd.DataFrame:
        """Return a row per op: when it should have run."""
        return frame_of(self.executed.simulated)

    def as_json(self) -> dict[str, Any]:
        """Return the answers as summary.json holds them."""
        return self.executed.as_json()

    def compared(self) -> "Difference":
        """Return how prediction and reality differ."""
        sides = Result(self.executed.simulated), Result(self.executed.timeline)
        return Difference(compared(sides, ("simulated", "executed")))

    def figure(self, *, max_ranks: int = 8) -> Figure:
        """Return a picture of the executed timeline as a matplotlib figure."""
        refuse_wrong("max_ranks", max_ranks, Count)
        return pipeline_figure(self.executed.timeline, title=f"{self.executed.name}, executed", max_ranks=max_ranks)

    def write(self, out: Path | str) -> None:
        """Write the files of ``execute --out``."""
        self.executed.write(_writable(out))

    def __repr__(self) -> str:
        return brief_text("Ran", self.executed.blocks())

    def _repr_html_(self) -> str:
        return notebook_html(self.executed.blocks())


@dataclass(frozen=True)
class Difference:
    """How two timelines differ, op by op."""

    found: Compared

    @property
    def summary(self) -> ComparisonSummary:
        """Return the answers: a frozen dataclass, its fields as in comparison.json."""
        return self.found.summary

    @cached_property
    def ops(self) -> pd.DataFrame:
        """Return the ops that explain most of the difference, in seconds of the mean rank."""
        summary = self.found.summary
        return pd.DataFrame([asdict(row) for row in (*summary.rows, summary.others, summary.idle)])

    def as_json(self) -> dict[str, Any]:
        """Return the answers as comparison.json holds them."""
        return self.found.as_json()

    def __repr__(self) -> str:
        return brief_text("Difference", difference_blocks(self.found.summary))

    def _repr_html_(self) -> str:
        return notebook_html(self.found.blocks())


def load(source: Source, overrides: Sequence[str] = ()) -> Scenario:
    """Return a scenario with ``key=value`` overrides put in: ``load("quickstart", ["seed=3"])``."""
    _refuse_overrides(overrides)
    if isinstance(source, Scenario):
        return with_changes(source, overrides) if overrides else source
    return load_scenario(found(path_of("source", source)), overrides)


def simulate(
    source: Source, overrides: Sequence[str] = (), *, detail: Detail | None = None, fold: bool = True,
    advice: AdviceLevel | None = None,
) -> Simulated:  # fmt: skip
    """Return the simulation of a scenario: ``simulate("quickstart").summary.mfu``.

    ``detail``: a row of the timeline per op or per task of every micro-batch; None for what suits its size, and in the
    files of ``write`` what repeats once. ``fold``: simulate ranks that cannot differ once. ``advice``: ``"quick"`` or
    ``"full"`` also looks for the change that helps most; it is in ``summary.advice``.
    """
    refuse_wrong("detail", detail, Detail | None)
    refuse_wrong("fold", fold, bool)
    refuse_wrong("advice", advice, AdviceLevel | None)
    scenario = load(source, overrides)
    refuse_without_plan(scenario.workload, f"detail={detail!r}" if detail else "", "" if fold else "fold=False")
    outcome = scenario.workload.simulate(scenario, detail=detail, fold=fold)
    return Simulated(scenario, outcome if advice is None else scenario.workload.advised(outcome, advice))


def sweep(
    source: Path | str, values: Mapping[str, Sequence[Any]], *, jobs: int | None = None, pictures: bool = False
) -> Swept:
    """Return every combination of keys' values, simulated: ``sweep("quickstart", {"training.recompute": ["none"]})``.

    ``jobs``: processes that simulate; None: one for each core. ``pictures``: of the points' pipelines.
    """
    refuse_wrong("jobs", jobs, Count | None)
    texts = [f"{key}={','.join(texts)}" for key, texts in _texts_of(values).items()]
    job = prepare(found(path_of("source", source)), read_settings(texts))
    num_jobs = available_cores() if jobs is None else jobs
    return Swept(run(job, local_workers, num_jobs, with_pictures=pictures, tick=lambda: None))


def plan(
    source: Path | str, overrides: Sequence[str] = (), request: PlanRequest | None = None, *, jobs: int | None = None
) -> Planned:
    """Return the best strategies of a scenario: ``plan("my.yaml", request=PlanRequest(num_proofs=2)).table``.

    Keys that are left out, or ``auto``, are searched. ``jobs``: processes that simulate; None: one for each core.
    """
    _refuse_overrides(overrides)
    refuse_wrong("jobs", jobs, Count | None)
    asked = PlanRequest() if request is None else request
    refuse_wrong_fields("request", asked, PlanRequest, "PlanRequest")
    if not asked.schedules or set(asked.schedules) - set(SCHEDULES):
        rule, remedy = "these are no schedules that are searched", f"name some of {', '.join(SCHEDULES)}"
        raise ScenarioError(origin_of("schedules", asked.schedules), "request.schedules", rule, remedy)
    path, num_jobs = found(path_of("source", source)), available_cores() if jobs is None else jobs
    with local_workers(num_jobs) as workers:
        return Planned(search(path, overrides, asked, Resources(workers)))


def execute(source: Source, overrides: Sequence[str] = (), options: ExecutionOptions | None = None) -> Ran | None:
    """Return the execution of a scenario's plan with torch: ``execute("tiny-gpt-2x2").compared()``.

    None in a process that is not rank 0 of a running job. Raises ExecutionError where a rank fails.
    """
    chosen = ExecutionOptions() if options is None else options
    refuse_wrong_fields("options", chosen, ExecutionOptions, "ExecutionOptions")
    executed = execute_step(step_of(load(source, overrides)), chosen)
    return None if executed is None else Ran(executed)


def compare(first: Path | str, second: Path | str) -> Difference:
    """Return how two results on disk differ: folders of ``--out``, timeline.parquet, or profiles of torch.profiler."""
    with _recorded():
        return Difference(compare_files(path_of("first", first), path_of("second", second)))


def validate(*tables: Path | str, data: Path | str | None = None) -> Validation:
    """Return published measurements beside their predictions; no table named: all that come with meshtwin.

    ``data``: a CSV with other rows for the one table that is named.
    """
    paths = tuple(path_of("table", table) for table in tables)
    with _recorded():
        return published.run(paths, None if data is None else path_of("data", data))


def _refuse_overrides(overrides: Sequence[str]) -> None:
    """Raise ScenarioError for one text in the place of a list of texts, whose letters would be taken for overrides."""
    if isinstance(overrides, str):
        rule, remedy = "overrides are a list of texts, not one text", f"write [{overrides!r}]"
        raise ScenarioError(Origin(option=overrides[:200]), "", rule, remedy)
    refuse_wrong("overrides", overrides, Sequence[str])


def _texts_of(values: Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
    """Return the values of a sweep as JSON. Raises ScenarioError for anything but a list of plain values per key."""
    if not isinstance(values, Mapping):
        rule, remedy = "values are a mapping from keys to lists", 'give {"parallel.tensor.degree": [2, 4]}'
        raise ScenarioError(origin_of("values", values), "values", rule, remedy)
    found = {}
    for key, row in values.items():
        if isinstance(row, str) or not isinstance(row, Iterable):
            rule, remedy = "the values of a key are a list", f"give {{{key!r}: [{row!r}]}}"
            raise ScenarioError(origin_of(f"values[{key!r}]", row), str(key), rule, remedy)
        try:
            found[key] = [json.dumps(value) for value in row]
        except (TypeError, ValueError) as error:
            remedy = "give texts, numbers, True, False, lists and dicts; .tolist() of an array"
            raise ScenarioError(origin_of(f"values[{key!r}]", row), str(key), str(error), remedy) from error
    return found


def _writable(out: Path | str) -> Path:
    """Return the folder for results. Raises ScenarioError where nothing can be written."""
    folder = path_of("out", out)
    refuse_unwritable(folder, "out")
    return folder


@contextmanager
def _recorded() -> Iterator[None]:
    """Raise ScenarioError for a recorded file that cannot be used."""
    try:
        yield
    except TraceError as error:
        origin = Origin(file=error.file, line=error.line)
        raise ScenarioError(origin, error.key, error.rule, error.remedy) from error


def _without_set(plan: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in plan.items() if key != "set"}


def _timeline(outcome: Outcome) -> Timeline:
    if outcome.timeline is None:
        message = "this kind of work has no timeline"
        raise ValueError(message)
    return outcome.timeline
