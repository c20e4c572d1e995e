"""A setting of malloc that keeps freed memory in the process, as a caching allocator on a GPU does.

A step frees its activations, and the next step allocates them again. If freed memory returns to the system, every page
of it must be faulted in again: on tiny steps that was a tenth of the time, and it depends on earlier runs.
"""

import ctypes
from typing import Final

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Numbers of the parameters in glibc's malloc.h."""
_NEVER: Final = 2**31 - 1
_MOST_MMAP_BYTES: Final = 32 * 2**20
"""The largest threshold that glibc accepts on 64 bits; larger blocks are still mapped one by one."""


def keep_freed_memory() -> bool:
    """Keep freed memory in this process, in one arena for all threads; return whether the C library supports it."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return False
    settings = ((_ARENA_MAX, 1), (_TRIM_THRESHOLD, _NEVER), (_MMAP_THRESHOLD, _MOST_MMAP_BYTES))
    accepted = [mallopt(parameter, value) == 1 for parameter, value in settings]
    return all(accepted)
