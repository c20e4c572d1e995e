"""Memory in tiers."""

from scenarios.reading.quantities import Bandwidth, Bytes, DurationOrZero
from scenarios.reading.schema.values import Section
from sim.memory.spec import Manager


class NvmeSection(Section):
    """NVMe drives of a node: master weights and moments lie there, and not in the host's memory."""

    capacity: Bytes
    """Of all drives of a node together."""
    bandwidth: Bandwidth
    """Of all drives of a node together; reading and writing share it."""
    latency: DurationOrZero = 1e-4
    """Of a read or a write."""


class TiersSection(Section):
    """Tiers of memory below the host's."""

    nvme: NvmeSection | None = None
    """Drives; default none."""


class MemorySection(Section):
    """Parameters, gradients and optimizer state in the host's memory, zero_stage 3."""

    manager: Manager
    """When a layer's parameters come to the device: `on_demand`, when it needs them; `deepspeed`, some layers ahead.

    `angel_ptm`: as early as memory allows, by the lifetimes of all layers.
    """
    gathered: Bytes | None = None
    """angel_ptm: device memory for gathered parameters; default as much as the three largest units take."""
    tiers: TiersSection = TiersSection()
    cached: Bytes | None = None
    """angel_ptm: device memory for the state of the first layers, which then stays there; default none."""
