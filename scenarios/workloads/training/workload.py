"""The kind of work of most scenarios: a step of training a transformer on a cluster."""

from collections.abc import Callable, Sequence

from scenarios.reading.documents.yaml_tree import Document
from scenarios.report.charts import thumbnail
from scenarios.report.slots import shown_schedule
from scenarios.summaries import sweep
from scenarios.summaries.steps.advice import AdviceLevel
from scenarios.summaries.steps.step_row import StepRow
from scenarios.workloads import executing
from scenarios.workloads.effort import Announce
from scenarios.workloads.steps import last_plan, schedule, swept
from scenarios.workloads.steps.advising import advise
from scenarios.workloads.steps.executing.registry import load_execution
from scenarios.workloads.steps.row import COLUMNS
from scenarios.workloads.steps.running import SimulatedStep, compared, simulate, step_found
from scenarios.workloads.training import placing_registry
from scenarios.workloads.training.reading import read_training
from scenarios.workloads.training.scenario import TrainingScenario
from scenarios.workloads.training.schema import UNREAD, DenseScenario
from scenarios.workloads.training.starter import STARTER
from scenarios.workloads.workload import Compared, Detail, Outcome, Swept, Workload


class TrainingStep(Workload[TrainingScenario]):
    """A training step: its time, its memory, its waiting; and long runs of such steps."""

    name = "training"
    what = "a step of training a transformer on a cluster, and long runs of such steps on hardware that fails"
    schema = DenseScenario
    starter = STARTER
    row_type = StepRow
    columns = COLUMNS
    order = "iteration_time_s"
    ordered_by = "step time"
    point = "simulated step"
    unread = UNREAD

    def read(self, document: Document, overrides: tuple[str, ...]) -> TrainingScenario:
        """Return the scenario of a document."""
        return read_training(document, overrides, self)

    def simulate(
        self,
        scenario: TrainingScenario,
        *,
        detail: Detail | None = None,
        fold: bool = True,
        announce: Announce | None = None,
    ) -> SimulatedStep:
        """Return one simulated step, and the long run if it is asked for; of steps with moving experts the last."""
        if scenario.moves_experts:
            return placing_registry.load_moving()(scenario, detail=detail, fold=fold, announce=announce)
        return simulate(scenario, detail=detail, fold=fold, announce=announce)

    def likeness(self, scenario: TrainingScenario) -> tuple[bytes, ...]:
        """Return digests of the job without its batch, whose plans may be alike, and of the job, which has one plan."""
        return () if scenario.says_more else (scenario.batched, scenario.planned)

    def simulator(self, *, drawn: bool = False) -> Callable[[TrainingScenario], Compared]:
        """Return what simulates one scenario after the other, and holds the last plan."""
        last, one = last_plan.LastPlan(), super().simulator(drawn=drawn)

        def simulated(scenario: TrainingScenario) -> Compared:
            return one(scenario) if scenario.says_more else compared(last, scenario, drawn=drawn)

        return simulated

    def is_possible(self, row: object) -> bool:
        """Return whether the step fits into memory."""
        return not isinstance(row, StepRow) or row.fits_memory is not False

    def execute(self, scenario: TrainingScenario, options: "executing.ExecutionOptions") -> "executing.Executed | None":
        """Return the executed plan; of steps with moving experts all of them; with a lock-free update the training."""
        scenario.refuse_shared_load()
        if scenario.is_lock_free:
            return placing_registry.load_lock_free_execution()(scenario, options)
        return (placing_registry.load_executing() if scenario.moves_experts else load_execution())(scenario, options)

    def has_lanes(self, scenario: TrainingScenario) -> bool:
        """Return whether there is a pipeline."""
        return scenario.pipeline.degree > 1

    def schedule(self, scenario: TrainingScenario) -> "shown_schedule.ShownSchedule":
        """Return the pipeline schedule."""
        return schedule.schedule_of(scenario)

    def schedule_text(self, scenario: TrainingScenario) -> str:
        """Return the pipeline schedule as CSV."""
        return schedule.schedule_text(scenario)

    def swept(self, summary: "sweep.SweepSummary[StepRow]", pictures: "Sequence[thumbnail.Thumbnail]") -> Swept:
        """Return times, memory and pipelines of the points."""
        return swept.swept_steps(summary, pictures)

    def advised(self, found: Outcome, level: AdviceLevel) -> SimulatedStep:
        """Return a simulated step with the changes that help it, and the causes of lost time, in its summary."""
        step = step_found(found)
        return step.with_advice(advise.advise(step, level))
