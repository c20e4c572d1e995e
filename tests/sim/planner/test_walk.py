from collections import Counter
from random import Random

import numpy as np
import pytest

from sim.planner.space import ORDERED
from sim.planner.walk import NO_ACTION, NUM_PLACES, held_counts, walk_of
from sim.training.pipeline.actions import LETTERS
from sim.training.pipeline.evaluate import ChainTimes, StageTimes, end_times
from sim.training.pipeline.rules import TRAITS, Schedule
from sim.training.pipeline.schedules import orders, placement
from sim.training.pipeline.spec import PipelineSpec

SHAPES = ((2, 5), (4, 8), (6, 14))
"""Pipeline ranks, and micro-batches."""


def spec_of(schedule: Schedule, degree: int) -> PipelineSpec:
    """The pipeline of a schedule; two stages per rank where it may have them."""
    stages = 2 if TRAITS[schedule].most_stages > 1 else 1
    return PipelineSpec(degree=degree, schedule=schedule, virtual_stages=stages)


@pytest.mark.parametrize("schedule", ORDERED)
@pytest.mark.parametrize(("degree", "num_microbatches"), SHAPES)
def test_walk_ends_when_the_plain_recurrence_does(schedule: Schedule, degree: int, num_microbatches: int) -> None:
    """Whole orders in numpy end on every rank when the recurrence of one order says, for random times of stages."""
    spec, draw = spec_of(schedule, degree), Random(degree)
    num_microbatches *= 2 if schedule == "dualpipe" or (schedule == "zb_h1" and num_microbatches % degree) else 1
    written, place = orders(spec, num_microbatches), placement(spec)
    length = place.chain_length
    places = [0, *(draw.choice((1, 2)) for _ in range(length - 2)), 3] * place.num_copies
    stages = tuple(StageTimes(*(draw.uniform(0.5, 2.0) for _ in range(3)), hop_s=0.3) for _ in range(NUM_PLACES))
    seconds = {"F": "forward_s", "I": "input_s", "W": "weight_s"}
    rows = [[getattr(s, seconds[k]) if k in seconds else s.input_s + s.weight_s for s in stages] for k in LETTERS]
    durations_s = np.array([*np.array(rows).ravel(), 0.0])[:, None]
    assert len(durations_s) == NO_ACTION + 1
    found_s = walk_of(written, place, places).ends_s(durations_s, np.array([0.3]))[:, 0]
    ends_s = end_times(written, place, ChainTimes(tuple(stages[at] for at in places)))
    ranks = [max(ends_s[kind, stage, i] for kind, stage, i in ends_s if place.ranks[stage] == r) for r in range(degree)]
    assert found_s == pytest.approx(ranks)


@pytest.mark.parametrize("schedule", ORDERED)
def test_what_a_rank_holds_is_what_it_began_and_did_not_end(schedule: Schedule) -> None:
    """The moments of a rank are those of going through its order one action after the other."""
    spec = spec_of(schedule, 4)
    place = placement(spec)
    places = [0, *[1] * (place.chain_length - 2), 3] * place.num_copies
    written = orders(spec, 8)
    for order in written:
        live, waiting, moments = Counter[int](), Counter[int](), set()
        for kind, stage, _, _ in order:
            at = places[stage]
            live[at] -= kind in "BI"
            waiting[at] -= kind == "W"
            running = [int(kind in group and at == place) for group in ("FB", "IW") for place in range(NUM_PLACES)]
            moments.add((*(live[k] for k in range(4)), *(waiting[k] for k in range(4)), *running))
            live[at] += kind == "F"
            waiting[at] += kind == "I"
        found = {tuple(row) for row in held_counts(order, places).tolist()}
        assert found == moments
