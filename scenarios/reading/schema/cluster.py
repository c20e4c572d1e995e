"""The machine, and the times of the framework on it."""

from typing import Annotated, Any

from msgspec import Meta

from scenarios.reading.quantities import DurationOrZero, Multiple, Price, WholeBytesOrZero
from scenarios.reading.schema.values import Spread
from scenarios.reading.sections.markers import Parsed, RefusalError
from scenarios.reading.sections.section import Section
from sim.cluster.topology.reading import MOST_TIMES

Factor = Annotated[float, Meta(ge=0.1, le=100)]
Word = Annotated[str, Meta(min_length=1, max_length=100)]


def _name_or_mapping(value: object) -> object:
    if isinstance(value, dict) or (isinstance(value, str) and value):
        return value
    raise RefusalError(
        "a topology is a name or a mapping", "write topology: superpod-h100, or keys below it (see docs/clusters.md)"
    )


def _number_or_name(value: object) -> object:
    if (isinstance(value, str) and value) or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise RefusalError("a device is a number or a name", "write device: 17, or device: node 2 gpu 1")


class StragglerSection(Section):
    """A device or a link that is slower than it should be."""

    device: Annotated[Any, Parsed(_number_or_name, {"type": ["integer", "string"]})] = None
    """Number or name of a device: `17`, `node 2 gpu 1`."""
    link: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    """Name of a link, one direction: `node 3 nic 0 out`, `leaf 0 to spine 1`."""
    slowdown: Annotated[float, Meta(ge=1, le=1e6)]
    """How many times as long it takes."""


class JitterSection(Section):
    """How much devices of one type differ: by family of kernels, the standard deviation of the logarithm of times."""

    gemm: Spread = 0.0
    attention: Spread = 0.0
    """Fused attention, forward and backward."""
    elementwise: Spread = 0.0
    optimizer: Spread = 0.0


class ClusterNetworkSection(Section):
    """How fast all links of a plain cluster are, inside nodes and between them: multiples of the catalogue's values."""

    bandwidth: Multiple = 1.0
    """Bandwidth of all links: `2x` is twice as fast."""
    latency: Multiple = 1.0
    """Latency of all links, a time: `0.5x` is better."""


class AlgorithmSection(Section):
    """The algorithm of each kind of collective; `auto`: the fastest alone, as NCCL chooses."""

    all_reduce: Word = "auto"
    all_gather: Word = "auto"
    reduce_scatter: Word = "auto"
    broadcast: Word = "auto"
    reduce: Word = "auto"
    all_to_all: Word = "auto"
    barrier: Word = "auto"


class NetworkSection(Section):
    """How the network is used."""

    algorithm: AlgorithmSection = AlgorithmSection()


class SoftwareSection(Section):
    """Times that the framework adds to those of the device and the network; default: none."""

    launch: DurationOrZero = 0.0
    """Host time per kernel that Python launches: forward, and recomputation."""
    native_launch: DurationOrZero | None = None
    """Host time per kernel that autograd launches, per collective or message of a forward or backward; default half."""
    task_launch: DurationOrZero = 0.0
    """Host time of every forward or backward of a micro-batch before its first kernel: the schedule, the next batch."""
    graph_launch: DurationOrZero | None = None
    """Forwards and backwards are captured (CUDA graphs), each launched whole in this host time; default: eager."""
    rank_skew: DurationOrZero = 0.0
    """Standard deviation of when the members of a collective come."""
    product_slowdown: Factor = 1.0
    """How many times as long matrix products take as under the profile."""
    unaligned_slowdown: Factor = 1.0
    """The same, beside product_slowdown, of products with a matrix whose rows are no multiple of 4 bytes."""
    memory_bound_slowdown: Factor = 1.0
    """How many times as long memory-bound kernels, but for the optimizer's, take as under the profile."""
    optimizer_slowdown: Factor = 1.0
    """How many times as long the optimizer's kernels take as under the profile."""
    step_spread: Spread = 0.0
    """Standard deviation of the logarithm of measured over predicted steps that the constants leave; for intervals."""
    memory_reserve: WholeBytesOrZero | None = None
    """Memory of a device that tensors cannot take: context, communicators, fragmentation; default 1.5 GiB of GPUs."""
    fused_softmax: bool = True
    """`attention: core`: the scaled, masked softmax is one kernel; false: seven launches, and five in backward."""
    fused_routing: bool = True
    """One kernel chooses experts, and one runs in backward; false: 45, and 25 in backward, as in Megatron-LM."""
    fused_permutation: bool = True
    """Experts' outputs are summed token by token; false: added slot by slot, as by torch's index_add."""


class ClusterSection(Section):
    """The machine."""

    node: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    """Node type of the hardware catalogue; `simulate list` names them. Needed where no topology says it."""
    num_nodes: Annotated[int, Meta(ge=1, le=1_000_000)]
    """Number of nodes."""
    devices_per_node: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    """Devices used of every node; default all that it has."""
    profile: Annotated[str, Meta(min_length=1, max_length=4000)] | None = None
    """File that `simulate calibrate` wrote; a path begins at the scenario's folder, of `--set` at the shell's.

    Default: the packaged profile of the devices.
    """
    topology: Annotated[Any, Parsed(_name_or_mapping, {"type": ["string", "object"]})] = None
    """Links of the cluster: a name of the topology catalogue, or a mapping; default one switch below all nodes.

    Beside `node`, keys that the mapping lacks are those of this node below one switch.
    """
    network: ClusterNetworkSection = ClusterNetworkSection()
    oversubscription: Annotated[float, Meta(ge=1, le=MOST_TIMES)] = 1.0
    """Without a topology: bandwidth of a node's adapters over that of its way to the other nodes."""
    stragglers: Annotated[tuple[StragglerSection, ...], Meta(max_length=10_000)] = ()
    """Devices and links that are slower than they should be."""
    jitter: JitterSection = JitterSection()
    device_price: Price | None = None
    """Price of a device for an hour: `2.50 USD/h`; default that of the hardware catalogue, a list price."""
