"""Closed forms of the peak memory of a pipeline rank, over a whole grid of strategies."""

import numpy as np

from sim.planner.prices import Floats, Prices
from sim.planner.space import Grid, Ints
from sim.planner.stages import Stage, bucket_bytes, num_replicas


def memory_bytes(grid: Grid, stage: Stage, place: int, prices: Prices) -> Floats:
    """Return the peak bytes of a pipeline rank; ``place``: 0 the first, 1 the second, -1 the last.

    The state, what micro-batches under way keep, and what one of them needs while it computes on one virtual stage.
    """
    chunks = grid.virtual_stages
    live, live_ends = _live(grid, place)
    layer_kept, end_kept, _ = stage.bytes_of("kept_bytes")
    layer_peak, end_peak, _ = stage.bytes_of("peak_bytes")
    layers = np.ceil(stage.num_layers / chunks)
    kept = np.maximum(live * stage.num_layers / chunks - layers, 0.0) * layer_kept + (live_ends - 1) * end_kept
    computing = layers * layer_peak + end_peak
    bucket = np.where(grid.zero_stage == 2, bucket_bytes(grid, stage, prices), 0.0)
    bucket = np.where(grid.offload > 0, _leaving_bytes(grid, stage, bucket), bucket)
    total: Floats = state_bytes(grid, stage) + kept + computing + bucket
    return np.where((place == 1) & (grid.pipeline <= 2), 0.0, total)


def _live(grid: Grid, place: int) -> tuple[Ints, Ints]:
    """Return how many chunks a rank keeps at a time, and of how many micro-batches it keeps the model's end."""
    ranks, chunks, rounds = grid.pipeline, grid.virtual_stages, grid.num_microbatches
    rank = np.where(place < 0, ranks - 1, np.minimum(place, ranks - 1))
    alone = np.minimum(ranks - rank, rounds)
    every = rounds * chunks
    woven = np.where(rounds == ranks, every, np.minimum(2 * (ranks - 1 - rank) + (chunks - 1) * ranks + 1, every))
    first, last = np.minimum(2 * ranks - 1, rounds), np.where(rounds == ranks, rounds, 1)
    return np.where(chunks > 1, woven, alone), np.where(chunks > 1, last if place < 0 else first, alone)


def state_bytes(grid: Grid, stage: Stage) -> Floats:
    """Return the bytes of parameters, gradients and optimizer, as they are sharded, and of units of ZeRO 3 in use."""
    here = grid.offload == 0
    held = (stage.optimizer_bytes * here, stage.gradient_bytes * here, stage.parameter_bytes)
    state = sum(
        np.where(grid.zero_stage > place, sharded_bytes(grid, stage, size), size) for place, size in enumerate(held)
    )
    parameters, _, unit_parameters = stage.bytes_of("parameter_bytes")
    gradients, _, unit_gradients = stage.bytes_of("gradient_bytes")
    unit = parameters + np.maximum(parameters + gradients, unit_parameters + unit_gradients)
    total: Floats = state + np.where(grid.zero_stage >= 3, unit, 0.0)
    return total


def _leaving_bytes(grid: Grid, stage: Stage, bucket: Floats) -> Floats:
    """Return the bytes of gradients on their way to the host: of a bucket, of the one before, and of its shard.

    A bucket ends with the layer that fills it.
    """
    layer, _, _ = stage.bytes_of("gradient_bytes")
    filled = np.ceil(bucket / np.maximum(layer, 1.0)) * layer
    both = np.minimum(stage.gradient_bytes / grid.virtual_stages, 2.0 * filled)
    found: Floats = both + np.where(num_replicas(grid) > 1, sharded_bytes(grid, stage, bucket), 0.0)
    return found


def sharded_bytes(grid: Grid, stage: Stage, num_bytes: Floats) -> Floats:
    """Return the bytes of a replica's shard of state; fewer replicas hold the same experts."""
    replicas, of_experts = num_replicas(grid), stage.expert_fraction
    found: Floats = num_bytes * ((1.0 - of_experts) + of_experts * grid.expert) / replicas
    return found
