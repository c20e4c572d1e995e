"""Closed forms of step time and peak memory over a whole grid of strategies."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sim.planner.all_first import all_first_s
from sim.planner.probing import Costs, Probe
from sim.planner.space import Grid, Ints
from sim.training.pipeline.rules import Schedule
from sim.training.pipeline.spec import PipelineSpec
from sim.training.spec.parallelism.stage_layers import split_layers

Floats = NDArray[np.float64]

ProbeKey = tuple[int, int, int, int, int]
"""The choices that a probe is for: tensor, context, expert, micro-batch, recomputation."""
LinkKey = tuple[int, int]
"""The choices that replicas communicate under: how many ranks one is from the next, and how many there are."""
_BUCKET_ELEMENTS: Final = 5e8
"""ZeRO 2 scatters gradients in buckets of so many elements."""
_COSTS: Final = tuple(field.name for field in fields(Costs))


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
    """All that the closed forms read: probes and collectives, each priced once, and the layers of the model.

    ``hops``: a message from a stage to the next, by the number of stages. ``ties``: an all_reduce of the first and the
    last stage, by the number of stages.
    """

    probes: Mapping[ProbeKey, Probe]
    links: Mapping[LinkKey, ReplicaLinks]
    hops: Mapping[int, Line]
    ties: Mapping[int, Line]
    num_layers: int
    gradient_element_bytes: int


@dataclass(frozen=True, slots=True)
class Estimates:
    """Seconds per step and bytes of the fullest rank, an element per strategy."""

    time_s: Floats
    memory_bytes: Floats


@dataclass(frozen=True, slots=True)
class _Stage:
    """One pipeline rank of every strategy: its costs of a micro-batch and of a step, in columns.

    ``layer``, ``end``: costs of one of its layers, and of what it has beside them, of shape (strategies, costs).
    ``unit``: of the largest part of ``end`` that ZeRO 3 shards on its own: an only stage has two, the first's and the
    last's.
    """

    forward_s: Floats
    backward_s: Floats
    update_s: Floats
    parameter_bytes: Floats
    expert_bytes: Floats
    gradient_bytes: Floats
    optimizer_bytes: Floats
    layer: Floats
    end: Floats
    unit: Floats
    num_layers: Floats

    @property
    def expert_fraction(self) -> Floats:
        """Return the part of the parameters that fewer ranks hold, since experts are split."""
        return self.expert_bytes / np.maximum(self.parameter_bytes, 1.0)

    def bytes_of(self, part: str) -> tuple[Floats, Floats, Floats]:
        """Return the bytes of a layer, of the model's end and of its largest part, by the name of a cost."""
        place = _COSTS.index(part)
        return self.layer[:, place], self.end[:, place], self.unit[:, place]


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
    """Return the different groups of replicas of a grid, and which of them each strategy has.

    The numbers are those of dense parameters, then those of experts, which every ``expert``-th replica holds.
    """
    replicas = grid.data * grid.context
    of_dense, of_experts = (grid.tensor, replicas), (grid.tensor * grid.expert, replicas // grid.expert)
    rows, numbers = _distinct_rows(*map(np.concatenate, zip(of_dense, of_experts, strict=True)))
    return [(step, number) for step, number in rows], numbers


def estimate(grid: Grid, prices: Prices) -> Estimates:
    """Return step time and peak memory of every strategy.

    Assumes that layers are alike, that replicas synchronise gradients after the last backward of their stage, and that
    ZeRO 2 and 3 communicate beside the computing of the same micro-batch.
    """
    stages = _stages(grid, prices)
    links = _links(grid, prices)
    sharded = [_with_sharding(grid, stage, links, prices) for stage in stages]
    steps_s = [_tail_s(grid, stage, links, prices) for stage in stages]
    hop_s = _staged_s(grid, prices, "hop_bytes", prices.hops)
    passes_s = _pipeline_s(grid, sharded, hop_s)
    interleaved = (grid.virtual_stages > 1) & (grid.num_microbatches == grid.pipeline)
    if interleaved.any():
        passes_s[interleaved] = _all_first_s(grid.rows(interleaved), hop_s[interleaved], prices)
    tie_s = _staged_s(grid, prices, "tied_bytes", prices.ties) / np.where(grid.zero_stage > 0, _replicas(grid), 1.0)
    time_s = passes_s + np.maximum(steps_s[0], steps_s[2] * (grid.pipeline > 1)) + tie_s
    placed = zip((0, 1, -1), stages[:3], strict=True)
    memory = np.maximum.reduce([_memory(grid, stage, place, prices) for place, stage in placed])
    return Estimates(time_s, memory)


def _replicas(grid: Grid) -> Floats:
    found: Floats = (grid.data * grid.context).astype(np.float64)
    return found


def _stages(grid: Grid, prices: Prices) -> tuple[_Stage, ...]:
    """Return the first, the fullest inner and the last pipeline rank of every strategy, and one of slowest rounds."""
    layer, first, last, only = _probed(grid, prices)
    shapes, which = _distinct_rows(grid.pipeline, grid.virtual_stages)
    layers = np.array([_layers(prices.num_layers, *shape) for shape in shapes], dtype=np.float64)[which]
    alone = (grid.pipeline == 1)[:, None]
    nothing = np.zeros_like(first)
    ends = (np.where(alone, only, first), nothing, np.where(alone, only, last), nothing)
    staged = np.any(first + last > 0.0, axis=1, keepdims=True)
    larger = np.where(staged, np.maximum(first, last), only)
    units = (np.where(alone, larger, first), nothing, np.where(alone, larger, last), nothing)
    return tuple(_stage(layer, *parts, layers[:, place]) for place, parts in enumerate(zip(ends, units, strict=True)))


def _probed(grid: Grid, prices: Prices) -> list[Floats]:
    """Return the costs of a layer, and of the ends of the first, the last and an only stage: (strategies, costs)."""
    keys, numbers = probe_keys(grid)
    probes = [prices.probes[key] for key in keys]
    return [_table([getattr(p, part) for p in probes])[numbers] for part in ("layer", "first", "last", "only")]


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


def _table(costs: list[Costs]) -> Floats:
    return np.array([[getattr(cost, name) for name in _COSTS] for cost in costs], dtype=np.float64)


def _stage(layer: Floats, end: Floats, unit: Floats, num_layers: Floats) -> _Stage:
    total = layer * num_layers[:, None] + end
    column = dict(zip(_COSTS, total.T, strict=True))
    summed = {field.name: column[field.name] for field in fields(_Stage) if field.name in column}
    return _Stage(**summed, layer=layer, end=end, unit=unit, num_layers=num_layers)


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
    """The collectives of every strategy: latency and seconds per byte, in columns; for dense parameters and experts."""

    dense: Floats
    experts: Floats

    def seconds(self, kind: int, stage: _Stage, num_bytes: Floats, pieces: Floats | float = 1.0) -> Floats:
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


def _with_sharding(grid: Grid, stage: _Stage, links: _Lines, prices: Prices, *, turns: bool = True) -> _Passes:
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
    bucket = _bucket_bytes(grid, stage, prices) * grid.virtual_stages / np.maximum(stage.gradient_bytes, 1.0)
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
    shapes, which = _distinct_rows(grid.pipeline, grid.virtual_stages)
    splits = [_split(prices.num_layers, *shape) for shape in shapes]
    most = max(map(len, splits))
    kinds = np.array([_kinds(split, most) for split in splits])[which]
    counts = np.array([(split[0], min(split[1:-1]), max(split[1:-1]), split[-1]) for split in splits], dtype=np.float64)
    layer, first, last, _ = _probed(grid, prices)
    links, one_stage = _links(grid, prices), replace(grid, virtual_stages=np.ones_like(grid.virtual_stages))
    ends = (first, np.zeros_like(first), np.zeros_like(first), last)
    passes = [
        _with_sharding(one_stage, _stage(layer, end, end, counts[which, kind]), links, prices, turns=False)
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
    """Return the seconds after the last backward of a rank: synchronisation, optimizer, gathering.

    Virtual stages but the first are synchronised beside backwards of those before them.
    """
    replicas, zero = _replicas(grid), grid.zero_stage
    scattered_s = links.seconds(_REDUCE_SCATTER, stage, stage.gradient_bytes)
    reduced_s = links.seconds(_ALL_REDUCE, stage, stage.gradient_bytes)
    exposed_s = _last_buckets_s(grid, stage, scattered_s / grid.virtual_stages, prices)
    hidden_s = (1.0 - 1.0 / grid.virtual_stages) * grid.pipeline * stage.backward_s
    after_s = [np.maximum(found_s / grid.virtual_stages, found_s - hidden_s) for found_s in (reduced_s, scattered_s)]
    sync_s = np.choose(zero, (*after_s, exposed_s, np.zeros_like(scattered_s)))
    gather_s = np.where((zero == 1) | (zero == 2), links.seconds(_ALL_GATHER, stage, stage.parameter_bytes), 0.0)
    tail_s: Floats = sync_s + stage.update_s / np.where(zero > 0, replicas, 1.0) + gather_s
    return tail_s


def _last_buckets_s(grid: Grid, stage: _Stage, scattered_s: Floats, prices: Prices) -> Floats:
    """Return the seconds of ZeRO 2's scattering after the last backward of a rank's virtual stage.

    Buckets leave one after the other as backward fills them; the first, the last but one or the last decides.
    """
    backward_s = stage.backward_s / grid.virtual_stages
    part = _bucket_bytes(grid, stage, prices) / np.maximum(stage.gradient_bytes / grid.virtual_stages, 1.0)
    full = np.ceil(1.0 / np.maximum(part, 1e-9)) - 1.0
    first_s = scattered_s - backward_s * (1.0 - part)
    before_s = scattered_s * (1.0 - (full - 1.0) * part) - backward_s * (1.0 - full * part)
    last_s = scattered_s * (1.0 - full * part)
    found: Floats = np.maximum(np.maximum(first_s, before_s), last_s)
    return np.where(full > 0, found, scattered_s)


def _bucket_bytes(grid: Grid, stage: _Stage, prices: Prices) -> Floats:
    """Return the bytes of gradients that a virtual stage holds until ZeRO 2 scatters them."""
    whole = stage.gradient_bytes / grid.virtual_stages
    return np.minimum(whole, _BUCKET_ELEMENTS * prices.gradient_element_bytes)


def _memory(grid: Grid, stage: _Stage, place: int, prices: Prices) -> Floats:
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
    bucket = np.where(grid.zero_stage == 2, _bucket_bytes(grid, stage, prices), 0.0)
    total: Floats = _state_bytes(grid, stage) + kept + computing + bucket
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


def _state_bytes(grid: Grid, stage: _Stage) -> Floats:
    """Return the bytes of parameters, gradients and optimizer, as they are sharded, and of units of ZeRO 3 in use."""
    replicas, of_experts = _replicas(grid), stage.expert_fraction
    kept = (1.0 - of_experts) / replicas + of_experts * grid.expert / replicas
    held = (stage.optimizer_bytes, stage.gradient_bytes, stage.parameter_bytes)
    state = sum(size * np.where(grid.zero_stage > place, kept, 1.0) for place, size in enumerate(held))
    parameters, _, unit_parameters = stage.bytes_of("parameter_bytes")
    gradients, _, unit_gradients = stage.bytes_of("gradient_bytes")
    unit = parameters + np.maximum(parameters + gradients, unit_parameters + unit_gradients)
    total: Floats = state + np.where(grid.zero_stage >= 3, unit, 0.0)
    return total
