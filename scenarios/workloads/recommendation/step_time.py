"""The simulated time of one training step, for a batch of the run."""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from backends.simulated import SimulatedBackend
from scenarios.workloads.recommendation.scenario import RecommendationScenario
from scenarios.workloads.recommendation.timed import TimedSpec
from scenarios.workloads.steps.findings.means import mean_over_ranks
from scenarios.workloads.steps.pricing import cluster_pricing
from sim.embedding.ids import Ids
from sim.embedding.rank_batch import RankBatch, rank_batches
from sim.embedding.run import CacheRun
from sim.embedding.step.builder import build_step
from sim.engine.compiling.tables import MAIN_STREAM
from sim.engine.findings.breakdown import breakdowns
from sim.engine.findings.critical_path import critical_path
from sim.engine.running.run import SimulatedRun
from sim.plan.words.buffer import Tier


class StepTimeSummary(Struct, frozen=True, kw_only=True):
    """The step of one batch, that with the middle number of moved rows among the measured ones.

    ``batch``: its number, from 0. ``hit_rate``: of its lookups, in the caches of all ranks. ``computing_s``,
    ``waiting_s``: of the mean rank; waiting by the stream that works meanwhile, ``bubble`` where none does.
    ``critical_path_s``: by family of kernels, kind of collective, and copies. ``peak_memory_bytes``: of the fullest
    device; ``host_memory_bytes``: the tables of a node's ranks on its host. ``fits_memory``: both fit.
    """

    batch: int
    num_ranks: int
    iteration_time_s: float
    samples_per_s: float
    hit_rate: float
    computing_s: float
    waiting_s: Mapping[str, float]
    critical_path_s: Mapping[str, float]
    peak_memory_bytes: int
    memory_capacity_bytes: int
    host_memory_bytes: int
    host_memory_capacity_bytes: int
    fits_memory: bool


class TimedStep(Struct, frozen=True):
    """A simulated step, and its answers."""

    run: SimulatedRun
    summary: StepTimeSummary


def time_step(scenario: RecommendationScenario, timed: TimedSpec, counted: CacheRun, source: Ids) -> TimedStep:
    """Return the simulated step of the batch in the middle. Raises CacheTooSmallError for a rank's cache.

    ``source``: of the batches that were counted.
    """
    batch = middle_batch(scenario, counted)
    (parts,) = parts_of(scenario, timed, range(batch, batch + 1), source)
    plan = build_step(timed.step(scenario.name, scenario.tables, scenario.batch_size, scenario.seed), parts)
    pricing = cluster_pricing(timed.cluster, {}, scenario.seed, timed.software)
    run = SimulatedBackend(pricing).simulate(plan)
    return TimedStep(run, _summary(scenario, timed, run, parts, batch))


def parts_of(scenario: RecommendationScenario, timed: TimedSpec, batches: range, source: Ids) -> list[list[RankBatch]]:
    """Return the ranks' parts of some batches. Raises CacheTooSmallError for a rank's cache."""
    on_device = scenario.cache.num_slots >= scenario.num_rows
    return rank_batches(
        scenario.tables,
        None if on_device else scenario.cache,
        (timed.sharding, timed.cluster.world_size),
        batches,
        scenario.batch_size,
        scenario.seed,
        source=source,
    )


def middle_batch(scenario: RecommendationScenario, counted: CacheRun) -> int:
    """Return the number of the measured batch that is in the middle by its moved rows, of equals the first."""
    moved = (counted.rows_in + counted.rows_out)[scenario.num_unmeasured :]
    place = np.argsort(moved, kind="stable")[len(moved) // 2]
    return scenario.num_unmeasured + int(place)


def _summary(
    scenario: RecommendationScenario, timed: TimedSpec, run: SimulatedRun, parts: list[RankBatch], batch: int
) -> StepTimeSummary:
    spent = breakdowns(run)
    causes = sorted({cause for found in spent.values() for cause in found.exposed_s})
    waiting = {c: mean_over_ranks(run, {r: f.exposed_s.get(c, 0.0) for r, f in spent.items()}) for c in causes}
    path, device, host = critical_path(run).seconds, timed.cluster.node_spec.device, timed.cluster.node_spec.host
    peak = max(run.memory_of(rank).peak_bytes for rank in run.programs)
    on_host = max(run.memory_of(rank, Tier.HOST).peak_bytes for rank in run.programs) * timed.cluster.devices_per_node
    reserve = timed.software.reserve_bytes(device)
    return StepTimeSummary(
        batch=batch,
        num_ranks=run.plan.mesh.size,
        iteration_time_s=run.iteration_time_s,
        samples_per_s=scenario.batch_size / run.iteration_time_s,
        hit_rate=sum(part.num_hits for part in parts) / sum(part.num_lookups for part in parts),
        computing_s=mean_over_ranks(run, {r: f.busy_s.get(MAIN_STREAM, 0.0) for r, f in spent.items()}),
        waiting_s={cause: seconds for cause, seconds in waiting.items() if seconds > 0},
        critical_path_s=dict(sorted(path.items(), key=lambda part: (-part[1], part[0]))),
        peak_memory_bytes=peak,
        memory_capacity_bytes=device.memory_bytes,
        host_memory_bytes=on_host,
        host_memory_capacity_bytes=host.memory_bytes,
        fits_memory=peak + reserve <= device.memory_bytes and on_host <= host.memory_bytes,
    )
