"""A training by workers and a parameter server with torch, beside the simulation of the same requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec import Struct

from backends.execution.het import HetExecution, HetRequest
from backends.registry import load_torch_backend
from costmodels.units import format_bytes, format_time
from scenarios.errors import Origin, ScenarioError
from scenarios.report.blocks import Block, Fact, Piece
from scenarios.report.pages.executed import executed_blocks
from scenarios.results.registry import load_writer
from scenarios.workloads.executing import Executed, ExecutionOptions, refuse_options, silence_s
from scenarios.workloads.recommendation.compared import shown_counts, shown_weights
from scenarios.workloads.recommendation.running import refuse_large_tables, refusing_small_cache
from scenarios.workloads.recommendation.scenario import ELEMENT_BYTES, RecommendationScenario
from sim.embedding.het_run import ON_SERVERS, HetRun, HetSpec, run_het


class ExecutedServersSummary(Struct, frozen=True, kw_only=True):
    """What workers counted in all steps.

    ``differing``: counts that are not the simulated ones in every step of every worker, when the simulation serves
    requests in the executed order. ``unequal_dense_weights``: dense weights that are not the same on all workers.
    ``differing_weights``: weights, dense ones too, whose bits are not those of a training in one process; None if none
    was run.
    """

    schema: str = "meshtwin.recommendation_servers/1"
    scenario: str
    seed: int
    num_workers: int
    consistency: str
    dense: str
    num_steps: int
    pulled_rows: int
    pushed_rows: int
    received_bytes: int
    sent_bytes: int
    updates: int
    step_s: float
    differing: Sequence[str]
    num_weights: int
    unequal_dense_weights: int
    differing_weights: int | None
    passed: bool


@dataclass(frozen=True, slots=True)
class ExecutedServers(Executed):
    """A training by processes: a parameter server, and workers."""

    summary: ExecutedServersSummary

    def blocks(self) -> Sequence[Block]:
        """Return the report."""
        found = self.summary
        facts = [
            Fact("step of a worker", format_time(found.step_s)),
            Fact("pulled", f"{found.pulled_rows:,} rows, {format_bytes(found.received_bytes)} received"),
            Fact("pushed", f"{found.pushed_rows:,} rows, {format_bytes(found.sent_bytes)} sent"),
            Fact("updates applied", f"{found.updates:,}"),
            Fact("counts", shown_counts(found.differing)),
            Fact("dense weights", _shown_dense(found)),
        ]
        if found.differing_weights is not None:
            facts.append(
                Fact("check", shown_weights(found.num_weights, found.differing_weights, "a training in one process"))
            )
        subtitle = f"{found.num_workers:,} workers and a parameter server, run with torch"
        return executed_blocks(found.scenario, subtitle, facts)

    def write(self, out: Path) -> None:
        """Write summary.json and report.html into a folder."""
        load_writer()(self.as_json(), None, self.blocks(), out)


def _shown_dense(found: ExecutedServersSummary) -> tuple[Piece, ...]:
    """Return where dense weights lie, and whether they are the same on all workers."""
    if found.dense == ON_SERVERS:
        return (Piece("on the server"),)
    if found.unequal_dense_weights:
        return (Piece("FAILED: "), Piece(f"{found.unequal_dense_weights:,} differ between workers", "bad"))
    return (Piece("their gradients summed among workers, "), Piece("the same on all of them", "good"))


def execute_servers(scenario: RecommendationScenario, options: ExecutionOptions) -> ExecutedServers:
    """Return what workers and a parameter server counted. Raises ScenarioError if the scenario cannot be run here."""
    assert scenario.het is not None
    refuse_options(options, "recommendation", but=("device", "check", "timeout"))
    spec, num_steps = scenario.het, scenario.num_unmeasured + scenario.num_batches
    if options.device != "cpu":
        rule = "workers keep rows in the memory of their hosts"
        raise ScenarioError(Origin(option="--device"), "", rule, "leave out --device")
    refuse_large_tables(scenario, _rows_held(scenario, spec, check=options.check))
    trace = num_steps, scenario.batch_size, scenario.seed
    request = HetRequest(
        tables=scenario.tables,
        embedding_dim=scenario.embedding_dim,
        spec=spec,
        num_steps=num_steps,
        batch_size=scenario.batch_size,
        seed=scenario.seed,
        recorded=scenario.recorded,
        check=options.check,
        timeout_s=silence_s(options),
    )
    with refusing_small_cache(scenario):
        run_het(scenario.tables, spec, *trace, recorded=scenario.recorded)
    found = load_torch_backend().train_with_servers(request)
    simulated = run_het(scenario.tables, spec, *trace, found.turns, scenario.recorded)
    return ExecutedServers(_summary(scenario, spec, found, simulated))


def _rows_held(scenario: RecommendationScenario, spec: HetSpec, *, check: bool) -> int:
    """Return the rows that all processes hold at once, those of a check in one process included."""
    workers = spec.workers.num_workers
    initial = scenario.num_rows if spec.cache.warm_up else 0
    return (1 + 2 * workers * check) * scenario.num_rows + workers * (initial + 2 * spec.cache.num_slots)


def _summary(
    scenario: RecommendationScenario, spec: HetSpec, found: HetExecution, simulated: HetRun
) -> ExecutedServersSummary:
    row_bytes = scenario.embedding_dim * ELEMENT_BYTES
    pairs = {
        "different rows": (found.unique, simulated.unique),
        "rows pulled": (found.pulled, simulated.pulled),
        "rows pushed": (found.pushed, simulated.pushed),
        "rows pushed at the end": (found.flushed, simulated.flushed),
        "bytes received": (found.received_bytes, simulated.received_bytes(row_bytes)),
        "bytes sent": (found.sent_bytes, simulated.sent_bytes(row_bytes)),
        "clocks": (found.clocks, simulated.clocks),
    }
    differing = [name for name, (executed, expected) in pairs.items() if not np.array_equal(executed, expected)]
    return ExecutedServersSummary(
        scenario=scenario.name,
        seed=scenario.seed,
        num_workers=spec.workers.num_workers,
        consistency=spec.workers.consistency,
        dense=spec.dense,
        num_steps=len(found.unique),
        pulled_rows=int(found.pulled.sum()),
        pushed_rows=int(found.pushed.sum()),
        received_bytes=int(found.received_bytes.sum()),
        sent_bytes=int(found.sent_bytes.sum()),
        updates=int(found.clocks.sum()),
        step_s=found.step_s,
        differing=differing,
        num_weights=found.num_weights,
        unequal_dense_weights=found.unequal_dense_weights,
        differing_weights=found.differing_weights,
        passed=not (differing or found.unequal_dense_weights or found.differing_weights),
    )
