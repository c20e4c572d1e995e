"""A kind of work: its keys, its simulation, and the report of its results.

Every kind is one folder beside this file and one entry of ``registry.KINDS``. Commands, pages, sweeps and the JSON
Schema use the classes below. No code outside a kind's folder asks for the kind of a scenario.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from scenarios.errors import Origin, ScenarioError
from scenarios.reading.documents.overrides import apply_overrides
from scenarios.reading.documents.yaml_tree import Document
from scenarios.reading.schema.values import ScenarioSection
from scenarios.report import blocks as report
from scenarios.report.charts import thumbnail
from scenarios.report.slots import shown_schedule
from scenarios.results.registry import load_writer
from scenarios.summaries import point_names, sweep
from scenarios.summaries.as_json import as_json
from scenarios.summaries.steps.advice import AdviceLevel
from scenarios.workloads import executing
from scenarios.workloads.effort import Announce
from scenarios.workloads.unread import Unread, refuse_unread
from sim.abstract import AbstractStruct
from traces import timeline as timelines

Detail = Literal["op", "task"]


class Scenario(AbstractStruct, frozen=True, kw_only=True, eq=False):
    """A whole, checked scenario, equal to itself alone; each kind of work adds fields of its own.

    ``document``: the origin of each key, for errors that only a simulation can find. ``as_read``: the file before
    ``overrides``; the file may be a pipe, which can be read only once.
    """

    name: str
    seed: int
    source: Path
    overrides: tuple[str, ...] = ()
    workload: "Workload[Any]"
    document: Document
    as_read: Document


S = TypeVar("S", bound=Scenario)


class Column(Struct, frozen=True):
    """A column of a sweep: its head, the field of its result, and a function from the result to words."""

    head: str
    key: str
    words: Callable[[Any], str]


class Swept(Struct, frozen=True):
    """The report of a sweep beside its table.

    ``best``: the point to take, in a line; ``explained``: the meaning of columns; ``warnings``: unusual points.
    """

    cards: "tuple[report.Card, ...]"
    best: str = ""
    sections: "tuple[report.Section, ...]" = ()
    explained: str = ""
    warnings: tuple[str, ...] = ()


class Summary(Protocol):
    """The answers of a simulation: a frozen dataclass. Fields are in SI units, named at the end of the field."""

    @property
    def schema(self) -> str:
        """Return name and version of its keys: ``meshtwin.summary/1``."""

    @property
    def scenario(self) -> str:
        """Return the scenario's name."""


class Outcome(ABC):
    """The result of a simulation."""

    summary: Summary

    def as_json(self) -> dict[str, Any]:
        """Return the answers as summary.json holds them."""
        found: dict[str, Any] = as_json(self.summary)
        return found

    @property
    def timeline(self) -> "timelines.Timeline | None":
        """Return the timeline, or None for a kind of work without one."""
        return None

    @abstractmethod
    def row(self) -> object:
        """Return the results that a sweep compares: a frozen dataclass of plain values."""

    @abstractmethod
    def blocks(self, *, drawn: bool = True) -> "Sequence[report.Block]":
        """Return the report, for terminals, pages and notebooks.

        ``drawn``: with the charts that need the timeline; a terminal does not show them.
        """

    def closing(self) -> "Sequence[report.Block]":
        """Return the last blocks of a terminal, with the advice; empty for a kind of work that seeks none."""
        return ()

    def write(self, out: Path) -> None:
        """Write summary.json, report.html, timeline.json.gz (Perfetto) and timeline.parquet into a folder; all or none.

        The last two need a timeline.
        """
        files = self.as_json(), self.timeline, self.blocks()
        load_writer()(*files, out)


class Compared(Struct, frozen=True):
    """What a sweep compares: the row of a result, and its timeline where pictures are drawn and the kind has one."""

    row: object
    timeline: "timelines.Timeline | None" = None


class Workload(ABC, Generic[S]):
    """A kind of work. A subclass names itself and its keys, and turns a checked file into a scenario and an outcome."""

    name: ClassVar[str]
    """Its value of the key ``workload:``."""
    what: ClassVar[str]
    """One line for ``simulate list``."""
    schema: ClassVar[type[ScenarioSection]]
    """The keys of a file of this kind."""
    starter: ClassVar[str]
    """The file that ``simulate new --workload NAME`` writes; it can be simulated unchanged."""
    row_type: ClassVar[type[Struct]]
    """The class of a point's results: that of ``Outcome.row``."""
    columns: ClassVar[Sequence[Column]]
    """Columns of a sweep; a key without a value in any point is left out."""
    order: ClassVar[str]
    """The field of a row by which a sweep is sorted, the least first."""
    ordered_by: ClassVar[str]
    """That key in words."""
    point: ClassVar[str] = "simulation"
    """The noun for a point of a sweep."""
    has_plan: ClassVar[bool] = True
    """Whether ranks run a plan, of which ``detail`` and ``fold`` say something."""
    unread: ClassVar[Sequence[Unread]] = ()
    """Keys of ``schema`` that this kind has no use for: a file that has one is refused."""
    has_size: ClassVar[bool] = False
    """Whether ``simulate plan`` seeks a size, such as a number of replicas, and not a strategy."""

    def load(self, document: Document, overrides: Sequence[str], as_read: Document) -> S:
        """Return the scenario of a document that overrides were put into; ``as_read``: before. Raises ScenarioError."""
        found = self.read(document, tuple(overrides))
        refuse_unread(document, self.unread)
        return replace(found, as_read=as_read)

    @abstractmethod
    def read(self, document: Document, overrides: tuple[str, ...]) -> S:
        """Return the scenario of a document. Raises ScenarioError for the first thing wrong with it."""

    @abstractmethod
    def simulate(
        self, scenario: S, *, detail: Detail | None = None, fold: bool = True, announce: Announce | None = None
    ) -> Outcome:
        """Return the result of the simulation. Raises ScenarioError for a scenario that cannot be simulated.

        ``detail``: rows of the timeline; None: by its size, and what repeats once. ``fold``: simulate ranks that cannot
        differ once. ``announce``: called with what the simulation will take, by a kind of work that can tell.
        """

    def likeness(self, scenario: S) -> tuple[bytes, ...]:
        """Return digests of what a scenario may have in common with others, of which each says more than the last.

        Scenarios with an equal first one should go to one ``simulator``, and those with more equal ones be neighbours.
        Empty: nothing is gained.
        """
        del scenario
        return ()

    def simulator(self, *, drawn: bool = False) -> Callable[[S], Compared]:
        """Return what simulates one scenario after the other; it may hold what the last has in common with the next.

        Results are those of ``simulate``, which it raises as. ``drawn``: with timelines, a row per task.
        """

        def simulated(scenario: S) -> Compared:
            found = self.simulate(scenario, detail="task" if drawn else None)
            return Compared(found.row(), found.timeline if drawn else None)

        return simulated

    def sized(self, scenario: S) -> Outcome:
        """Return the result with the least size that meets the scenario's objective; see ``has_size``.

        Raises ScenarioError where it states no objective.
        """
        raise unable(scenario, f"a scenario of {scenario.workload.name} has no size to seek", "simulate it instead")

    def execute(self, scenario: S, options: "executing.ExecutionOptions") -> "executing.Executed | None":
        """Return the result of running the scenario with torch; None in a process that does not report.

        Raises ScenarioError if the scenario cannot be executed, here or at all.
        """
        del options
        rule = f"a scenario of {scenario.workload.name} cannot be executed"
        raise unable(scenario, rule, "simulate it instead")

    def is_possible(self, row: object) -> bool:
        """Return whether a result could be had on the stated hardware; a sweep puts the others last."""
        del row
        return True

    def has_lanes(self, scenario: S) -> bool:
        """Return whether a sweep should draw a picture of the ranks' work for each point."""
        del scenario
        return False

    def schedule(self, scenario: S) -> "shown_schedule.ShownSchedule | None":
        """Return the pipeline schedule, or None."""
        del scenario
        return None

    def schedule_text(self, scenario: S) -> str:
        """Return the pipeline schedule as CSV, a row of actions per rank. Raises ScenarioError if there is none."""
        raise unable(
            scenario, f"a scenario of {self.name} has no pipeline schedule", "name one of training or textbook"
        )

    def swept(self, summary: "sweep.SweepSummary[Any]", pictures: "Sequence[thumbnail.Thumbnail]") -> Swept:
        """Return the report of a sweep beside its table, from its summary and its points' pictures: the best point.

        There is none where no point has a result to sort by.
        """
        del pictures
        best = summary.points[0]
        least = getattr(best.results, self.order)
        if least is None:
            return Swept(())
        shown = next((column.words(least) for column in self.columns if column.key == self.order), f"{least:g}")
        name = point_names.label(summary, best.set)
        return Swept(
            (report.Card(f"Least {self.ordered_by}", shown, name),), f"least {self.ordered_by}: {name}, {shown}"
        )

    def advised(self, found: Outcome, level: AdviceLevel) -> Outcome:
        """Return a result with advice in its summary, where this kind of work gives some; the result itself if not."""
        del level
        return found


def with_changes(scenario: S, overrides: Sequence[str]) -> S:
    """Return a scenario with further overrides. Raises ScenarioError where they do not fit."""
    every = (*scenario.overrides, *overrides)
    found: S = scenario.workload.load(apply_overrides(scenario.as_read, every), every, scenario.as_read)
    return found


def refuse_without_plan(workload: Workload[Any], detail: str, fold: str) -> None:
    """Raise ScenarioError for options of plans, of a kind of work without one: as they were written, or empty."""
    if not workload.has_plan and (unread := detail or fold):
        raise ScenarioError(
            Origin(option=unread), "", f"a simulation of {workload.name} has no ranks with a plan", "leave it out"
        )


def unable(scenario: Scenario, rule: str, remedy: str) -> ScenarioError:
    """Return the refusal of a feature that a kind of work lacks, such as a pipeline schedule."""
    return ScenarioError(scenario.document.origin(("workload",)), "workload", rule, remedy)
