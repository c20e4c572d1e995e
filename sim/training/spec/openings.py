"""Decisions that a job may leave to prices, to be made before its plan is built."""

from enum import Enum

from sim.training.pipeline.deferral import KEY as DEFERRAL_KEY
from sim.training.pipeline.rules import SCHEDULE_KEY, SLICES_KEY
from sim.training.spec.parallelism.parallel import ParallelSpec


class Opening(Enum):
    """One open decision; the value is its scenario key."""

    TOKEN_SLICES = SLICES_KEY
    """terapipe, seq_1f1b: into which slices sequences are cut."""
    ORDER = SCHEDULE_KEY
    """zb_auto: the order of forwards and backwards."""
    DEFERRED_SYNC = DEFERRAL_KEY
    """aiao without ZeRO: which part of the gradients' sums the next step makes."""
    OPERATORS = "parallel.data.osdp"
    """osdp: which operators are sharded."""
    CAPACITY = "memory.placement"
    """gemini, auto: the device's memory, by which chunks are placed."""


def opening_of(parallel: ParallelSpec) -> Opening | None:
    """Return the open decision of a strategy, or None.

    There is at most one: each decision belongs to schedules or techniques that refuse those of the others.
    """
    schedule, osdp = parallel.pipeline.schedule, parallel.osdp
    if parallel.pipeline.awaits_slices:
        return Opening.TOKEN_SLICES
    if schedule == "zb_auto":
        return Opening.ORDER
    sums = parallel.zero_stage == 0 and parallel.num_replicas > 1
    if schedule == "aiao" and sums and parallel.deferred_sync is None:
        return Opening.DEFERRED_SYNC
    if osdp is not None and parallel.data_degree > 1 and osdp.choices is None:
        return Opening.OPERATORS
    if parallel.memory is not None and parallel.memory.awaits_capacity:
        return Opening.CAPACITY
    return None
