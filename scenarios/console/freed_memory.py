"""Memory that a command frees and soon allocates again."""

import ctypes
import sys
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Parameters of glibc's ``mallopt`` (its ``malloc.h``)."""
_KEPT_BYTES: Final = 2**28
_LARGEST_KEPT_BYTES: Final = 2**25
"""The largest array whose memory is kept; glibc allows no more."""


def keep_freed_memory() -> bool:
    """Keep up to 256 MiB of freed memory for later arrays; return whether the C library does so (glibc does).

    By itself it returns the memory of large arrays to the kernel, which clears each page before it gives it again.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES))
