"""Memory in tiers."""

from typing import Annotated

from msgspec import Meta

from scenarios.reading.quantities import Bandwidth, Bytes, DurationOrZero
from scenarios.reading.sections.section import Section
from sim.memory.spec import AllocatorName, Manager, Placement, Update


class DrivesSection(Section):
    """NVMe drives of a node."""

    capacity: Bytes
    """Of all drives of a node together."""
    bandwidth: Bandwidth
    """Of all drives of a node together; reading and writing share it."""
    latency: DurationOrZero = 1e-4
    """Of a read or a write."""


class NvmeSection(DrivesSection):
    """NVMe drives of a node: master weights and moments lie there, and not in the host's memory."""

    parameters: bool = False
    """Parameters lie there too, and come to the host's memory for each use (ZeRO-Infinity)."""


class TiersSection(Section):
    """Tiers of memory below the host's."""

    nvme: NvmeSection | None = None
    """Drives; default none."""


class ChunkOffloadSection(Section):
    """Chunks on the host, with placement static."""

    parameters: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Fraction of the parameters' chunks; needs all optimizer state on the host."""
    optimizer: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Fraction of the gradients, master weights and moments; the host updates these."""


class MemorySection(Section):
    """Parameters, gradients and optimizer state in the host's memory, zero_stage 3."""

    manager: Manager
    """When a layer's parameters come to the device: `on_demand`, when it needs them; `deepspeed`, some layers ahead.

    `angel_ptm`: as early as memory allows, by the lifetimes of all layers. `gemini`: chunks of parameters in the place
    of layers, as in Colossal-AI, `parallel.data.prefetch` chunks ahead (default 0).
    """
    gathered: Bytes | None = None
    """Device memory for gathered parameters, of angel_ptm (default as much as the three largest units take).

    Also of gemini with placement auto; default what a warm-up step leaves of the device's memory.
    """
    chunk: Bytes | None = None
    """gemini: size of a chunk of whole parameters; default the size that leaves least of the chunks empty."""
    placement: Placement | None = None
    """gemini: `static` (default), stated fractions on the host; `auto`, all on the host.

    With `auto`, gathered chunks stay on the device until others need the room.
    """
    offload: ChunkOffloadSection | None = None
    gradients_in_chunks: bool = False
    """gemini: gradients replace the parameters of gathered chunks in backward; one micro-batch per step."""
    allocator: AllocatorName | None = None
    """Of device memory: `caching` (torch's), `chunks` of 64 MiB, `pages` of 4 MiB. What it reserves must fit then.

    Default: tensors alone count.
    """
    update: Update = "synchronous"
    """angel_ptm with drives: `lock_free`, the host updates at its own pace, and the next step does not wait."""
    max_staleness: Annotated[int, Meta(ge=0, le=1000)] | None = None
    """update lock_free: steps whose gradients a layer's parameters may lack; default any number."""
    tiers: TiersSection = TiersSection()
    cached: Bytes | None = None
    """angel_ptm: device memory for the state of the first layers, which then stays there; default none."""
