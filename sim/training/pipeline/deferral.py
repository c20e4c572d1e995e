"""The part of a step's gradient synchronisation that is deferred to the next step (Fold3D; Li et al. 2023).

Under all-in-all-out (aiao) a rank's stages, its segments, run one after the other, each over all micro-batches. While
one segment computes, another's gradients are summed: a part under the next segment's backwards, the rest under the next
step's forwards. A rank's first segment is last in backward and first in forward, so none of its gradients can be
deferred.
"""

from sim.training.errors import SpecError
from sim.training.pipeline.rules import Schedule

KEY = "parallel.data.deferred_sync"


def deferred_part(forward_s: float, backward_s: float) -> float:
    """Return the fraction of a segment's gradients to defer to the next step, from the times of its passes.

    Both parts then have computing in proportion to hide under, with recomputation counted as backward. With r = tF/tB
    and n elements, n r/(r+1) are deferred, or n r/(2r+1) if backward recomputes (Fold3D's release,
    ``model/distributed.py``, where tB is without recomputation).
    """
    return forward_s / (forward_s + backward_s)


def check_deferral(schedule: Schedule, deferred: float | None, *, overlaps: bool) -> None:
    """Raise SpecError for a deferred part under a schedule that defers none."""
    if deferred and not (schedule == "aiao" and overlaps):
        raise SpecError(
            KEY,
            "only aiao with overlapped synchronisation leaves a part of it to the next step",
            "leave it out, or write schedule: aiao and overlap_gradient_sync: true",
        )
