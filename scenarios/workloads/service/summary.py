"""The answers of a simulated service."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from scenarios.workloads.service.reading import ServiceScenario
from scenarios.workloads.service.schema import SloSection
from sim.serving.service import Served

Floats = NDArray[np.float64]


class Spread(Struct, frozen=True, kw_only=True):
    """A quantity over requests, in seconds: mean, and the values that 50, 90 and 99 % do not exceed."""

    mean: float
    p50: float
    p90: float
    p99: float


class Waits(Struct, frozen=True, kw_only=True):
    """Mean seconds of a request by what it waited for, from arrival to last token; they add up to its latency.

    ``queue``: for its first iteration; ``prefill``: for its first token after that; ``preempted``: without memory,
    until it is computed again; ``stalled``: for prompts of others; ``moved``: for its keys and values to reach a
    replica that decodes, and for room there; ``decode``: for its own tokens.
    """

    queue: float
    prefill: float
    preempted: float
    stalled: float
    moved: float
    decode: float


class CapacityPoint(Struct, frozen=True, kw_only=True):
    """A service of so many replicas under the same load; a time is None where no request has it."""

    num_replicas: int
    met_slo_fraction: float
    ttft_p99_s: float | None
    tpot_p99_s: float | None
    busy_fraction: float


class Capacity(Struct, frozen=True, kw_only=True):
    """``fewest_replicas``: the fewest at which ``wanted_fraction`` of the requests meet the objective; None: too many.

    ``tried``: the services that were simulated, by their number of replicas.
    """

    wanted_fraction: float
    fewest_replicas: int | None
    tried: Sequence[CapacityPoint]


class ServiceSummary(Struct, frozen=True, kw_only=True):
    """Times over all finished requests, rates over the makespan.

    ``ttft_s``, ``tpot_s``, ``latency_s``: None where no request has such a time. ``goodput_per_s``: finished requests
    per second that met the objective. ``kv_peak_fraction``: most of a replica's blocks in use. ``cached_fraction``:
    tokens of prompts that were found in memory. ``capacity``: where the number of replicas was sought.
    """

    schema: str = "meshtwin.service/1"
    scenario: str
    seed: int
    num_requests: int
    num_finished: int
    num_refused: int
    num_cancelled: int
    num_replicas: int
    makespan_s: float
    output_tokens_per_s: float
    requests_per_s: float
    goodput_per_s: float
    met_slo_fraction: float
    ttft_s: Spread | None
    tpot_s: Spread | None
    latency_s: Spread | None
    waits_s: Waits | None
    tokens_per_step: float
    preemptions: int
    kv_blocks: int
    kv_peak_fraction: float
    cached_fraction: float
    busy_fraction: float
    capacity: Capacity | None = None


def summarise(scenario: ServiceScenario, served: Served) -> ServiceSummary:
    """Return the answers of a service."""
    requests, records, makespan_s = served.requests, served.records, served.makespan_s
    ttft_s, tpot_s, latency_s = records.ttft_s(requests), records.tpot_s(), records.latency_s(requests)
    finished, span_s = records.finished, max(makespan_s, 1e-12)
    good = finished & met(scenario.slo, ttft_s, tpot_s)
    steps = int(records.steps.sum())
    pools = [replica.pool for replica in served.replicas]
    busy_s = sum(replica.busy_s for replica in served.replicas)
    return ServiceSummary(
        scenario=scenario.name,
        seed=scenario.seed,
        num_requests=len(requests),
        num_finished=int(finished.sum()),
        num_refused=int(records.refused.sum()),
        num_cancelled=int(records.cancelled.sum()),
        num_replicas=served.spec.num_replicas,
        makespan_s=makespan_s,
        output_tokens_per_s=int(records.emitted.sum()) / span_s,
        requests_per_s=int(finished.sum()) / span_s,
        goodput_per_s=int(good.sum()) / span_s,
        met_slo_fraction=int(good.sum()) / len(requests),
        ttft_s=_spread(ttft_s[finished]),
        tpot_s=_spread(tpot_s[finished]),
        latency_s=_spread(latency_s[finished]),
        waits_s=_waits(served),
        tokens_per_step=int(records.decoded.sum()) / steps if steps else 1.0,
        preemptions=int(records.preemptions.sum()),
        kv_blocks=served.spec.num_blocks,
        kv_peak_fraction=max(pool.peak / pool.total for pool in pools),
        cached_fraction=int(records.cached.sum()) / int(requests.prompt_tokens.sum()),
        busy_fraction=busy_s / (span_s * len(pools)),
    )


def met(slo: SloSection, ttft_s: Floats, tpot_s: Floats) -> NDArray[np.bool_]:
    """Return which requests meet an objective; an answer of one token has no time per token, and meets any."""
    good = np.ones(len(ttft_s), dtype=bool)
    if slo.ttft is not None:
        good &= ttft_s <= slo.ttft
    if slo.tpot is not None:
        good &= ~(tpot_s > slo.tpot)
    return good


def _spread(values: Floats) -> Spread | None:
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return Spread(mean=float(values.mean()), p50=p50, p90=p90, p99=p99)


def _waits(served: Served) -> Waits | None:
    records, done = served.records, served.records.finished
    if not done.any():
        return None
    arrival_s = served.requests.arrival_s
    preempted, stalled = float(records.preempted_s[done].mean()), float(records.stalled_s[done].mean())
    moved = float(records.moved_s[done].mean())
    decode = float((records.finish_s - records.first_s)[done].mean()) - preempted - stalled - moved
    return Waits(
        queue=float((records.started_s - arrival_s)[done].mean()),
        prefill=float((records.first_s - records.started_s)[done].mean()),
        preempted=preempted,
        stalled=stalled,
        moved=moved,
        decode=decode,
    )
