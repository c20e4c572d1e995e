"""Jobs that share a cluster under a scheduling policy."""

from costmodels.units import format_percent, format_time
from scenarios.reading.documents.checking import check_document
from scenarios.reading.documents.located import located
from scenarios.reading.documents.yaml_tree import Document
from scenarios.workloads.effort import Announce
from scenarios.workloads.executing import ExecutionOptions
from scenarios.workloads.job_mix.executed import ExecutedMix
from scenarios.workloads.job_mix.execution import execute
from scenarios.workloads.job_mix.idle_keys import refuse_idle
from scenarios.workloads.job_mix.outcome import JobMixSummary, MixRow, SimulatedMix, result_of
from scenarios.workloads.job_mix.reading import mix_of, policy_of
from scenarios.workloads.job_mix.scenario import MixScenario
from scenarios.workloads.job_mix.schema import UNREAD, JobMixScenario
from scenarios.workloads.job_mix.starter import STARTER
from scenarios.workloads.workload import Column, Detail, Workload
from sim.jobs.metrics import measure
from sim.jobs.simulator import simulate_jobs


class JobMix(Workload[MixScenario]):
    """Completion times of jobs, the use of the GPUs, and every decision of the policy."""

    name = "job_mix"
    what = "jobs that share a cluster under a scheduling policy"
    schema = JobMixScenario
    starter = STARTER
    row_type = MixRow
    columns = (
        Column("policy", "policy", str),
        Column("mean completion", "mean_jct_s", format_time),
        Column("median", "median_jct_s", format_time),
        Column("99th percentile", "p99_jct_s", format_time),
        Column("mean queueing", "mean_queueing_s", format_time),
        Column("all done", "makespan_s", format_time),
        Column("GPUs held", "utilisation", format_percent),
        Column("preemptions", "num_preemptions", str),
        Column("rescales", "num_rescales", str),
    )
    order = "mean_jct_s"
    ordered_by = "mean completion time"
    unread = UNREAD
    has_plan = False

    def read(self, document: Document, overrides: tuple[str, ...]) -> MixScenario:
        """Return the scenario of a document."""
        file = check_document(document, JobMixScenario)
        mix = mix_of(document, file)
        policy = policy_of(document, file, mix)
        refuse_idle(document, file, mix)
        return MixScenario(
            name=file.name,
            seed=file.seed,
            source=document.source,
            overrides=overrides,
            workload=self,
            document=document,
            as_read=document,
            mix=mix,
            policy=policy,
        )

    def simulate(
        self,
        scenario: MixScenario,
        *,
        detail: Detail | None = None,
        fold: bool = True,
        announce: Announce | None = None,
    ) -> SimulatedMix:
        """Return the simulated job mix."""
        with located(scenario.document):
            record = simulate_jobs(scenario.mix, scenario.policy)
        summary = JobMixSummary(
            scenario=scenario.name,
            seed=scenario.seed,
            policy=scenario.policy.name,
            num_gpus=record.num_gpus,
            metrics=measure(record),
            jobs=[result_of(each) for each in record.jobs],
            decisions=record.decisions,
        )
        return SimulatedMix(summary, record)

    def execute(self, scenario: MixScenario, options: ExecutionOptions) -> ExecutedMix:
        """Return what came of the jobs on processes of this machine, beside their simulation."""
        return execute(scenario, options)
