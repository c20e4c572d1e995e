"""The simulated times of workers with parameter servers: their steps, and those of workers without a cache."""

from msgspec import Struct
from msgspec.structs import replace

from backends.simulated import SimulatedBackend
from scenarios.workloads.recommendation.scenario import ELEMENT_BYTES, RecommendationScenario
from scenarios.workloads.recommendation.timed import TimedSpec
from scenarios.workloads.steps.pricing import cluster_pricing
from sim.embedding.het_run import ON_SERVERS, Dense, HetRequests, HetRun, HetSpec
from sim.embedding.ids import Ids, id_source
from sim.embedding.rank_batch import served_batch
from sim.embedding.step.builder import build_step
from sim.embedding.step.dense import gradient_bytes
from sim.embedding.turns import Workers
from sim.engine.prices.pricing import ClusterPricing
from sim.parameter_servers.prices import ServerPricing
from sim.parameter_servers.requests import UncachedRequests
from sim.parameter_servers.run import WorkerStep, run_workers

_UNCACHED_STEPS = 20
"""Steps that are simulated without a cache, at most; they differ in the rows of their batches alone."""


class ServerTimes(Struct, frozen=True, kw_only=True):
    """The mean measured step, from one end to the next, and its parts, of the mean worker.

    ``pull_s``: from its request until its rows are there; ``local_s``: rows to the device, forward, backward, gradients
    to the host; ``push_s``: pushed rows and, meanwhile, the wait for all dense gradients and their sum. The rest of
    ``step_s`` waits for other workers. ``uncached_step_s``: of workers without a cache; ``uncached_servers_step_s``:
    where their dense layers lie on the servers as well.
    """

    step_s: float
    samples_per_s: float
    pull_s: float
    local_s: float
    push_s: float
    uncached_step_s: float
    uncached_servers_step_s: float


def time_workers(scenario: RecommendationScenario, het: HetSpec, timed: TimedSpec) -> tuple[HetRun, ServerTimes]:
    """Return what workers count, in the order in which their requests reach the servers, and the times of their steps.

    Raises CacheTooSmallError.
    """
    source = id_source(scenario.tables, scenario.seed, scenario.recorded, het.workers.num_workers)
    pricing = cluster_pricing(timed.cluster, {}, scenario.seed, timed.software)
    prices = ServerPricing(pricing, het.workers.num_workers, timed.num_servers, timed.row_bytes_per_s)
    step = _worker_step(scenario, timed, het.dense, pricing, source)
    num_steps = scenario.num_unmeasured + scenario.num_batches
    requests = HetRequests(source, het, num_steps, scenario.batch_size, scenario.seed)
    workers = _on_devices(het.workers, pricing)
    times = run_workers(workers, step, prices, requests, num_steps)
    step_s = times.step_s(scenario.num_unmeasured)
    parts_s = times.parts_s[:, scenario.num_unmeasured :].mean(axis=(1, 2)).tolist()
    others = [
        _uncached_step_s(scenario, workers, replace(step, dense=dense, key_bytes=0), prices, source)
        for dense in (het.dense, ON_SERVERS)
    ]
    return requests.ended(), ServerTimes(
        step_s=step_s,
        samples_per_s=scenario.batch_size * het.workers.num_workers / step_s,
        pull_s=parts_s[0],
        local_s=parts_s[1],
        push_s=parts_s[2],
        uncached_step_s=others[0],
        uncached_servers_step_s=others[1],
    )


def _on_devices(workers: Workers, pricing: ClusterPricing) -> Workers:
    """Return workers whose steps take longer on slower devices than on the first one's."""
    slowdowns = pricing.cluster.topology.device_slowdown[pricing.cluster.devices].tolist()
    stated = zip(workers.relative_step_times, slowdowns, strict=True)
    return replace(workers, relative_step_times=[time * slowdown / slowdowns[0] for time, slowdown in stated])


def _uncached_step_s(
    scenario: RecommendationScenario, workers: Workers, step: WorkerStep, prices: ServerPricing, source: Ids
) -> float:
    """Return the mean step of workers without a cache."""
    num_steps = min(_UNCACHED_STEPS, scenario.num_unmeasured + scenario.num_batches)
    batches = [source.batches(num_steps, scenario.batch_size, worker) for worker in range(workers.num_workers)]
    return run_workers(workers, step, prices, UncachedRequests(batches), num_steps).step_s(0)


def _worker_step(
    scenario: RecommendationScenario, timed: TimedSpec, dense: Dense, pricing: ClusterPricing, source: Ids
) -> WorkerStep:
    """Return the step of a worker; its own part is simulated op by op, for the first batch of the first worker."""
    ids = next(source.batches(1, scenario.batch_size))
    batch = served_batch(scenario.tables, ids, scenario.batch_size, source.num_rows)
    plan = build_step(timed.served_step(scenario.name, scenario.tables, scenario.batch_size, scenario.seed), [batch])
    run = SimulatedBackend(pricing).simulate(plan)
    return WorkerStep(
        local_s=run.iteration_time_s,
        row_bytes=scenario.row_elements * ELEMENT_BYTES,
        dense_bytes=gradient_bytes(plan.programs[0]),
        dense=dense,
    )
