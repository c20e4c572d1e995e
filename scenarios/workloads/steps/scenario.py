"""A scenario that is one step: of training on a cluster, or of a textbook schedule with stated times."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from msgspec import field

from costmodels.hardware import DeviceSpec
from costmodels.software import Software
from scenarios.reading.clusters.machine import ClusterSpec
from scenarios.report import blocks as report
from scenarios.report.pages import run_page
from scenarios.summaries.steps.resolved import Resolved
from scenarios.summaries.steps.step import StepSummary
from scenarios.workloads.steps.findings import changes as step_changes
from scenarios.workloads.steps.findings.rates import Rates
from scenarios.workloads.workload import Scenario, unable
from sim.engine.prices.activity import Pricing
from sim.engine.running.run import SimulatedRun
from sim.memory.spec import AllocatorName
from sim.plan.facts import content
from sim.plan.words.program import Plan
from sim.training.pipeline import evaluate
from sim.training.pipeline.spec import PipelineSpec
from sim.training.spec.job import DenseTraining, OpenTraining, TextbookTraining, TrainingJob


class StepScenario(Scenario, frozen=True, kw_only=True, eq=False):
    """The fields of both kinds. ``cluster`` is None for stated times.

    ``algorithms``: of the kinds of collectives that are not left to the library. ``software``: what the framework adds.
    """

    job: TrainingJob | TextbookTraining
    cluster: ClusterSpec | None = None
    algorithms: Mapping[str, str] = {}
    software: Software = field(default_factory=Software)

    @property
    @abstractmethod
    def pipeline(self) -> PipelineSpec:
        """Return how the model is pipelined."""

    @property
    @abstractmethod
    def algorithm(self) -> str:
        """Return the name of the training algorithm: what it computes, not how."""

    @property
    @abstractmethod
    def num_samples(self) -> int:
        """Return the samples of a step; where times are stated, its micro-batches."""

    @property
    def allocator(self) -> AllocatorName | None:
        """Return the allocator whose reserved memory must fit; None: tensors alone count."""
        memory = None if self.dense_job is None else self.dense_job.parallel.memory
        return None if memory is None else memory.allocator

    @property
    def dense_job(self) -> DenseTraining | None:
        """Return the decided job whose dense reference an execution is compared with; None: nothing is computed."""
        return None

    @property
    def open_job(self) -> OpenTraining | None:
        """Return the job of which prices decide a part, None where they decide nothing."""
        return None

    @property
    @abstractmethod
    def stage_times(self) -> "evaluate.StageTimes | None":
        """Return the stated times of a virtual stage, None where prices say them."""

    @property
    @abstractmethod
    def devices(self) -> Sequence[tuple[DeviceSpec, int]]:
        """Return the devices of the ranks, in rank order, each with how many ranks have it; none without a cluster."""

    @property
    def device(self) -> DeviceSpec | None:
        """Return the device that the step runs on, of several types the one with the least memory."""
        return min((device for device, _ in self.devices), key=lambda device: device.memory_bytes, default=None)

    @abstractmethod
    def decided(self, pricing: Pricing | None = None) -> "StepScenario":
        """Return the scenario with its open decision made. Raises ScenarioError if no choice fits.

        ``pricing``: its prices, of whoever goes on with them; None: they are made where there is something to decide.
        """

    @abstractmethod
    def build(self) -> Plan:
        """Return the plan of a decided scenario. Raises SpecError for one of more bytes than can be counted."""

    def build_simulated(self) -> Plan:
        """Return the same plan for a simulation alone: programs that are equal but for names may share tasks."""
        return self.build()

    @property
    def planned(self) -> bytes:
        """Return a digest of all that the plan of a decided scenario depends on: no price is in it."""
        return content.content_digest((type(self).__name__, self.name, self.job))

    @property
    def batched(self) -> bytes:
        """Return the same digest for another batch: plans of equal ones may be alike in all but their calls."""
        return self.planned

    @property
    def priced(self) -> bytes:
        """Return a digest of all that prices depend on: of equal ones they are equal."""
        return content.content_digest(
            (type(self).__name__, self.job, self.cluster, self.algorithms, self.software, self.seed)
        )

    @abstractmethod
    def pricing(self) -> Pricing:
        """Return the prices of ops."""

    @abstractmethod
    def rates(self, run: SimulatedRun) -> Rates:
        """Return tokens/s, FLOP/s per device, and their fraction of the mean device's peak; None: not known."""

    def resolved(self) -> Resolved | None:
        """Return the sizes and choices of a training step; None for another kind of step."""
        return None

    @property
    def says_more(self) -> bool:
        """Return whether its summary has findings beside those of the step, which may refuse the scenario."""
        return False

    def with_findings(self, summary: StepSummary, plan: Plan) -> StepSummary:
        """Return the summary with the parts of this kind of work: made choices, the long run."""
        del plan
        return summary

    @abstractmethod
    def blocks(self, found: "run_page.FoundStep") -> "Sequence[report.Block]":
        """Return the report of the simulated step."""

    @abstractmethod
    def changes(self) -> "Sequence[step_changes.Change]":
        """Return the changes that may make the step faster; some may be refused, or not fit in memory."""

    def remedies(self) -> "Sequence[step_changes.Change]":
        """Return the changes that take less memory, the mildest first; none where nothing is held."""
        return ()

    def ladder(self) -> "Sequence[step_changes.Overrides]":
        """Return changes to put on top of each other until the step fits, those that cost little time first."""
        return ()

    def counterfactuals(self) -> "Sequence[step_changes.Counterfactual]":
        """Return the causes of lost time that may be taken away to see what they cost."""
        return ()

    def with_microbatches(self, number: int) -> "StepScenario | None":
        """Return the scenario with so many micro-batches of each replica; None where that is none.

        It computes something else. Advice extrapolates from it.
        """
        del number
        return None

    @abstractmethod
    def in_double_precision(self) -> "StepScenario":
        """Return the scenario with numbers of 64 bits. Raises ScenarioError where nothing is computed."""


def step_of(scenario: Scenario) -> StepScenario:
    """Return a scenario as a step. Raises ScenarioError for one of another kind of work."""
    if isinstance(scenario, StepScenario):
        return scenario
    rule = f"this needs a step of training, and a scenario of {scenario.workload.name} has none"
    raise unable(scenario, rule, "take a scenario of training or textbook")
