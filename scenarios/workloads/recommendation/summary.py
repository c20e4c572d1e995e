"""The answers of a cache of embedding rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scenarios.workloads.recommendation.scenario import RecommendationScenario
from sim.embedding.run import CacheRun

ELEMENT_BYTES = 4
MOST_PARTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHits:
    """A table: its rows, its lookups in the measured batches, and the part of them that the cache answered."""

    table: str
    num_rows: int
    num_lookups: int
    hit_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartHits:
    """Consecutive batches, and the part of their lookups that the cache answered.

    ``first_batch`` counts from 0, and the batches before the measured ones too.
    """

    first_batch: int
    hit_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationSummary:
    """Means over the measured batches.

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
    tables: Sequence[TableHits]
    over_time: Sequence[PartHits]


def summarise(scenario: RecommendationScenario, run: CacheRun) -> RecommendationSummary:
    """Return the answers of a run."""
    measured = slice(scenario.num_unmeasured, None)
    lookups, hits = run.lookups[measured].sum(axis=0), run.hits[measured].sum(axis=0)
    row_bytes = scenario.embedding_dim * ELEMENT_BYTES
    rows_in, rows_out = float(np.mean(run.rows_in[measured])), float(np.mean(run.rows_out[measured]))
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
        unique_rows_per_batch=float(np.mean(run.unique_rows[measured])),
        rows_in_per_batch=rows_in,
        rows_out_per_batch=rows_out,
        in_bytes_per_batch=rows_in * row_bytes,
        out_bytes_per_batch=rows_out * row_bytes,
        tables=[
            TableHits(table=table.name, num_rows=table.num_rows, num_lookups=looked, hit_rate=hit / looked)
            for table, looked, hit in counted
        ],
        over_time=_over_time(run),
    )


def _over_time(run: CacheRun) -> list[PartHits]:
    lookups, hits = run.lookups.sum(axis=1), run.hits.sum(axis=1)
    num_parts = min(len(lookups), MOST_PARTS)
    firsts = [int(batches[0]) for batches in np.array_split(np.arange(len(lookups)), num_parts)]
    rates = np.add.reduceat(hits, firsts) / np.add.reduceat(lookups, firsts)
    return [PartHits(first_batch=first, hit_rate=rate) for first, rate in zip(firsts, rates.tolist(), strict=True)]
