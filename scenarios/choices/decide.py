"""All choices of a job, one after the other."""

from collections.abc import Callable

from scenarios.choices.operators import with_sharding_chosen
from scenarios.choices.passes import with_deferral, with_order
from scenarios.choices.slices import with_best_slices
from sim.engine.prices.activity import Pricing
from sim.training.spec.job import DenseTraining


def decided(job: DenseTraining, pricing: Callable[[], Pricing], device_bytes: int) -> DenseTraining:
    """Return the job with what follows from prices decided, as builders need it; ``pricing`` is called only for that.

    ``device_bytes``: the memory of the smallest device. Raises SpecError where no choice fits.
    """
    pipeline, osdp = job.parallel.pipeline, job.parallel.osdp
    if pipeline.awaits_slices:
        job = with_best_slices(job, pricing())
    if pipeline.schedule == "aiao" and job.parallel.deferred_sync is None and job.parallel.zero_stage == 0:
        job = with_deferral(job, pricing())
    if pipeline.schedule == "zb_auto":
        job = with_order(job, pricing())
    if osdp is not None and osdp.choices is None and job.parallel.data_degree > 1:
        job = with_sharding_chosen(job, pricing(), device_bytes)
    return job
