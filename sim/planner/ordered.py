"""Step time and memory of schedules whose orders are walked: breadth-first, zero bubble, DualPipe."""

from typing import Final

import numpy as np
from msgspec import Struct

from sim.planner.memory import sharded_bytes, state_bytes
from sim.planner.prices import Estimates, Floats, Prices, distinct_rows
from sim.planner.space import SCHEDULES, SPLIT, Grid
from sim.planner.stages import Stage, inner_end, num_replicas, probed, rank_layers, stage_of, virtual_stage_layers
from sim.planner.step_end import between_stages_s, links_of, staged_s, tail_s
from sim.planner.walk import NUM_PLACES, Walk, held_counts, walk_of
from sim.training.pipeline.actions import LETTERS
from sim.training.pipeline.placement import Placement
from sim.training.pipeline.rules import TRAITS
from sim.training.pipeline.schedules import orders, placement
from sim.training.pipeline.spec import PipelineSpec

_MOST_ROUNDS: Final = 4
"""Micro-batches for each pipeline rank that are walked at most: more continue what the last P of them add."""


class _Shape(Struct, frozen=True):
    """What strategies of one walk share. ``places``: the kind of every virtual stage; ``layers``: of each kind."""

    pipeline: PipelineSpec
    place: Placement
    places: list[int]
    layers: tuple[int, ...]

    @property
    def placement(self) -> str:
        """Return how stages are placed: around the ranks (loop), down and up (v), or once each way (bidirectional)."""
        return TRAITS[self.pipeline.schedule].placement


class _Timed(Struct, frozen=True):
    """What a walk is timed with: the virtual stage of every kind, messages, and pairs that overlap, as in ``Walk``."""

    stages: list[Stage]
    hop_s: Floats
    pairs_s: Floats | None


class _Walked(Struct, frozen=True):
    """When ranks end their passes, of shape (ranks, strategies), and what they hold beside their state."""

    ends_s: Floats
    held_bytes: Floats


def ordered_estimates(grid: Grid, prices: Prices) -> Estimates:
    """Return step time and peak memory of strategies with ZeRO 0 or 1, by recurrences over the orders of schedules."""
    shapes, which = distinct_rows(grid.schedule, grid.pipeline, grid.virtual_stages, grid.num_microbatches)
    found = Estimates(np.empty(len(grid)), np.empty(len(grid)))
    for number, (schedule, degree, virtual_stages, num_microbatches) in enumerate(shapes):
        rows = which == number
        spec = PipelineSpec(degree=degree, schedule=SCHEDULES[schedule], virtual_stages=virtual_stages)
        part = _estimates(grid.rows(rows), _shape(spec, prices.num_layers), num_microbatches, prices)
        found.time_s[rows], found.memory_bytes[rows] = part.time_s, part.memory_bytes
    return found


def _shape(spec: PipelineSpec, num_layers: int) -> _Shape:
    split = virtual_stage_layers(num_layers, spec.degree, spec.virtual_stages)
    inner = split[1:-1] or split
    layers = (split[0], min(inner), max(inner), split[-1])
    places = [0, *(1 if count == layers[1] else 2 for count in split[1:-1]), NUM_PLACES - 1]
    return _Shape(spec, placement(spec), places * spec.num_copies, layers)


def _estimates(grid: Grid, shape: _Shape, num_microbatches: int, prices: Prices) -> Estimates:
    """Return the estimates of strategies of one shape."""
    links, hop_s = links_of(grid, prices), staged_s(grid, prices, "hop_bytes", prices.hops)
    stages = _stages(grid, shape, prices)
    pairs_s = _pairs_s(stages) if prices.overlaps else None
    walked = _walked(shape, _Timed(stages, hop_s, pairs_s), num_microbatches)
    ends_s, held_bytes = walked.ends_s, walked.held_bytes
    ranks = _ranks(grid, shape, prices)
    tails_s = [tail_s(grid, rank, links, prices) for rank in ranks]
    states = [state_bytes(grid, rank) for rank in ranks]
    of_rank = np.minimum(np.arange(shape.pipeline.degree), 1)
    of_rank[-1] = len(ranks) - 1
    time_s = (ends_s + np.stack(tails_s)[of_rank]).max(axis=0)
    memory = (held_bytes + np.stack(states)[of_rank]).max(axis=0)
    return Estimates(time_s + _between_ranks_s(grid, shape, ranks, prices), memory)


def _between_ranks_s(grid: Grid, shape: _Shape, ranks: list[Stage], prices: Prices) -> Floats:
    """Return the seconds of what pipeline ranks sum: a table that two of them hold, or all gradients of two copies."""
    if shape.placement == "v":
        return np.zeros(len(grid))
    if shape.placement == "bidirectional":
        held = np.stack([sharded_bytes(grid, rank, rank.gradient_bytes) for rank in ranks]).max(axis=0)
        return between_stages_s(grid, np.where(grid.zero_stage > 0, held, ranks[0].gradient_bytes), prices.ties)
    return staged_s(grid, prices, "tied_bytes", prices.ties) / np.where(grid.zero_stage > 0, num_replicas(grid), 1.0)


def _stages(grid: Grid, shape: _Shape, prices: Prices) -> list[Stage]:
    """Return the virtual stage of every kind."""
    layer, first, last, _ = probed(grid, prices)
    inner = inner_end(first, last)
    ends = (first, inner, inner, last)
    return [
        stage_of(layer, end, end, np.full(len(grid), float(count)))
        for end, count in zip(ends, shape.layers, strict=True)
    ]


def _ranks(grid: Grid, shape: _Shape, prices: Prices) -> list[Stage]:
    """Return the first, the fullest inner and the last rank with all their virtual stages."""
    layer, first, last, only = probed(grid, prices)
    nothing, spec = np.zeros_like(first), shape.pipeline
    ends = {
        "loop": (first, nothing, last), "v": (only, nothing, nothing), "bidirectional": (only, nothing, only)
    }[shape.placement]  # fmt: skip
    counts = rank_layers(virtual_stage_layers(prices.num_layers, spec.degree, spec.virtual_stages), shape.place.ranks)
    return [
        stage_of(layer, end, end, np.full(len(grid), float(count))) for end, count in zip(ends, counts, strict=True)
    ]


def _walked(shape: _Shape, timed: _Timed, num_microbatches: int) -> _Walked:
    """Return the passes of many micro-batches: walked, or continued from as many as are walked at most."""
    degree = shape.pipeline.degree
    most = _MOST_ROUNDS * degree
    if num_microbatches <= most:
        return _one_walk(shape, timed, num_microbatches)
    fewer, more = (_one_walk(shape, timed, number) for number in (most - degree, most))
    rounds = (num_microbatches - most) / degree
    return _Walked(
        more.ends_s + rounds * (more.ends_s - fewer.ends_s),
        more.held_bytes + rounds * (more.held_bytes - fewer.held_bytes),
    )


def _one_walk(shape: _Shape, timed: _Timed, num_microbatches: int) -> _Walked:
    """Return the passes of so many micro-batches on every rank."""
    written = orders(shape.pipeline, num_microbatches)
    splits = shape.pipeline.schedule in SPLIT
    walk: Walk = walk_of(written, shape.place, shape.places)
    ends_s = walk.ends_s(_durations_s(timed.stages, len(timed.hop_s)), timed.hop_s, timed.pairs_s)
    sizes = _held_bytes(timed.stages, splits=splits)
    held = {
        rank: (held_counts(written[rank], shape.places).astype(np.float64) @ sizes).max(axis=0)
        for rank in _telling_ranks(shape.pipeline.degree)
    }
    inner = [held[rank] for rank in held if 0 < rank < shape.pipeline.degree - 1]
    most = np.maximum.reduce(inner) if inner else held[0]
    rows = [held[0], *[most] * (shape.pipeline.degree - 2), held[shape.pipeline.degree - 1]]
    return _Walked(ends_s, np.stack(rows))


def _telling_ranks(degree: int) -> list[int]:
    """Return the ranks that may hold the most: the ends, those beside them, and the middle ones."""
    return sorted({0, min(1, degree - 1), degree // 2 - 1, degree // 2, max(degree - 2, 0), degree - 1})


def _durations_s(stages: list[Stage], num_strategies: int) -> Floats:
    """Return the seconds of every action, as ``Walk.ends_s`` reads them."""
    by_kind = {
        "F": [stage.forward_s for stage in stages],
        "I": [stage.input_s for stage in stages],
        "W": [stage.weight_s for stage in stages],
        "B": [stage.backward_s for stage in stages],
    }
    return np.stack([*(seconds for kind in LETTERS for seconds in by_kind[kind]), np.zeros(num_strategies)])


def _pairs_s(stages: list[Stage]) -> Floats:
    """Return the seconds of a forward and a backward that take turns, by their kinds of stage.

    Experts' exchanges of one run while the other computes; computing goes on one after the other, and so do exchanges.
    """
    rows = [[_pair_s(ahead, back) for back in stages] for ahead in stages]
    return np.array(rows)


def _pair_s(ahead: Stage, back: Stage) -> Floats:
    """Return the seconds of a pair. Each layer cuts its passes twice, and the backward waits for the first piece."""
    exchanges_s = ahead.exchange_forward_s + back.exchange_backward_s
    computing_s = ahead.forward_s + back.backward_s - exchanges_s
    first_s = (ahead.forward_s - ahead.exchange_forward_s) / (2.0 * ahead.num_layers + 1.0)
    alone_s = np.maximum(ahead.forward_s, back.backward_s + first_s)
    found: Floats = np.where(exchanges_s > 0, np.maximum(np.maximum(computing_s, exchanges_s), alone_s), computing_s)
    return found


def _held_bytes(stages: list[Stage], *, splits: bool) -> Floats:
    """Return the bytes behind the columns of ``held_counts``, of shape (16, strategies)."""
    parts = ("kept_bytes", "weight_kept_bytes", "peak_bytes", "split_peak_bytes" if splits else "peak_bytes")
    return np.stack([stage.total_of(part) for part in parts for stage in stages])
