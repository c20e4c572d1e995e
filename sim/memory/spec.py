"""Memory in tiers: typed input."""

from dataclasses import dataclass
from typing import Literal

Manager = Literal["on_demand", "deepspeed", "angel_ptm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySpec:
    """How sharded parameters, gradients and optimizer state lie in tiers of memory, and when they move.

    ``gathered_bytes``: angel_ptm: device memory for gathered parameters; None: as much as the three largest units.
    ``cached_bytes``: angel_ptm: device memory for units whose shards stay there and are updated there.
    ``optimizer_on_drives``: master weights and moments lie on the node's NVMe drives, not in the host's memory.
    """

    manager: Manager
    gathered_bytes: int | None = None
    cached_bytes: int = 0
    optimizer_on_drives: bool = False
