"""The training step whose time is simulated: its model, machine and sharding."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from costmodels.software import Software
from scenarios.errors import ScenarioError
from scenarios.reading.clusters.machine import ClusterSpec, cluster_spec
from scenarios.reading.clusters.software import software_of
from scenarios.reading.documents.yaml_tree import Document, KeyPath
from scenarios.reading.sections.section import written_keys
from scenarios.workloads.recommendation.schema import (
    ClickModelSection,
    ParameterServerSection,
    RecommendationScenarioFile,
)
from sim.embedding.click_model import WITH_FIRST_ORDER, ClickModel
from sim.embedding.ids import Table
from sim.embedding.rank_batch import Sharding, tables_of_ranks
from sim.embedding.step.spec import ClickStep, MoveOrder

MAX_RANKS = 256
"""Ranks have programs of their own, which bounds the time of a simulation."""


class TimedSpec(Struct, frozen=True, kw_only=True):
    """A model on a machine. ``row_bytes_per_s``: of a host's gathers and scatters; None: that of its memory.

    ``num_servers``: parameter servers, on the hosts of the first nodes.
    """

    model: ClickModel
    cluster: ClusterSpec
    software: Software
    sharding: Sharding
    order: MoveOrder
    row_bytes_per_s: float | None
    num_servers: int = 0

    @property
    def row_elements(self) -> int:
        """Return the elements of a row."""
        return self.model.row_elements

    def step(self, name: str, tables: Sequence[Table], batch_size: int, seed: int) -> ClickStep:
        """Return the step of a batch."""
        num_ranks = self.cluster.world_size
        counts = (len(tables),) * num_ranks
        if self.sharding == "table" and num_ranks > 1:
            counts = tuple(map(len, tables_of_ranks(tables, num_ranks)))
        return ClickStep(
            name=name,
            model=self.model,
            batch_size=batch_size,
            num_ranks=num_ranks,
            sharding=self.sharding,
            tables=counts,
            order=self.order,
            row_bytes_per_s=self.row_bytes_per_s,
            seed=seed,
        )

    def served_step(self, name: str, tables: Sequence[Table], batch_size: int, seed: int) -> ClickStep:
        """Return the own part of a step of a worker of parameter servers; ``batch_size``: of the worker."""
        return ClickStep(
            name=name,
            model=self.model,
            batch_size=batch_size,
            num_ranks=1,
            sharding="table",
            tables=(len(tables),),
            row_bytes_per_s=self.row_bytes_per_s,
            seed=seed,
            served=True,
        )


def read_timed(document: Document, file: RecommendationScenarioFile) -> TimedSpec | None:
    """Return the step that a file asks to be timed; None without a model. Raises ScenarioError."""
    if file.model is None or file.cluster is None:
        _refuse_lone_keys(document, file)
        return None
    if file.cache.served == "lookup":
        rule, remedy = "a device needs all rows of a batch together", "leave cache.served out, or model and cluster"
        raise ScenarioError(document.origin(("cache", "served")), "cache.served", rule, remedy)
    timed = TimedSpec(
        model=_model(document, file.model, file.embedding_dim),
        cluster=cluster_spec(document, file.cluster),
        software=software_of(file.software),
        sharding=file.sharding,
        order=file.cache.order,
        row_bytes_per_s=file.cache.host_bandwidth,
    )
    if file.parameter_server is None:
        _check_ranks(document, file, timed)
        return timed
    _check_workers(document, file, file.parameter_server, timed.cluster)
    return replace(timed, num_servers=file.parameter_server.servers or timed.cluster.num_nodes)


def _refuse_lone_keys(document: Document, file: RecommendationScenarioFile) -> None:
    """Raise ScenarioError for keys of a timed step without its model and machine."""
    if file.model is not None:
        rule = "the time of a step needs a machine"
        raise ScenarioError(document.origin(("model",)), "model", rule, "write cluster, or leave model out")
    sections = "cluster", "software", "sharding"
    written: list[tuple[str, ...]] = [(key,) for key in sections if key in written_keys(file)]
    written += [("cache", key) for key in ("order", "host_bandwidth") if key in written_keys(file.cache)]
    if file.parameter_server is not None and "servers" in written_keys(file.parameter_server):
        written.append(("parameter_server", "servers"))
    if written:
        key, rule = ".".join(written[0]), "without a model no step is timed"
        raise ScenarioError(document.origin(written[0]), key, rule, f"write model and cluster, or leave {key} out")


def _model(document: Document, section: ClickModelSection, embedding_dim: int) -> ClickModel:
    """Return the model. Raises ScenarioError for a key of another model."""
    for key, name in (("bottom", "dlrm"), ("num_cross_layers", "dcn")):
        if key in written_keys(section) and section.name != name:
            rule = f"{section.name} has none: {key} belongs to {name}"
            raise ScenarioError(document.origin(("model", key)), f"model.{key}", rule, f"leave {key} out")
    return ClickModel(
        name=section.name,
        embedding_dim=embedding_dim,
        num_numbers=section.num_numbers,
        bottom=tuple(section.bottom),
        hidden=tuple(section.hidden),
        num_cross_layers=section.num_cross_layers,
    )


def _check_workers(
    document: Document, file: RecommendationScenarioFile, section: ParameterServerSection, cluster: ClusterSpec
) -> None:
    """Raise ScenarioError for workers that are not the cluster's devices, and for keys of tables on devices."""
    problem: tuple[KeyPath, str, str] | None = None
    if section.workers != cluster.world_size:
        rule = f"{section.workers:,} workers on {cluster.world_size:,} devices: each has one of its own"
        problem = ("parameter_server", "workers"), rule, f"write {cluster.world_size}, or another cluster"
    elif section.servers is not None and section.servers > cluster.num_nodes:
        rule = f"{section.servers:,} servers on {cluster.num_nodes:,} nodes: each has the host of one"
        problem = ("parameter_server", "servers"), rule, f"write at most {cluster.num_nodes}"
    elif "sharding" in written_keys(file):
        problem = ("sharding",), "parameter servers have the tables, row by row in turn", "leave sharding out"
    elif "order" in written_keys(file.cache):
        problem = ("cache", "order"), "workers cache rows on their hosts, not on devices", "leave order out"
    if problem is not None:
        where, rule, remedy = problem
        raise ScenarioError(document.origin(where), ".".join(map(str, where)), rule, remedy)


def _check_ranks(document: Document, file: RecommendationScenarioFile, timed: TimedSpec) -> None:
    """Raise ScenarioError for tables or batches that do not go on so many ranks."""
    num_ranks = timed.cluster.world_size
    problem: tuple[str, str, str] | None = None
    if num_ranks > MAX_RANKS:
        rule = f"{num_ranks:,} devices are more than {MAX_RANKS}"
        problem = "cluster.num_nodes", rule, "write fewer nodes, or cluster.devices_per_node"
    elif file.trace.batch_size % num_ranks:
        rule = f"a batch of {file.trace.batch_size:,} samples has no equal parts for {num_ranks:,} devices"
        problem = "trace.batch_size", rule, "write a multiple of the number of devices"
    elif timed.sharding == "table" and len(file.tables) < num_ranks:
        rule = f"{len(file.tables):,} tables do not give each of {num_ranks:,} devices one"
        problem = "sharding", rule, "write row or column, or fewer devices"
    elif timed.sharding == "column" and num_ranks > 1:
        if timed.model.name in WITH_FIRST_ORDER:
            rule = f"a row of {timed.model.name} has a weight beside its vector, which has no columns"
            problem = "sharding", rule, "write table or row"
        elif file.embedding_dim % num_ranks:
            rule = f"{file.embedding_dim:,} columns have no equal parts for {num_ranks:,} devices"
            problem = "sharding", rule, "write table or row, or another embedding_dim"
    if problem is not None:
        key, rule, remedy = problem
        raise ScenarioError(document.origin(tuple(key.split("."))), key, rule, remedy)
