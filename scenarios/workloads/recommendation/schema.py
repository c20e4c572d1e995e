"""The keys of a file of embedding tables and their cache."""

from typing import Annotated, Literal

from msgspec import Meta

from scenarios.reading.quantities import Bandwidth
from scenarios.reading.schema.cluster import ClusterSection, SoftwareSection
from scenarios.reading.schema.values import ScenarioSection, Spread
from scenarios.reading.sections.section import Section
from scenarios.workloads.unread import Unread
from sim.embedding.click_model import ClickModelName
from sim.embedding.het_run import Dense
from sim.embedding.policies import PolicyName
from sim.embedding.rank_batch import Sharding
from sim.embedding.step.spec import MoveOrder
from sim.embedding.turns import Consistency

MAX_ROWS = 50_000_000
"""Rows of all tables together; it bounds the memory of a simulation."""


class DriftSection(Section):
    """How the popularity of rows changes."""

    every: Annotated[int, Meta(ge=1, le=200_000)]
    """Batches (of each worker) after which rows change ranks."""
    fraction: Annotated[float, Meta(gt=0, le=1)]
    """Part of the rows, drawn, that change ranks with each other."""


class TableSection(Section):
    """An embedding table, or one field of the data."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    """Name of the table in results."""
    num_rows: Annotated[int, Meta(ge=1, le=MAX_ROWS)]
    """Its rows."""
    num_lookups: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Rows that each sample reads."""
    zipf: Annotated[float, Meta(ge=0, le=10)] = 1.05
    """Popularity: the row of rank r is read in proportion to r to the power of minus this."""
    drift: DriftSection | None = None
    """How popularity changes; left out: it does not."""


class TraceSection(Section):
    """The batches."""

    batch_size: Annotated[int, Meta(ge=1, le=1_000_000)] = 512
    """Samples of a batch."""
    file: Annotated[str, Meta(min_length=1)] | None = None
    """A CSV, Parquet or Criteo file with a column per table and a row per sample; left out: ids are drawn."""
    num_batches: Annotated[int, Meta(ge=1, le=100_000)] = 400
    """Batches that are measured."""
    num_unmeasured: Annotated[int, Meta(ge=0, le=100_000)] = 200
    """Batches before them, in which the cache fills."""


class CacheSection(Section):
    """The cache on the device."""

    fraction: Annotated[float, Meta(gt=0, le=1)] = 0.015
    """Rows that it holds, as a part of all rows."""
    policy: PolicyName = "dataset_frequency"
    """Which rows give way when it is full."""
    served: Literal["batch", "lookup"] = "batch"
    """batch: all rows of a batch are in it together; lookup: lookups are served one by one, under `lru` alone."""
    warm_up: Spread = 0.7
    """Part of it that is filled with the most popular rows before the first batch."""
    order: MoveOrder = "evict_first"
    """Step times: whether missing rows are looked for once rows that give way are on the host, or before."""
    host_bandwidth: Bandwidth | None = None
    """Step times: rate at which a rank's host gathers rows, or scatters them; default that of its memory."""


Width = Annotated[int, Meta(ge=1, le=1_000_000)]


class ClickModelSection(Section):
    """The model that is trained: layers over numbers and over the sums of the tables' rows."""

    name: ClickModelName
    """dlrm, wide_deep, deepfm or dcn (Deep & Cross)."""
    num_numbers: Annotated[int, Meta(ge=1, le=100_000)] = 13
    """Numbers of a sample, beside its categories."""
    bottom: Annotated[tuple[Width, ...], Meta(max_length=100)] = (512, 256)
    """dlrm alone: widths of the layers over the numbers, before one of embedding_dim."""
    hidden: Annotated[tuple[Width, ...], Meta(min_length=1, max_length=100)] = (1024, 1024, 512, 256)
    """Widths of the layers before the last one, which makes the logit."""
    num_cross_layers: Annotated[int, Meta(ge=1, le=100)] = 3
    """dcn alone."""


Bound = Annotated[int, Meta(ge=0, le=1_000_000)]
Duration = Annotated[float, Meta(gt=0, le=1e6)]


class ParameterServerSection(Section):
    """Workers that each cache rows in their own memory, and servers that hold the tables."""

    workers: Annotated[int, Meta(ge=1, le=1_024)] = 8
    """Workers; each draws batches of its own."""
    consistency: Consistency = "asp"
    """bsp: all write a step before any reads the next; asp: nobody waits; ssp: within ``slack`` steps."""
    slack: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """ssp alone: steps that a worker may be ahead of the slowest."""
    read_bound: Bound = 100
    """Updates of a row that a worker's copy may lack; beyond them it is fetched again."""
    write_bound: Bound = 100
    """Own updates of a row that a worker may keep to itself; beyond them they are pushed."""
    counted: Literal["step", "lookup"] = "step"
    """An update is a step that changes a row, or each lookup of it in that step."""
    servers: Annotated[int, Meta(ge=1, le=1_024)] | None = None
    """Step times: servers, each on the host of a node, from the first; left out: one on every node."""
    dense: Dense = "all_reduce"
    """Step times and executions: all workers sum the gradients of dense layers, or push them to the servers."""
    relative_step_times: Annotated[tuple[Duration, ...], Meta(min_length=1)] | None = None
    """Time of a step of each worker, in proportion to the others; left out: all take as long."""


class RecommendationScenarioFile(ScenarioSection):
    """Embedding tables in host memory, and a cache of their rows on the device."""

    workload: Literal["recommendation"]
    """The kind of work: embedding tables and the cache of their rows."""
    tables: Annotated[tuple[TableSection, ...], Meta(min_length=1, max_length=1_000)]
    """The embedding tables; one cache holds rows of all of them."""
    embedding_dim: Annotated[int, Meta(ge=1, le=100_000)] = 128
    """Elements of a row, of 4 bytes each."""
    trace: TraceSection = TraceSection()
    cache: CacheSection = CacheSection()
    parameter_server: ParameterServerSection | None = None
    """Left out: one device, and the tables in its host's memory."""
    model: ClickModelSection | None = None
    """Together with cluster: the time of a training step."""
    cluster: ClusterSection | None = None
    """The machine of the training step; every device has an equal part of each batch."""
    software: SoftwareSection = SoftwareSection()
    sharding: Sharding = "table"
    """Step times: how the tables lie on several devices: whole, by row, or by column."""


_FUSED = ("fused_softmax", "fused_routing", "fused_permutation")
_SERVED = ("rank_skew", "memory_reserve")

UNREAD = (
    Unread(("cluster.jitter.attention", *(f"software.{key}" for key in _FUSED)), "click models have no such kernels"),
    Unread(("software.unaligned_slowdown",), "rows of click models are aligned: their elements have 4 bytes"),
    Unread(("software.step_spread",), "times of click models have no intervals"),
    Unread(("cluster.device_price",), "click models are not paid for"),
    Unread(
        tuple(f"software.{key}" for key in _SERVED), "workers of parameter servers are timed without it",
        beside="parameter_server",
    ),
)  # fmt: skip
"""Keys of sections that recommendation shares with trainings, and keys of tables on devices beside servers."""
