"""Times of a training step between measured ones: by placement and batch, or by numbers of nodes and GPUs and batch.

Rules are those of the simulator of Pollux (OSDI 2021, github.com/petuum/adaptdl).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import LinearNDInterpolator
from scipy.spatial import QhullError

from sim.jobs.errors import JobsError
from traces.measured_trainings import MeasuredStep, first_rotation

MOST_NODES: Final = 16
"""More nodes than were measured count as so many."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PlacedSteps:
    """Measured steps of one application.

    PlacedSteps(training.steps).times_s((4, 2), local_batch=100)     # seconds of the step, and of its synchronisation
    """

    steps: Sequence[MeasuredStep]
    _known: dict[tuple[tuple[int, ...], int], tuple[float, float]] = field(default_factory=dict, repr=False)

    def times_s(self, counts: tuple[int, ...], local_batch: int) -> tuple[float, float]:
        """Return the seconds of a step on nodes with so many GPUs each, and of the synchronisation in it.

        A measured placement, up to rotation, is linear between its batches; another is between the measured numbers of
        nodes, of GPUs, and batches. Raises JobsError outside of what was measured.
        """
        key = counts, local_batch
        if key not in self._known:
            times = self._placed(first_rotation(counts), local_batch)
            if not np.isfinite(times).all():
                nodes = ", ".join(map(str, counts))
                rule = f"nodes of {nodes} GPUs, with {local_batch} samples on each GPU, were not measured"
                raise JobsError("measured", rule, "use fewer GPUs, or add rows to the tables")
            self._known[key] = float(times[0]), float(times[1])
        return self._known[key]

    def counts(self, num_gpus: int, num_nodes: int) -> tuple[int, ...]:
        """Return the GPUs of each node, the fullest first, of a placement on so many nodes."""
        found = []
        for others in range(num_nodes - 1, -1, -1):
            found.append(min(self.gpus_per_node, num_gpus - others))
            num_gpus -= found[-1]
        found[0] += num_gpus
        return tuple(found)

    @cached_property
    def gpus_per_node(self) -> int:
        """Return the most GPUs of a measured node."""
        return max(max(step.counts, default=1) for step in self.steps)

    @cached_property
    def local_batches(self) -> tuple[int, int]:
        """Return the least and the largest batch of a GPU that was measured by placement."""
        batches = [step.local_batch for step in self.steps if step.counts]
        return min(batches), max(batches)

    @cached_property
    def _by_counts(self) -> dict[tuple[int, ...], tuple[Floats, Floats]]:
        """Return batches, ascending, and times of each measured placement."""
        rows: dict[tuple[int, ...], list[MeasuredStep]] = {}
        for step in self.steps:
            if step.counts:
                rows.setdefault(first_rotation(step.counts), []).append(step)
        return {counts: _columns(sorted(found, key=lambda step: step.local_batch)) for counts, found in rows.items()}

    @cached_property
    def _between(self) -> LinearNDInterpolator | None:
        """Return the interpolation over numbers: of placements with equal numbers the mean counts.

        None where too few were measured to lie around anything.
        """
        placed: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
        for step in self.steps:
            if step.counts:
                key = step.num_nodes, step.num_gpus, step.local_batch
                placed.setdefault(key, []).append((step.step_s, step.sync_s))
        means = [(key, np.mean(placed[key], axis=0)) for key in sorted(placed)]
        others = [step for step in self.steps if not step.counts]
        points = [*(key for key, _ in means), *((step.num_nodes, step.num_gpus, step.local_batch) for step in others)]
        times = [*(mean for _, mean in means), *(np.array([step.step_s, step.sync_s]) for step in others)]
        try:
            return LinearNDInterpolator(np.array(points, dtype=float), np.array(times))
        except (QhullError, ValueError):
            return None

    def _placed(self, counts: tuple[int, ...], local_batch: int) -> Floats:
        """Return the times, or numbers that are not finite."""
        if counts not in self._by_counts:
            point = [min(len(counts), MOST_NODES), sum(counts), local_batch]
            between = self._between
            return np.full(2, np.nan) if between is None else np.asarray(between(np.array(point, dtype=float))[0])
        batches, times = self._by_counts[counts]
        if not batches[0] <= local_batch <= batches[-1]:
            return np.full(2, np.nan)
        return np.array([np.interp(local_batch, batches, column) for column in times.T])


def _columns(steps: Sequence[MeasuredStep]) -> tuple[Floats, Floats]:
    return np.array([step.local_batch for step in steps], float), np.array([[s.step_s, s.sync_s] for s in steps])
