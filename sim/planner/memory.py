"""Closed forms of the peak memory of a pipeline rank, over a whole grid of strategies."""

import numpy as np
from numpy.typing import NDArray

from sim.planner.prices import Floats, Prices
from sim.planner.space import STATE_ON_HOST, Grid, Ints
from sim.planner.stages import Stage, bucket_bytes, num_replicas


def memory_bytes(
    grid: Grid, stage: Stage, place: int, prices: Prices, layer_work_bytes: Floats | float = 0.0
) -> Floats:
    """Return the peak bytes of a pipeline rank; ``place``: 0 the first, 1 the second, -1 the last.

    ``layer_work_bytes``: in which a layer computes, beside what layers keep; of strategies with gradients on hosts.
    Where a host has no room for gradients and optimizer alone, it is infinite.

    The state, what micro-batches under way keep, and what one of them needs while it computes on one virtual stage.
    """
    chunks = grid.virtual_stages
    live, live_ends = _live(grid, place)
    layer_kept, end_kept, _ = stage.bytes_of("kept_bytes")
    layer_peak, end_peak, _ = stage.bytes_of("peak_bytes")
    layers = np.ceil(stage.num_layers / chunks)
    kept = np.maximum(live * stage.num_layers / chunks - layers, 0.0) * layer_kept + (live_ends - 1) * end_kept
    computing = layers * layer_peak + end_peak
    bucket = bucket_bytes(grid, stage, prices)
    here = computing + np.where(grid.zero_stage == 2, bucket, 0.0)
    peak = np.where(grid.offload > 0, _hosted_peak(grid, stage, layers, place, bucket, layer_work_bytes), here)
    total: Floats = state_bytes(grid, stage) + kept + peak
    least_on_host = sharded_bytes(grid, stage, stage.gradient_bytes + stage.optimizer_bytes)
    total = np.where((grid.offload > 0) & (least_on_host > prices.hosts.room_bytes), np.inf, total)
    return np.where((place == 1) & (grid.pipeline <= 2), 0.0, total)


def _hosted_peak(
    grid: Grid, stage: Stage, layers: Floats, place: int, bucket: Floats, layer_work_bytes: Floats | float
) -> Floats:
    """Return what a micro-batch needs while it computes, where its gradients leave for the host.

    Where a rank has the loss, that is before any gradient, and what is left of it, in half of the bits, beside them.
    Elsewhere gradients lie beside all that computing needs. ``layers``: of a virtual stage.
    """
    layer_peak, end_peak, _ = stage.bytes_of("peak_bytes")
    _, end_kept, _ = stage.bytes_of("kept_bytes")
    has_loss = (grid.pipeline == 1) | (place < 0)
    on_device, gathered = _leaving_bytes(grid, stage, bucket), _gathered_bytes(stage, layers, has_loss)
    is_state = grid.offload == STATE_ON_HOST
    gradients, last = (
        np.where(is_state, of_state, of_optimizer)
        for of_state, of_optimizer in zip(gathered[1:], on_device, strict=True)
    )
    parameters = np.where(is_state, gathered[0], 0.0)
    alone = layers * layer_peak + end_peak
    with_loss = np.maximum(alone, layers * layer_peak + np.maximum(0.5 * end_kept, layer_work_bytes) + gradients)
    peak = parameters + np.where(has_loss, with_loss, alone + gradients)
    total: Floats = np.maximum(peak, layer_peak + np.where(has_loss, layer_work_bytes, end_peak) + last)
    return total


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
    held = (
        stage.optimizer_bytes * here,
        stage.gradient_bytes * here,
        stage.parameter_bytes * (grid.offload != STATE_ON_HOST),
    )
    state = sum(
        np.where(grid.zero_stage > place, sharded_bytes(grid, stage, size), size) for place, size in enumerate(held)
    )
    parameters, _, unit_parameters = stage.bytes_of("parameter_bytes")
    gradients, _, unit_gradients = stage.bytes_of("gradient_bytes")
    unit = parameters + np.maximum(parameters + gradients, unit_parameters + unit_gradients)
    total: Floats = state + np.where((grid.zero_stage >= 3) & (grid.offload != STATE_ON_HOST), unit, 0.0)
    return total


def _leaving_bytes(grid: Grid, stage: Stage, bucket: Floats) -> tuple[Floats, Floats]:
    """Return the bytes of ZeRO 2's gradients on their way to the host: beside computing, and after the last layer.

    They are those of a bucket and of the one before; a bucket ends with the layer that fills it. Where there are
    several, the shard of one is beside them; else it is made when all else is over.
    """
    layer, _, _ = stage.bytes_of("gradient_bytes")
    whole, filled = stage.gradient_bytes / grid.virtual_stages, np.ceil(bucket / np.maximum(layer, 1.0)) * layer
    both = np.minimum(whole, 2.0 * filled)
    shard = np.where(num_replicas(grid) > 1, sharded_bytes(grid, stage, bucket), 0.0)
    return both + np.where(whole > filled, shard, 0.0), both + shard


def _gathered_bytes(stage: Stage, layers: Floats, has_loss: NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
    """Return the bytes of parameters that are gathered from hosts, of their gradients, and of the end's on its own.

    Up to the three largest units of a pass are gathered, and gradients are those of one. Where a rank has the loss, the
    end of the model is one of them; elsewhere it is beside nothing.
    """
    layer, _, end = stage.bytes_of("parameter_bytes")
    layer_gradients, _, end_gradients = stage.bytes_of("gradient_bytes")
    parameters = np.where(has_loss, end + np.minimum(layers, 2.0) * layer, np.minimum(layers, 3.0) * layer)
    gradients = np.where(has_loss, np.maximum(end_gradients, layer_gradients), layer_gradients)
    return parameters, gradients, end + end_gradients


def sharded_bytes(grid: Grid, stage: Stage, num_bytes: Floats) -> Floats:
    """Return the bytes of a replica's shard of state; fewer replicas hold the same experts."""
    replicas, of_experts = num_replicas(grid), stage.expert_fraction
    found: Floats = num_bytes * ((1.0 - of_experts) + of_experts * grid.expert) / replicas
    return found
