"""Memory in tiers: typed input."""

from dataclasses import dataclass
from typing import Literal

Manager = Literal["on_demand", "deepspeed", "angel_ptm", "gemini"]
Placement = Literal["static", "auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSpec:
    """Options of Colossal-AI's Gemini, which moves parameters in chunks of equal length.

    ``chunk_bytes``: of a rank's whole parameters; None: the length that wastes least.
    ``placement``: ``static``: stated fractions of the chunks lie on the host. ``auto``: all of them do, and gathered
        chunks stay on the device until others need the room.
    ``parameters``, ``optimizer``: static: the fraction of parameters, and that of optimizer state, on the host.
    """

    chunk_bytes: int | None = None
    placement: Placement = "static"
    parameters: float = 0.0
    optimizer: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySpec:
    """How sharded parameters, gradients and optimizer state lie in tiers of memory, and when they move.

    ``gathered_bytes``: angel_ptm, and gemini with automatic placement: device memory for gathered parameters; None: as
        much as the three largest units.
    ``cached_bytes``: angel_ptm: device memory for units whose shards stay there and are updated there.
    ``optimizer_on_drives``: master weights and moments lie on the node's NVMe drives, not in the host's memory.
    ``chunks``: gemini: its options; None with all other managers.
    """

    manager: Manager
    gathered_bytes: int | None = None
    cached_bytes: int = 0
    optimizer_on_drives: bool = False
    chunks: ChunkSpec | None = None
