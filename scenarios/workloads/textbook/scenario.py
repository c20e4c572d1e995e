"""A scenario that is a textbook schedule: stages with stated times, on no particular hardware."""

from collections.abc import Sequence

from costmodels.hardware import DeviceSpec
from scenarios.errors import Origin, ScenarioError
from scenarios.report.blocks import Block
from scenarios.report.pages import run_page
from scenarios.summaries.steps.algorithm import algorithm_name
from scenarios.workloads.steps.findings.changes import Change, schedule_changes
from scenarios.workloads.steps.findings.rates import Rates
from scenarios.workloads.steps.scenario import StepScenario
from sim.engine.prices.activity import Pricing
from sim.engine.prices.textbook import TextbookPricing
from sim.engine.running.run import SimulatedRun
from sim.plan.words.program import Plan
from sim.training.local.textbook import build_local_textbook
from sim.training.pipeline.evaluate import StageTimes
from sim.training.pipeline.spec import PipelineSpec
from sim.training.spec.job import TextbookTraining
from sim.training.steps.delayed import build_delayed_textbook
from sim.training.steps.textbook import build_textbook


class TextbookScenario(StepScenario, frozen=True, kw_only=True, eq=False):
    """A schedule and its times."""

    job: TextbookTraining

    @property
    def pipeline(self) -> PipelineSpec:
        """Return how the model is pipelined."""
        return self.job.pipeline

    @property
    def algorithm(self) -> str:
        """Return the name of the algorithm that trains."""
        return algorithm_name(self.job.method, self.job.update, self.pipeline.gradient_delay)

    @property
    def num_samples(self) -> int:
        """Return the micro-batches of a step."""
        return self.job.num_microbatches

    @property
    def stage_times(self) -> StageTimes:
        """Return the stated times of a virtual stage."""
        return self.job.times

    @property
    def devices(self) -> Sequence[tuple[DeviceSpec, int]]:
        """Return none."""
        return ()

    def decided(self, pricing: Pricing | None = None) -> "TextbookScenario":
        """Return the scenario: it leaves nothing to prices."""
        return self

    def build(self) -> Plan:
        """Return the plan."""
        if self.job.method == "local":
            return build_local_textbook(self.job, self.name)
        return (build_delayed_textbook if self.pipeline.gradient_delay else build_textbook)(self.job, self.name)

    def pricing(self) -> TextbookPricing:
        """Return the stated times as prices."""
        return TextbookPricing(self.job.model.hop_s)

    def rates(self, run: SimulatedRun) -> Rates:
        """Return that no rate is known."""
        del run
        return Rates()

    def blocks(self, found: "run_page.FoundStep") -> Sequence[Block]:
        """Return the report of the schedule."""
        return run_page.textbook_blocks(found)

    def changes(self) -> Sequence[Change]:
        """Return other schedules, and gradients that are synchronised while others are computed."""
        stages = self.pipeline.virtual_stages
        finer = sorted({stages + 1, 2 * stages, 2}, key=lambda number: (number <= stages, number))
        found = list(schedule_changes(self.pipeline, finer, (2, 4)))
        if not self.job.overlap_gradient_sync:
            found.append(Change(("parallel.data.overlap_gradient_sync=true",), {"dp": 0.7}))
        return found

    def in_double_precision(self) -> "TextbookScenario":
        """Raise ScenarioError: nothing is computed."""
        rule = "a textbook workload computes nothing, so there is nothing to check"
        raise ScenarioError(Origin(option="--check"), "", rule, "leave --check out")
