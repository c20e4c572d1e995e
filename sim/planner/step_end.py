"""What a step takes beside the passes of its micro-batches: collectives of replicas, the optimizer, messages."""

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from sim.planner.hosted import hosted_step_s
from sim.planner.prices import Floats, Line, Prices, link_keys, probe_keys
from sim.planner.space import STATE_ON_HOST, Grid
from sim.planner.stages import Stage, bucket_bytes, num_replicas

ALL_REDUCE: Final = 0
REDUCE_SCATTER: Final = 1
ALL_GATHER: Final = 2
"""Kinds of collectives between replicas, as ``Lines`` numbers them."""


def staged_s(grid: Grid, prices: Prices, part: str, lines: Mapping[int, Line]) -> Floats:
    """Return the seconds between pipeline ranks of what probes say that one sends; ``lines``: by number of stages."""
    keys, numbers = probe_keys(grid)
    num_bytes = np.array([getattr(prices.probes[key], part) for key in keys], dtype=np.float64)[numbers]
    return between_stages_s(grid, num_bytes, lines)


def between_stages_s(grid: Grid, num_bytes: Floats, lines: Mapping[int, Line]) -> Floats:
    """Return the seconds of so many bytes between pipeline ranks; ``lines``: by number of stages."""
    stages, which = np.unique(grid.pipeline, return_inverse=True)
    found = [lines[num_stages] for num_stages in stages.tolist()]
    latency_s, slope = (
        np.array([getattr(line, part) for line in found])[which] for part in ("latency_s", "s_per_byte")
    )
    seconds: Floats = np.where(num_bytes > 0, latency_s + slope * num_bytes, 0.0)
    return seconds


class Lines(Struct, frozen=True):
    """The collectives of every strategy: latency and seconds per byte, in columns; for dense parameters and experts."""

    dense: Floats
    experts: Floats

    def seconds(self, kind: int, stage: Stage, num_bytes: Floats, pieces: Floats | float = 1.0) -> Floats:
        """Return the seconds of one kind of collective of a rank's bytes in all, in so many pieces."""
        of_experts = stage.expert_fraction
        found = _line_s(self.dense, kind, num_bytes * (1.0 - of_experts), pieces)
        return found + _line_s(self.experts, kind, num_bytes * of_experts, pieces)


def _line_s(lines: Floats, kind: int, num_bytes: Floats, pieces: Floats | float) -> Floats:
    found: Floats = lines[:, 2 * kind] * pieces + lines[:, 2 * kind + 1] * num_bytes
    return np.where(num_bytes > 0, found, 0.0)


def links_of(grid: Grid, prices: Prices) -> Lines:
    """Return the collectives between replicas of every strategy."""
    keys, numbers = link_keys(grid)
    rows = [
        [value for name in ("all_reduce", "reduce_scatter", "all_gather")
         for line in [getattr(prices.links[key], name)] for value in (line.latency_s, line.s_per_byte)]
        for key in keys
    ]  # fmt: skip
    table = np.array(rows, dtype=np.float64)[numbers]
    return Lines(table[: len(grid)], table[len(grid) :])


def tail_s(grid: Grid, stage: Stage, links: Lines, prices: Prices) -> Floats:
    """Return the seconds after the last backward of a rank: synchronisation, optimizer, gathering.

    Virtual stages but the first are synchronised beside backwards of those before them. aiao gathers their parameters
    in the next step, beside its forwards.
    """
    replicas, zero = num_replicas(grid), grid.zero_stage
    scattered_s = links.seconds(REDUCE_SCATTER, stage, stage.gradient_bytes)
    reduced_s = links.seconds(ALL_REDUCE, stage, stage.gradient_bytes)
    exposed_s = _last_buckets_s(grid, stage, scattered_s / grid.virtual_stages, prices)
    hidden_s = (1.0 - 1.0 / grid.virtual_stages) * grid.pipeline * stage.backward_s
    after_s = [np.maximum(found_s / grid.virtual_stages, found_s - hidden_s) for found_s in (reduced_s, scattered_s)]
    sync_s = np.choose(zero, (*after_s, exposed_s, np.zeros_like(scattered_s)))
    gather_s = np.where((zero == 1) | (zero == 2), links.seconds(ALL_GATHER, stage, stage.parameter_bytes), 0.0)
    gather_s /= np.where(grid.runs(["aiao"]), grid.virtual_stages, 1)
    device_s = np.where(grid.offload != STATE_ON_HOST, stage.update_s / np.where(zero > 0, replicas, 1.0), 0.0)
    total_s: Floats = sync_s + device_s + hosted_step_s(grid, stage, prices) + gather_s
    return total_s


def _last_buckets_s(grid: Grid, stage: Stage, scattered_s: Floats, prices: Prices) -> Floats:
    """Return the seconds of ZeRO 2's scattering after the last backward of a rank's virtual stage.

    Buckets leave one after the other as backward fills them; the first, the last but one or the last decides.
    """
    backward_s = stage.backward_s / grid.virtual_stages
    part = bucket_bytes(grid, stage, prices) / np.maximum(stage.gradient_bytes / grid.virtual_stages, 1.0)
    full = np.ceil(1.0 / np.maximum(part, 1e-9)) - 1.0
    first_s = scattered_s - backward_s * (1.0 - part)
    before_s = scattered_s * (1.0 - (full - 1.0) * part) - backward_s * (1.0 - full * part)
    last_s = scattered_s * (1.0 - full * part)
    found: Floats = np.maximum(np.maximum(first_s, before_s), last_s)
    return np.where(full > 0, found, scattered_s)
