"""Device memory: the bytes that the allocator takes."""

from typing import Final

ALLOCATION_GRANULE_BYTES: Final = 512
"""Blocks of torch's CUDA caching allocator are multiples of this (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""


def allocated_bytes(num_bytes: int) -> int:
    """Return the bytes that torch's CUDA caching allocator takes for a tensor: the next multiple of 512.

    An empty tensor takes nothing. This is the figure of ``torch.cuda.memory_allocated``; segments that the allocator
    keeps reserved (2 MiB and more) are not counted.
    """
    if num_bytes < 0:
        raise ValueError(f"a tensor cannot have {num_bytes} bytes")
    return -(-num_bytes // ALLOCATION_GRANULE_BYTES) * ALLOCATION_GRANULE_BYTES
