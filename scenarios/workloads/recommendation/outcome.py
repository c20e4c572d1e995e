"""The result of a cache of embedding rows: its row in a sweep, and its page."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from msgspec import Struct

from costmodels.units import format_bytes, format_percent
from scenarios.report.blocks import Block, Card, Curve, Headline, Limit, Lines, Section, Table
from scenarios.workloads.recommendation.scenario import RecommendationScenario
from scenarios.workloads.recommendation.step_section import step_cards, step_sections, worker_cards, worker_sections
from scenarios.workloads.recommendation.summary import RecommendationSummary
from scenarios.workloads.workload import Outcome
from sim.embedding.run import CacheRun
from sim.engine.findings.timeline import folded_timeline
from sim.engine.running.run import SimulatedRun
from traces.timeline import Timeline

_COLOUR: Final = "#2a78d6"


class RecommendationRow(Struct, frozen=True, kw_only=True):
    """What a sweep compares."""

    cache_rows: int
    hit_rate: float
    unique_hit_rate: float
    moved_bytes_per_batch: float
    step_time_s: float | None
    samples_per_s: float | None


@dataclass(frozen=True)
class RecommendationOutcome(Outcome):
    """The counts of every batch, the answers, and the simulated step, if one was timed."""

    scenario: RecommendationScenario
    run: CacheRun
    summary: RecommendationSummary
    timed: SimulatedRun | None = None

    @cached_property
    def timeline(self) -> Timeline | None:
        """Return the timeline of the step; None where none was timed."""
        return None if self.timed is None else folded_timeline(self.timed)

    def row(self) -> RecommendationRow:
        """Return what a sweep compares."""
        found = self.summary
        times = None if found.parameter_server is None else found.parameter_server.times
        timed = found.step or times
        return RecommendationRow(
            cache_rows=found.cache_rows,
            hit_rate=found.hit_rate,
            unique_hit_rate=found.unique_hit_rate,
            moved_bytes_per_batch=found.in_bytes_per_batch + found.out_bytes_per_batch,
            step_time_s=times.step_s if times else found.step.iteration_time_s if found.step else None,
            samples_per_s=timed.samples_per_s if timed else None,
        )

    def blocks(self, *, drawn: bool = True) -> Sequence[Block]:
        """Return the report: hit rates, moved rows, tables, and the hit rate over time."""
        timeline = self.timeline if drawn else None
        step = () if self.summary.step is None else step_sections(self.summary.step, timeline)
        return (self._headline(), *step, self._moved(), *self._servers(), self._tables(), self._over_time())

    def _headline(self) -> Headline:
        found = self.summary
        size = f"{format_bytes(found.cache_bytes)} of {format_bytes(found.table_bytes)}"
        static = f"always the most popular rows: {format_percent(found.static_hit_rate)}"
        cards: tuple[Card, ...] = (
            Card("Hit rate of lookups", format_percent(found.hit_rate), static),
            Card("Hit rate of different rows", format_percent(found.unique_hit_rate)),
            Card("Fetched per batch", format_bytes(found.in_bytes_per_batch)),
            Card("Cache", f"{found.cache_rows:,} rows", size),
        )
        if found.step is not None:
            cards = (*step_cards(found.step), *cards)
        elif found.parameter_server is not None and found.parameter_server.times is not None:
            cards = (*worker_cards(found.parameter_server.times, found.parameter_server.num_workers), *cards)
        return Headline(found.scenario, f"{found.num_rows:,} rows, policy {found.policy}", cards)

    def _moved(self) -> Section:
        found = self.summary
        rows = [
            ("different rows", f"{found.unique_rows_per_batch:,.1f}", ""),
            ("fetched", f"{found.rows_in_per_batch:,.1f}", format_bytes(found.in_bytes_per_batch)),
            ("written back", f"{found.rows_out_per_batch:,.1f}", format_bytes(found.out_bytes_per_batch)),
        ]
        return Section("Rows of a batch", (Table(("what", "rows", "bytes"), rows),))

    def _servers(self) -> Sequence[Section]:
        found = self.summary.parameter_server
        if found is None:
            return ()
        rows = [
            ("pulled", format_percent(found.pulled_fraction)),
            ("of them stale", format_percent(found.stale_fraction)),
            ("pushed", format_percent(found.pushed_fraction)),
            ("of them gave way", format_percent(found.evicted_fraction)),
            ("pulled and pushed, of a worker without a cache", format_percent(found.rows_of_uncached)),
            ("bytes, of a worker without a cache", format_percent(found.bytes_of_uncached)),
        ]
        lead = (
            f"{found.num_workers:,} workers under {found.consistency.upper()}; "
            f"a copy may lack {found.read_bound:,} updates, and a worker keeps {found.write_bound:,} to itself."
        )
        counted = Section("Parameter servers", (Table(("what", "of different rows"), rows),), lead)
        return (counted,) if found.times is None else (*worker_sections(found.times), counted)

    def _tables(self) -> Section:
        rows = [
            (table.table, f"{table.num_rows:,}", f"{table.num_lookups:,}", format_percent(table.hit_rate))
            for table in self.summary.tables
        ]
        tables: tuple[Block, ...] = (Table(("table", "rows", "lookups", "hit rate"), rows, breaks_words=True),)
        known = [(table.table, table.recorded) for table in self.summary.tables if table.recorded is not None]
        if known:
            shown = [
                (name, f"{found.num_different:,}", "too few" if found.zipf is None else f"{found.zipf:.2f}")
                for name, found in known
            ]
            head = "recorded lookups of", "different rows", "Zipf exponent"
            tables = (*tables, Table(head, shown, breaks_words=True))
        return Section("Tables", tables)

    def _over_time(self) -> Section:
        parts = self.summary.over_time
        curve = Curve("lookups", _COLOUR, [part.first_batch for part in parts], [part.hit_rate for part in parts])
        limit = Limit(self.summary.static_hit_rate, "always the most popular rows")
        lead = f"The first {self.scenario.num_unmeasured:,} batches are not measured."
        lines = Lines("hit_rate", (curve,), ("batch", ""), "hit rate", float(len(self.run.hits)), limit)
        return Section("Hit rate over time", (lines,), lead)
