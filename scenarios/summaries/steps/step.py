"""The summary of a simulated step: the classes behind summary.json (docs/results.md explains every key)."""

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Struct

from scenarios.summaries.as_json import ABSENT
from scenarios.summaries.steps.advice import AdviceSummary
from scenarios.summaries.steps.goal import Goal
from scenarios.summaries.steps.placement import PlacementSummary
from scenarios.summaries.steps.resolved import Resolved
from scenarios.summaries.steps.routing import RoutingSummary
from scenarios.summaries.steps.study import StudySummary

SCHEMA: Final = "meshtwin.summary/1"


class RoleSummary(Struct, frozen=True, kw_only=True):
    """A class of equal ranks with one program: their memory, and the parts of their time. Seconds are per step."""

    role: str
    first_rank: int
    num_ranks: int
    peak_memory_bytes: int
    memory_capacity_bytes: int | None
    memory_by_kind_bytes: Mapping[str, int]
    peak_host_memory_bytes: int
    peak_live_microbatches: float
    busy_s: Mapping[str, float]
    exposed_s: Mapping[str, float]
    computing_s: Mapping[str, float]


class AllocatorUse(Struct, frozen=True, kw_only=True):
    """What an allocator reserves of the fullest device for its tensors, and the part that they never fill."""

    name: str
    live_bytes: int
    reserved_bytes: int
    fragmentation: float


class LockFreeUpdate(Struct, frozen=True, kw_only=True):
    """Steps whose update goes at its own pace, once they are steady.

    ``iteration_time_s``: of a step; ``passes_s``: of its forwards and backwards alone; ``sweep_s``: of the update of
    all units, one after the other. ``synchronous_s``: of a step that waits for the update. ``gradients_per_update``:
    mean number of steps whose gradients an update applies, and ``most_gradients_per_update``; ``most_staleness``: the
    most steps whose gradients parameters lack when a step begins. ``max_staleness``: None: not bounded.
    """

    max_staleness: int | None
    iteration_time_s: float
    passes_s: float
    sweep_s: float
    synchronous_s: float
    gradients_per_update: float
    most_gradients_per_update: int
    most_staleness: int


class BusiestLink(Struct, frozen=True, kw_only=True):
    """The busiest link of a kind, and the number of links with the same load."""

    link: str
    count: int
    bytes: float
    busy_fraction: float
    peak_fraction: float


class LinksSummary(Struct, frozen=True, kw_only=True):
    """All links of a kind."""

    kind: str
    count: int
    bytes: float
    busy_fraction: float
    busiest: BusiestLink


class CommunicationSummary(Struct, frozen=True, kw_only=True):
    """The ops of one kind on one stream, in seconds of the mean rank; bounds by kind of link."""

    stream: str
    kind: str
    time_s: float
    latency_s: float
    bound_s: Mapping[str, float]
    fullest_fraction: Mapping[str, float]


class TensorAxis(Struct, frozen=True, kw_only=True):
    """The communication along an axis of a tensor-parallel mesh, of the mean rank and per step.

    ``ranks_per_node``: how many ranks of a group along it share a node, at most. ``exposed_s``: of ``busy_s``, the
    time in which the rank computes nothing.
    """

    axis: str
    degree: int
    ranks_per_node: int
    sent_bytes_per_rank: float
    busy_s: float
    exposed_s: float


class HostMemory(Struct, frozen=True, kw_only=True):
    """Use of a node's own memory, or of its drives, by its ranks."""

    peak_bytes: int
    capacity_bytes: int
    fits: bool


class ShardedOperator(Struct, frozen=True, kw_only=True):
    """A sharded operator: its number of slices, and the number of sharded ones."""

    operator: str
    num_slices: int
    num_sharded: int


class OperatorSharding(Struct, frozen=True, kw_only=True):
    """The choices of OSDP. ``memory_limit_bytes``: None where the scenario names the layers."""

    memory_limit_bytes: int | None
    num_operators: int
    sharded: tuple[ShardedOperator, ...]


class Folded(Struct, frozen=True, kw_only=True):
    """The numbers of all ranks and of simulated ranks."""

    ranks: int
    simulated: int


class EngineWork(Struct, frozen=True, kw_only=True):
    """The cost of the simulation, and its savings: periods of the run that were not simulated one by one."""

    events: int
    wall_time_s: float
    repeated_periods: int = 0
    period_s: float | None = None


class StepSummary(Struct, frozen=True, kw_only=True):
    """The answer of a simulation. Rates and memory verdicts are None without a cluster."""

    schema: str = SCHEMA
    scenario: str
    seed: int
    algorithm: str
    resolved: Annotated[Resolved | None, ABSENT] = None
    world_size: int
    iteration_time_s: float
    iteration_time_interval_s: tuple[float, float] | None
    iteration_time_median_s: float | None
    iteration_time_interval_method: str | None
    makespan_s: float
    max_rank_span_s: float
    tokens_per_s: float | None
    model_flop_per_s_per_device: float | None
    hardware_flop_per_s_per_device: float | None
    mfu: float | None
    hfu: float | None
    bubble_fraction: float
    exposed_communication_fraction: float
    critical_path_s: Mapping[str, float]
    fits_memory: bool | None
    memory_capacity_bytes: int | None
    memory_reserve_bytes: Annotated[int | None, ABSENT] = None
    allocator: Annotated[AllocatorUse | None, ABSENT] = None
    lock_free: Annotated[LockFreeUpdate | None, ABSENT] = None
    host_memory: Annotated[HostMemory | None, ABSENT] = None
    storage: Annotated[HostMemory | None, ABSENT] = None
    token_slices: Annotated[tuple[int, ...] | None, ABSENT] = None
    tensor_axes: Annotated[tuple[TensorAxis, ...] | None, ABSENT] = None
    roles: tuple[RoleSummary, ...]
    links: tuple[LinksSummary, ...]
    communication: tuple[CommunicationSummary, ...]
    fold: Folded
    engine: EngineWork
    routing: Annotated[RoutingSummary | None, ABSENT] = None
    placement: Annotated[PlacementSummary | None, ABSENT] = None
    osdp: Annotated[OperatorSharding | None, ABSENT] = None
    reliability: Annotated[StudySummary | None, ABSENT] = None
    goal: Annotated[Goal | None, ABSENT] = None
    advice: Annotated[AdviceSummary | None, ABSENT] = None
