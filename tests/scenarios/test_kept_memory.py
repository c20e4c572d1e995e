"""Freed memory that stays with the process."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import resource, sys
import numpy as np
from scenarios.kept_memory import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()

def num_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def write(num_bytes):
    np.empty(num_bytes, np.uint8).fill(1)

for num_bytes in (2**20, 2**21, 3 * 2**20):
    before = num_faults()
    for _ in range(3):
        write(num_bytes)
    print(num_faults() - before)
"""


def _num_faults(word: str) -> int:
    """Return how many pages three arrays of three sizes took, each written three times, in a process of its own."""
    command = [sys.executable, "-c", CODE, word]
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return sum(map(int, out.split()))


def test_freed_arrays_are_used_again() -> None:
    """Each array's pages are asked for once; without it, each size's first array is given back, and asked for again."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("the C library is not glibc")
    assert _num_faults("kept") < 0.7 * _num_faults("given back")
