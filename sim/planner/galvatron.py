"""Galvatron, Galvatron-BMW and Alpa: pipelines of stages whose layers have strategies of their own.

For every frame of degrees that all layers share, layers are laid over stages, and every stage's layers get the fastest
strategies that fit (``fastest_choices``). Galvatron (Miao et al., VLDB 2023) has stages of equally many layers. BMW
(Wang et al., TKDE 2024) may compute layers again, and moves layers between stages to balance time within memory. Alpa
(Zheng et al., OSDI 2022) tries all numbers of layers of every stage (``fastest_partition``).
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

import numpy as np
from msgspec import Struct

from sim.planner.alpa import fastest_partition
from sim.planner.layer_costs import Frame, FrameCosts, LayerStrategy, frame_costs
from sim.planner.layerwise import balanced_partition, even_partition, fastest_choices
from sim.planner.prices import Floats, Prices
from sim.planner.space import Ints

Balancing = Literal["even", "moves", "exact"]
"""How layers are laid over stages: equally many each, by BMW's moves, or by Alpa's dynamic programming."""
_UNITS = 1024
"""Whole units of memory that the room of a device is divided into; what layers need is rounded up to them."""


class LayerwisePlan(Struct, frozen=True):
    """A plan with a strategy for every layer, with its estimated seconds per step and bytes of the fullest rank."""

    frame: Frame
    layers_per_stage: tuple[int, ...]
    strategies: tuple[LayerStrategy, ...]
    ends_sharded: bool
    time_s: float
    memory_bytes: float


class SolvedStage(Struct, frozen=True):
    """The best strategies of a stage's layers; seconds of a micro-batch and of the rest of a step, and bytes."""

    strategies: tuple[int, ...]
    forward_s: float
    backward_s: float
    once_s: float
    memory_bytes: float

    def busy_s(self, num_microbatches: int) -> float:
        """Return the seconds that a stage is busy in a step."""
        return num_microbatches * (self.forward_s + self.backward_s) + self.once_s


@dataclass(slots=True)
class Stages:
    """The stages of one frame under some strategies, each solved once."""

    frame: Frame
    strategies: Sequence[LayerStrategy]
    costs: FrameCosts
    room_bytes: float
    solved: dict[tuple[int, int], SolvedStage | None] = field(default_factory=dict)

    def solve(self, stage: int, num_layers: int) -> SolvedStage | None:
        """Return the fastest strategies of so many layers in a stage, None where none fit."""
        key = (stage, num_layers)
        if key not in self.solved:
            self.solved[key] = self._solve(stage, num_layers)
        return self.solved[key]

    def _solve(self, stage: int, num_layers: int) -> SolvedStage | None:
        frame, layer = self.frame, self.costs.layer
        end, num_live = self.costs.end(stage, frame.pipeline), self.num_live(stage)
        beside_bytes = float(end.memory_bytes(num_live)[0]) + self.costs.gathered_bytes
        unit_bytes, each_bytes = self.room_bytes / _UNITS, layer.memory_bytes(num_live)
        needed: Ints = np.ceil(each_bytes / unit_bytes).astype(np.int64)
        room = int((self.room_bytes - beside_bytes) // unit_bytes)
        step_s = frame.num_microbatches * layer.pass_s + layer.once_s
        if num_layers * int(needed.min()) > room:
            return None
        fastest = int(np.argmin(step_s))
        if num_layers * int(needed[fastest]) <= room:
            chosen = [fastest] * num_layers
        else:
            shape = (num_layers, len(self.strategies))
            found = fastest_choices(np.broadcast_to(step_s, shape), np.broadcast_to(needed, shape), room)
            if found is None:
                return None
            chosen = sorted(found.strategies)
        sums = [float(values[chosen].sum()) for values in (layer.forward_s, layer.backward_s, layer.once_s, each_bytes)]
        ends = [float(values[0]) for values in (end.forward_s, end.backward_s, end.once_s)]
        parts = (a + b for a, b in zip(sums, (*ends, beside_bytes), strict=True))
        return SolvedStage(tuple(chosen), *parts)

    def num_live(self, stage: int) -> int:
        """Return how many micro-batches a stage of 1f1b has under way."""
        return min(self.frame.pipeline - stage, self.frame.num_microbatches)

    def solve_all(self, layers: Sequence[int]) -> list[SolvedStage] | None:
        """Return all stages of a partition, None where one does not fit."""
        found = [self.solve(stage, number) for stage, number in enumerate(layers)]
        fitting = [stage for stage in found if stage is not None]
        return fitting if len(fitting) == len(found) else None

    def step_s(self, stages: Sequence[SolvedStage]) -> float:
        """Return the seconds of a step of 1f1b.

        The first micro-batch goes there and back, the others follow at the pace of the slowest stage. What stages do
        once begins when their last backward ends, earlier in later stages.
        """
        passes = [stage.forward_s + stage.backward_s for stage in stages]
        through_s = sum(passes) + 2 * (len(stages) - 1) * self.costs.hop_s
        rounds, period_s = self.frame.num_microbatches, max(passes)
        if rounds > len(stages):
            period_s = max(period_s, through_s / len(stages))
        before = np.cumsum([0.0, *(stage.backward_s for stage in stages[:-1])])
        after_s = max(0.0, *(stage.once_s - float(early) for stage, early in zip(stages, before, strict=True)))
        return through_s + (rounds - 1) * period_s + after_s + self.costs.tie_s

    def plain_costs(self, num_layers: int, cost: Callable[[int], Floats], end: Callable[[int], float]) -> Floats:
        """Return the cost of every layer in every stage under the first strategy, for a partition that balances it."""
        rows = [np.full(num_layers, float(cost(stage)[0])) for stage in range(self.frame.pipeline)]
        rows[0][0] += end(0)
        rows[-1][-1] += end(self.frame.pipeline - 1) if self.frame.pipeline > 1 else 0.0
        return np.stack(rows)


def fastest_plans(
    frames: Iterable[Frame], prices: Prices, room_bytes: float, shares: Sequence[float], *, shards: Sequence[bool],
    recomputes: Sequence[bool], balancing: Balancing, most: int,
) -> list[LayerwisePlan]:  # fmt: skip
    """Return the plans of least estimated time that fit, one for each frame and choice of ends, the fastest first.

    ``shares``: of a layer's operators in its parameters. ``shards``, ``recomputes``: what layers may do. Frames whose
    bound is slower than ``most`` plans are left out: the bound is the time of a step if everything fitted.
    """
    searches = [
        stages for frame in frames for stages in _searches(frame, prices, room_bytes, shares, shards, recomputes)
    ]  # fmt: skip
    bounds = [_bound_s(stages, prices.num_layers) for stages in searches]
    best: dict[tuple[Frame, bool], LayerwisePlan] = {}
    for place in np.argsort(bounds, kind="stable").tolist():
        kept = heapq.nsmallest(most, (plan.time_s for plan in best.values()))
        if len(kept) == most and bounds[place] > kept[-1]:
            break
        stages, ends_sharded = searches[place]
        plan = best_plan(stages, prices.num_layers, balancing, ends_sharded=ends_sharded)
        key = (stages.frame, ends_sharded)
        if plan is not None and (key not in best or plan.time_s < best[key].time_s):
            best[key] = plan
    return sorted(best.values(), key=lambda plan: (plan.time_s, plan.memory_bytes))[:most]


def _searches(
    frame: Frame,
    prices: Prices,
    room_bytes: float,
    shares: Sequence[float],
    shards: Sequence[bool],
    recomputes: Sequence[bool],
) -> list[tuple[Stages, bool]]:
    """Return the searches of a frame: with and without what a strategy needs beside layers, as soon as one has it.

    So a plan that shards nothing has no room set aside for gathering, and one that recomputes nothing none for that.
    """
    alone = [shards[:1]] if frame.data == 1 else [[value] for value in shards] + ([shards] if len(shards) > 1 else [])
    again = [[value] for value in recomputes] + ([recomputes] if len(recomputes) > 1 else [])
    found = []
    for sharded, recomputed, ends_sharded in product(alone, again, shards if frame.data > 1 else shards[:1]):
        strategies = [LayerStrategy(*pair) for pair in product(sharded, recomputed)]
        costs = frame_costs(frame, strategies, prices, shares, ends_sharded=ends_sharded)
        if costs is not None:
            found.append((Stages(frame, strategies, costs, room_bytes), ends_sharded))
    return found


def _bound_s(search: tuple[Stages, bool], num_layers: int) -> float:
    """Return a time below that of every plan of a search: every layer is fastest, and all stages take as long."""
    stages, costs = search[0], search[0].costs
    frame = stages.frame
    ends = (costs.first,) if frame.pipeline == 1 else (costs.first, costs.last)
    pass_s = num_layers * float(costs.layer.pass_s.min()) + sum(float(part.pass_s[0]) for part in ends)
    through_s = pass_s + 2 * (frame.pipeline - 1) * costs.hop_s
    return through_s + (frame.num_microbatches - 1) * pass_s / frame.pipeline


def best_plan(stages: Stages, num_layers: int, balancing: Balancing, *, ends_sharded: bool) -> LayerwisePlan | None:
    """Return the fastest plan of a search that was found, None where none fits."""
    even = even_partition(num_layers, stages.frame.pipeline)
    partitions = [even]
    if stages.frame.pipeline > 1:
        others = {"even": _no_others, "moves": _rebalanced, "exact": _exact}
        partitions += others[balancing](stages, num_layers, even)
    found = [(layers, solved) for layers in partitions if (solved := stages.solve_all(layers)) is not None]
    if not found:
        return None
    layers, solved = min(found, key=lambda pair: stages.step_s(pair[1]))
    chosen = tuple(stages.strategies[number] for stage in solved for number in stage.strategies)
    memory_bytes = max(stage.memory_bytes for stage in solved)
    return LayerwisePlan(stages.frame, layers, chosen, ends_sharded, stages.step_s(solved), memory_bytes)


def _no_others(_stages: Stages, _num_layers: int, _even: tuple[int, ...]) -> list[tuple[int, ...]]:
    return []


def _exact(stages: Stages, num_layers: int, _even: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return Alpa's partition, if one fits; what a stage does once per step counts in equal parts for micro-batches."""
    rounds, seconds = stages.frame.num_microbatches, np.full((stages.frame.pipeline, num_layers + 1), np.inf)
    for stage, number in product(range(len(seconds)), range(1, num_layers - len(seconds) + 2)):
        if (solved := stages.solve(stage, number)) is not None:
            seconds[stage, number] = solved.busy_s(rounds) / rounds
    found = fastest_partition(seconds, rounds)
    return [] if found is None else [found]


def _rebalanced(stages: Stages, num_layers: int, even: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return where BMW's moves of layers end, from the partition that balances memory, and from the even one.

    From the even one, too, so that the result is never slower than Galvatron's.
    """
    frame, layer, costs = stages.frame, stages.costs.layer, stages.costs
    needed_bytes = stages.plain_costs(
        num_layers,
        lambda stage: layer.memory_bytes(stages.num_live(stage)),
        lambda stage: float(costs.end(stage, frame.pipeline).memory_bytes(stages.num_live(stage))[0]),
    )
    seconds = stages.plain_costs(
        num_layers,
        lambda _: frame.num_microbatches * layer.pass_s + layer.once_s,
        lambda stage: frame.num_microbatches * float(costs.end(stage, frame.pipeline).pass_s[0]),
    )
    timed, leanest = balanced_partition(seconds), balanced_partition(needed_bytes)
    most_bytes = max(_sums(needed_bytes, timed))
    return [
        _moved(stages, start, needed_bytes, max(most_bytes, *_sums(needed_bytes, start))) for start in (leanest, even)
    ]


def _sums(costs: Floats, layers: Sequence[int]) -> list[float]:
    """Return the cost of every stage of a partition."""
    ends = np.cumsum([0, *layers])
    return [float(row[begin:end].sum()) for row, begin, end in zip(costs, ends, ends[1:], strict=False)]


def _moved(stages: Stages, layers: tuple[int, ...], needed_bytes: Floats, most_bytes: float) -> tuple[int, ...]:
    """Return a partition after all moves that help: a layer at the edge of the slowest stage goes to a neighbour.

    A move helps where the slowest stage becomes faster, all stages fit, and none needs more than ``most_bytes``, by
    ``needed_bytes``.
    """
    solved = stages.solve_all(layers)
    while solved is not None:
        busy = [stage.busy_s(stages.frame.num_microbatches) for stage in solved]
        slowest = int(np.argmax(busy))
        better = None
        for neighbour in (slowest - 1, slowest + 1):
            if not 0 <= neighbour < len(layers) or layers[slowest] == 1:
                continue
            moved = list(layers)
            moved[slowest], moved[neighbour] = moved[slowest] - 1, moved[neighbour] + 1
            found = stages.solve_all(moved)
            if found is None or max(_sums(needed_bytes, moved)) > most_bytes:
                continue
            if max(stage.busy_s(stages.frame.num_microbatches) for stage in found) < max(busy):
                better = (tuple(moved), found)
                break
        if better is None:
            break
        layers, solved = better
    return layers
