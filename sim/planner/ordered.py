"""Step time and memory of schedules whose orders are walked: breadth-first, zero bubble, DualPipe."""

from typing import Final

import numpy as np

from sim.planner.copies import copies_s
from sim.planner.memory import state_bytes
from sim.planner.passes import Timed, passes_of, shape_of
from sim.planner.prices import Estimates, Floats, Prices, distinct_rows
from sim.planner.space import SCHEDULES, Grid, Ints
from sim.planner.stages import Stage, inner_end, num_replicas, probed, stage_of
from sim.planner.step_end import links_of, staged_s, tail_s
from sim.training.pipeline.rules import TRAITS
from sim.training.pipeline.spec import PipelineSpec

_PLACEMENTS: Final = ("loop", "v", "bidirectional")
"""How stages are placed: around the ranks, down and up, or a copy of the model each way."""


def ordered_estimates(grid: Grid, prices: Prices) -> Estimates:
    """Return step time and peak memory of strategies with ZeRO 0 or 1, by recurrences over the orders of schedules."""
    rows, which = distinct_rows(grid.schedule, grid.pipeline, grid.virtual_stages)
    specs = [PipelineSpec(degree=p, schedule=SCHEDULES[s], virtual_stages=v) for s, p, v in rows]
    shapes = [shape_of(spec, prices.num_layers) for spec in specs]
    links, hop_s = links_of(grid, prices), staged_s(grid, prices, "hop_bytes", prices.hops)
    stages = _stages(grid, np.array([shape.kinds.layers for shape in shapes], dtype=np.float64)[which], prices)
    passes = passes_of(grid, shapes, which, Timed(stages, hop_s, overlaps=prices.overlaps))
    placed = np.array([_PLACEMENTS.index(TRAITS[spec.schedule].placement) for spec in specs])[which]
    layers = np.array([shape.rank_layers for shape in shapes], dtype=np.float64)[which]
    ranks = _ranks(grid, placed, layers, prices)
    tails_s = np.stack([tail_s(grid, rank, links, prices) for rank in ranks])
    states = np.stack([state_bytes(grid, rank) for rank in ranks])
    tie_s = staged_s(grid, prices, "tied_bytes", prices.ties) / np.where(grid.zero_stage > 0, num_replicas(grid), 1.0)
    between_s = (tie_s, np.zeros_like(tie_s), copies_s(grid, ranks[0], stages[2], hop_s, links, prices))
    time_s = (passes.ends_s + tails_s).max(axis=0) + np.choose(placed, between_s)
    return Estimates(time_s, (passes.held_bytes + states).max(axis=0))


def _stages(grid: Grid, layers: Floats, prices: Prices) -> list[Stage]:
    """Return the virtual stage of every kind. ``layers``: of each kind, in columns."""
    layer, first, last, _ = probed(grid, prices)
    inner = inner_end(first, last)
    ends = (first, inner, inner, last)
    return [stage_of(layer, end, end, count) for end, count in zip(ends, layers.T, strict=True)]


def _ranks(grid: Grid, placed: Ints, layers: Floats, prices: Prices) -> list[Stage]:
    """Return the first, the fullest inner and the last rank with all their virtual stages and ``layers``."""
    layer, first, last, only = probed(grid, prices)
    nothing, at = np.zeros_like(first), placed[:, None]
    ends = (np.where(at == 0, first, only), nothing, np.choose(at, (last, nothing, only)))
    return [stage_of(layer, end, end, count) for end, count in zip(ends, layers.T, strict=True)]
