"""The computer that this process runs on."""

import os


def physical_memory_bytes() -> float:
    """Return the memory of this computer, endless where the system does not say."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return float("inf")
