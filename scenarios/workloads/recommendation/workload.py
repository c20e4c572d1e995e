"""Embedding tables of recommendation models that do not fit on the device, and the cache of their rows."""

import math

from costmodels.units import format_bytes, format_percent
from scenarios.errors import ScenarioError
from scenarios.reading.documents.yaml_tree import Document
from scenarios.workloads.effort import Announce
from scenarios.workloads.recommendation.outcome import RecommendationOutcome
from scenarios.workloads.recommendation.scenario import RecommendationScenario, read
from scenarios.workloads.recommendation.schema import RecommendationScenarioFile
from scenarios.workloads.recommendation.starter import STARTER
from scenarios.workloads.recommendation.summary import summarise
from scenarios.workloads.workload import Column, Detail, Workload
from sim.embedding.errors import CacheTooSmallError
from sim.embedding.run import run_cache


class Recommendation(Workload[RecommendationScenario]):
    """Batches that read rows of embedding tables: which rows the cache has, and which must be moved."""

    name = "recommendation"
    what = "embedding tables in host memory and a cache of their rows"
    schema = RecommendationScenarioFile
    starter = STARTER
    columns = (
        Column("cache rows", "cache_rows", lambda rows: f"{rows:,}"),
        Column("hit rate", "hit_rate", format_percent),
        Column("of rows", "unique_hit_rate", format_percent),
        Column("moved per batch", "moved_bytes_per_batch", format_bytes),
    )
    order, ordered_by = "moved_bytes_per_batch", "bytes moved per batch"

    def read(self, document: Document, overrides: tuple[str, ...]) -> RecommendationScenario:
        """Return the scenario of a document."""
        return read(document, overrides, self)

    def simulate(
        self,
        scenario: RecommendationScenario,
        *,
        detail: Detail | None = None,
        fold: bool = True,
        announce: Announce | None = None,
    ) -> RecommendationOutcome:
        """Return what the batches found. Raises ScenarioError where a batch needs more rows than the cache holds."""
        del detail, fold, announce
        num_batches = scenario.num_unmeasured + scenario.num_batches
        try:
            run = run_cache(scenario.tables, scenario.cache, num_batches, scenario.batch_size, scenario.seed)
        except CacheTooSmallError as error:
            fraction = _fraction(error.num_unique, scenario.num_rows)
            raise ScenarioError(
                scenario.document.origin(("cache", "fraction")),
                "cache.fraction",
                str(error),
                f"write {fraction:g} or more (later batches may need more), or a smaller trace.batch_size",
            ) from error
        return RecommendationOutcome(scenario, run, summarise(scenario, run))


def _fraction(num_slots: int, num_rows: int) -> float:
    """Return a fraction of at most six digits whose part of the rows, rounded down, is at least ``num_slots``."""
    return min(math.ceil((num_slots + 0.5) / num_rows * 1e6) / 1e6, 1.0)
