"""Memory that a process frees stays with it."""

import platform
import subprocess
import sys

import pytest

_PROGRAM = """
import resource
import numpy as np
from backends.torch.running.allocator import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        np.ones(500_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
kept = keep_freed_memory()
faults()
print(int(kept), before, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    """Ten arrays of 4 MB, one after the other, fault in thousands of pages, and next to none once memory is kept."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    kept, before, after = map(int, done.stdout.split())
    assert kept
    assert after < 100
    assert before > 10 * after
