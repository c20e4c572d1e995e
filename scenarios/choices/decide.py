"""Decisions that jobs leave to prices."""

from msgspec.structs import replace

from scenarios.choices.operators import with_sharding_chosen
from scenarios.choices.passes import with_deferral, with_order
from scenarios.choices.slices import with_best_slices
from sim.engine.prices.activity import Pricing
from sim.training.spec.job import DenseTraining, OpenTraining
from sim.training.spec.openings import Opening


def decided(job: OpenTraining, pricing: Pricing, device_bytes: int) -> DenseTraining:
    """Return the job with its open decision made by these prices.

    ``device_bytes``: the memory of the smallest device. Raises SpecError if no choice fits.
    """
    match job.opening:
        case Opening.TOKEN_SLICES:
            return with_best_slices(job, pricing)
        case Opening.ORDER:
            return with_order(job, pricing)
        case Opening.DEFERRED_SYNC:
            return with_deferral(job, pricing)
        case Opening.OPERATORS:
            return with_sharding_chosen(job, pricing, device_bytes)
        case Opening.CAPACITY:
            return _with_capacity(job, device_bytes)


def _with_capacity(job: OpenTraining, device_bytes: int) -> DenseTraining:
    """Return a job whose chunks are placed by the memory of the smallest device."""
    memory = job.parallel.memory
    assert memory is not None
    assert memory.chunks is not None
    placed = replace(memory, chunks=replace(memory.chunks, capacity_bytes=device_bytes))
    return job.decided(replace(job.parallel, memory=placed))
