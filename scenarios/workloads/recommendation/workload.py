"""Embedding tables of recommendation models that do not fit on the device, and the cache of their rows."""

from costmodels.units import format_bytes, format_percent, format_time
from scenarios.reading.documents.yaml_tree import Document
from scenarios.workloads.effort import Announce
from scenarios.workloads.executing import Executed, ExecutionOptions
from scenarios.workloads.recommendation.outcome import RecommendationOutcome, RecommendationRow
from scenarios.workloads.recommendation.running import simulate
from scenarios.workloads.recommendation.scenario import RecommendationScenario, read
from scenarios.workloads.recommendation.schema import UNREAD, RecommendationScenarioFile
from scenarios.workloads.recommendation.starter import STARTER
from scenarios.workloads.steps.executing.registry import load_execution_of
from scenarios.workloads.workload import Column, Detail, Workload


class Recommendation(Workload[RecommendationScenario]):
    """Batches that read rows of embedding tables: which rows the cache has, and which must be moved."""

    name = "recommendation"
    what = "embedding tables in host memory and a cache of their rows"
    schema = RecommendationScenarioFile
    starter = STARTER
    row_type = RecommendationRow
    columns = (
        Column("cache rows", "cache_rows", lambda rows: f"{rows:,}"),
        Column("hit rate", "hit_rate", format_percent),
        Column("of rows", "unique_hit_rate", format_percent),
        Column("moved per batch", "moved_bytes_per_batch", format_bytes),
        Column("step", "step_time_s", format_time),
        Column("samples/s", "samples_per_s", lambda rate: f"{rate:,.0f}"),
    )
    order, ordered_by = "moved_bytes_per_batch", "bytes moved per batch"
    unread = UNREAD
    has_plan = False

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
        return simulate(scenario)

    def execute(self, scenario: RecommendationScenario, options: ExecutionOptions) -> Executed | None:
        """Return what a training with a cache counted, or the steps of a timed model, beside their simulation."""
        return load_execution_of(self.name)(scenario, options)
