"""The answers of a simulated job mix, and its report."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Struct

from costmodels.units import format_percent, format_time
from scenarios.report.blocks import Block, Card, Curve, Headline, Lines, Only, Section, Table, Text
from scenarios.report.charts.axis_unit import time_unit
from scenarios.summaries.as_json import INLINE
from scenarios.workloads.job_mix.cluster_chart import cluster_section
from scenarios.workloads.workload import Outcome
from sim.jobs.metrics import MixMetrics
from sim.jobs.record import Decided, FinishedJob, Record

MOST_ROWS = 20
"""Jobs of the table: those that took longest."""


class JobResult(Struct, frozen=True, kw_only=True):
    """One job: instants and GPU-seconds."""

    job_id: str
    num_gpus: int
    arrival_s: float
    first_start_s: float
    finish_s: float
    jct_s: float
    useful_gpu_s: float
    restart_gpu_s: float
    idle_gpu_s: float
    lost_gpu_s: float
    num_preemptions: int
    num_rescales: int
    num_failures: int


class JobMixSummary(Struct, frozen=True, kw_only=True):
    """The answers about a job mix. ``decisions``: each change of a job's GPUs, and why."""

    schema: str = "meshtwin.job_mix/1"
    scenario: str
    seed: int
    policy: str
    num_gpus: int
    metrics: Annotated[MixMetrics, INLINE]
    jobs: Sequence[JobResult]
    decisions: Sequence[Decided]


class MixRow(Struct, frozen=True, kw_only=True):
    """What a sweep compares."""

    policy: str
    mean_jct_s: float
    median_jct_s: float
    p99_jct_s: float
    mean_queueing_s: float
    makespan_s: float
    utilisation: float
    num_preemptions: int
    num_rescales: int


@dataclass
class SimulatedMix(Outcome):
    """A simulated job mix: its answers, and the record that the pictures need."""

    summary: JobMixSummary
    record: Record

    def row(self) -> MixRow:
        """Return what a sweep compares."""
        found = self.summary.metrics
        return MixRow(
            policy=self.summary.policy,
            mean_jct_s=found.mean_jct_s,
            median_jct_s=found.median_jct_s,
            p99_jct_s=found.p99_jct_s,
            mean_queueing_s=found.mean_queueing_s,
            makespan_s=found.makespan_s,
            utilisation=found.utilisation,
            num_preemptions=found.num_preemptions,
            num_rescales=found.num_rescales,
        )

    def blocks(self, *, drawn: bool = True) -> Sequence[Block]:
        """Return the answers, the cluster over time, the distribution of completion times, and the slowest jobs."""
        pictures = (cluster_section(self.record), _jct_section(self.record.jobs)) if drawn else ()
        return (self._headline(), Only("page", pictures), self._slowest())

    def _headline(self) -> Headline:
        found = self.summary.metrics
        cards = (
            Card("Mean completion time", format_time(found.mean_jct_s), f"median {format_time(found.median_jct_s)}"),
            Card("99th percentile", format_time(found.p99_jct_s), f"90th {format_time(found.p90_jct_s)}"),
            Card("Mean queueing", format_time(found.mean_queueing_s), "from arrival to first start"),
            Card(
                "All done after",
                format_time(found.makespan_s),
                f"{found.num_preemptions:,} preemptions{_others(found)}",
            ),
            Card(
                "GPUs held",
                format_percent(found.utilisation),
                f"{format_percent(found.useful_fraction)} of that useful",
            ),
            Card("Slower than a fair share", format_percent(found.unfair_fraction), "of the jobs"),
        )
        words = f"{found.num_jobs:,} jobs on {self.summary.num_gpus:,} GPUs under {self.summary.policy}"
        return Headline(self.summary.scenario, words, cards)

    def _slowest(self) -> Section:
        slowest = sorted(self.summary.jobs, key=lambda job: (-job.jct_s, job.job_id))[:MOST_ROWS]
        rows = [
            (job.job_id, str(job.num_gpus), *map(format_time, (job.arrival_s, job.first_start_s, job.jct_s)),
             str(job.num_preemptions), str(job.num_rescales))
            for job in slowest
        ]  # fmt: skip
        table = Table(("job", "GPUs", "arrival", "first start", "completion time", "preemptions", "rescales"), rows)
        if len(rows) == len(self.summary.jobs):
            return Section("Jobs", (table,), "The longest completion time first.")
        shown = f"{len(rows)} of {len(self.summary.jobs):,} jobs, those with the longest completion times"
        return Section("Jobs", (Only("terminal", (Text(shown),)), table), f"{shown}.")


def _others(found: MixMetrics) -> str:
    counts = ((found.num_rescales, "rescales"), (found.num_failures, "failures"))
    return "".join(f", {count:,} {what}" for count, what in counts if count)


def result_of(each: FinishedJob) -> JobResult:
    """Return the answers about one job."""
    return JobResult(
        job_id=each.job.id,
        num_gpus=each.job.num_gpus,
        arrival_s=each.job.arrival_s,
        first_start_s=each.first_start_s,
        finish_s=each.finish_s,
        jct_s=each.jct_s,
        useful_gpu_s=each.useful_gpu_s,
        restart_gpu_s=each.restart_gpu_s,
        idle_gpu_s=each.idle_gpu_s,
        lost_gpu_s=each.lost_gpu_s,
        num_preemptions=each.num_preemptions,
        num_rescales=each.num_rescales,
        num_failures=each.num_failures,
    )


def _jct_section(jobs: Sequence[FinishedJob]) -> Section:
    """Return the distribution of completion times: the fraction of jobs that are done within a time."""
    times_s = sorted(each.jct_s for each in jobs)
    kept = sorted({round(place * (len(times_s) - 1) / 400) for place in range(401)})
    unit, unit_s = time_unit(times_s[-1])
    times = [times_s[place] / unit_s for place in kept]
    curve = Curve("completion time", "#4269d0", times, [(place + 1) / len(times_s) for place in kept])
    lines = Lines("jct", (curve,), ("completion time", unit), "fraction of jobs", times[-1])
    return Section("Completion times", (lines,), "The fraction of jobs that are done within a time of their arrival.")
