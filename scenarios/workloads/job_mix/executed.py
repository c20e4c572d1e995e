"""The answers of an executed job mix beside its simulation, and their report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec import Struct

from backends.execution.jobs import HandedOver, JobsExecution, MeasuredJobs
from costmodels.units import format_change, format_percent, format_time
from scenarios.report.blocks import Block, Fact, Piece, Section, Table
from scenarios.report.pages.executed import executed_blocks
from scenarios.results.registry import load_writer
from scenarios.workloads.executing import Executed
from scenarios.workloads.job_mix.cluster_chart import cluster_section
from scenarios.workloads.job_mix.scenario import MixScenario
from sim.jobs.metrics import measure
from sim.jobs.record import Record

TOLERANCE: Final = 1e-5
"""Of losses and parameters, beside those of one process."""


class MeasuredPace(Struct, frozen=True):
    """The measured speed of a job alone on some processes, and the part of the machine's processors that it needs."""

    num_slots: int
    samples_per_s: float
    machine_share: float


class ExecutedJob(Struct, frozen=True, kw_only=True):
    """One job: its completion time, executed and simulated, the changes of its slots, its last loss.

    ``measured``: the speeds that the simulation has, by number of processes.
    """

    job_id: str
    jct_s: float
    simulated_jct_s: float
    num_preemptions: int
    num_rescales: int
    num_steps: int
    final_loss: float
    measured: Sequence[MeasuredPace]


class ExecutedMixSummary(Struct, frozen=True, kw_only=True):
    """What came of a job mix on processes of this machine, and of its simulation with what was measured on it.

    ``mean_jcts_s``: of each run; all else but the counts and errors is of the run with their median.
    ``drift``: the time of a sample after the run over that before it; the simulation has the mean of both.
    ``num_hand_overs``: starts, stops and changes of slots, and the ends; ``num_differing``: of those, after which not
    all ranks had the same bits. ``loss_error``, ``parameter_error``: the largest difference to trainings on one process
    with the same batches; None without a check. ``hand_overs``: of this run.
    """

    schema: str = "meshtwin.job_mix_execution/1"
    scenario: str
    seed: int
    policy: str
    num_slots: int
    prepare_s: float
    start_s: float
    resume_s: float
    rescale_s: float
    drift: float
    mean_jct_s: float
    mean_jcts_s: Sequence[float]
    simulated_mean_jct_s: float
    makespan_s: float
    simulated_makespan_s: float
    num_hand_overs: int
    num_differing: int
    num_ended_processes: int
    loss_error: float | None
    parameter_error: float | None
    passed: bool
    jobs: Sequence[ExecutedJob]
    hand_overs: Sequence[HandedOver]


@dataclass(frozen=True, slots=True)
class ExecutedMix(Executed):
    """A job mix on processes of this machine. ``record``, ``simulated``: what happened, and what was simulated."""

    summary: ExecutedMixSummary
    record: Record
    simulated: Record

    def blocks(self) -> Sequence[Block]:
        """Return the report."""
        found = self.summary
        subtitle = f"{len(found.jobs):,} jobs on {found.num_slots:,} processes under {found.policy}"
        facts = [
            Fact("mean completion", _beside(found.mean_jct_s, found.simulated_mean_jct_s)),
            Fact("all done after", _beside(found.makespan_s, found.simulated_makespan_s)),
            Fact("measured costs", f"ready {format_time(found.prepare_s)}, then start {format_time(found.start_s)}, "
                                   f"resume {format_time(found.resume_s)}, rescale {format_time(found.rescale_s)}"),
            Fact("drift", f"{format_change(found.drift - 1.0)} of a sample's time from before the run to after it"),
            Fact("hand-overs", _agreement(found.num_hand_overs, found.num_differing)),
        ]  # fmt: skip
        if len(found.mean_jcts_s) > 1:
            facts.append(Fact("all runs", ", ".join(format_time(each) for each in found.mean_jcts_s)))
        if found.loss_error is not None and found.parameter_error is not None:
            facts.append(Fact("check", _check(found.loss_error, found.parameter_error)))
        rows = [
            (job.job_id, format_time(job.jct_s), format_time(job.simulated_jct_s), str(job.num_preemptions),
             str(job.num_rescales), str(job.num_steps), f"{job.final_loss:.4g}")
            for job in found.jobs
        ]  # fmt: skip
        head = ("job", "completion time", "simulated", "preemptions", "rescales", "steps", "last loss")
        jobs = Section("Jobs", (Table(head, rows),))
        ends_s = [allocation.end_s for each in (self.record, self.simulated) for allocation in each.allocations]
        pictures = (
            cluster_section(self.record, "Executed", "executed", max(ends_s, default=0.0)),
            cluster_section(self.simulated, "Simulated", until_s=max(ends_s, default=0.0)),
        )
        return (*executed_blocks(found.scenario, subtitle, facts, pictures), jobs)

    def write(self, out: Path) -> None:
        """Write summary.json and report.html into a folder."""
        load_writer()(self.as_json(), None, self.blocks(), out)


def typical(runs: Sequence[JobsExecution]) -> JobsExecution:
    """Return the run with the median mean completion time, of an even number the lower of the two."""
    return sorted(runs, key=lambda run: measure(run.record).mean_jct_s)[(len(runs) - 1) // 2]


def summary_of(
    scenario: MixScenario, measured: MeasuredJobs, drift: float, runs: Sequence[JobsExecution], simulated: Record
) -> ExecutedMixSummary:
    """Return the answers about an executed mix and its simulation."""
    found = typical(runs)
    errors = [each for run in runs for each in run.compared.values()]
    loss_error = max((each.loss_error for each in errors), default=None)
    parameter_error = max((each.parameter_error for each in errors), default=None)
    handed_over = [each for run in runs for each in run.handed_over]
    num_differing = sum(not each.identical for each in handed_over)
    live, expected = measure(found.record), measure(simulated)
    return ExecutedMixSummary(
        scenario=scenario.name,
        seed=scenario.seed,
        policy=scenario.policy.name,
        num_slots=found.record.num_gpus,
        prepare_s=measured.prepare_s,
        start_s=measured.start_s,
        resume_s=measured.resume_s,
        rescale_s=measured.rescale_s,
        drift=drift,
        mean_jct_s=live.mean_jct_s,
        mean_jcts_s=[measure(run.record).mean_jct_s for run in runs],
        simulated_mean_jct_s=expected.mean_jct_s,
        makespan_s=live.makespan_s,
        simulated_makespan_s=expected.makespan_s,
        num_hand_overs=len(handed_over),
        num_differing=num_differing,
        num_ended_processes=sum(run.num_ended for run in runs),
        loss_error=loss_error,
        parameter_error=parameter_error,
        passed=not num_differing and max(loss_error or 0.0, parameter_error or 0.0) <= TOLERANCE,
        jobs=_jobs(scenario, measured, found, simulated),
        hand_overs=found.handed_over,
    )


def _jobs(
    scenario: MixScenario, measured: MeasuredJobs, found: JobsExecution, simulated: Record
) -> Sequence[ExecutedJob]:
    """Return what came of each job, in order of arrival."""
    rows = zip(scenario.mix.jobs, measured.samples_per_s, measured.machine_shares, strict=True)
    paces = {job.id: [MeasuredPace(n, speeds[n], shares[n]) for n in speeds] for job, speeds, shares in rows}
    simulated_jcts_s = {each.job.id: each.jct_s for each in simulated.jobs}
    return [
        ExecutedJob(
            job_id=each.job.id,
            jct_s=each.jct_s,
            simulated_jct_s=simulated_jcts_s[each.job.id],
            num_preemptions=each.num_preemptions,
            num_rescales=each.num_rescales,
            num_steps=len(found.steps[each.job.id]),
            final_loss=found.steps[each.job.id][-1].loss,
            measured=paces[each.job.id],
        )
        for each in found.record.jobs
    ]


def _beside(found_s: float, simulated_s: float) -> str:
    off = format_percent(abs(simulated_s - found_s) / found_s)
    side = "shorter" if simulated_s < found_s else "longer"
    return f"{format_time(found_s)}; simulated with the measured speeds {format_time(simulated_s)}, {off} {side}"


def _agreement(count: int, num_differing: int) -> tuple[Piece, ...]:
    if num_differing:
        return (Piece("FAILED: "), Piece(f"after {num_differing:,} of {count:,} ranks differ", "bad"))
    return (Piece(f"after each of {count:,} all ranks have the same bits", "good"),)


def _check(loss_error: float, parameter_error: float) -> tuple[Piece, ...]:
    words = f"losses within {loss_error:.1e} and parameters within {parameter_error:.1e} of those of one process"
    if max(loss_error, parameter_error) > TOLERANCE:
        return (Piece("FAILED: "), Piece(f"{words}, where {TOLERANCE:g} is allowed", "bad"))
    return (Piece(words, "good"),)
