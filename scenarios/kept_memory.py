"""Memory that a command frees, kept for what it allocates next; large pages for its arrays."""

from typing import Final

import numpy as np

LARGEST_BYTES: Final = 31 * 2**20
"""glibc keeps freed blocks of up to the size of the largest that it has seen freed, and that of up to 32 MiB."""

BLOCK_BYTES: Final = LARGEST_BYTES - 2**20
"""Two of these, freed, are less than what glibc keeps at the end of its heap: twice the largest."""


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, where its C library is glibc; elsewhere do nothing of use.

    By default glibc gives large freed arrays back to the system, which has to zero the pages of the next ones: a
    twentieth to a sixth of the page faults of large steps. And NumPy asks for large pages (2 MiB on most processors)
    for arrays from 4 MiB, which is kept for the heap that two blocks enlarge: where Linux gives them, one fault takes
    the place of 512. The arrays that are freed here were never written, so they take no pages themselves. mallopt(3)
    describes the first rule under M_MMAP_THRESHOLD.
    """
    np.empty(LARGEST_BYTES, np.uint8)
    blocks = [np.empty(BLOCK_BYTES, np.uint8) for _ in range(2)]
    blocks.clear()
