"""Pipeline ranks of every strategy, their costs put together from those of layers and of the model's ends."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from sim.planner.prices import Floats, Prices, distinct_rows, probe_keys
from sim.planner.probing import Costs
from sim.planner.space import Grid
from sim.training.pipeline.rules import Schedule
from sim.training.pipeline.spec import PipelineSpec
from sim.training.spec.parallelism.stage_layers import split_layers

_BUCKET_ELEMENTS: Final = 5e8
"""ZeRO 2 scatters gradients in buckets of so many elements."""
_COSTS: Final = Costs.__struct_fields__


class Stage(Struct, frozen=True):
    """One pipeline rank of every strategy: its costs of a micro-batch and of a step, in columns.

    ``layer``, ``end``: costs of one of its layers, and of what it has beside them, of shape (strategies, costs).
    ``unit``: of the largest part of ``end`` that ZeRO 3 shards on its own: an only stage has two, the first's and the
    last's.
    """

    forward_s: Floats
    backward_s: Floats
    input_s: Floats
    weight_s: Floats
    exchange_forward_s: Floats
    exchange_backward_s: Floats
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

    def total_of(self, part: str) -> Floats:
        """Return the bytes of all layers and of the end, by the name of a cost."""
        layer, end, _ = self.bytes_of(part)
        found: Floats = layer * self.num_layers + end
        return found


def stages_of(grid: Grid, prices: Prices) -> tuple[Stage, ...]:
    """Return the first, the fullest inner and the last pipeline rank of every strategy, and one of slowest rounds."""
    layer, first, last, only = probed(grid, prices)
    shapes, which = distinct_rows(grid.pipeline, grid.virtual_stages)
    layers = np.array([_layers(prices.num_layers, *shape) for shape in shapes], dtype=np.float64)[which]
    alone = (grid.pipeline == 1)[:, None]
    nothing, inner = np.zeros_like(first), inner_end(first, last)
    ends = (np.where(alone, only, first), inner, np.where(alone, only, last), nothing)
    staged = np.any(first + last > 0.0, axis=1, keepdims=True)
    larger = np.where(staged, np.maximum(first, last), only)
    units = (np.where(alone, larger, first), nothing, np.where(alone, larger, last), nothing)
    return tuple(stage_of(layer, *parts, layers[:, place]) for place, parts in enumerate(zip(ends, units, strict=True)))


def inner_end(first: Floats, last: Floats) -> Floats:
    """Return what a stage without an end of the model has beside its layers: the memory in which a layer computes.

    A probe of k and k + 1 layers counts it to the ends, which have at least that. ``first``, ``last``: ends.
    """
    found = np.zeros_like(first)
    for name in ("peak_bytes", "split_peak_bytes"):
        place = _COSTS.index(name)
        found[:, place] = np.minimum(first[:, place], last[:, place])
    return found


def probed(grid: Grid, prices: Prices) -> list[Floats]:
    """Return the costs of a layer, and of the ends of the first, the last and an only stage: (strategies, costs)."""
    keys, numbers = probe_keys(grid)
    probes = [prices.probes[key] for key in keys]
    return [_table([getattr(p, part) for p in probes])[numbers] for part in ("layer", "first", "last", "only")]


def stage_of(layer: Floats, end: Floats, unit: Floats, num_layers: Floats) -> Stage:
    """Return the pipeline rank of so many layers and an end; ``layer``, ``end``, ``unit``: as in ``Stage``."""
    total = layer * num_layers[:, None] + end
    column = dict(zip(_COSTS, total.T, strict=True))
    summed = {name: column[name] for name in Stage.__struct_fields__ if name in column}
    return Stage(**summed, layer=layer, end=end, unit=unit, num_layers=num_layers)


def virtual_stage_layers(num_layers: int, degree: int, virtual_stages: int) -> tuple[int, ...]:
    """Return the layers of every virtual stage, in model order."""
    schedule: Schedule = "interleaved_1f1b" if virtual_stages > 1 else "1f1b"
    return split_layers(num_layers, PipelineSpec(degree=degree, schedule=schedule, virtual_stages=virtual_stages))


NUM_PLACES: Final = 4
"""Kinds of virtual stage: the first, inner ones with the least and the most layers, the last."""


class StageKinds(Struct, frozen=True):
    """The kind of every virtual stage of a pipeline, and the layers of each kind."""

    places: tuple[int, ...]
    layers: tuple[int, int, int, int]


def kinds_of(split: Sequence[int]) -> StageKinds:
    """Return the kinds of virtual stages. ``split``: the layers of each, in model order."""
    inner = split[1:-1] or split
    places = [0, *(1 if layers == min(inner) else 2 for layers in split[1:-1]), NUM_PLACES - 1]
    return StageKinds(tuple(places), (split[0], min(inner), max(inner), split[-1]))


def num_replicas(grid: Grid) -> Floats:
    """Return the number of ranks that hold the same parameters before ZeRO shards their state."""
    found: Floats = (grid.data * grid.context).astype(np.float64)
    return found


def bucket_bytes(grid: Grid, stage: Stage, prices: Prices) -> Floats:
    """Return the bytes of gradients that a virtual stage holds until ZeRO 2 scatters them."""
    whole = stage.gradient_bytes / grid.virtual_stages
    return np.minimum(whole, _BUCKET_ELEMENTS * prices.gradient_element_bytes)


def _table(costs: list[Costs]) -> Floats:
    return np.array([[getattr(cost, name) for name in _COSTS] for cost in costs], dtype=np.float64)


def _layers(num_layers: int, degree: int, virtual_stages: int) -> tuple[int, int, int, int]:
    """Return the layers of the first, the fullest inner and the last rank of a pipeline, and of a slowest round.

    In a round of interleaving all ranks run their next virtual stage, and wait for the one with the most layers.
    """
    split = virtual_stage_layers(num_layers, degree, virtual_stages)
    rounds = sum(max(split[begin : begin + degree]) for begin in range(0, len(split), degree))
    return *rank_layers(split, tuple(range(degree)) * virtual_stages), rounds


def rank_layers(split: Sequence[int], ranks: Sequence[int]) -> tuple[int, int, int]:
    """Return the layers of the first, the fullest inner and the last rank of a pipeline.

    ``split``: layers of every virtual stage, in model order; ``ranks``: where each is, copy by copy of the model.
    """
    held = np.bincount(ranks, weights=np.resize(split, len(ranks))).astype(int).tolist()
    return held[0], max(held[1:-1], default=0), held[-1]
