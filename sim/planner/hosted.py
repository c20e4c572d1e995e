"""What hosts take that hold gradients and optimizer, and under ZeRO 3 parameters too: queues beside the passes."""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.planner.memory import sharded_bytes
from sim.planner.prices import Floats, Line, Prices
from sim.planner.space import OPTIMIZER_ON_HOST, STATE_ON_HOST, Grid
from sim.planner.stages import Stage, bucket_bytes

Mask = NDArray[np.bool_]


class Arrivals(Struct, frozen=True):
    """When the gradients of a pipeline rank's first and last micro-batch are there, in seconds."""

    first_s: Floats
    last_s: Floats


def hosted_step_s(grid: Grid, stage: Stage, prices: Prices) -> Floats:
    """Return what a step of one micro-batch takes longer with gradients and optimizer alone on the host."""
    return np.where(grid.offload == OPTIMIZER_ON_HOST, _seconds(grid, stage, prices.hosts.step), 0.0)


def loads_s(grid: Grid, stage: Stage, prices: Prices) -> Floats:
    """Return for how long the parameters of a pass come from the host; 0 where they are on the device."""
    return np.where(grid.offload == STATE_ON_HOST, _seconds(grid, stage, prices.hosts.loads), 0.0)


def host_waits_s(
    grid: Grid, stage: Stage, scatter_s: Floats, prices: Prices, *, turns: bool, embeds: Mask | bool
) -> Floats:
    """Return how long backwards wait for the host, for every micro-batch of a rank under ZeRO 2.

    Gradients of a bucket begin when those of the last bucket but one have been scattered, copied and added. Of many
    buckets two are under way at a time. Gradients that tensor parallel ranks sum beside the others are a bucket of
    their own: a backward waits for the one before of the same stage, with a forward in between, and other sums of these
    ranks wait for the scattering. Under interleaved_1f1b backwards of a stage follow each other, but for the first of
    as many as there are ranks.

    ``scatter_s``: of the gradients, between replicas. ``embeds``: the stage has the embedding, whose gradients are the
    last, and does not wait for its own bucket.
    """
    hosts, passes_s = prices.hosts, stage.forward_s + stage.backward_s
    copies_s, adds_s, links_s = (_seconds(grid, stage, line) for line in (hosts.copies, hosts.adds, hosts.links))
    share = np.where(grid.virtual_stages > 1, 1.0 - 1.0 / grid.pipeline, np.where(embeds, 0.0, 1.0))
    alone_s = scatter_s + share * np.maximum(copies_s + adds_s - stage.forward_s, 0.0)
    beside_s = (1.0 - share) * (links_s - adds_s)
    busy_s = adds_s + share * (scatter_s + copies_s + stage.backward_s) + beside_s - passes_s
    two_s = 0.5 * (stage.backward_s + scatter_s + copies_s + links_s) - passes_s
    parted = stage.gradient_bytes > grid.virtual_stages * bucket_bytes(grid, stage, prices)
    several = (grid.tensor > 1) | ((grid.expert > 1) & (not turns))
    summed_s = np.where(several & (share > 0), np.maximum(alone_s, busy_s), 0.0)
    found_s = np.maximum(summed_s, np.where(parted, two_s, 0.0))
    return np.where((grid.offload == OPTIMIZER_ON_HOST) & (grid.num_microbatches > 1), np.maximum(found_s, 0.0), 0.0)


def several_sums(grid: Grid) -> Mask:
    """Return where ZeRO 2 has more than one bucket of gradients: those that other ranks sum too, and of experts."""
    return (grid.tensor > 1) | (grid.expert > 1)


def hosts_end_s(grid: Grid, stage: Stage, arrivals: Arrivals, prices: Prices) -> Floats:
    """Return when a rank's host has added up its gradients, and with ZeRO 3 updated its parameters.

    The host adds gradients in the order in which they come, each as they come or after those before; those of a single
    micro-batch are not added. With ZeRO 3 it updates a layer once its gradients are complete. Of ZeRO 2 the last copy
    and the updates are left out: they are in ``hosted_step_s``.
    """
    hosts, rounds, is_state = prices.hosts, grid.num_microbatches, grid.offload == STATE_ON_HOST
    copies_s, adds_s, links_s = (_seconds(grid, stage, line) for line in (hosts.copies, hosts.adds, hosts.links))
    update_s = _seconds(grid, stage, hosts.updates) * is_state
    links_s = links_s + is_state * 2.0 * _seconds(grid, stage, hosts.link_loads)
    round_s = np.maximum(np.maximum(copies_s, adds_s), links_s)
    last_add_s = np.where(is_state | (rounds > 1), adds_s, 0.0)
    queued_s = arrivals.first_s + (rounds - 1) * round_s + last_add_s + update_s
    piece = 1.0 / np.where(is_state, stage.num_layers + 1.0, grid.virtual_stages)
    layer_by_layer_s = arrivals.last_s - (1.0 - piece) * stage.backward_s + last_add_s + update_s
    after_s = arrivals.last_s + piece * (last_add_s + update_s + copies_s * is_state)
    found: Floats = np.maximum(np.maximum(queued_s, layer_by_layer_s), after_s)
    return np.where(grid.offload > 0, found, arrivals.last_s)


def _seconds(grid: Grid, stage: Stage, line: Line) -> Floats:
    """Return the seconds of a line of hosts, of a rank's shard of parameters."""
    found: Floats = line.latency_s + line.s_per_byte * sharded_bytes(grid, stage, stage.parameter_bytes)
    return found
