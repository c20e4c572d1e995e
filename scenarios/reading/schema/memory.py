"""Memory in tiers."""

from scenarios.reading.quantities import Bytes
from scenarios.reading.schema.values import Section
from sim.memory.spec import Manager


class MemorySection(Section):
    """Parameters, gradients and optimizer state in the host's memory, zero_stage 3."""

    manager: Manager
    """When a layer's parameters come to the device: `on_demand`, when it needs them; `deepspeed`, some layers ahead.

    `angel_ptm`: as early as memory allows, by the lifetimes of all layers.
    """
    gathered: Bytes | None = None
    """angel_ptm: device memory for gathered parameters; default as much as the three largest units take."""
    cached: Bytes | None = None
    """angel_ptm: device memory for the state of the first layers, which then stays there; default none."""
