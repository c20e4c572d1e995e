"""Freed memory that stays with the process."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

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
