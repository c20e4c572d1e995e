"""The request to train with an update of its own pace, and its result. They need no torch."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from sim.training.spec.job import DenseTraining


class LockFreeRequest(Struct, frozen=True, kw_only=True):
    """Steps of a model in one process, whose optimizer is a thread with its state in a file of pages.

    ``folder``: of the file, for the time of the run. ``max_staleness``: gradients that parameters may lack; None: any
    number. ``check``: train once more, one update after the other.
    """

    job: DenseTraining
    steps: int
    folder: Path
    max_staleness: int | None
    check: bool = False


class LockFreeExecution(Struct, frozen=True, kw_only=True):
    """What a training did. ``staleness``: of each step, the most gradients that a unit's parameters lacked.

    ``gradients``: of each update, how many steps' gradients it applied. ``num_made``, ``num_applied``: gradients of
    units. ``page_bytes``: of the file. ``differing_weights``: weights whose bits are not those of the same updates in
    one thread; ``max_error``: with a staleness of 0, the largest difference from synchronous training, relative to the
    largest weight. Both are None without a check.
    """

    step_times_s: Sequence[float]
    staleness: Sequence[int]
    gradients: Sequence[int]
    num_made: int
    num_applied: int
    num_units: int
    page_bytes: int
    num_weights: int
    differing_weights: int | None
    max_error: float | None
