import numpy as np
import pytest

from sim.planner.prices import Estimates, Floats
from sim.planner.space import Grid, Sizes, grid
from sim.planner.trust import Objective, Seen, at_least, hopeful_rows

CHOICES = {
    "tensor": (1, 2, 4, 8), "context": (1,), "pipeline": (1, 2, 4, 8), "schedule": (0, 1),
    "virtual_stages": (1, 2), "expert": (1,),
    "zero_stage": (0, 1, 2, 3), "offload": [0], "microbatch_size": (1, 2, 4), "recompute": (0, 2),
}  # fmt: skip
ROOM_BYTES = 50_000
KIND = ("zero_stage", "schedule", "virtual_stages", "tensor", "pipeline", "offload")


def case(number: int) -> tuple[Grid, Estimates, Floats, Floats]:
    """A grid with estimates, and what an engine finds: estimates of one kind err alike, within 3 %."""
    rows = grid(CHOICES, Sizes(world_size=8, global_batch_size=64, num_layers=16))
    draw = np.random.default_rng(number)
    estimates = Estimates(draw.uniform(1.0, 2.0, len(rows)), draw.uniform(1e4, 1e5, len(rows)).round())
    kinds = 2 * rows.zero_stage + (rows.virtual_stages > 1)
    ratios = [draw.uniform(1.0, 1.4, 8)[kinds] * draw.uniform(1.0, 1.0 / 0.97, len(rows)) for _ in range(2)]
    return rows, estimates, estimates.time_s * ratios[0], np.ceil(estimates.memory_bytes * ratios[1])


def tried(rows: Grid, estimates: Estimates, time_s: Floats, memory: Floats, objective: Objective) -> list[Seen]:
    """What the engine finds, four strategies at a time, until none may be better."""
    seen: list[Seen] = []
    while len(left := hopeful_rows(rows, estimates, ROOM_BYTES, seen, objective)):
        for row in left[:4].tolist():
            seen.append(Seen(row, int(memory[row]), float(time_s[row]) if memory[row] <= ROOM_BYTES else None))
    return seen


@pytest.mark.parametrize("number", range(8))
def test_pick_is_the_optimum_where_estimates_of_a_kind_err_alike(number: int) -> None:
    """If ratios of a kind differ by at most the slack, the optimum in time and in memory is among those tried."""
    rows, estimates, time_s, memory = case(number)
    fit = memory <= ROOM_BYTES
    by_time = tried(rows, estimates, time_s, memory, "time")
    assert min(found.time_s for found in by_time if found.time_s is not None) == time_s[fit].min()
    by_memory = tried(rows, estimates, time_s, memory, "memory")
    assert min(found.memory_bytes for found in by_memory) == memory.min()
    assert len(by_time) < len(rows) / 2


def test_a_kind_is_trusted_as_far_as_its_worst_estimate() -> None:
    """One strategy far better than estimated lowers what is expected of its ZeRO stage, and of no other."""
    rows, estimates, _, _ = case(0)
    row = int(np.flatnonzero((rows.zero_stage == 0) & (rows.virtual_stages == 1))[0])
    half = Seen(row, int(estimates.memory_bytes[row]) // 2, estimates.time_s[row] / 2)
    before, after = at_least(rows, estimates, []), at_least(rows, estimates, [half])
    alike = rows.zero_stage == rows.zero_stage[row]
    assert np.all(after.time_s[alike] <= 0.5 * estimates.time_s[alike])
    assert np.all(after.memory_bytes[alike] <= 0.5 * estimates.memory_bytes[alike])
    assert np.array_equal(after.time_s[~alike], before.time_s[~alike])


def test_a_kind_that_was_seen_is_trusted_by_itself() -> None:
    """Two strategies as estimated keep what is expected of their kind, whatever another kind of their stage brought."""
    rows, estimates, _, _ = case(0)
    stage = rows.zero_stage == 0
    far, *_ = np.flatnonzero(stage & (rows.virtual_stages == 1)).tolist()
    first = np.flatnonzero(stage & (rows.virtual_stages > 1))[0]
    kind = np.all([getattr(rows, name) == getattr(rows, name)[first] for name in KIND], axis=0)
    near = [Seen(row, int(estimates.memory_bytes[row]), float(estimates.time_s[row])) for row in np.flatnonzero(kind)]
    half = Seen(far, int(estimates.memory_bytes[far]) // 2, estimates.time_s[far] / 2)
    assert len(near) > 1
    after = at_least(rows, estimates, [half, *near])
    assert np.all(after.time_s[kind] > 0.9 * estimates.time_s[kind])
