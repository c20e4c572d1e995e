"""Streams of work with state in the host's memory, and the host's wait for all gradients."""

from collections.abc import Sequence
from typing import Final

from sim.plan.functions.tracing import ProgramTracer
from sim.plan.words.op import Compute
from sim.plan.words.program import Phase

TO_DEVICE: Final = "h2d"
TO_HOST: Final = "d2h"
READ: Final = "nvme_read"
WRITE: Final = "nvme_write"
HOST: Final = "host"
"""The stream of the host's sums of gradients, and of updates that wait for all of these."""
HOST_UPDATE: Final = "host_update"
"""The stream of updates beside the sums of other gradients: of other units, or of the next step."""


def add_wait_for_gradients(tracer: ProgramTracer, gradients: Sequence[str]) -> str:
    """Add a task that takes no time and ends when the host has all these buffers of gradients; return its name.

    The host needs all gradients before its first update where their norm, or an overflow, is checked.
    """
    gate = Compute("all_gradients", "delay", tuple(gradients), (), {"duration_s": 0.0}, HOST)
    return tracer.add_task("wait_for_gradients", Phase.OPTIMIZER, [gate]).name
