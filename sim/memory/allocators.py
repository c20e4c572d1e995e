"""Allocators of device memory: how much they reserve for tensors that come and go.

``CachingAllocator`` follows torch's (c10/cuda/CUDACachingAllocator.cpp): the smallest free block that is large enough,
split where the rest is worth keeping, joined with free neighbours when it is freed; segments are never given back.
``ChunkAllocator`` puts tensors one after the other into chunks of one length, as PatrickStar does (Fang et al. 2021,
arXiv 2108.05818). ``PagePool`` gives each tensor whole pages, and lets two tensors share one (Angel-PTM; Nie et al.,
VLDB 2023).
"""

from bisect import bisect_left, insort
from collections.abc import Hashable
from typing import Final, NamedTuple, Protocol

from msgspec import Struct, field

from costmodels.memory import allocated_bytes

PAGE_BYTES: Final = 4 * 2**20
CHUNK_BYTES: Final = 64 * 2**20
_MIB: Final = 2**20
_MOST_TENANTS: Final = 2


class Allocator(Protocol):
    """Memory for tensors. ``reserved_bytes``: what it holds of the device now, with what no tensor uses."""

    @property
    def reserved_bytes(self) -> int:
        """Return the bytes that are reserved now."""

    def allocate(self, tensor: Hashable, num_bytes: int) -> None:
        """Give a tensor memory."""

    def free(self, tensor: Hashable) -> None:
        """Take the memory of a tensor back."""


class _Shared(Struct):
    """A page or a chunk: how much of it was given away, to how many tensors, and how many of these are still there."""

    number: int = 0
    used_bytes: int = 0
    tenants: int = 0
    alive: int = 0


class PagePart(NamedTuple):
    """A part of a tensor: bytes ``begin`` to ``end`` of a page."""

    page: int
    begin: int
    end: int


class PagePool(Struct):
    """Pages of one size, each of at most two tensors. A tensor begins in what the one before it has left of a page.

    A page is free again when all its tensors are gone. Movement is in whole pages, so no hole is too small for one.
    """

    page_bytes: int = PAGE_BYTES
    parts: dict[Hashable, list[PagePart]] = field(default_factory=dict)
    """The parts of each tensor, in order."""
    _pages: dict[int, _Shared] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)
    _tail: _Shared | None = None

    @property
    def num_pages(self) -> int:
        """Return the number of pages with tensors."""
        return len(self._pages)

    @property
    def reserved_bytes(self) -> int:
        """Return the bytes of pages with tensors."""
        return self.num_pages * self.page_bytes

    def allocate(self, tensor: Hashable, num_bytes: int) -> None:
        """Give a tensor the rest of the last page, if one other tensor has a part of it, and then new pages."""
        own, left = list[PagePart](), num_bytes
        if left and (tail := self._open_page()) is not None:
            own.append(self._take(tail, left))
            left -= own[-1].end - own[-1].begin
        while left:
            number = self._free.pop() if self._free else len(self._pages)
            self._tail = self._pages[number] = _Shared(number)
            own.append(self._take(self._tail, left))
            left -= own[-1].end
        self.parts[tensor] = own

    def _open_page(self) -> _Shared | None:
        """Return the last page, if it is still there and another tensor may begin in it."""
        tail = self._tail
        if tail is None or not tail.alive or tail.tenants == _MOST_TENANTS or tail.used_bytes == self.page_bytes:
            return None
        return tail

    def _take(self, page: _Shared, num_bytes: int) -> PagePart:
        """Give a tensor as much of a page as it needs and the page has."""
        begin = page.used_bytes
        page.used_bytes += min(num_bytes, self.page_bytes - begin)
        page.tenants += 1
        page.alive += 1
        return PagePart(page.number, begin, page.used_bytes)

    def free(self, tensor: Hashable) -> None:
        """Take a tensor's pages back, except those that another tensor shares."""
        for part in self.parts.pop(tensor):
            page = self._pages[part.page]
            page.alive -= 1
            if not page.alive:
                del self._pages[part.page]
                self._free.append(part.page)


class ChunkAllocator(Struct):
    """Chunks of one length. A tensor lies in one chunk; one that is longer has a chunk of its own length.

    A chunk is free again when all its tensors are gone.
    """

    chunk_bytes: int = CHUNK_BYTES
    reserved_bytes: int = 0
    _tail: tuple[_Shared, int] | None = None
    _chunks: dict[Hashable, tuple[_Shared, int]] = field(default_factory=dict)

    def allocate(self, tensor: Hashable, num_bytes: int) -> None:
        """Give a tensor a place in the last chunk, if it fits there, or a new chunk."""
        tail = self._tail
        if tail is None or not tail[0].alive or tail[0].used_bytes + num_bytes > tail[1]:
            length = max(self.chunk_bytes, num_bytes)
            tail = _Shared(), length
            self.reserved_bytes += length
            if length == self.chunk_bytes:
                self._tail = tail
        tail[0].used_bytes += num_bytes
        tail[0].alive += 1
        self._chunks[tensor] = tail

    def free(self, tensor: Hashable) -> None:
        """Take a tensor's chunk back, if it was the last one there."""
        chunk, length = self._chunks.pop(tensor)
        chunk.alive -= 1
        if not chunk.alive:
            self.reserved_bytes -= length


class _Pool(Struct):
    """The free blocks of segments: by size, then address, and by their begins and ends."""

    sizes: list[tuple[int, int]] = field(default_factory=list)
    begins: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    def take(self, size: int) -> tuple[int, int] | None:
        """Return begin and end of the smallest block that is large enough, which is free no longer."""
        place = bisect_left(self.sizes, (size, -1))
        if place == len(self.sizes):
            return None
        length, begin = self.sizes.pop(place)
        end = self.begins.pop(begin)
        del self.ends[end]
        assert end - begin == length
        return begin, end

    def put(self, begin: int, end: int) -> None:
        """Add a block, joined with its free neighbours."""
        if begin in self.ends:
            begin = self._drop(self.ends[begin])[0]
        if end in self.begins:
            end = self._drop(end)[1]
        insort(self.sizes, (end - begin, begin))
        self.begins[begin], self.ends[end] = end, begin

    def _drop(self, begin: int) -> tuple[int, int]:
        end = self.begins.pop(begin)
        del self.ends[end]
        self.sizes.pop(bisect_left(self.sizes, (end - begin, begin)))
        return begin, end


class CachingAllocator(Struct):
    """torch's allocator: small and large blocks apart, in segments that it asks the device for and keeps."""

    reserved_bytes: int = 0
    _small: _Pool = field(default_factory=_Pool)
    _large: _Pool = field(default_factory=_Pool)
    _blocks: dict[Hashable, tuple[_Pool, int, int]] = field(default_factory=dict)
    _next_address: int = 0

    def allocate(self, tensor: Hashable, num_bytes: int) -> None:
        """Give a tensor a free block, or a part of a new segment."""
        size = max(allocated_bytes(num_bytes), allocated_bytes(1))
        is_small = size <= _MIB
        pool = self._small if is_small else self._large
        begin, end = pool.take(size) or self._segment(size)
        rest = end - begin - size
        if rest > 0 if is_small else rest > _MIB:
            end = begin + size
            pool.put(end, end + rest)
        self._blocks[tensor] = pool, begin, end

    def free(self, tensor: Hashable) -> None:
        """Keep a tensor's block for later ones."""
        pool, begin, end = self._blocks.pop(tensor)
        pool.put(begin, end)

    def _segment(self, size: int) -> tuple[int, int]:
        """Return a new segment: 2 MiB for small blocks, 20 MiB for those below 10 MiB, else whole pages of 2 MiB."""
        if size <= _MIB:
            length = 2 * _MIB
        elif size < 10 * _MIB:
            length = 20 * _MIB
        else:
            length = -(-size // (2 * _MIB)) * 2 * _MIB
        begin = self._next_address
        self._next_address += length + 1  # segments do not join
        self.reserved_bytes += length
        return begin, begin + length
