"""The time of a training step fitted to what a job measured so far (Pollux, OSDI 2021, section 4.1).

Least is the sum of two root mean square errors of logarithms, of computation and of whole steps, plus penalties for
overlap and for synchronisation that grows with the GPUs. What no measurement tells is held at its lower bound.
Constants are those of the paper's artifact (github.com/petuum/adaptdl, goodput.py).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, minimize

from sim.jobs.speed.step_time import StepTime

LEAST: Final = 1e-8
START: Final = (0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001)
MOST_OVERLAP: Final = 10.0
OVERLAP_PENALTY: Final = 1e-3
GROWTH_PENALTY: Final = 1e-2
WIDER: Final = 1.1
"""Synchronisation across nodes, never measured, takes at least so many times that in a node."""
Floats = NDArray[np.float64]


class Tried(NamedTuple):
    """Where a step was measured: numbers of nodes and GPUs, and samples of a GPU's micro-step."""

    num_nodes: int
    num_gpus: int
    local_batch: int


def fitted_step(measured: Mapping[Tried, tuple[float, float]]) -> StepTime:
    """Return the step time that fits measured seconds of steps, and of the synchronisation in them."""
    errors = _Errors(list(measured), list(measured.values()))
    start, lower = np.array(START), np.array([LEAST] * 6 + [1.0])
    upper = np.array([np.inf] * 6 + [MOST_OVERLAP])
    held = [place for place, is_told in enumerate(errors.told) if not is_told]
    start[held] = lower[held]
    if 0 in held:
        start[0] = lower[0] = np.exp(errors.log_compute).mean() / 2
    upper[held] = lower[held]
    found = minimize(errors.at, start, jac=True, bounds=Bounds(lower, upper, keep_feasible=True)).x.tolist()
    if not errors.crosses_nodes:
        found[2], found[3] = max(found[2], WIDER * found[4]), max(found[3], WIDER * found[5])
    compute_s, per_sample_s, network_s, network_per_gpu_s, node_s, node_per_gpu_s, overlap = found
    return StepTime(
        compute_s=compute_s,
        compute_per_sample_s=per_sample_s,
        node_sync_s=node_s,
        node_sync_per_gpu_s=node_per_gpu_s,
        network_sync_s=network_s,
        network_sync_per_gpu_s=network_per_gpu_s,
        overlap=overlap,
    )


class _Errors:
    """The function to minimise. Parameters: computation, across nodes, in a node (constant and slope each); overlap."""

    def __init__(self, tried: Sequence[Tried], seconds: Sequence[tuple[float, float]]) -> None:
        nodes, gpus, self._batch = (np.array(column, dtype=float) for column in zip(*tried, strict=True))
        step_s, sync_s = (np.array(column) for column in zip(*seconds, strict=True))
        self.log_compute, self._log_step = np.log(step_s - sync_s), np.log(step_s)
        self._across, self._within = nodes > 1, (nodes == 1) & (gpus > 1)
        self._alone = LEAST * (~self._across & ~self._within)
        self._further = np.maximum(gpus - 2, LEAST)
        self.crosses_nodes = bool(self._across.any())
        several, grows = bool(self._within.any()), bool((gpus > 2).any())
        self.told = (
            len(set(self._batch.tolist())) > 1, True, self.crosses_nodes, self.crosses_nodes and grows,
            several, several and grows, True,
        )  # fmt: skip

    def at(self, parameters: Floats) -> tuple[float, Floats]:
        """Return the errors with their penalties, and the gradient by the parameters."""
        compute, per_sample, across, across_more, within, within_more, overlap = parameters
        compute_s = compute + per_sample * self._batch
        sync_s = self._across * (across + across_more * self._further) + self._alone
        sync_s = sync_s + self._within * (within + within_more * self._further)
        log_compute, log_sync = np.log(compute_s), np.log(sync_s)
        computed, synced = np.exp(overlap * log_compute), np.exp(overlap * log_sync)
        both = computed + synced
        log_both = np.log(both)
        error, slope = _root_mean_square(log_compute - self.log_compute)
        step_error, step_slope = _root_mean_square(log_both / overlap - self._log_step)
        by_compute = slope / compute_s + step_slope * computed / both / compute_s
        by_sync = step_slope * synced / both / sync_s
        by_overlap = (computed * log_compute + synced * log_sync) / both / overlap - log_both / overlap**2
        growths = across_more / across, within_more / within
        penalty = OVERLAP_PENALTY * (overlap - 1) ** 2 + GROWTH_PENALTY * (growths[0] ** 2 + growths[1] ** 2)
        gradient = np.array([
            by_compute.sum(), by_compute @ self._batch,
            by_sync @ self._across - 2 * GROWTH_PENALTY * growths[0] ** 2 / across,
            (by_sync * self._further) @ self._across + 2 * GROWTH_PENALTY * growths[0] / across,
            by_sync @ self._within - 2 * GROWTH_PENALTY * growths[1] ** 2 / within,
            (by_sync * self._further) @ self._within + 2 * GROWTH_PENALTY * growths[1] / within,
            step_slope @ by_overlap + 2 * OVERLAP_PENALTY * (overlap - 1),
        ])  # fmt: skip
        return error + step_error + penalty, gradient


def _root_mean_square(values: Floats) -> tuple[float, Floats]:
    """Return the root of the mean square, and its gradient; that of 0 is 0."""
    root = math.sqrt(float(values @ values) / len(values))
    return root, values / (len(values) * root) if root else np.zeros(len(values))
