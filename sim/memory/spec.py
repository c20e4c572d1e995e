"""Memory in tiers: typed input."""

from typing import Literal

from msgspec import Struct

AllocatorName = Literal["caching", "chunks", "pages"]
Manager = Literal["on_demand", "deepspeed", "angel_ptm", "gemini"]
Placement = Literal["static", "auto"]
Update = Literal["synchronous", "lock_free"]


class ChunkSpec(Struct, frozen=True, kw_only=True):
    """Options of Colossal-AI's Gemini, which moves parameters in chunks of equal length.

    ``chunk_bytes``: of a rank's whole parameters; None: the length that wastes least.
    ``placement``: ``static``: stated fractions of the chunks lie on the host. ``auto``: all of them do, and gathered
        chunks stay on the device until others need the room.
    ``parameters``, ``optimizer``: static: the fraction of parameters, and that of optimizer state, on the host.
    ``capacity_bytes``: auto: the device's memory; a warm-up step finds how much of it chunks may have at each moment.
        None where ``MemorySpec.gathered_bytes`` states that.
    ``holds_gradients``: a gathered chunk's parameters are overwritten by their gradients once backward is done with
        them (Colossal-AI's reuse_fp16_chunk), so gradients take no memory of their own for long.
    """

    chunk_bytes: int | None = None
    placement: Placement = "static"
    parameters: float = 0.0
    optimizer: float = 0.0
    capacity_bytes: int | None = None
    holds_gradients: bool = False


class MemorySpec(Struct, frozen=True, kw_only=True):
    """How sharded parameters, gradients and optimizer state lie in tiers of memory, and when they move.

    ``gathered_bytes``: device memory for gathered parameters. None: angel_ptm: as much as the three largest units;
        gemini with automatic placement: what a warm-up step finds (``ChunkSpec.capacity_bytes``).
    ``cached_bytes``: angel_ptm: device memory for units whose shards stay there and are updated there.
    ``optimizer_on_drives``: master weights and moments lie on the node's NVMe drives, not in the host's memory.
    ``parameters_on_drives``: so do parameters, and come to the host for each use (ZeRO-Infinity).
    ``chunks``: gemini: its options; None with all other managers.
    ``allocator``: of device memory, whose reserved bytes must fit; None: tensors alone count.
    ``update``: ``lock_free``: the optimizer's state on drives is updated at its own pace, and iterations go on.
    ``max_staleness``: gradients that parameters may then lack; None: any number.
    """

    manager: Manager
    gathered_bytes: int | None = None
    cached_bytes: int = 0
    optimizer_on_drives: bool = False
    parameters_on_drives: bool = False
    chunks: ChunkSpec | None = None
    allocator: AllocatorName | None = None
    update: Update = "synchronous"
    max_staleness: int | None = None

    @property
    def awaits_capacity(self) -> bool:
        """Return whether chunks are placed by the device's memory, which is not stated yet."""
        chunks = self.chunks
        if chunks is None or chunks.placement == "static":
            return False
        return self.gathered_bytes is None and chunks.capacity_bytes is None
