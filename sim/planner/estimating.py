"""Closed forms of step time over a whole grid of strategies, and with it of peak memory."""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sim.planner.all_first import all_first_s
from sim.planner.memory import memory_bytes
from sim.planner.prices import Floats, Line, Prices, distinct_rows, link_keys, probe_keys
from sim.planner.space import Grid
from sim.planner.stages import Stage, bucket_bytes, num_replicas, probed, stage_of, stages_of, virtual_stage_layers


class Estimates(Struct, frozen=True):
    """Seconds per step and bytes of the fullest rank, an element per strategy."""

    time_s: Floats
    memory_bytes: Floats


def estimate(grid: Grid, prices: Prices) -> Estimates:
    """Return step time and peak memory of every strategy.

    Assumes that layers are alike, that replicas synchronise gradients after the last backward of their stage, and that
    ZeRO 2 and 3 communicate beside the computing of the same micro-batch.
    """
    stages = stages_of(grid, prices)
    links = _links(grid, prices)
    sharded = [_with_sharding(grid, stage, links, prices) for stage in stages]
    steps_s = [_tail_s(grid, stage, links, prices) for stage in stages]
    hop_s = _staged_s(grid, prices, "hop_bytes", prices.hops)
    passes_s = _pipeline_s(grid, sharded, hop_s)
    interleaved = (grid.virtual_stages > 1) & (grid.num_microbatches == grid.pipeline)
    if interleaved.any():
        passes_s[interleaved] = _all_first_s(grid.rows(interleaved), hop_s[interleaved], prices)
    tie_s = _staged_s(grid, prices, "tied_bytes", prices.ties) / np.where(grid.zero_stage > 0, num_replicas(grid), 1.0)
    time_s = passes_s + np.maximum(steps_s[0], steps_s[2] * (grid.pipeline > 1)) + tie_s
    placed = zip((0, 1, -1), stages[:3], strict=True)
    memory = np.maximum.reduce([memory_bytes(grid, stage, place, prices) for place, stage in placed])
    return Estimates(time_s, memory)


def _staged_s(grid: Grid, prices: Prices, part: str, lines: Mapping[int, Line]) -> Floats:
    """Return the seconds between pipeline ranks of what probes say that one sends; ``lines``: by number of stages."""
    keys, numbers = probe_keys(grid)
    num_bytes = np.array([getattr(prices.probes[key], part) for key in keys], dtype=np.float64)[numbers]
    stages, which = np.unique(grid.pipeline, return_inverse=True)
    found = [lines[num_stages] for num_stages in stages.tolist()]
    latency_s, slope = (
        np.array([getattr(line, part) for line in found])[which] for part in ("latency_s", "s_per_byte")
    )
    seconds: Floats = np.where(num_bytes > 0, latency_s + slope * num_bytes, 0.0)
    return seconds


class _Lines(Struct, frozen=True):
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


_ALL_REDUCE, _REDUCE_SCATTER, _ALL_GATHER = range(3)


def _links(grid: Grid, prices: Prices) -> _Lines:
    keys, numbers = link_keys(grid)
    rows = [
        [value for name in ("all_reduce", "reduce_scatter", "all_gather")
         for line in [getattr(prices.links[key], name)] for value in (line.latency_s, line.s_per_byte)]
        for key in keys
    ]  # fmt: skip
    table = np.array(rows, dtype=np.float64)[numbers]
    return _Lines(table[: len(grid)], table[len(grid) :])


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


def _with_sharding(grid: Grid, stage: Stage, links: _Lines, prices: Prices, *, turns: bool = True) -> _Passes:
    """Return the passes of a rank, or of one virtual stage: collectives run beside computing, piece by piece.

    The first piece of a virtual stage's gathers, or the last of its computing, has nothing beside it. Buckets of
    ZeRO 2 are scattered beside the next computing, and the next backward waits until its bucket is free. ``turns``:
    forwards and backwards take turns.
    """
    gathers, scatters = grid.zero_stage >= 3, grid.zero_stage == 2
    pieces = stage.num_layers + 1.0
    gather_s = np.where(gathers, links.seconds(_ALL_GATHER, stage, stage.parameter_bytes, pieces), 0.0)
    scatter_s = links.seconds(_REDUCE_SCATTER, stage, stage.gradient_bytes, np.where(gathers, pieces, 1.0))
    unit = stage.bytes_of("parameter_bytes")[2] / np.maximum(stage.parameter_bytes, 1.0)
    alone = np.maximum(grid.virtual_stages / pieces, unit)
    forward_s = _beside(stage.forward_s, gather_s, alone)
    backward_s = _beside(stage.backward_s, gather_s + np.where(gathers, scatter_s, 0.0), alone)
    bucket = bucket_bytes(grid, stage, prices) * grid.virtual_stages / np.maximum(stage.gradient_bytes, 1.0)
    between_s = stage.forward_s if turns else 0.0
    held_s = stage.backward_s + np.maximum(scatter_s * bucket - between_s, 0.0)
    backward_s = np.where(scatters, np.maximum(held_s, scatter_s - between_s), backward_s)
    through_s = np.where(gathers, forward_s + backward_s, stage.forward_s + stage.backward_s)
    return _Passes(through_s, forward_s, backward_s)


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


def _all_first_s(grid: Grid, hop_s: Floats, prices: Prices) -> Floats:
    """Return the seconds of all forwards and backwards of interleaved strategies with as many micro-batches as ranks.

    Virtual stages are of four kinds: the first, inner ones with the least and the most layers, and the last.
    """
    shapes, which = distinct_rows(grid.pipeline, grid.virtual_stages)
    splits = [virtual_stage_layers(prices.num_layers, *shape) for shape in shapes]
    most = max(map(len, splits))
    kinds = np.array([_kinds(split, most) for split in splits])[which]
    counts = np.array([(split[0], min(split[1:-1]), max(split[1:-1]), split[-1]) for split in splits], dtype=np.float64)
    layer, first, last, _ = probed(grid, prices)
    links, one_stage = _links(grid, prices), replace(grid, virtual_stages=np.ones_like(grid.virtual_stages))
    ends = (first, np.zeros_like(first), np.zeros_like(first), last)
    passes = [
        _with_sharding(one_stage, stage_of(layer, end, end, counts[which, kind]), links, prices, turns=False)
        for kind, end in enumerate(ends)
    ]
    beyond = np.full(len(grid), np.nan)
    forward_s, backward_s = (
        np.take_along_axis(np.stack([*columns, beyond], axis=1), kinds, axis=1)
        for columns in ([p.forward_s for p in passes], [p.backward_s for p in passes])
    )
    return all_first_s(forward_s, backward_s, grid.pipeline, grid.num_microbatches, hop_s)


def _kinds(split: tuple[int, ...], length: int) -> list[int]:
    """Return the kind of every virtual stage, and 4 for those beyond the last."""
    inner = [1 if layers == min(split[1:-1]) else 2 for layers in split[1:-1]]
    return [0, *inner, 3, *[4] * (length - len(split))]


def _tail_s(grid: Grid, stage: Stage, links: _Lines, prices: Prices) -> Floats:
    """Return the seconds after the last backward of a rank: synchronisation, optimizer, gathering.

    Virtual stages but the first are synchronised beside backwards of those before them.
    """
    replicas, zero = num_replicas(grid), grid.zero_stage
    scattered_s = links.seconds(_REDUCE_SCATTER, stage, stage.gradient_bytes)
    reduced_s = links.seconds(_ALL_REDUCE, stage, stage.gradient_bytes)
    exposed_s = _last_buckets_s(grid, stage, scattered_s / grid.virtual_stages, prices)
    hidden_s = (1.0 - 1.0 / grid.virtual_stages) * grid.pipeline * stage.backward_s
    after_s = [np.maximum(found_s / grid.virtual_stages, found_s - hidden_s) for found_s in (reduced_s, scattered_s)]
    sync_s = np.choose(zero, (*after_s, exposed_s, np.zeros_like(scattered_s)))
    gather_s = np.where((zero == 1) | (zero == 2), links.seconds(_ALL_GATHER, stage, stage.parameter_bytes), 0.0)
    tail_s: Floats = sync_s + stage.update_s / np.where(zero > 0, replicas, 1.0) + gather_s
    return tail_s


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
