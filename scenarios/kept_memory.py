"""Memory that a command frees, kept for what it allocates next."""

from typing import Final

import numpy as np

LARGEST_BYTES: Final = 31 * 2**20
"""glibc keeps freed blocks of up to the size of the largest that it has seen freed, and that of up to 32 MiB."""


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, where its C library is glibc; elsewhere do nothing of use.

    By default glibc gives large freed arrays back to the system, which has to zero the pages of the next ones: a tenth
    to a sixth of the page faults of large steps. The array that is freed here was never written, so it takes no pages
    itself. mallopt(3) describes the rule under M_MMAP_THRESHOLD.
    """
    np.empty(LARGEST_BYTES, np.uint8)
