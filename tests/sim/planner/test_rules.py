import numpy as np

from sim.planner.prices import Estimates
from sim.planner.rules import rows_in_turn
from sim.planner.space import Sizes, grid


def test_tensor_parallelism_grows_before_pipelines() -> None:
    """Degrees grow to a node first, then over nodes, each with its fastest micro-batch that fits, else its leanest."""
    choices = {
        "tensor": [1, 2, 4], "context": [1], "pipeline": [1, 2, 4], "schedule": [0],
        "virtual_stages": [1], "expert": [1],
        "zero_stage": [1], "offload": [0], "microbatch_size": [1, 2, 4], "recompute": [2],
    }  # fmt: skip
    every = grid(choices, Sizes(16, 64, 8))
    share = every.microbatch_size / (every.tensor * every.pipeline)
    estimates = Estimates(1.0 / every.microbatch_size, 100.0 * share)
    found = [every.strategy(row) for row in rows_in_turn(every, estimates, 60.0)]
    assert [(s.tensor, s.pipeline) for s in found] == [(1, 1), (2, 1), (4, 1), (4, 2), (4, 4)]
    assert [s.microbatch_size for s in found] == [1, 1, 2, 4, 4]
    assert np.isclose(share[0], 1.0)
