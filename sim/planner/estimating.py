"""Closed forms of step time over a whole grid of strategies, and with it of peak memory."""

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sim.planner.all_first import Scattering, all_first_ends_s, seconds_of_stages
from sim.planner.hosted import Arrivals, Mask, host_waits_s, hosts_end_s, loads_s, several_sums
from sim.planner.memory import memory_bytes
from sim.planner.ordered import ordered_estimates
from sim.planner.prices import Estimates, Floats, Prices, distinct_rows
from sim.planner.space import ORDERED, Grid
from sim.planner.stages import (
    Stage,
    bucket_bytes,
    kinds_of,
    num_replicas,
    probed,
    stage_of,
    stages_of,
    virtual_stage_layers,
)
from sim.planner.step_end import ALL_GATHER, REDUCE_SCATTER, Lines, links_of, staged_s, tail_s


def estimate(grid: Grid, prices: Prices) -> Estimates:
    """Return step time and peak memory of every strategy.

    Assumes that layers are alike, that replicas synchronise gradients after the last backward of their stage, and that
    ZeRO 2 and 3 communicate beside the computing of the same micro-batch.
    """
    walked = grid.runs(ORDERED)
    found = Estimates(np.empty(len(grid)), np.empty(len(grid)))
    for rows, estimates_of in ((~walked, _in_closed_form), (walked, ordered_estimates)):
        if rows.any():
            part = estimates_of(grid.rows(rows), prices)
            found.time_s[rows], found.memory_bytes[rows] = part.time_s, part.memory_bytes
    return found


def _in_closed_form(grid: Grid, prices: Prices) -> Estimates:
    """Return the estimates of 1f1b and interleaved_1f1b."""
    stages = stages_of(grid, prices)
    links = links_of(grid, prices)
    alone = grid.pipeline == 1
    sharded = [_with_sharding(grid, stage, links, prices, embeds=alone | (n == 0)) for n, stage in enumerate(stages)]
    steps_s = [tail_s(grid, stage, links, prices) for stage in stages]
    hop_s = staged_s(grid, prices, "hop_bytes", prices.hops)
    arrivals = Arrivals(_first_gradients_s(grid, sharded, hop_s), _pipeline_s(grid, sharded, hop_s))
    interleaved = (grid.virtual_stages > 1) & (grid.num_microbatches == grid.pipeline)
    if interleaved.any():
        first_s, last_s = _all_first_s(grid.rows(interleaved), hop_s[interleaved], prices)
        arrivals.first_s[interleaved], arrivals.last_s[interleaved] = first_s, last_s
    passes_s = hosts_end_s(grid, stages[0], arrivals, prices)
    tie_s = staged_s(grid, prices, "tied_bytes", prices.ties) / np.where(grid.zero_stage > 0, num_replicas(grid), 1.0)
    time_s = passes_s + np.maximum(steps_s[0], steps_s[2] * (grid.pipeline > 1)) + tie_s
    placed = zip((0, 1, -1), stages[:3], strict=True)
    _, layer_work_bytes, _ = stages[1].bytes_of("peak_bytes")
    memory = np.maximum.reduce([memory_bytes(grid, stage, n, prices, layer_work_bytes) for n, stage in placed])
    return Estimates(time_s, memory)


class _Passes(Struct, frozen=True):
    """Seconds of a micro-batch, with what sharded parameters and gradients add.

    ``through_s``: forward and backward, until their results are there. ``forward_s``, ``backward_s``: until the next
    micro-batch can begin.
    """

    through_s: Floats
    forward_s: Floats
    backward_s: Floats

    @property
    def period_s(self) -> Floats:
        """Return the seconds between a micro-batch and the next."""
        return self.forward_s + self.backward_s

    @property
    def answer_s(self) -> Floats:
        """Return the seconds of a backward until its results are there."""
        return self.through_s - self.forward_s

    @property
    def wait_s(self) -> Floats:
        """Return for how long the next backward waits that follows at once."""
        found: Floats = np.maximum(self.backward_s - self.answer_s, 0.0)
        return found


def _with_sharding(
    grid: Grid, stage: Stage, links: Lines, prices: Prices, *, turns: bool = True, embeds: Mask | bool = False
) -> _Passes:
    """Return the passes of a rank, or of one virtual stage: collectives run beside computing, piece by piece.

    The first piece of a virtual stage's gathers, or the last of its computing, has nothing beside it. Buckets of
    ZeRO 2 are scattered beside the next computing, and the next backward waits until its bucket is free. Parameters
    come from the host as they are gathered. ``turns``: forwards and backwards take turns. ``embeds``: the stage has the
    embedding.
    """
    gathers, scatters = grid.zero_stage >= 3, grid.zero_stage == 2
    pieces = stage.num_layers + 1.0
    gather_s = np.where(gathers, links.seconds(ALL_GATHER, stage, stage.parameter_bytes, pieces), 0.0)
    scatter_s = links.seconds(REDUCE_SCATTER, stage, stage.gradient_bytes, np.where(gathers, pieces, 1.0))
    unit = stage.bytes_of("parameter_bytes")[2] / np.maximum(stage.parameter_bytes, 1.0)
    alone = np.maximum(grid.virtual_stages / pieces, unit)
    load_s = loads_s(grid, stage, prices)
    forward_s = _beside(stage.forward_s, _beside(load_s, gather_s, alone), alone)
    reduced_s = gather_s + np.where(gathers, scatter_s, 0.0)
    backward_s = _beside(stage.backward_s, _beside(load_s, reduced_s, alone), alone)
    bucket = bucket_bytes(grid, stage, prices) * grid.virtual_stages / np.maximum(stage.gradient_bytes, 1.0)
    between_s = stage.forward_s if turns else 0.0
    waits = (bucket < 1.0) | (several_sums(grid) & ~np.asarray(embeds))
    held_s = stage.backward_s + np.where(waits, np.maximum(scatter_s * bucket - between_s, 0.0), 0.0)
    backward_s = np.where(scatters, np.maximum(held_s, scatter_s - between_s), backward_s)
    through_s = np.where(gathers, forward_s + backward_s, stage.forward_s + stage.backward_s)
    held_s = stage.backward_s + host_waits_s(grid, stage, scatter_s, prices, turns=turns, embeds=embeds)
    return _Passes(through_s, forward_s, np.maximum(backward_s, held_s))


def _beside(computing_s: Floats, collectives_s: Floats, alone: Floats) -> Floats:
    """Return the seconds of computing and collectives side by side; a share ``alone`` of one has nothing beside it."""
    found: Floats = np.maximum(computing_s + alone * collectives_s, collectives_s + alone * computing_s)
    return np.where(collectives_s > 0, found, computing_s)


def _pipeline_s(grid: Grid, stages: list[_Passes], hop_s: Floats) -> Floats:
    """Return the seconds of all forwards and backwards.

    1f1b: the first micro-batch goes there and back, then one follows per period. A period is the slowest rank's, or
    what a round trip with its hops leaves to each of the micro-batches under way. interleaved_1f1b: pieces of 1/v are
    as long in the bubble, and every one of the P v stages has its hops.
    """
    first, inner, last = (stage.through_s for stage in stages[:3])
    periods = [stage.period_s for stage in stages]
    ranks, chunks, rounds = grid.pipeline, grid.virtual_stages, grid.num_microbatches
    slowest = np.maximum(np.maximum(periods[0], periods[2]), np.where(ranks > 2, periods[1], 0.0))
    slowest = np.where(chunks > 1, np.maximum(slowest, periods[3]), slowest)
    through = np.where(ranks > 1, first + last + np.maximum(ranks - 2, 0) * inner, first)
    hops_s = 2.0 * (ranks * chunks - 1) * hop_s
    period = np.where(rounds > ranks, np.maximum(slowest, (through + hops_s) / ranks), slowest)
    plain = through + hops_s + (rounds - 1) * period
    woven = (rounds - 1) * slowest + through / chunks + (1.0 - 1.0 / chunks) * slowest + hops_s
    total_s: Floats = np.where(chunks > 1, woven, plain)
    return total_s


def _first_gradients_s(grid: Grid, stages: list[_Passes], hop_s: Floats) -> Floats:
    """Return when the first pipeline rank has its first gradients: one micro-batch there and a virtual stage back."""
    ranks, chunks = grid.pipeline, grid.virtual_stages
    forward, backward = (
        np.where(ranks > 1, a + c + np.maximum(ranks - 2, 0) * b, a)
        for a, b, c in (tuple(getattr(stage, part) for stage in stages[:3]) for part in ("forward_s", "answer_s"))
    )
    total_s: Floats = forward + backward / chunks + (ranks * chunks + ranks - 2) * hop_s
    return total_s


def _all_first_s(grid: Grid, hop_s: Floats, prices: Prices) -> tuple[Floats, Floats]:
    """Return when the first pipeline rank has its first and its last gradients.

    Strategies interleave as many micro-batches as ranks. ZeRO 2's last scattering of a virtual stage is left to what
    comes after the passes.
    """
    shapes, which = distinct_rows(grid.pipeline, grid.virtual_stages)
    kinds = [kinds_of(virtual_stage_layers(prices.num_layers, *shape)) for shape in shapes]
    counts = np.array([of_shape.layers for of_shape in kinds], dtype=np.float64)[which]
    layer, first, last, _ = probed(grid, prices)
    links, one_stage = links_of(grid, prices), replace(grid, virtual_stages=np.ones_like(grid.virtual_stages))
    ends = (first, np.zeros_like(first), np.zeros_like(first), last)
    of_kinds = [stage_of(layer, end, end, count) for end, count in zip(ends, counts.T, strict=True)]
    passes = [
        _with_sharding(one_stage, stage, links, prices, turns=False, embeds=place == 0)
        for place, stage in enumerate(of_kinds)
    ]
    places = [of_shape.places for of_shape in kinds]
    forward_s, backward_s, wait_s, scatter_s = (
        seconds_of_stages(columns, places, which)
        for columns in (
            [p.forward_s for p in passes],
            [p.answer_s for p in passes],
            [p.wait_s for p in passes],
            [_scatter_s(grid, stage, links) for stage in of_kinds],
        )
    )
    scattering = Scattering(scatter_s, wait_s)
    ends_s = all_first_ends_s(forward_s, backward_s, grid.pipeline, grid.num_microbatches, hop_s, scattering)
    first_s = ends_s[np.arange(len(grid)), (grid.virtual_stages - 1) * grid.pipeline, 0]
    return first_s, ends_s[:, 0, 2] - scatter_s[:, 0]


def _scatter_s(grid: Grid, stage: Stage, links: Lines) -> Floats:
    """Return for how long ZeRO 2 scatters the gradients of a micro-batch of a virtual stage."""
    return np.where(grid.zero_stage == 2, links.seconds(REDUCE_SCATTER, stage, stage.gradient_bytes), 0.0)
