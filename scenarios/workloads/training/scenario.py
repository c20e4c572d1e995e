"""A scenario that is a step of training a transformer on a cluster."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from costmodels.hardware import DeviceSpec, load_node
from scenarios.choices import decide, operators
from scenarios.errors import ScenarioError
from scenarios.reading.clusters.machine import ClusterSpec
from scenarios.reading.documents.located import located
from scenarios.report import blocks as report
from scenarios.report.pages import run_page
from scenarios.summaries.steps.algorithm import algorithm_name
from scenarios.summaries.steps.resolved import Resolved
from scenarios.summaries.steps.step import StepSummary
from scenarios.summaries.steps.study import StudySummary
from scenarios.workloads.steps.findings import changes as step_changes
from scenarios.workloads.steps.findings.rates import Rates, rates_of
from scenarios.workloads.steps.pricing import cluster_pricing, locating_algorithms
from scenarios.workloads.steps.scenario import StepScenario
from scenarios.workloads.training import goal, lock_free, placing_registry
from scenarios.workloads.training.changes import against_memory, against_time, causes
from scenarios.workloads.training.long_run import saving, summarise
from scenarios.workloads.training.resolved import resolved_step
from scenarios.workloads.training.routing_summary import routing_summary
from sim.engine.prices.activity import Pricing
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.run import SimulatedRun
from sim.moe.balancing import replicas
from sim.plan.facts import content
from sim.plan.words.program import Plan
from sim.reliability import study
from sim.reliability.spec import OpenReliability, ReliabilitySpec
from sim.training.errors import SpecError
from sim.training.local import builder as local_builder
from sim.training.pipeline.spec import PipelineSpec
from sim.training.spec.job import DenseTraining, OpenTraining, TrainingJob
from sim.training.steps import delayed
from sim.training.steps.builder import build_dense_training

_BATCH: Final = "global_batch_size"


class TrainingScenario(StepScenario, frozen=True, kw_only=True, eq=False):
    """A dense-training job and the machine that it runs on.

    ``reliability``: the long run on hardware that fails, None where only a step is asked for.
    ``length_from``: where the sequence length was stated. ``tokens``: to train on in all; None: not stated.
    ``placed``: where experts lie that move, in the step of the job, once a policy has decided that.
    """

    job: TrainingJob
    cluster: ClusterSpec
    reliability: ReliabilitySpec | OpenReliability | None = None
    length_from: str = "model.sequence_length"
    tokens: int | None = None
    placed: "replicas.Placed | None" = None

    @property
    def pipeline(self) -> PipelineSpec:
        """Return how the model is pipelined."""
        return self.job.parallel.pipeline

    @property
    def algorithm(self) -> str:
        """Return the name of the algorithm that trains."""
        training = self.job.training
        return algorithm_name(training.method, training.update, self.job.parallel.gradient_delay)

    @property
    def num_samples(self) -> int:
        """Return the sequences of a step."""
        return self.job.training.global_batch_size

    def refuse_shared_load(self) -> None:
        """Raise ScenarioError where ranks have the rows of the busiest, which they could not get from each other."""
        experts = self.job.model.experts
        if experts is not None and experts.rank_load == "busiest":
            key = ("model", "experts", "rank_load")
            rule = "all ranks would get the rows that tokens choose on one of them"
            raise ScenarioError(self.document.origin(key), ".".join(key), rule, "write rank_load: own")

    @property
    def is_lock_free(self) -> bool:
        """Return whether the optimizer goes at its own pace."""
        memory = self.job.parallel.memory
        return memory is not None and memory.update == "lock_free"

    @property
    def dense_job(self) -> DenseTraining:
        """Return the job, which has to be decided."""
        if not isinstance(self.job, DenseTraining):
            message = "the job leaves something to prices: decide it first"
            raise TypeError(message)
        return self.job

    @property
    def open_job(self) -> OpenTraining | None:
        """Return the job, unless it is decided."""
        return self.job if isinstance(self.job, OpenTraining) else None

    @property
    def stage_times(self) -> None:
        """Return None: the times of stages come from prices."""
        return

    @property
    def devices(self) -> Sequence[tuple[DeviceSpec, int]]:
        """Return the devices of the ranks, in rank order, each with how many ranks have it."""
        cluster = self.cluster
        if not cluster.node_types:
            return [(cluster.node_spec.device, cluster.world_size)]
        return [(load_node(name).device, count * cluster.devices_per_node) for name, count in cluster.node_types]

    def decided(self, pricing: Pricing | None = None) -> "TrainingScenario":
        """Return the scenario with its open decision made (see ``scenarios.choices``)."""
        job = self.open_job
        if job is None:
            return self._with_experts_placed() if self.moves_experts and self.placed is None else self
        memory_bytes = min(self.software.room_bytes(device) for device, _ in self.devices)
        with located(self.document), locating_algorithms(self.document, self.algorithms):
            return replace(self, job=decide.decided(job, pricing or self.pricing(), memory_bytes))

    @property
    def moves_experts(self) -> bool:
        """Return whether a policy moves experts from step to step."""
        return self.job.model.experts is not None and self.job.model.experts.moving is not None

    def _with_experts_placed(self) -> "TrainingScenario":
        """Return the scenario at its last step, with the placement of it."""
        deciding, job = placing_registry.load_deciding(), self.dense_job
        with located(self.document):
            placements = deciding.placements_of(job, self.pricing())
        job = deciding.placed_job(job, placements[-1], len(placements) - 1)
        return replace(self, job=job, placed=placements[-1])

    def build(self) -> Plan:
        """Return the plan of a decided scenario."""
        job = self.dense_job
        if self.placed is not None:
            return placing_registry.load_deciding().placed_plan(job, self.placed, self.name)
        if job.training.method == "local":
            return local_builder.build_local_training(job, self.name)
        build = delayed.build_delayed_training if self.pipeline.gradient_delay else build_dense_training
        return build(job, self.name)

    def build_simulated(self) -> Plan:
        """Return the same plan for a simulation: stages that are equal but for names share tasks."""
        more = self.says_more or self.placed is not None
        if more or self.job.training.method == "local" or self.pipeline.gradient_delay:
            return self.build()
        return build_dense_training(self.dense_job, self.name, shares_tasks=True)

    @property
    def planned(self) -> bytes:
        """Return a digest of all that the plan of a decided scenario depends on: no price is in it."""
        return content.content_digest((self.name, self.job, self.placed))

    @property
    def batched(self) -> bytes:
        """Return the same digest for another batch: plans of equal ones may be alike in all but their calls."""
        job = self.job
        training = {name: getattr(job.training, name) for name in job.training.__struct_fields__ if name != _BATCH}
        return content.content_digest((self.name, job.model, job.parallel, job.seed, training, self.placed))

    @property
    def priced(self) -> bytes:
        """Return a digest of all that prices depend on: of equal ones they are equal."""
        return content.content_digest((self.cluster, self.algorithms, self.software, self.seed))

    def pricing(self) -> ClusterPricing:
        """Return the prices of the cluster."""
        return cluster_pricing(self.cluster, self.algorithms, self.seed, self.software)

    def rates(self, run: SimulatedRun) -> Rates:
        """Return tokens/s, FLOP/s per device, and their fraction of the mean device's peak."""
        return rates_of(self.job, run, self.devices)

    def resolved(self) -> Resolved:
        """Return the sizes and choices of the step."""
        return resolved_step(self.job, self.cluster, self.length_from)

    @property
    def says_more(self) -> bool:
        """Return whether a long run, a lock-free update or the steps in which experts move are asked for, too."""
        return self.reliability is not None or self.is_lock_free or self.moves_experts

    def with_findings(self, summary: StepSummary, plan: Plan) -> StepSummary:
        """Return the summary with OSDP's choices, loads of experts, the long run and the goal, if there are such.

        Raises ScenarioError for a long run that would not end in bounded time.
        """
        summary = replace(summary, routing=routing_summary(self.job, summary))
        if (memory := self.job.parallel.memory) is not None and self.is_lock_free:
            summary = replace(summary, lock_free=lock_free.lock_free_update(plan, self.pricing(), memory.max_staleness))
        if self.job.parallel.osdp is not None:
            summary = replace(summary, osdp=operators.summarise_choice(self.dense_job, plan))
        if self.reliability is not None:
            summary = replace(summary, reliability=self._studied(self.reliability, summary, plan))
        if self.tokens is not None:
            tokens_per_step = self.num_samples * self.job.model.sequence_length
            summary = replace(
                summary, goal=goal.goal_of(self.tokens, tokens_per_step, summary, self.cluster.price_usd_per_s)
            )
        return summary

    def _studied(self, run: ReliabilitySpec | OpenReliability, summary: StepSummary, plan: Plan) -> StudySummary:
        """Return the study of the long run; checkpoints are simulated beside steps unless their times are stated."""
        step_s, saved = summary.iteration_time_s, None
        with located(self.document):
            if isinstance(run, OpenReliability):
                saved = saving.simulated_saving(self.dense_job, plan, self.pricing(), step_s, run.over_steps)
                run = run.decided(saving.stall_s(saved, step_s), saved.over_steps * step_s)
            return summarise.summarise_study(run, study.study_reliability(run, step_s, self.seed), saved)

    def blocks(self, found: "run_page.FoundStep") -> "Sequence[report.Block]":
        """Return the report of the step, and of the long run if there is one."""
        return run_page.training_blocks(found) if self.reliability is None else run_page.long_run_blocks(found)

    def changes(self) -> "Sequence[step_changes.Change]":
        """Return the changes that may make the step faster."""
        return against_time.changes_of(self.job, self._written("parallel"))

    def remedies(self) -> "Sequence[step_changes.Change]":
        """Return the changes that take less memory, the mildest first."""
        return against_memory.remedies_of(self.job, self._written("parallel"))

    def ladder(self) -> "Sequence[step_changes.Overrides]":
        """Return changes to put on top of each other until the step fits, those that cost little time first."""
        return against_memory.ladder_of(self.job, self._written("parallel"))

    def counterfactuals(self) -> "Sequence[step_changes.Counterfactual]":
        """Return slow parts, oversubscription and recomputation, where there are some."""
        return list(causes.counterfactuals_of(self.job, self._written("cluster"), self.cluster.wiring))

    def _written(self, section: str) -> Mapping[str, Any]:
        """Return a section of the file as it is written, with overrides put in."""
        found: Mapping[str, Any] = self.document.data.get(section, {})
        return found

    def with_microbatches(self, number: int) -> "TrainingScenario | None":
        """Return the scenario with so many micro-batches of each replica; None where its schedule has no such order."""
        job = self.job
        batch = number * job.training.microbatch_size * job.parallel.data_degree
        try:
            return replace(self, job=replace(job, training=replace(job.training, global_batch_size=batch)))
        except SpecError:
            return None

    def in_double_precision(self) -> "TrainingScenario":
        """Return the scenario with numbers of 64 bits."""
        return replace(self, job=replace(self.job, training=replace(self.job.training, precision="fp64")))
