"""What an allocator reserves for the buffers of a program, which come and go in the order of its ops."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from sim.memory.allocators import Allocator, CachingAllocator, ChunkAllocator, PagePool
from sim.memory.spec import AllocatorName
from sim.plan.facts.liveness import lifetimes
from sim.plan.words.buffer import Scope, Tier
from sim.plan.words.program import Program

ALLOCATORS: Final[Mapping[AllocatorName, Callable[[], Allocator]]] = {
    "caching": CachingAllocator,
    "chunks": ChunkAllocator,
    "pages": PagePool,
}
_STEPS: Final = 2
"""Steps that are replayed: an allocator that keeps what it reserves begins the second with the holes of the first."""


class Reserved(Struct, frozen=True):
    """The most bytes that tensors take at once, and the most that the allocator reserves."""

    live_bytes: int
    reserved_bytes: int

    @property
    def fragmentation(self) -> float:
        """Return the part of the reserved bytes that no tensor has when most tensors are there."""
        return 1 - self.live_bytes / self.reserved_bytes if self.reserved_bytes else 0.0


def reserved(program: Program, allocator: Allocator, tier: Tier = Tier.DEVICE) -> Reserved:
    """Return what an allocator reserves in a tier for some steps of a program."""
    sizes = {name: buffer.num_bytes for name, buffer in program.buffers.items() if buffer.tier is tier}
    live = most_live = most_reserved = 0
    for tensor, name, is_born in _changes(program):
        if name not in sizes:
            continue
        if is_born:
            allocator.allocate(tensor, sizes[name])
            live += sizes[name]
        else:
            allocator.free(tensor)
            live -= sizes[name]
        most_live, most_reserved = max(most_live, live), max(most_reserved, allocator.reserved_bytes)
    return Reserved(most_live, most_reserved)


def _changes(program: Program) -> Iterator[tuple[Hashable, str, bool]]:
    """Yield every instance of a buffer that is born or dies, its buffer, and which of both; persistent ones first."""
    for name, buffer in program.buffers.items():
        if buffer.scope is Scope.PERSISTENT:
            yield name, name, True
    lives = lifetimes(program)
    for _ in range(_STEPS):
        for call, life in zip(program.calls, lives, strict=True):
            events = sorted([(op, 0, name) for op, name in life.births] + [(op, 1, name) for op, name in life.deaths])
            for _, dies, name in events:
                of_step = program.buffers[name].scope is Scope.STEP
                yield (name if of_step else (name, call.microbatch)), name, not dies
