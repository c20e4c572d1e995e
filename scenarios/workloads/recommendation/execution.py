"""A training of cached embedding tables with torch, beside the simulation of the same batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec import Struct

from backends.execution.embedding import EmbeddingExecution, EmbeddingRequest
from backends.registry import load_torch_backend
from costmodels.units import format_bytes, format_percent, format_time
from scenarios.errors import Origin, ScenarioError
from scenarios.report.blocks import Block, Fact
from scenarios.report.pages.executed import executed_blocks
from scenarios.results.registry import load_writer
from scenarios.workloads.executing import Executed, ExecutionOptions, refuse_options
from scenarios.workloads.recommendation.compared import shown_counts, shown_weights
from scenarios.workloads.recommendation.running import refuse_large_tables, refusing_small_cache, simulate
from scenarios.workloads.recommendation.scenario import ELEMENT_BYTES, RecommendationScenario
from scenarios.workloads.recommendation.server_execution import execute_servers
from scenarios.workloads.recommendation.step_execution import execute_steps
from sim.embedding.run import CacheRun


class ExecutedCacheSummary(Struct, frozen=True, kw_only=True):
    """What a training counted and took; sums over all batches, times as means over the measured ones.

    ``differing``: counts that are not the simulated ones in every batch. ``differing_weights``: weights whose bits are
    not those of a training without a cache; None if none was run.
    """

    schema: str = "meshtwin.recommendation_execution/1"
    scenario: str
    seed: int
    device: str
    policy: str
    num_batches: int
    hit_rate: float
    rows_in: int
    rows_out: int
    in_bytes: int
    out_bytes: int
    batch_s: float
    cache_s: float
    differing: Sequence[str]
    num_weights: int
    differing_weights: int | None
    passed: bool


@dataclass(frozen=True, slots=True)
class ExecutedCache(Executed):
    """A training with a cache on a device."""

    summary: ExecutedCacheSummary

    def blocks(self) -> Sequence[Block]:
        """Return the report."""
        found = self.summary
        facts = [
            Fact("batch", f"{format_time(found.batch_s)}, of it {format_time(found.cache_s)} to have its rows there"),
            Fact("hit rate", format_percent(found.hit_rate)),
            Fact("fetched", f"{found.rows_in:,} rows, {format_bytes(found.in_bytes)}"),
            Fact("written back", f"{found.rows_out:,} rows, {format_bytes(found.out_bytes)}"),
            Fact("counts", shown_counts(found.differing)),
        ]
        if found.differing_weights is not None:
            facts.append(
                Fact("check", shown_weights(found.num_weights, found.differing_weights, "a training without a cache"))
            )
        return executed_blocks(found.scenario, f"{found.num_batches:,} batches, run with torch", facts)

    def write(self, out: Path) -> None:
        """Write summary.json and report.html into a folder."""
        load_writer()(self.as_json(), None, self.blocks(), out)


def execute(scenario: RecommendationScenario, options: ExecutionOptions) -> Executed | None:
    """Return what a training with caches counted, or the steps of a timed model; None where nothing is to report.

    Raises ScenarioError if the scenario cannot be run here.
    """
    if scenario.het is not None:
        _refuse_timed_servers(scenario)
        return execute_servers(scenario, options)
    _refuse_unservable(scenario)
    if scenario.timed is not None:
        return execute_steps(scenario, scenario.timed, options)
    return _execute_on_device(scenario, options)


def _refuse_timed_servers(scenario: RecommendationScenario) -> None:
    """Raise ScenarioError for workers of parameter servers with a model on a machine."""
    if scenario.timed is not None:
        origin, rule = scenario.document.origin(("model",)), "processes of this machine train a logistic regression"
        raise ScenarioError(origin, "model", rule, "leave model and cluster out, or simulate")


def _refuse_unservable(scenario: RecommendationScenario) -> None:
    """Raise ScenarioError for a cache that no device can have."""
    if scenario.cache.served == "lookup":
        origin, rule = scenario.document.origin(("cache", "served")), "a device needs all rows of a batch together"
        raise ScenarioError(origin, "cache.served", rule, "leave it out, or simulate")
    if scenario.cache.policy == "belady":
        origin, rule = scenario.document.origin(("cache", "policy")), "belady knows all batches, which no cache does"
        raise ScenarioError(origin, "cache.policy", rule, "take another policy, or simulate")


def _execute_on_device(scenario: RecommendationScenario, options: ExecutionOptions) -> ExecutedCache:
    refuse_options(options, "recommendation", but=("device", "check"))
    if options.check and options.device == "cuda":
        rule = "the bits cannot be compared: a GPU adds gradients up in no fixed order"
        raise ScenarioError(Origin(option="--check"), "", rule, "leave out --device cuda")
    refuse_large_tables(scenario, scenario.num_rows * (2 if options.check else 1) + scenario.cache.num_slots)
    request = EmbeddingRequest(
        tables=scenario.tables,
        embedding_dim=scenario.embedding_dim,
        cache=scenario.cache,
        num_batches=scenario.num_unmeasured + scenario.num_batches,
        batch_size=scenario.batch_size,
        seed=scenario.seed,
        recorded=scenario.recorded,
        device=options.device,
        check=options.check,
    )
    with refusing_small_cache(scenario):
        found = load_torch_backend().train_embeddings(request)
    return ExecutedCache(_summary(scenario, options, found, simulate(scenario).run))


def _summary(
    scenario: RecommendationScenario, options: ExecutionOptions, found: EmbeddingExecution, simulated: CacheRun
) -> ExecutedCacheSummary:
    row_bytes = scenario.embedding_dim * ELEMENT_BYTES
    pairs = {
        "hits": (found.hits, simulated.hits.sum(axis=1)),
        "rows fetched": (found.rows_in, simulated.rows_in),
        "rows written back": (found.rows_out, simulated.rows_out),
        "bytes fetched": (found.in_bytes, simulated.rows_in * row_bytes),
        "bytes written back": (found.out_bytes, simulated.rows_out * row_bytes),
    }
    differing = [name for name, (executed, expected) in pairs.items() if not np.array_equal(executed, expected)]
    measured = slice(scenario.num_unmeasured, None)
    return ExecutedCacheSummary(
        scenario=scenario.name,
        seed=scenario.seed,
        device=options.device,
        policy=scenario.cache.policy,
        num_batches=len(found.hits),
        hit_rate=float(found.hits[measured].sum() / simulated.lookups[measured].sum()),
        rows_in=int(found.rows_in.sum()),
        rows_out=int(found.rows_out.sum()),
        in_bytes=int(found.in_bytes.sum()),
        out_bytes=int(found.out_bytes.sum()),
        batch_s=float(found.batch_s[measured].mean()),
        cache_s=float(found.cache_s[measured].mean()),
        differing=differing,
        num_weights=found.num_weights,
        differing_weights=found.differing_weights,
        passed=not differing and not found.differing_weights,
    )
