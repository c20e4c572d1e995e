"""Freed memory that stays with the process."""

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.kept_memory import BLOCK_BYTES

ROOT = Path(__file__).parents[2]
KEEPING = "from scenarios.kept_memory import keep_freed_memory; keep_freed_memory()"
SIMULATING = """
from scenarios.cli import main
try: main(["tiny-gpt-2x2", "--json"])
except SystemExit: print()
"""
WRITING = """
import resource
import numpy as np
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for num_bytes in (2**20, 2**21, 3 * 2**20):
    for _ in range(3):
        np.empty(num_bytes, np.uint8).fill(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _num_faults(first: str) -> int:
    """Return how many pages arrays of three sizes take, each written three times, in a process that does this first."""
    command = [sys.executable, "-c", f"import numpy\n{first}\n{WRITING}"]
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return int(out.splitlines()[-1])


@pytest.mark.parametrize("keeping", [KEEPING, SIMULATING])
def test_freed_arrays_are_used_again(keeping: str) -> None:
    """Each array's pages are asked for once; by default each size's first is given back, and asked for again.

    What the command ``simulate`` frees is kept.
    """
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("the C library is not glibc")
    assert _num_faults(keeping) < 0.7 * _num_faults("")


def _heap_in_large_pages(first: str) -> int:
    """Return for how many bytes of its heap a process that does this first has asked for large pages."""
    command = [sys.executable, "-c", f'import numpy\n{first}\nprint(open("/proc/self/smaps").read())']
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    areas = re.findall(r"\[heap\]\nSize: +(\d+) kB\n(?:.+\n)*?VmFlags:(.*)", out)
    return sum(int(size) * 1024 for size, flags in areas if "hg" in flags.split())


def test_the_heap_is_in_large_pages() -> None:
    """The system is asked for large pages (``hg``, proc_pid_smaps(5)) for two blocks of heap; by default for none."""
    if platform.libc_ver()[0] != "glibc" or not LARGE_PAGES.exists():
        pytest.skip("the C library is not glibc, or the system has no large pages")
    assert _heap_in_large_pages("") == 0
    assert _heap_in_large_pages(KEEPING) >= 2 * BLOCK_BYTES
