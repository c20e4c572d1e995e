"""The answers of a simulated inference."""

from collections.abc import Mapping

from msgspec import Struct

from scenarios.workloads.inference.scenario import InferenceScenario
from scenarios.workloads.steps.findings.means import mean_over_ranks
from sim.engine.compiling.tables import MAIN_STREAM
from sim.engine.findings.breakdown import breakdowns
from sim.engine.findings.critical_path import critical_path
from sim.engine.running.run import SimulatedRun
from sim.plan.words.buffer import Kind
from sim.plan.words.program import Phase


class InferenceMemory(Struct, frozen=True, kw_only=True):
    """The memory of the fullest device, in bytes.

    ``block_bytes``: keys and values of one block in all layers of the device. ``kv_blocks``: that all sequences of a
    replica hold. ``free_kv_blocks``: that would fit beside the peak; 0 where the peak does not fit.
    """

    peak_bytes: int
    capacity_bytes: int
    fits: bool
    weights_bytes: int
    cache_bytes: int
    block_bytes: int
    kv_blocks: int
    free_kv_blocks: int


class InferenceSummary(Struct, frozen=True, kw_only=True):
    """Times of prompts and steps, what the mean rank waits for, and memory.

    ``prefill_time_s``: until every sequence has its first token. ``time_per_output_token_s``: the mean over the tokens
    after the first, None where there are none; ``first_step_time_s`` and ``last_step_time_s``: of a step over all
    micro-batches, from the end of the pass before. ``computing_s``, ``waiting_s``: of the mean rank; waiting by the
    stream that works meanwhile, ``bubble`` where none does.
    """

    schema: str = "meshtwin.inference/1"
    scenario: str
    seed: int
    num_devices: int
    num_replicas: int
    num_sequences: int
    output_tokens: int
    prefill_time_s: float
    time_per_output_token_s: float | None
    first_step_time_s: float | None
    last_step_time_s: float | None
    total_time_s: float
    output_tokens_per_s: float
    computing_s: float
    waiting_s: Mapping[str, float]
    critical_path_s: Mapping[str, float]
    memory: InferenceMemory


def summarise(scenario: InferenceScenario, run: SimulatedRun) -> InferenceSummary:
    """Return the summary of a run."""
    job, ends_s = scenario.job, pass_ends_s(run.whole)
    later_s = ends_s[-1] - ends_s[0]
    replicas = job.parallel.data_degree
    spent = breakdowns(run)
    causes = sorted({cause for found in spent.values() for cause in found.exposed_s})
    waiting = {c: mean_over_ranks(run, {r: f.exposed_s.get(c, 0.0) for r, f in spent.items()}) for c in causes}
    path = critical_path(run).seconds
    return InferenceSummary(
        scenario=scenario.name,
        seed=scenario.seed,
        num_devices=run.plan.mesh.size,
        num_replicas=replicas,
        num_sequences=replicas * job.num_sequences,
        output_tokens=job.output_tokens,
        prefill_time_s=ends_s[0],
        time_per_output_token_s=later_s / (job.output_tokens - 1) if job.num_steps else None,
        first_step_time_s=ends_s[1] - ends_s[0] if job.num_steps else None,
        last_step_time_s=ends_s[-1] - ends_s[-2] if job.num_steps else None,
        total_time_s=run.makespan_s,
        output_tokens_per_s=replicas * job.num_sequences * job.output_tokens / run.makespan_s,
        computing_s=mean_over_ranks(run, {r: f.busy_s.get(MAIN_STREAM, 0.0) for r, f in spent.items()}),
        waiting_s={cause: seconds for cause, seconds in waiting.items() if seconds > 0},
        critical_path_s=dict(sorted(path.items(), key=lambda part: (-part[1], part[0]))),
        memory=_memory(scenario, run),
    )


def pass_ends_s(run: SimulatedRun) -> list[float]:
    """Return when each pass has gone through all stages, of all micro-batches; of a run with all of them."""
    ends_s: dict[int, float] = {}
    for rank, program in run.programs.items():
        for times in run.task_times(rank):
            if times.task.phase in {Phase.PREFILL, Phase.DECODE}:
                index = int(program.named(times.task.name).name.rpartition("@")[2])
                ends_s[index] = max(ends_s.get(index, 0.0), float(times.last_s.max()))
    return [ends_s[index] for index in range(len(ends_s))]


def _memory(scenario: InferenceScenario, run: SimulatedRun) -> InferenceMemory:
    job, software = scenario.job, scenario.software
    device = min(scenario.pricing().cluster.device_types, key=lambda device: device.memory_bytes)
    fullest = max(run.programs, key=lambda rank: run.memory_of(rank).peak_bytes)
    memory, room_bytes = run.memory_of(fullest), software.room_bytes(device)
    num_blocks = job.num_microbatches * sum(job.slots) // job.block_tokens
    caches = (b for b in run.plan.program_of(fullest).buffers.values() if b.kind is Kind.CACHE)
    cache_bytes = job.num_microbatches * sum(buffer.num_bytes for buffer in caches)
    block_bytes = cache_bytes // num_blocks
    return InferenceMemory(
        peak_bytes=memory.peak_bytes,
        capacity_bytes=device.memory_bytes,
        fits=memory.peak_bytes <= room_bytes,
        weights_bytes=memory.peak_by_kind_bytes[Kind.PARAMETER],
        cache_bytes=cache_bytes,
        block_bytes=block_bytes,
        kv_blocks=num_blocks,
        free_kv_blocks=max(0, room_bytes - memory.peak_bytes) // block_bytes,
    )
