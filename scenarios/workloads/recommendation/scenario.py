"""A scenario of embedding tables, and the reading of its file."""

from collections.abc import Sequence

from scenarios.errors import ScenarioError
from scenarios.reading.documents.checking import check_document
from scenarios.reading.documents.named_file import named_file
from scenarios.reading.documents.yaml_tree import Document
from scenarios.reading.sections.section import written_keys
from scenarios.workloads.recommendation.schema import (
    MAX_ROWS,
    ParameterServerSection,
    RecommendationScenarioFile,
    TableSection,
)
from scenarios.workloads.recommendation.timed import TimedSpec, read_timed
from scenarios.workloads.workload import Scenario, Workload
from sim.embedding.het import Clocking
from sim.embedding.het_run import HetSpec
from sim.embedding.ids import Drift, Table
from sim.embedding.policies import Ints
from sim.embedding.run import CacheSpec
from sim.embedding.turns import Workers
from traces.errors import TraceError
from traces.lookups import read_lookups

MAX_LOOKUPS = 2_000_000_000
"""Lookups of a whole run; it bounds the time of a simulation."""

ELEMENT_BYTES = 4
"""Bytes of an element of a row."""

MAX_WORKER_ROWS = 1_000_000_000
"""Rows of the tables times workers; it bounds the memory of a simulation."""


class RecommendationScenario(Scenario, frozen=True, kw_only=True, eq=False):
    """The tables, the cache of their rows, and the batches that read them."""

    tables: Sequence[Table]
    embedding_dim: int
    cache: CacheSpec
    batch_size: int
    num_batches: int
    num_unmeasured: int
    recorded: Ints | None = None
    """The row of each table that each sample reads, [samples, tables]; None: ids are drawn."""
    het: HetSpec | None = None
    """Workers and parameter servers; None: one device with the tables in its host's memory."""
    timed: TimedSpec | None = None
    """The training step whose time is simulated; None: counts and bytes alone."""

    @property
    def num_rows(self) -> int:
        """Return the rows of all tables."""
        return sum(table.num_rows for table in self.tables)

    @property
    def row_elements(self) -> int:
        """Return the elements of a row: of its vector, and of its weight in a model that has one."""
        return self.embedding_dim if self.timed is None else self.timed.row_elements


def read(
    document: Document, overrides: tuple[str, ...], workload: Workload[RecommendationScenario]
) -> RecommendationScenario:
    """Return the scenario of a document. Raises ScenarioError."""
    file = check_document(document, RecommendationScenarioFile)
    _check(document, file)
    num_rows = sum(table.num_rows for table in file.tables)
    cache = CacheSpec(
        num_slots=max(int(num_rows * file.cache.fraction), 1),
        policy=file.cache.policy,
        warm_up=file.cache.warm_up,
        served=file.cache.served,
    )
    return RecommendationScenario(
        name=file.name, seed=file.seed, source=document.source, overrides=overrides, workload=workload,
        document=document, as_read=document,
        tables=[_table(table) for table in file.tables],
        embedding_dim=file.embedding_dim,
        cache=cache,
        batch_size=file.trace.batch_size,
        num_batches=file.trace.num_batches,
        num_unmeasured=file.trace.num_unmeasured,
        recorded=None if file.trace.file is None else _recorded(document, file, file.trace.file),
        het=None if file.parameter_server is None else _het(document, file.parameter_server, cache),
        timed=read_timed(document, file),
    )  # fmt: skip


def _table(section: TableSection) -> Table:
    drift = None if section.drift is None else Drift(every=section.drift.every, fraction=section.drift.fraction)
    return Table(
        name=section.name,
        num_rows=section.num_rows,
        num_lookups=section.num_lookups,
        zipf=section.zipf,
        drift=drift,
    )


def _recorded(document: Document, file: RecommendationScenarioFile, name: str) -> Ints:
    """Return the recorded samples. Raises ScenarioError for a file that cannot be used, or has too few."""
    for place, table in enumerate(file.tables):
        key = next((key for key in ("zipf", "num_lookups", "drift") if key in written_keys(table)), None)
        if key is not None:
            rule, origin = "the file of trace.file says what is looked up", document.origin(("tables", place, key))
            raise ScenarioError(origin, f"tables.{place}.{key}", rule, f"leave {key} or trace.file out")
    origin = document.origin(("trace", "file"))
    path = named_file(document, ("trace", "file"), name, "name a CSV, Parquet or Criteo file of lookups")
    try:
        found = read_lookups(path, {table.name: table.num_rows for table in file.tables})
    except TraceError as error:
        raise ScenarioError(origin, "trace.file", error.problem, error.remedy) from error
    num_workers = 1 if file.parameter_server is None else file.parameter_server.workers
    num_batches = (file.trace.num_unmeasured + file.trace.num_batches) * num_workers
    if len(found) < num_batches * file.trace.batch_size:
        rule = f"{num_batches:,} batches of {file.trace.batch_size:,} samples are more than the file's {len(found):,}"
        raise ScenarioError(origin, "trace.file", rule, "write fewer or smaller batches, or name a longer file")
    return found


def _check_lookups(document: Document, file: RecommendationScenarioFile) -> None:
    """Raise ScenarioError for a cache that cannot serve lookups one by one."""
    rule = None
    if file.cache.policy != "lru":
        rule, remedy = f"lookups are served one by one under lru, not under {file.cache.policy}", "write policy: lru"
    elif file.parameter_server is not None:
        rule, remedy = "workers ask servers for whole batches", "leave parameter_server or cache.served out"
    if rule is not None:
        raise ScenarioError(document.origin(("cache", "served")), "cache.served", rule, remedy)


def _het(document: Document, section: ParameterServerSection, cache: CacheSpec) -> HetSpec:
    """Return workers and their clocks. Raises ScenarioError for keys that do not go together."""
    durations = tuple(section.relative_step_times or (1.0,) * section.workers)
    if len(durations) != section.workers:
        rule = f"{len(durations)} durations for {section.workers} workers"
        origin = document.origin(("parameter_server", "relative_step_times"))
        raise ScenarioError(
            origin, "parameter_server.relative_step_times", rule, "write one for each worker, or leave them out"
        )
    if section.slack and section.consistency != "ssp":
        rule = f"under {section.consistency} no worker counts the steps that it is ahead"
        origin = document.origin(("parameter_server", "slack"))
        raise ScenarioError(origin, "parameter_server.slack", rule, "write consistency: ssp, or leave slack out")
    return HetSpec(
        workers=Workers(consistency=section.consistency, relative_step_times=durations, slack=section.slack),
        clocking=Clocking(read_bound=section.read_bound, write_bound=section.write_bound, counted=section.counted),
        cache=cache,
        dense=section.dense,
    )


def _check(document: Document, file: RecommendationScenarioFile) -> None:
    """Raise ScenarioError for two tables of one name, or for more rows or lookups than fit into a run."""
    if file.cache.served == "lookup":
        _check_lookups(document, file)
    if file.cache.policy == "belady" and (file.parameter_server is not None or file.model is not None):
        rule, remedy = "belady knows all batches, which nothing that runs does", "leave parameter_server and model out"
        raise ScenarioError(document.origin(("cache", "policy")), "cache.policy", rule, remedy)
    names = [table.name for table in file.tables]
    for place, name in enumerate(names):
        if name in names[:place]:
            origin = document.origin(("tables", place, "name"))
            raise ScenarioError(origin, "tables", f"two tables have the name {name!r}", "give each its own name")
    num_rows = sum(table.num_rows for table in file.tables)
    if num_rows > MAX_ROWS:
        rule = f"the tables have {num_rows:,} rows together, more than the limit of {MAX_ROWS:,}"
        raise ScenarioError(document.origin(("tables",)), "tables", rule, "write fewer or smaller tables")
    num_workers = 1 if file.parameter_server is None else file.parameter_server.workers
    if num_rows * num_workers > MAX_WORKER_ROWS:
        rule = f"{num_workers:,} workers on {num_rows:,} rows are more than the limit of {MAX_WORKER_ROWS:,} together"
        origin = document.origin(("parameter_server", "workers"))
        raise ScenarioError(origin, "parameter_server.workers", rule, "write fewer workers or smaller tables")
    per_sample = sum(table.num_lookups for table in file.tables) * num_workers
    num_lookups = per_sample * file.trace.batch_size * (file.trace.num_batches + file.trace.num_unmeasured)
    if num_lookups > MAX_LOOKUPS:
        rule = f"the batches read {num_lookups:,} rows together, more than the limit of {MAX_LOOKUPS:,}"
        remedy = "write smaller or fewer batches"
        raise ScenarioError(document.origin(("trace", "num_batches")), "trace.num_batches", rule, remedy)
