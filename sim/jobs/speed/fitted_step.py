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
        nodes, gpus, batch = (np.array(column, dtype=float) for column in zip(*tried, strict=True))
        step_s, sync_s = (np.array(column) for column in zip(*seconds, strict=True))
        self.log_compute, self._log_step = np.log(step_s - sync_s), np.log(step_s)
        across, within = nodes > 1, (nodes == 1) & (gpus > 1)
        further = np.maximum(gpus - 2, LEAST)
        self._compute_terms = np.stack([np.ones_like(batch), batch], axis=1)
        self._sync_terms = np.stack([across, across * further, within, within * further], axis=1).astype(float)
        self._alone_s = LEAST * (gpus == 1)
        self.crosses_nodes = bool(across.any())
        several, grows = bool(within.any()), bool((gpus > 2).any())
        self.told = (
            len(np.unique(batch)) > 1, True, self.crosses_nodes, self.crosses_nodes and grows,
            several, several and grows, True,
        )  # fmt: skip

    def at(self, parameters: Floats) -> tuple[float, Floats]:
        """Return the errors with their penalties, and the gradient by the parameters."""
        overlap = float(parameters[6])
        compute_s = self._compute_terms @ parameters[:2]
        sync_s = self._sync_terms @ parameters[2:6] + self._alone_s
        log_compute, log_sync = np.log(compute_s), np.log(sync_s)
        log_both = np.logaddexp(overlap * log_compute, overlap * log_sync)
        share = np.exp(overlap * log_compute - log_both)
        error, slope = _root_mean_square(log_compute - self.log_compute)
        step_error, step_slope = _root_mean_square(log_both / overlap - self._log_step)
        by_sync = (step_slope * (1.0 - share) / sync_s) @ self._sync_terms
        by_overlap = step_slope @ (share * log_compute + (1.0 - share) * log_sync - log_both / overlap) / overlap
        penalty = OVERLAP_PENALTY * (overlap - 1.0) ** 2
        for base in (0, 2):
            start, growth = parameters[2 + base], parameters[3 + base] / parameters[2 + base]
            penalty += GROWTH_PENALTY * growth**2
            by_sync[base] -= 2.0 * GROWTH_PENALTY * growth**2 / start
            by_sync[base + 1] += 2.0 * GROWTH_PENALTY * growth / start
        by_compute = ((slope + step_slope * share) / compute_s) @ self._compute_terms
        overlaps = by_overlap + 2.0 * OVERLAP_PENALTY * (overlap - 1.0)
        return error + step_error + penalty, np.array([*by_compute, *by_sync, overlaps])


def _root_mean_square(values: Floats) -> tuple[float, Floats]:
    """Return the root of the mean square, and its gradient; that of 0 is 0."""
    root = math.sqrt(float(values @ values) / len(values))
    return root, values / (len(values) * root) if root else np.zeros(len(values))
