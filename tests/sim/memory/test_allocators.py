"""Allocators of device memory: pages, chunks, and torch's blocks."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.memory.allocators import PAGE_BYTES, Allocator, CachingAllocator, ChunkAllocator, PagePool

MIB = 2**20
SIZES = st.lists(st.integers(1, 11 * MIB), min_size=1, max_size=25)


@pytest.mark.parametrize(("sizes_mib", "pages"), [([1, 5, 3, 9], 5), ([1, 1, 1, 1], 2), ([4, 4], 2), ([9, 3], 3)])
def test_pages_are_packed_in_order(sizes_mib: list[int], pages: int) -> None:
    """A tensor begins in the rest of the last page, if one other tensor has a part of it."""
    pool = PagePool()
    for tensor, size in enumerate(sizes_mib):
        pool.allocate(tensor, size * MIB)
    assert pool.num_pages == pages


@given(sizes=SIZES, order=st.randoms(use_true_random=False))
def test_pages_hold_two_tensors_and_waste_at_most_one_page_each(sizes: list[int], order) -> None:
    """No page has a third tensor; pages exceed bytes by less than a page per tensor; none is left in the end."""
    pool = PagePool()
    for tensor, size in enumerate(sizes):
        pool.allocate(tensor, size)
    parts = sorted(part for own in pool.parts.values() for part in own)
    assert [sum(end - begin for _, begin, end in pool.parts[tensor]) for tensor in range(len(sizes))] == sizes
    assert max(Counter(part.page for part in parts).values()) <= 2
    assert all(one.page < other.page or one.end <= other.begin for one, other in pairwise(parts))
    assert all(part.end <= PAGE_BYTES for part in parts)
    assert sum(sizes) <= pool.reserved_bytes < sum(sizes) + len(sizes) * PAGE_BYTES
    left = list(range(len(sizes)))
    order.shuffle(left)
    for tensor in left:
        pool.free(tensor)
    assert pool.num_pages == 0


@pytest.mark.parametrize(
    ("sizes_mib", "reserved_mib"),
    [([0.5, 0.5, 1], 2), ([1, 1, 1], 4), ([3, 6, 9], 20), ([3, 6, 9, 3], 40), ([11], 12), ([11, 40], 52)],
)
def test_blocks_come_from_segments_as_in_torch(sizes_mib: list[float], reserved_mib: int) -> None:
    """Small blocks share segments of 2 MiB, those below 10 MiB segments of 20 MiB; larger ones have their own."""
    allocator = CachingAllocator()
    for tensor, size in enumerate(sizes_mib):
        allocator.allocate(tensor, int(size * MIB))
    assert allocator.reserved_bytes == reserved_mib * MIB


def test_a_free_block_that_is_too_small_is_a_hole() -> None:
    """Twelve MiB that are free in two places do not serve one tensor of twenty; pages would."""
    caching, pages = CachingAllocator(), PagePool()
    for allocator in (caching, pages):
        for tensor in "abc":
            allocator.allocate(tensor, 12 * MIB)
        allocator.free("a")
        allocator.free("c")
        allocator.allocate("d", 20 * MIB)
    assert caching.reserved_bytes == 56 * MIB
    assert pages.reserved_bytes == 32 * MIB


@given(sizes=SIZES, order=st.randoms(use_true_random=False))
def test_freed_blocks_join_to_whole_segments(sizes: list[int], order) -> None:
    """Blocks do not overlap; once all are free, every segment is one block."""
    allocator = CachingAllocator()
    for tensor, size in enumerate(sizes):
        allocator.allocate(tensor, size)
    blocks = sorted((begin, end) for _, begin, end in allocator._blocks.values())
    assert all(one[1] <= other[0] for one, other in pairwise(blocks))
    held, left = allocator.reserved_bytes, list(range(len(sizes)))
    order.shuffle(left)
    for tensor in left:
        allocator.free(tensor)
    whole = [end - begin for pool in (allocator._small, allocator._large) for begin, end in pool.begins.items()]
    assert sum(whole) == held


def test_chunks_are_free_when_all_their_tensors_are_gone() -> None:
    """Tensors fill a chunk in order; a longer one has a chunk of its own."""
    chunks: Allocator = ChunkAllocator(chunk_bytes=10)
    for tensor, size in (("a", 4), ("b", 5), ("c", 2), ("d", 25)):
        chunks.allocate(tensor, size)
    assert chunks.reserved_bytes == 45
    chunks.free("a")
    assert chunks.reserved_bytes == 45
    chunks.free("b")
    assert chunks.reserved_bytes == 35
    chunks.free("d")
    chunks.free("c")
    assert chunks.reserved_bytes == 0
