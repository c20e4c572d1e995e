"""Memory that is freed stays with the process, for what it allocates next."""

import subprocess
import sys

import pytest

from scenarios.console.freed_memory import keep_freed_memory

SCRIPT = """
import resource
from scenarios.console.freed_memory import keep_freed_memory
if {keeps}:
    keep_freed_memory()
for _ in range(12):
    blocks = [b"x" * (20 << 20) for _ in range(4)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def faults(*, keeps: bool) -> int:
    """Return how often a process that allocates and frees large blocks had to ask the kernel for a page."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(keeps=keeps)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_freed_blocks_are_used_again() -> None:
    """Blocks of 80 MiB that are made and freed 12 times take their pages from the kernel once."""
    if not keep_freed_memory():
        pytest.skip("the C library has no mallopt")
    assert faults(keeps=True) < 0.4 * faults(keeps=False)
