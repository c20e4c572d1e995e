from collections import Counter
from random import Random

import numpy as np
import pytest

from sim.planner.held import Floats, all_first_bytes, moments_of
from sim.planner.space import ORDERED
from sim.planner.stages import NUM_PLACES
from sim.planner.walk import NUM_KINDS, ends_of, levels_of, walk_of
from sim.training.pipeline.actions import LETTERS, Action, Order
from sim.training.pipeline.evaluate import ChainTimes, StageTimes, StuckError, end_times
from sim.training.pipeline.placement import Placement, loop
from sim.training.pipeline.rules import TRAITS, Schedule
from sim.training.pipeline.schedules import breadth_first, orders, placement
from sim.training.pipeline.spec import PipelineSpec

SHAPES = ((2, 5), (4, 8), (6, 14))
"""Pipeline ranks, and micro-batches."""
HOP_S = 0.3
WALKED = tuple(name for name in ORDERED if name not in ("zb_auto", "terapipe"))
"""zb_auto is estimated by the order of zb_h1, terapipe by that of gpipe."""


def spec_of(schedule: Schedule, degree: int) -> PipelineSpec:
    """The pipeline of a schedule; two stages per rank where it may have them."""
    stages = 2 if TRAITS[schedule].most_stages > 1 else 1
    return PipelineSpec(degree=degree, schedule=schedule, virtual_stages=stages)


def places_of(place: Placement, draw: Random) -> list[int]:
    """The kinds of virtual stages, with inner ones of both kinds."""
    return [0, *(draw.choice((1, 2)) for _ in range(place.chain_length - 2)), 3] * place.num_copies


def seconds_of(stages: tuple[StageTimes, ...]) -> list[float]:
    """The seconds of every kind of node; two actions that overlap take as long as one after the other."""
    alone = [times.duration_s(Action(kind, 0, 0)) for kind in LETTERS for times in stages]
    pairs = [a.forward_s + b.input_s + b.weight_s for a in stages for b in stages]
    return [*alone, *pairs]


def test_walks_end_when_the_plain_recurrence_does() -> None:
    """All schedules at once end when the recurrence of one order says, for two sets of random times of each."""
    draw, walks, seconds, expected = Random(1), [], list[list[float]](), list[list[float]]()
    for schedule in WALKED:
        for degree, number in SHAPES:
            spec, place = spec_of(schedule, degree), placement(spec_of(schedule, degree))
            times = {"dualpipe": 2, "zb_h1": 2, "chimera": degree}.get(schedule, 1)
            written, places = orders(spec, number * times), places_of(place, draw)
            walks.append(walk_of(written, place, places))
            for _ in range(2):
                kinds = tuple(StageTimes(*(draw.uniform(0.5, 2.0) for _ in range(3)), HOP_S) for _ in range(NUM_PLACES))
                ends_s = end_times(written, place, ChainTimes(tuple(kinds[at] for at in places)))
                ranks = [max(end for key, end in ends_s.items() if place.ranks[key[1]] == r) for r in range(degree)]
                seconds.append(seconds_of(kinds))
                expected.append([ranks[0], max(ranks[1:-1], default=0.0), ranks[-1]])
    which = np.repeat(np.arange(len(walks)), 2)
    assert np.shape(seconds) == (len(which), NUM_KINDS)
    found_s = ends_of(walks, which, np.array(seconds), np.full(len(which), HOP_S))
    assert found_s == pytest.approx(np.array(expected).T)


def test_an_order_that_gets_stuck_is_refused() -> None:
    """A rank that wants a backward before the forward that the next rank waits for ends no walk."""
    first = Order.of([Action("B", 0, 0), Action("F", 0, 0)])
    second = Order.of([Action("F", 1, 0), Action("B", 1, 0)])
    with pytest.raises(StuckError, match="stuck"):
        levels_of([walk_of([first, second], loop(2), [0, 3])])


def held_bytes(order: Order, places: list[int], sizes: Floats) -> float:
    """The most that a rank holds, one action after the other."""
    live, waiting, most = Counter[int](), Counter[int](), 0.0
    for kind, stage, _, _ in order:
        at = places[stage]
        live[at] -= kind in "BI"
        waiting[at] -= kind == "W"
        held = sum(live[k] * sizes[k] + waiting[k] * sizes[4 + k] for k in range(NUM_PLACES))
        most = max(most, held + sizes[8 + at if kind in "FB" else 12 + at])
        live[at] += kind == "F"
        waiting[at] += kind == "I"
    return most


@pytest.mark.parametrize("schedule", WALKED)
def test_what_a_rank_holds_is_what_it_began_and_did_not_end(schedule: Schedule) -> None:
    """The most that ranks hold, for random sizes, is that of going through their orders."""
    spec, draw = spec_of(schedule, 4), Random(2)
    places, written = places_of(placement(spec), draw), orders(spec, 8)
    sizes = np.array([[draw.uniform(0.0, 2.0) for _ in range(5)] for _ in range(4 * NUM_PLACES)])
    found = moments_of(written, places).most_bytes(sizes)
    expected = [[held_bytes(order, places, column) for column in sizes.T] for order in written]
    assert found == pytest.approx(np.array(expected))


def test_all_first_holds_every_micro_batch() -> None:
    """The closed form for all forwards first is what a walk through the order finds."""
    draw, number = Random(3), np.array([2, 5, 9])
    places = places_of(loop(3, 3), draw)
    sizes = np.array([[draw.uniform(0.0, 2.0)] * 3 for _ in range(4 * NUM_PLACES)])
    for rank in range(3):
        found = all_first_bytes([places[stage] for stage in loop(3, 3).stages[rank]], number, sizes)
        expected = [held_bytes(breadth_first(3, m, 3)[rank], places, sizes[:, 0]) for m in number.tolist()]
        assert found == pytest.approx(expected)
