"""The passes of all micro-batches, against walks of whole orders."""

import numpy as np
import pytest

from sim.planner.passes import Passes, Timed, passes_of, shape_of
from sim.planner.probing import Costs
from sim.planner.space import SCHEDULES, Grid
from sim.planner.stages import stage_of
from sim.planner.walk import ends_of, walk_of
from sim.training.pipeline.rules import Schedule
from sim.training.pipeline.schedules import orders
from sim.training.pipeline.spec import PipelineSpec

NUM_STRATEGIES, NUM_LAYERS, RANKS = 6, 13, 4


def timed(spec: PipelineSpec, seed: int) -> Timed:
    """Random costs of layers and of the model's ends; the weight part of a backward is its shortest part."""
    draw, names = np.random.default_rng(seed), list(Costs.__struct_fields__)
    layer, first, last = draw.uniform(0.8, 1.2, (3, NUM_STRATEGIES, len(names)))
    layer[:, names.index("weight_s")] *= 0.6
    counts = shape_of(spec, NUM_LAYERS).kinds.layers
    ends = (first, np.zeros_like(first), np.zeros_like(first), 0.5 * last)
    stages = [stage_of(layer, end, end, np.full(NUM_STRATEGIES, float(n))) for end, n in zip(ends, counts, strict=True)]
    return Timed(stages, draw.uniform(0.0, 0.3, NUM_STRATEGIES), overlaps=False)


def continued(spec: PipelineSpec, num_microbatches: int, given: Timed) -> Passes:
    """The passes as a search estimates them."""
    columns = {"schedule": SCHEDULES.index(spec.schedule), "pipeline": RANKS, "num_microbatches": num_microbatches}
    grid = Grid(**{name: np.full(NUM_STRATEGIES, columns.get(name, 1)) for name in Grid.__struct_fields__})
    return passes_of(grid, [shape_of(spec, NUM_LAYERS)], np.zeros(NUM_STRATEGIES, dtype=np.int64), given)


@pytest.mark.parametrize(
    ("schedule", "virtual_stages", "within"),
    [("breadth_first", 1, 0.0), ("breadth_first", 2, 0.0), ("gpipe", 1, 0.0), ("zb_h1", 1, 0.0), ("zb_h1", 2, 0.0),
     ("chimera", 1, 0.0), ("zb_h2", 1, 0.02), ("zb_v", 2, 0.01), ("dualpipe", 1, 0.01), ("dualpipe_v", 2, 0.01)],
)  # fmt: skip
@pytest.mark.parametrize("num_microbatches", [8, 40])
def test_passes_end_when_the_whole_order_does(
    schedule: Schedule, virtual_stages: int, within: float, num_microbatches: int
) -> None:
    """Few micro-batches are walked to the end; many continue a walk, exactly where ``within`` is 0."""
    spec = PipelineSpec(degree=RANKS, schedule=schedule, virtual_stages=virtual_stages)
    given, shape = timed(spec, num_microbatches), shape_of(spec, NUM_LAYERS)
    parts = ("forward_s", "backward_s", "input_s", "weight_s")
    alone = [getattr(stage, part) for part in parts for stage in given.stages]
    pairs = [ahead.forward_s + back.backward_s for ahead in given.stages for back in given.stages]
    walk = walk_of(orders(spec, num_microbatches), shape.place, shape.places)
    only = np.zeros(NUM_STRATEGIES, dtype=np.int64)
    whole_s = ends_of([walk], only, np.stack([*alone, *pairs], axis=1), given.hop_s)
    found_s = continued(spec, num_microbatches, given).ends_s
    if within == 0.0 or num_microbatches <= shape.most_rounds * RANKS:
        assert found_s == pytest.approx(whole_s)
    assert found_s.max(axis=0) == pytest.approx(whole_s.max(axis=0), rel=max(within, 1e-9))
