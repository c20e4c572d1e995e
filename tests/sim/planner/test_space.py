from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from sim.planner.space import Sizes, grid

CHOICES = {
    "tensor": [1, 2, 4, 8], "context": [1, 2], "pipeline": [1, 2, 3, 4, 6], "virtual_stages": [1, 2, 3],
    "expert": [1, 2], "zero_stage": [0, 1, 2, 3], "microbatch_size": [1, 2, 4], "recompute": [0, 2],
}  # fmt: skip


@given(st.sampled_from([1, 6, 8, 24]), st.integers(1, 64), st.integers(1, 12))
def test_grid_is_what_loops_over_the_rules_find(world_size: int, batch: int, num_layers: int) -> None:
    """The vectorised rules keep the strategies that plain loops keep, each once."""
    sizes = Sizes(world_size, batch, num_layers)
    found = grid(CHOICES, sizes)
    strategies = [found.strategy(row) for row in range(len(found))]
    assert len(set(strategies)) == len(strategies)
    expected = 0
    for tensor, context, ranks, stages, expert, zero, size, _ in product(*CHOICES.values()):
        if world_size % (tensor * context * ranks):
            continue
        data = world_size // (tensor * context * ranks)
        if batch % (data * size) or data % expert or (ranks * stages > num_layers and ranks * stages != num_layers + 2):
            continue
        if stages > 1 and (ranks == 1 or batch // (data * size) % ranks):
            continue
        expected += data * context > 1 or zero == 0
    assert len(strategies) == expected
