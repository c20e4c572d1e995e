"""The answers of a cache of embedding rows."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from scenarios.workloads.recommendation.scenario import ELEMENT_BYTES, RecommendationScenario
from scenarios.workloads.recommendation.server_time import ServerTimes
from scenarios.workloads.recommendation.step_time import StepTimeSummary
from sim.embedding.het_run import HEADER_BYTES, HetRun, HetSpec
from sim.embedding.popularity import Popularity, popularity_of
from sim.embedding.run import CacheRun

MOST_PARTS = 200


class TableHits(Struct, frozen=True, kw_only=True):
    """A table: its rows, its lookups in the measured batches, and the part of them that the cache answered.

    ``recorded``: statistics of all lookups of ``trace.file``; None where lookups are drawn.
    """

    table: str
    num_rows: int
    num_lookups: int
    hit_rate: float
    recorded: Popularity | None


class PartHits(Struct, frozen=True, kw_only=True):
    """Consecutive batches, and the part of their lookups that the cache answered.

    ``first_batch`` counts from 0, and the batches before the measured ones too.
    """

    first_batch: int
    hit_rate: float


class ParameterServerSummary(Struct, frozen=True, kw_only=True):
    """Workers with caches and servers with the tables: parts of the different rows of a worker's batch, and bytes.

    ``pulled_fraction``: sent by servers, ``stale_fraction`` of it because the copy lacked too many updates;
    ``pushed_fraction``: whose changes were pushed, ``evicted_fraction`` of it because the row gave way.
    ``rows_of_uncached``, ``bytes_of_uncached``: pulled and pushed rows, and all bytes, as a part of those of workers
    without a cache, which pull and push every different row. ``sent_bytes_per_step``, ``received_bytes_per_step``: of a
    worker. ``flushed_rows``: pushed by all workers after their last step. ``times``: of a step, with a model and a
    machine.
    """

    num_workers: int
    consistency: str
    read_bound: int
    write_bound: int
    pulled_fraction: float
    stale_fraction: float
    pushed_fraction: float
    evicted_fraction: float
    rows_of_uncached: float
    bytes_of_uncached: float
    sent_bytes_per_step: float
    received_bytes_per_step: float
    flushed_rows: int
    times: ServerTimes | None


class RecommendationSummary(Struct, frozen=True, kw_only=True):
    """Means over the measured batches; with parameter servers a batch is that of one worker.

    ``hit_rate``: of lookups; a lookup of a missing row is a miss however often the batch repeats it.
    ``unique_hit_rate``: of different rows, which decide the bytes.
    ``static_hit_rate``: of a cache that always holds the most popular rows.
    ``over_time``: of all batches, in at most 200 parts of as many batches, or one more.
    """

    schema: str = "meshtwin.recommendation/1"
    scenario: str
    seed: int
    policy: str
    num_rows: int
    cache_rows: int
    table_bytes: int
    cache_bytes: int
    hit_rate: float
    unique_hit_rate: float
    static_hit_rate: float
    unique_rows_per_batch: float
    rows_in_per_batch: float
    rows_out_per_batch: float
    in_bytes_per_batch: float
    out_bytes_per_batch: float
    parameter_server: ParameterServerSummary | None
    step: StepTimeSummary | None
    tables: Sequence[TableHits]
    over_time: Sequence[PartHits]


def summarise(
    scenario: RecommendationScenario,
    run: CacheRun,
    het: HetRun | None = None,
    step: StepTimeSummary | None = None,
    times: ServerTimes | None = None,
) -> RecommendationSummary:
    """Return the answers of a run.

    ``het``: counts of workers and servers, ``times``: of their steps, ``step``: a step's time, if there are.
    """
    measured = slice(scenario.num_unmeasured, None)
    lookups, hits = run.lookups[measured].sum(axis=0), run.hits[measured].sum(axis=0)
    row_bytes = scenario.row_elements * ELEMENT_BYTES
    per_step = 1 if scenario.het is None else scenario.het.workers.num_workers
    rows_in, rows_out = (float(np.mean(rows[measured])) / per_step for rows in (run.rows_in, run.rows_out))
    server = None if scenario.het is None or het is None else _servers(scenario.het, het, measured, row_bytes, times)
    counted = zip(scenario.tables, lookups.tolist(), hits.tolist(), strict=True)
    return RecommendationSummary(
        scenario=scenario.name,
        seed=scenario.seed,
        policy=scenario.cache.policy,
        num_rows=scenario.num_rows,
        cache_rows=scenario.cache.num_slots,
        table_bytes=scenario.num_rows * row_bytes,
        cache_bytes=scenario.cache.num_slots * row_bytes,
        hit_rate=float(hits.sum() / lookups.sum()),
        unique_hit_rate=float(run.unique_hits[measured].sum() / run.unique_rows[measured].sum()),
        static_hit_rate=run.static_hit_rate,
        unique_rows_per_batch=float(np.mean(run.unique_rows[measured])) / per_step,
        rows_in_per_batch=rows_in,
        rows_out_per_batch=rows_out,
        in_bytes_per_batch=rows_in * row_bytes if server is None else server.received_bytes_per_step,
        out_bytes_per_batch=rows_out * row_bytes if server is None else server.sent_bytes_per_step,
        parameter_server=server,
        step=step,
        tables=[
            TableHits(
                table=table.name,
                num_rows=table.num_rows,
                num_lookups=looked,
                hit_rate=hit / looked,
                recorded=None if scenario.recorded is None else popularity_of(scenario.recorded[:, place]),
            )
            for place, (table, looked, hit) in enumerate(counted)
        ],
        over_time=_over_time(run),
    )


def _servers(
    spec: HetSpec, run: HetRun, measured: slice, row_bytes: int, times: ServerTimes | None
) -> ParameterServerSummary:
    unique, pulled, stale, pushed, evicted = (
        int(counts[measured].sum()) for counts in (run.unique, run.pulled, run.stale, run.pushed, run.evicted)
    )
    sent_bytes, received_bytes = run.sent_bytes(row_bytes)[measured], run.received_bytes(row_bytes)[measured]
    uncached_bytes = 2 * (HEADER_BYTES + row_bytes) * unique
    return ParameterServerSummary(
        num_workers=spec.workers.num_workers,
        consistency=spec.workers.consistency,
        read_bound=spec.clocking.read_bound,
        write_bound=spec.clocking.write_bound,
        pulled_fraction=pulled / unique,
        stale_fraction=stale / unique,
        pushed_fraction=pushed / unique,
        evicted_fraction=evicted / unique,
        rows_of_uncached=(pulled + pushed) / (2 * unique),
        bytes_of_uncached=int(sent_bytes.sum() + received_bytes.sum()) / uncached_bytes,
        sent_bytes_per_step=float(sent_bytes.mean()),
        received_bytes_per_step=float(received_bytes.mean()),
        flushed_rows=int(run.flushed.sum()),
        times=times,
    )


def _over_time(run: CacheRun) -> list[PartHits]:
    lookups, hits = run.lookups.sum(axis=1), run.hits.sum(axis=1)
    num_parts = min(len(lookups), MOST_PARTS)
    firsts = [int(batches[0]) for batches in np.array_split(np.arange(len(lookups)), num_parts)]
    rates = np.add.reduceat(hits, firsts) / np.add.reduceat(lookups, firsts)
    return [PartHits(first_batch=first, hit_rate=rate) for first, rate in zip(firsts, rates.tolist(), strict=True)]
