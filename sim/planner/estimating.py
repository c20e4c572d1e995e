"""Closed forms of step time and peak memory over a whole grid of strategies."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sim.planner.all_first import all_first_s
from sim.planner.probing import Costs, Probe
from sim.planner.space import RECOMPUTE, Grid, Ints
from sim.training.pipeline.rules import Schedule
from sim.training.pipeline.spec import PipelineSpec
from sim.training.spec.parallelism.stage_layers import split_layers

Floats = NDArray[np.float64]

ProbeKey = tuple[int, int, int, int, int]
"""The choices that a probe is for: tensor, context, expert, micro-batch, recomputation."""
LinkKey = tuple[int, int]
"""The choices that replicas communicate under: the tensor degree, and the number of replicas."""
_BUCKET_ELEMENTS: Final = 5e8
"""ZeRO 2 scatters gradients in buckets of so many elements."""
_GATHERED_UNITS: Final = 2.0
"""Layers that ZeRO 3 holds whole at a time: the one that computes, and the next."""


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of a collective as a line over its bytes."""

    latency_s: float
    s_per_byte: float


@dataclass(frozen=True, slots=True)
class ReplicaLinks:
    """The collectives between replicas."""

    all_reduce: Line
    reduce_scatter: Line
    all_gather: Line


@dataclass(frozen=True, slots=True)
class Prices:
    """All that the closed forms read: probes and collectives, each priced once, and the layers of the model."""

    probes: Mapping[ProbeKey, Probe]
    links: Mapping[LinkKey, ReplicaLinks]
    num_layers: int
    gradient_element_bytes: int


@dataclass(frozen=True, slots=True)
class Estimates:
    """Seconds per step and bytes of the fullest rank, an element per strategy."""

    time_s: Floats
    memory_bytes: Floats


@dataclass(frozen=True, slots=True)
class _Stage:
    """One pipeline rank of every strategy: its costs of a micro-batch and of a step, in columns."""

    forward_s: Floats
    backward_s: Floats
    update_s: Floats
    parameter_bytes: Floats
    gradient_bytes: Floats
    optimizer_bytes: Floats
    layer_activation_bytes: Floats
    end_activation_bytes: Floats
    num_layers: Floats


def _distinct_rows(*columns: Ints) -> tuple[list[list[int]], Ints]:
    """Return the different rows of columns, and the number of each row among them."""
    rows, numbers = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return rows.tolist(), numbers.ravel()


def probe_keys(grid: Grid) -> tuple[list[ProbeKey], Ints]:
    """Return the different probes that a grid needs, and which of them each strategy needs."""
    rows, numbers = _distinct_rows(grid.tensor, grid.context, grid.expert, grid.microbatch_size, grid.recompute)
    keys = [(tensor, context, expert, microbatch, recompute) for tensor, context, expert, microbatch, recompute in rows]
    return keys, numbers


def link_keys(grid: Grid) -> tuple[list[LinkKey], Ints]:
    """Return the different groups of replicas of a grid, and which of them each strategy has."""
    rows, numbers = _distinct_rows(grid.tensor, grid.data * grid.context)
    return [(tensor, replicas) for tensor, replicas in rows], numbers


def estimate(grid: Grid, prices: Prices) -> Estimates:
    """Return step time and peak memory of every strategy.

    Assumes that layers are alike, that replicas synchronise gradients after the last backward of their stage, and that
    ZeRO 2 and 3 communicate beside the computing of the same micro-batch.
    """
    stages = _stages(grid, prices)
    links = _links(grid, prices)
    sharded = [_with_sharding(grid, stage, links, prices) for stage in stages]
    steps_s = [_tail_s(grid, stage, links, prices) for stage in stages]
    hop_s = _hop_s(grid, prices)
    passes_s = _pipeline_s(grid, sharded, hop_s)
    interleaved = (grid.virtual_stages > 1) & (grid.num_microbatches == grid.pipeline)
    if interleaved.any():
        passes_s[interleaved] = _all_first_s(grid.rows(interleaved), hop_s[interleaved], prices)
    time_s = passes_s + np.maximum(steps_s[0], steps_s[2] * (grid.pipeline > 1))
    placed = zip((0, 1, -1), stages[:3], strict=True)
    memory = np.maximum.reduce(
        [_memory(grid, stage, stages[0].end_activation_bytes, place, prices) for place, stage in placed]
    )
    return Estimates(time_s, memory)


def _stages(grid: Grid, prices: Prices) -> tuple[_Stage, ...]:
    """Return the first, the fullest inner and the last pipeline rank of every strategy, and one of slowest rounds."""
    layer, first, last = _probed(grid, prices)
    shapes, which = _distinct_rows(grid.pipeline, grid.virtual_stages)
    layers = np.array([_layers(prices.num_layers, *shape) for shape in shapes], dtype=np.float64)[which]
    alone = (grid.pipeline == 1)[:, None]
    nothing = np.zeros_like(first)
    ends = (first + np.where(alone, last, 0.0), nothing, np.where(alone, first + last, last), nothing)
    return tuple(_stage(layer, end, layers[:, place]) for place, end in enumerate(ends))


def _probed(grid: Grid, prices: Prices) -> list[Floats]:
    """Return the costs of a layer, of the first stage's end and of the last one's, of shape (strategies, costs)."""
    keys, numbers = probe_keys(grid)
    probes = [prices.probes[key] for key in keys]
    return [_table([getattr(p, part) for p in probes])[numbers] for part in ("layer", "first", "last")]


def _hop_s(grid: Grid, prices: Prices) -> Floats:
    """Return the seconds of a message between pipeline ranks."""
    keys, numbers = probe_keys(grid)
    hops: Floats = np.array([prices.probes[key].hop_s for key in keys])[numbers]
    return hops


def _table(costs: list[Costs]) -> Floats:
    return np.array([[getattr(cost, field.name) for field in fields(Costs)] for cost in costs], dtype=np.float64)


def _stage(layer: Floats, end: Floats, num_layers: Floats) -> _Stage:
    total = layer * num_layers[:, None] + end
    forward_s, backward_s, update_s, parameters, gradients, optimizer, _ = total.T
    return _Stage(
        forward_s, backward_s, update_s, parameters, gradients, optimizer, layer[:, -1], end[:, -1], num_layers
    )


def _layers(num_layers: int, degree: int, virtual_stages: int) -> tuple[int, int, int, int]:
    """Return the layers of the first, the fullest inner and the last rank of a pipeline, and of a slowest round.

    In a round of interleaving all ranks run their next virtual stage, and wait for the one with the most layers.
    """
    split = _split(num_layers, degree, virtual_stages)
    ranks = [sum(split[rank::degree]) for rank in range(degree)]
    rounds = sum(max(split[begin : begin + degree]) for begin in range(0, len(split), degree))
    return ranks[0], max(ranks[1:-1], default=0), ranks[-1], rounds


def _split(num_layers: int, degree: int, virtual_stages: int) -> tuple[int, ...]:
    """Return the layers of every virtual stage, in model order."""
    schedule: Schedule = "interleaved_1f1b" if virtual_stages > 1 else "1f1b"
    return split_layers(num_layers, PipelineSpec(degree=degree, schedule=schedule, virtual_stages=virtual_stages))


@dataclass(frozen=True, slots=True)
class _Lines:
    """The collectives of every strategy: latency and seconds per byte, in columns."""

    values: Floats

    def seconds(self, kind: int, num_bytes: Floats, pieces: Floats | float = 1.0) -> Floats:
        """Return the seconds of one kind of collective of so many bytes in all, in so many pieces."""
        found: Floats = self.values[:, 2 * kind] * pieces + self.values[:, 2 * kind + 1] * num_bytes
        return np.where(num_bytes > 0, found, 0.0)


_ALL_REDUCE, _REDUCE_SCATTER, _ALL_GATHER = range(3)


def _links(grid: Grid, prices: Prices) -> _Lines:
    keys, numbers = link_keys(grid)
    rows = [
        [value for name in ("all_reduce", "reduce_scatter", "all_gather")
         for line in [getattr(prices.links[key], name)] for value in (line.latency_s, line.s_per_byte)]
        for key in keys
    ]  # fmt: skip
    return _Lines(np.array(rows, dtype=np.float64)[numbers])


@dataclass(frozen=True, slots=True)
class _Passes:
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


def _with_sharding(grid: Grid, stage: _Stage, links: _Lines, prices: Prices) -> _Passes:
    """Return the passes of a rank, or of one virtual stage: collectives run beside computing, piece by piece.

    The first piece of a virtual stage's collectives, or the last of its computing, has nothing beside it.
    """
    gathers, scatters = grid.zero_stage >= 3, grid.zero_stage >= 2
    pieces = np.where(gathers, stage.num_layers + 1.0, np.maximum(_buckets(stage, prices), grid.virtual_stages))
    gather_s = np.where(gathers, links.seconds(_ALL_GATHER, stage.parameter_bytes, pieces), 0.0)
    scatter_s = np.where(scatters, links.seconds(_REDUCE_SCATTER, stage.gradient_bytes, pieces), 0.0)
    alone = grid.virtual_stages / pieces
    forward_s = _beside(stage.forward_s, gather_s, alone)
    backward_s = _beside(stage.backward_s, gather_s + scatter_s, alone)
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
    shapes, which = _distinct_rows(grid.pipeline, grid.virtual_stages)
    splits = [_split(prices.num_layers, *shape) for shape in shapes]
    most = max(map(len, splits))
    kinds = np.array([_kinds(split, most) for split in splits])[which]
    counts = np.array([(split[0], min(split[1:-1]), max(split[1:-1]), split[-1]) for split in splits], dtype=np.float64)
    layer, first, last = _probed(grid, prices)
    links, one_stage = _links(grid, prices), replace(grid, virtual_stages=np.ones_like(grid.virtual_stages))
    ends = (first, np.zeros_like(first), np.zeros_like(first), last)
    passes = [
        _with_sharding(one_stage, _stage(layer, end, counts[which, kind]), links, prices)
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


def _tail_s(grid: Grid, stage: _Stage, links: _Lines, prices: Prices) -> Floats:
    """Return the seconds after the last backward of a rank: synchronisation, optimizer, gathering."""
    replicas, zero = grid.data * grid.context, grid.zero_stage
    buckets = _buckets(stage, prices)
    scattered_s = links.seconds(_REDUCE_SCATTER, stage.gradient_bytes)
    reduced_s = links.seconds(_ALL_REDUCE, stage.gradient_bytes)
    choices = (reduced_s, scattered_s, scattered_s / buckets, np.zeros_like(scattered_s))
    sync_s = np.choose(zero, choices)
    gather_s = np.where((zero == 1) | (zero == 2), links.seconds(_ALL_GATHER, stage.parameter_bytes), 0.0)
    tail_s: Floats = sync_s / grid.virtual_stages + stage.update_s / np.where(zero > 0, replicas, 1) + gather_s
    return tail_s


def _buckets(stage: _Stage, prices: Prices) -> Floats:
    """Return in how many buckets ZeRO 2 scatters the gradients of a rank."""
    found: Floats = np.ceil(stage.gradient_bytes / (_BUCKET_ELEMENTS * prices.gradient_element_bytes))
    return np.maximum(found, 1.0)


def _memory(grid: Grid, stage: _Stage, transient_bytes: Floats, place: int, prices: Prices) -> Floats:
    """Return the peak bytes of a pipeline rank; ``place``: 0 the first, 1 the second, -1 the last.

    ``transient_bytes``: of the first stage's end, with what a layer needs while it computes. What the last stage's end
    has beyond these is kept for every micro-batch under way, as logits are. With full recomputation the two are not
    told apart, and all of it counts: this is too much.
    """
    replicas, zero = (grid.data * grid.context).astype(np.float64), grid.zero_stage
    ranks, chunks, rounds = grid.pipeline, grid.virtual_stages, grid.num_microbatches
    rank = np.where(place < 0, ranks - 1, np.minimum(place, ranks - 1))
    state = stage.parameter_bytes / np.where(zero >= 3, replicas, 1.0)
    state = state + stage.gradient_bytes / np.where(zero >= 2, replicas, 1.0)
    state = state + stage.optimizer_bytes / np.where(zero >= 1, replicas, 1.0)
    unit = (_GATHERED_UNITS * stage.parameter_bytes + stage.gradient_bytes) / (stage.num_layers + 1.0)
    bucket = np.minimum(stage.gradient_bytes, _BUCKET_ELEMENTS * prices.gradient_element_bytes)
    state = state + np.where(zero >= 3, unit, np.where(zero == 2, bucket, 0.0))
    live = np.where(
        chunks > 1,
        np.where(
            rounds == ranks,
            rounds * chunks,
            np.minimum(2 * (ranks - 1 - rank) + (chunks - 1) * ranks + 1, rounds * chunks),
        )
        / chunks,
        np.minimum(ranks - rank, rounds),
    )
    copies = np.where((chunks > 1) & (rounds == ranks) & (place < 0), rounds, 1)
    recomputes = grid.recompute == RECOMPUTE.index("full")
    once = np.where(recomputes, 0.0, np.minimum(transient_bytes, stage.end_activation_bytes))
    ends = once + copies * (stage.end_activation_bytes - once)
    kept = live * stage.num_layers * stage.layer_activation_bytes + ends
    return np.where((place == 1) & (ranks <= 2), 0.0, state + kept)
