"""A pipeline schedule as textbooks draw it: stages take stated times, and nothing else is modelled."""

from collections.abc import Callable, Sequence
from functools import partial

from scenarios.reading.documents.checking import check_document
from scenarios.reading.documents.yaml_tree import Document
from scenarios.report.charts.thumbnail import Thumbnail
from scenarios.report.slots.shown_schedule import ShownSchedule
from scenarios.summaries.steps.advice import AdviceLevel
from scenarios.summaries.steps.step_row import StepRow
from scenarios.summaries.sweep import SweepSummary
from scenarios.workloads.effort import Announce
from scenarios.workloads.executing import Executed, ExecutionOptions
from scenarios.workloads.steps.advising.advise import advise
from scenarios.workloads.steps.executing.registry import load_execution
from scenarios.workloads.steps.last_plan import LastPlan
from scenarios.workloads.steps.row import COLUMNS
from scenarios.workloads.steps.running import SimulatedStep, compared, simulate, step_found
from scenarios.workloads.steps.schedule import schedule_of, schedule_text
from scenarios.workloads.steps.swept import swept_steps
from scenarios.workloads.textbook.reading import job_of
from scenarios.workloads.textbook.scenario import TextbookScenario
from scenarios.workloads.textbook.schema import DelayScenario
from scenarios.workloads.textbook.starter import STARTER
from scenarios.workloads.workload import Compared, Detail, Outcome, Swept, Workload


class TextbookSchedule(Workload[TextbookScenario]):
    """A schedule with stated times: its time, the idling of ranks, and the micro-batches that they hold."""

    name = "textbook"
    what = "a pipeline schedule with stated times, on no particular hardware"
    schema = DelayScenario
    starter = STARTER
    row_type = StepRow
    columns = COLUMNS
    order = "iteration_time_s"
    ordered_by = "step time"
    point = "simulated step"

    def read(self, document: Document, overrides: tuple[str, ...]) -> TextbookScenario:
        """Return the scenario of a document."""
        checked = check_document(document, DelayScenario)
        return TextbookScenario(
            name=checked.name,
            seed=checked.seed,
            source=document.source,
            job=job_of(document, checked),
            overrides=overrides,
            workload=self,
            document=document,
            as_read=document,
        )

    def simulate(
        self,
        scenario: TextbookScenario,
        *,
        detail: Detail | None = None,
        fold: bool = True,
        announce: Announce | None = None,
    ) -> SimulatedStep:
        """Return the simulated schedule."""
        return simulate(scenario, detail=detail, fold=fold, announce=announce)

    def simulator(self, *, drawn: bool = False) -> Callable[[TextbookScenario], Compared]:
        """Return what simulates one scenario after the other, without a summary."""
        return partial(compared, LastPlan(), drawn=drawn)

    def execute(self, scenario: TextbookScenario, options: ExecutionOptions) -> Executed | None:
        """Return the executed plan."""
        return load_execution()(scenario, options)

    def has_lanes(self, scenario: TextbookScenario) -> bool:
        """Return whether there is a pipeline."""
        return scenario.pipeline.degree > 1

    def schedule(self, scenario: TextbookScenario) -> ShownSchedule:
        """Return the pipeline schedule."""
        return schedule_of(scenario)

    def schedule_text(self, scenario: TextbookScenario) -> str:
        """Return the pipeline schedule as CSV."""
        return schedule_text(scenario)

    def swept(self, summary: SweepSummary[StepRow], pictures: Sequence[Thumbnail]) -> Swept:
        """Return times, memory and pipelines of the points."""
        return swept_steps(summary, pictures)

    def advised(self, found: Outcome, level: AdviceLevel) -> SimulatedStep:
        """Return a simulated step with the changes that help it, and the causes of lost time, in its summary."""
        step = step_found(found)
        return step.with_advice(advise(step, level))
