"""The passes of all micro-batches through pipelines: when ranks end, and what they hold."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sim.planner.all_first import all_first_ends_s, seconds_of_stages
from sim.planner.held import all_first_bytes, moments_of
from sim.planner.prices import Floats, distinct_rows
from sim.planner.space import ALL_FIRST, SPLIT, Grid, Ints
from sim.planner.stages import Stage, StageKinds, kinds_of, rank_layers, virtual_stage_layers
from sim.planner.walk import ends_of, walk_of
from sim.training.pipeline.actions import LETTERS
from sim.training.pipeline.placement import Placement
from sim.training.pipeline.rules import OVERLAPPING_SCHEDULES, Schedule
from sim.training.pipeline.schedules import orders, placement
from sim.training.pipeline.spec import PipelineSpec

_IN_PLACE_OF: Final[Mapping[Schedule, Schedule]] = {"zb_auto": "zb_h1", "terapipe": "gpipe"}
_MOST_ROUNDS: Final[Mapping[Schedule, int]] = {"zb_h1": 3, "chimera": 3}
_MOST_ROUNDS_ELSE: Final = 4
"""Micro-batches for each pipeline rank that are walked at most: more continue what the last P of them add.

They add no less than the busiest rank computes: where that is downstream, the ranks before it run ahead for a while.
"""


class Shape(Struct, frozen=True):
    """What strategies of one schedule share, without the number of micro-batches.

    ``rank_layers``: of the first, the fullest inner and the last rank.
    """

    pipeline: PipelineSpec
    place: Placement
    kinds: StageKinds
    rank_layers: tuple[int, int, int]

    @property
    def places(self) -> tuple[int, ...]:
        """Return the kind of every virtual stage of all copies of the model."""
        return self.kinds.places * self.pipeline.num_copies

    @property
    def splits(self) -> bool:
        """Return whether backwards run in two parts."""
        return self.pipeline.schedule in SPLIT

    @property
    def most_rounds(self) -> int:
        """Return how many micro-batches for each rank are walked at most."""
        return _MOST_ROUNDS.get(self.pipeline.schedule, _MOST_ROUNDS_ELSE)


class Timed(Struct, frozen=True):
    """What strategies are timed with: the virtual stage of every kind, and messages.

    ``overlaps``: a forward and a backward that overlap take turns at experts' exchanges.
    """

    stages: list[Stage]
    hop_s: Floats
    overlaps: bool


class Passes(Struct, frozen=True):
    """The first, inner and the last rank after the passes of all micro-batches, of shape (3, strategies).

    ``held_bytes``: the most that they hold beside their state.
    """

    ends_s: Floats
    held_bytes: Floats

    def put(self, rows: Ints, part: "Passes") -> None:
        """Write those of some strategies."""
        self.ends_s[:, rows], self.held_bytes[:, rows] = part.ends_s, part.held_bytes


def shape_of(spec: PipelineSpec, num_layers: int) -> Shape:
    """Return the shape of a pipeline.

    zb_auto has that of zb_h1, the best order that is known before its search, and terapipe that of whole sequences.
    """
    spec = replace(spec, schedule=_IN_PLACE_OF.get(spec.schedule, spec.schedule))
    split, place = virtual_stage_layers(num_layers, spec.degree, spec.virtual_stages), placement(spec)
    return Shape(spec, place, kinds_of(split), rank_layers(split, place.ranks))


def passes_of(grid: Grid, shapes: Sequence[Shape], which: Ints, timed: Timed) -> Passes:
    """Return the passes of every strategy. ``which``: its shape."""
    found = Passes(np.zeros((3, len(grid))), np.zeros((3, len(grid))))
    first = grid.runs(ALL_FIRST)
    for rows, part in ((np.flatnonzero(first), _all_first), (np.flatnonzero(~first), _walked)):
        if len(rows):
            found.put(rows, part(grid, shapes, which, rows, timed))
    return found


def _all_first(grid: Grid, shapes: Sequence[Shape], which: Ints, rows: Ints, timed: Timed) -> Passes:
    """Return the passes of strategies that run all forwards first.

    Under aiao no rank waits for another between steps, so its end counts from the begin of its first forward.
    """
    which, ranks, num_microbatches = which[rows], grid.pipeline[rows], grid.num_microbatches[rows]
    places = [shape.places for shape in shapes]
    forward_s, backward_s = (
        seconds_of_stages([getattr(stage, part)[rows] for stage in timed.stages], places, which)
        for part in ("forward_s", "backward_s")
    )
    ends_s = all_first_ends_s(forward_s, backward_s, ranks, num_microbatches, timed.hop_s[rows])[..., 1]
    ahead_s = forward_s + timed.hop_s[rows][:, None]
    ends_s = np.where(grid.runs(["aiao"])[rows][:, None], ends_s - (np.cumsum(ahead_s, axis=1) - ahead_s), ends_s)
    at = np.arange(ends_s.shape[1])
    is_inner = (at > 0) & (at < ranks[:, None] - 1)
    of_ranks = (ends_s[:, 0], np.where(is_inner, ends_s, 0.0).max(axis=1), ends_s[np.arange(len(rows)), ranks - 1])
    held, sizes = np.zeros((3, len(rows))), _held_bytes(timed.stages, splits=False)[:, rows]
    for number in np.unique(which).tolist():
        shape, own = shapes[number], np.flatnonzero(which == number)
        most = [
            all_first_bytes(
                [shape.places[stage] for stage in shape.place.stages[rank]], num_microbatches[own], sizes[:, own]
            )
            for rank in _telling_ranks(shape.pipeline.degree)
        ]
        held[:, own] = _first_inner_last(np.stack(most))
    return Passes(np.stack(of_ranks), held)


def _walked(grid: Grid, shapes: Sequence[Shape], which: Ints, rows: Ints, timed: Timed) -> Passes:
    """Return the passes of strategies whose orders are walked, or continued from as many as are walked at most.

    What ranks hold does not grow with more micro-batches.
    """
    ranks, num_microbatches = grid.pipeline[rows], grid.num_microbatches[rows]
    most = np.array([shape.most_rounds for shape in shapes])[which[rows]] * ranks
    rest = np.flatnonzero(num_microbatches > most)
    walked = np.concatenate([np.minimum(num_microbatches, most), (most - ranks)[rest]])
    of = np.concatenate([np.arange(len(rows)), rest])
    keys, number = distinct_rows(which[rows][of], walked)
    written = [orders(shapes[at].pipeline, count) for at, count in keys]
    walks = [
        walk_of(of_ranks, shapes[at].place, shapes[at].places) for of_ranks, (at, _) in zip(written, keys, strict=True)
    ]
    ends_s = ends_of(walks, number, _seconds(timed)[rows[of]], timed.hop_s[rows[of]])
    more, fewer = ends_s[:, : len(rows)], ends_s[:, len(rows) :]
    round_s = np.maximum(more[:, rest] - fewer, (ranks * _busiest_s(shapes, which[rows], rows, timed))[rest])
    more[:, rest] += ((num_microbatches - most) / ranks)[rest] * round_s
    held = np.zeros((3, len(rows)))
    sizes = {splits: _held_bytes(timed.stages, splits=splits)[:, rows] for splits in (False, True)}
    for at in np.unique(number[: len(rows)]).tolist():
        shape, own = shapes[keys[at][0]], np.flatnonzero(number[: len(rows)] == at)
        told = [written[at][rank] for rank in _telling_ranks(shape.pipeline.degree)]
        own_sizes = sizes[shape.splits][:, own]
        held[:, own] = _first_inner_last(moments_of(told, shape.places).most_bytes(own_sizes))
    return Passes(more, held)


def _busiest_s(shapes: Sequence[Shape], which: Ints, rows: Ints, timed: Timed) -> Floats:
    """Return the seconds of a micro-batch on the rank with the longest, 0 where a part of it overlaps another's."""
    found = np.zeros(len(rows))
    for number in np.unique(which).tolist():
        shape, own = shapes[number], np.flatnonzero(which == number)
        if shape.pipeline.schedule not in OVERLAPPING_SCHEDULES:
            held = np.zeros((shape.pipeline.degree, len(timed.stages)))
            np.add.at(held, (np.array(shape.place.ranks), np.array(shape.places)), 1.0 / shape.pipeline.num_copies)
            parts = ("forward_s", *(("input_s", "weight_s") if shape.splits else ("backward_s",)))
            work_s = np.stack([sum(getattr(stage, part)[rows[own]] for part in parts) for stage in timed.stages])
            found[own] = (held @ work_s).max(axis=0)
    return found


def _telling_ranks(degree: int) -> list[int]:
    """Return the ranks that may hold the most: the ends, those beside them, and the middle ones."""
    return sorted({0, min(1, degree - 1), degree // 2 - 1, degree // 2, max(degree - 2, 0), degree - 1})


def _first_inner_last(of_ranks: Floats) -> Floats:
    """Return the first, the largest inner and the last of the rows; 0 where there is no inner one."""
    return np.stack([of_ranks[0], of_ranks[1:-1].max(axis=0, initial=0.0), of_ranks[-1]])


def _seconds(timed: Timed) -> Floats:
    """Return the seconds of every kind of node, of shape (strategies, kinds), as ``ends_of`` reads them."""
    parts = {"F": "forward_s", "B": "backward_s", "I": "input_s", "W": "weight_s"}
    alone = [getattr(stage, parts[kind]) for kind in LETTERS for stage in timed.stages]
    pairs = [
        _pair_s(ahead, back) if timed.overlaps else ahead.forward_s + back.backward_s
        for ahead in timed.stages
        for back in timed.stages
    ]
    return np.stack([*alone, *pairs], axis=1)


def _pair_s(ahead: Stage, back: Stage) -> Floats:
    """Return the seconds of a forward and a backward that take turns.

    Experts' exchanges of one run while the other computes; computing goes on one after the other, and so do exchanges.
    Each layer cuts its passes twice, and the backward waits for the first piece.
    """
    exchanges_s = ahead.exchange_forward_s + back.exchange_backward_s
    computing_s = ahead.forward_s + back.backward_s - exchanges_s
    first_s = (ahead.forward_s - ahead.exchange_forward_s) / (2.0 * ahead.num_layers + 1.0)
    alone_s = np.maximum(ahead.forward_s, back.backward_s + first_s)
    found: Floats = np.where(exchanges_s > 0, np.maximum(np.maximum(computing_s, exchanges_s), alone_s), computing_s)
    return found


def _held_bytes(stages: list[Stage], *, splits: bool) -> Floats:
    """Return the bytes behind the columns of ``Moments``, of shape (16, strategies)."""
    parts = ("kept_bytes", "weight_kept_bytes", "peak_bytes", "split_peak_bytes" if splits else "peak_bytes")
    return np.stack([stage.total_of(part) for part in parts for stage in stages])
