"""The simulation of a cache of embedding rows."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

from costmodels.units import format_bytes
from scenarios.errors import ScenarioError
from scenarios.this_computer import physical_memory_bytes
from scenarios.workloads.recommendation.outcome import RecommendationOutcome
from scenarios.workloads.recommendation.scenario import ELEMENT_BYTES, RecommendationScenario
from scenarios.workloads.recommendation.server_time import ServerTimes, time_workers
from scenarios.workloads.recommendation.step_time import TimedStep, time_step
from scenarios.workloads.recommendation.summary import summarise
from sim.embedding.errors import CacheTooSmallError
from sim.embedding.het_run import run_het
from sim.embedding.ids import id_source
from sim.embedding.run import run_cache


def simulate(scenario: RecommendationScenario) -> RecommendationOutcome:
    """Return what the batches found. Raises ScenarioError where a batch needs more rows than the cache holds."""
    num_batches = scenario.num_unmeasured + scenario.num_batches
    timed: TimedStep | None = None
    times: ServerTimes | None = None
    with refusing_small_cache(scenario):
        trace = num_batches, scenario.batch_size, scenario.seed
        if scenario.het is None:
            source = id_source(scenario.tables, scenario.seed, scenario.recorded)
            run, het = run_cache(scenario.tables, scenario.cache, *trace, source=source), None
            if scenario.timed is not None:
                timed = time_step(scenario, scenario.timed, run, source)
        elif scenario.timed is not None:
            het, times = time_workers(scenario, scenario.het, scenario.timed)
            run = het.cache
        else:
            het = run_het(scenario.tables, scenario.het, *trace, recorded=scenario.recorded)
            run = het.cache
    summary = summarise(scenario, run, het, None if timed is None else timed.summary, times)
    return RecommendationOutcome(scenario, run, summary, None if timed is None else timed.run)


def refuse_large_tables(scenario: RecommendationScenario, num_rows: int) -> None:
    """Raise ScenarioError if the memory of this computer cannot hold so many rows."""
    needed_bytes, memory_bytes = num_rows * scenario.embedding_dim * ELEMENT_BYTES, physical_memory_bytes()
    if needed_bytes > memory_bytes:
        rule = f"the tables need {format_bytes(needed_bytes)}, and this computer has {format_bytes(memory_bytes)}"
        raise ScenarioError(scenario.document.origin(("tables",)), "tables", rule, "write fewer or shorter rows")


@contextmanager
def refusing_small_cache(scenario: RecommendationScenario) -> Iterator[None]:
    """Turn CacheTooSmallError into a ScenarioError with the fraction that the batch needs."""
    try:
        yield
    except CacheTooSmallError as error:
        fraction = fraction_for(error.num_unique, error.num_rows)
        raise ScenarioError(
            scenario.document.origin(("cache", "fraction")),
            "cache.fraction",
            str(error),
            f"write {fraction:g} or more (later batches may need more), or a smaller trace.batch_size",
        ) from error


def fraction_for(num_slots: int, num_rows: int) -> float:
    """Return a fraction of at most six digits whose part of the rows, rounded down, is at least ``num_slots``."""
    return min(math.ceil((num_slots + 0.5) / num_rows * 1e6) / 1e6, 1.0)
