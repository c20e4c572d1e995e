"""A scenario of embedding tables, and the reading of its file."""

from collections.abc import Sequence
from dataclasses import dataclass

from scenarios.errors import ScenarioError
from scenarios.reading.documents.checking import check_document
from scenarios.reading.documents.yaml_tree import Document
from scenarios.workloads.recommendation.schema import MAX_ROWS, RecommendationScenarioFile
from scenarios.workloads.workload import Scenario, Workload
from sim.embedding.ids import Table
from sim.embedding.run import CacheSpec

MAX_LOOKUPS = 2_000_000_000
"""Lookups of a whole run; it bounds the time of a simulation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationScenario(Scenario):
    """The tables, the cache of their rows, and the batches that read them."""

    tables: Sequence[Table]
    embedding_dim: int
    cache: CacheSpec
    batch_size: int
    num_batches: int
    num_unmeasured: int

    @property
    def num_rows(self) -> int:
        """Return the rows of all tables."""
        return sum(table.num_rows for table in self.tables)


def read(
    document: Document, overrides: tuple[str, ...], workload: Workload[RecommendationScenario]
) -> RecommendationScenario:
    """Return the scenario of a document. Raises ScenarioError."""
    file = check_document(document, RecommendationScenarioFile)
    _check(document, file)
    num_rows = sum(table.num_rows for table in file.tables)
    return RecommendationScenario(
        name=file.name, seed=file.seed, source=document.source, overrides=overrides, workload=workload,
        document=document, as_read=document,
        tables=[
            Table(name=table.name, num_rows=table.num_rows, num_lookups=table.num_lookups, zipf=table.zipf)
            for table in file.tables
        ],
        embedding_dim=file.embedding_dim,
        cache=CacheSpec(
            num_slots=max(int(num_rows * file.cache.fraction), 1),
            policy=file.cache.policy,
            warm_up=file.cache.warm_up,
        ),
        batch_size=file.trace.batch_size,
        num_batches=file.trace.num_batches,
        num_unmeasured=file.trace.num_unmeasured,
    )  # fmt: skip


def _check(document: Document, file: RecommendationScenarioFile) -> None:
    """Raise ScenarioError for two tables of one name, or for more rows or lookups than fit into a run."""
    names = [table.name for table in file.tables]
    for place, name in enumerate(names):
        if name in names[:place]:
            origin = document.origin(("tables", place, "name"))
            raise ScenarioError(origin, "tables", f"two tables have the name {name!r}", "give each its own name")
    num_rows = sum(table.num_rows for table in file.tables)
    if num_rows > MAX_ROWS:
        rule = f"the tables have {num_rows:,} rows together, more than the limit of {MAX_ROWS:,}"
        raise ScenarioError(document.origin(("tables",)), "tables", rule, "write fewer or smaller tables")
    per_sample = sum(table.num_lookups for table in file.tables)
    num_lookups = per_sample * file.trace.batch_size * (file.trace.num_batches + file.trace.num_unmeasured)
    if num_lookups > MAX_LOOKUPS:
        rule = f"the batches read {num_lookups:,} rows together, more than the limit of {MAX_LOOKUPS:,}"
        remedy = "write smaller or fewer batches"
        raise ScenarioError(document.origin(("trace", "num_batches")), "trace.num_batches", rule, remedy)
