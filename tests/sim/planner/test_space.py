from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from sim.planner.space import MOST_WALKED, SCHEDULES, Sizes, grid
from sim.training.errors import SpecError
from sim.training.pipeline.rules import Schedule, check_microbatches, check_stages

CHOICES = {
    "tensor": [1, 2, 4, 8], "context": [1, 2], "pipeline": [1, 2, 3, 4, 6], "schedule": range(len(SCHEDULES)),
    "virtual_stages": [1, 2, 5],
    "expert": [1, 2], "zero_stage": [0, 1, 2, 3], "offload": [0, 1], "microbatch_size": [1, 2, 4], "recompute": [0],
}  # fmt: skip


@given(st.sampled_from([1, 6, 8, 24]), st.integers(1, 64), st.integers(1, 12))
def test_grid_is_what_loops_over_the_rules_find(world_size: int, batch: int, num_layers: int) -> None:
    """The vectorised rules keep the strategies that plain loops keep, each once."""
    sizes = Sizes(world_size, batch, num_layers)
    found = grid(CHOICES, sizes)
    strategies = [found.strategy(row) for row in range(len(found))]
    assert len(set(strategies)) == len(strategies)
    expected = 0
    for tensor, context, ranks, schedule, stages, expert, zero, offload, size, _ in product(*CHOICES.values()):
        if world_size % (tensor * context * ranks):
            continue
        data = world_size // (tensor * context * ranks)
        if batch % (data * size) or data % expert or (ranks * stages > num_layers and ranks * stages != num_layers + 2):
            continue
        if SCHEDULES[schedule] in ("aiao", "terapipe", "seq_1f1b") and expert > 1:
            continue
        if not has_order(SCHEDULES[schedule], ranks, stages, batch // (data * size), zero):
            continue
        expected += (zero == 2) if offload else (data * context > 1 or zero == 0)
    assert len(strategies) == expected


def has_order(schedule: Schedule, ranks: int, stages: int, num_microbatches: int, zero: int) -> bool:
    """Whether a schedule runs so, and is searched so."""
    if (ranks == 1 and schedule != "1f1b") or (schedule not in SCHEDULES[:2] and (zero > 1 or stages > MOST_WALKED[1])):
        return False
    try:
        check_stages(schedule, stages)
        check_microbatches(schedule, ranks, num_microbatches, virtual_stages=stages, group_size=0)
    except SpecError:
        return False
    return True
