"""A step of a click model with cached, sharded tables, executed op by op, against plain torch on whole tables."""

from collections.abc import Mapping

import numpy as np
import pytest

from backends.execution.clicks import ClickCheck, persistent
from backends.execution.errors import ExecutionError
from backends.execution.request import ExecutionRequest
from backends.torch.reference.click_check import check_clicks
from backends.torch.reference.references import References
from sim.embedding.click_model import ClickModel, ClickModelName
from sim.embedding.ids import Table, id_source
from sim.embedding.rank_batch import RankBatch, Sharding, rank_batches, tables_of_ranks
from sim.embedding.run import CacheSpec
from sim.embedding.step.builder import build_step
from sim.embedding.step.spec import ClickStep, MoveOrder
from sim.plan.checking.check import check
from sim.plan.words.program import Plan
from tests.backends.one_process import CPU, execute_in_one_process, ranks_after_a_step

TABLES = [
    Table(name="users", num_rows=50, num_lookups=1, zipf=1.1),
    Table(name="items", num_rows=30, num_lookups=3, zipf=1.0),
    Table(name="places", num_rows=7, num_lookups=2, zipf=1.0),
]
CACHE = CacheSpec(num_slots=60, policy="lfu", warm_up=0.5)
NUMBER, BATCH_SIZE, SEED, TOLERANCE = 5, 8, 3, 1e-9


def build(
    name: ClickModelName, sharding: Sharding, num_ranks: int, cache: CacheSpec | None, order: MoveOrder = "evict_first"
) -> tuple[ClickStep, Plan, list[RankBatch]]:
    """Return a step, its plan and what it moves."""
    tables = (3,) * num_ranks
    if sharding == "table" and num_ranks > 1:
        tables = tuple(map(len, tables_of_ranks(TABLES, num_ranks)))
    model = ClickModel(name=name, embedding_dim=4, bottom=(6,), hidden=(8, 5))
    step = ClickStep(
        name=name, model=model, batch_size=BATCH_SIZE, num_ranks=num_ranks, sharding=sharding, tables=tables,
        order=order, dtype="float64", seed=SEED,
    )  # fmt: skip
    (batches,) = rank_batches(TABLES, cache, (sharding, num_ranks), range(NUMBER, NUMBER + 1), BATCH_SIZE, SEED)
    plan = build_step(step, batches, starts=True)
    check(plan)
    return step, plan, batches


def errors_after(
    step: ClickStep, plan: Plan, batches: list[RankBatch], mute: frozenset[str] = frozenset()
) -> Mapping[str, float]:
    """Return the errors of every tensor after an executed step."""
    *_, ids = id_source(TABLES, SEED).batches(NUMBER + 1, BATCH_SIZE)
    last = execute_in_one_process(ExecutionRequest(plan=plan, keep=persistent(plan), mute=mute), References(CPU))
    return check_clicks(ClickCheck(step=step, tables=TABLES, ids=[ids], last=last, parts=batches)).errors


@pytest.mark.parametrize("cache", [CACHE, None], ids=["cached", "on_device"])
@pytest.mark.parametrize(
    ("name", "sharding", "num_ranks"),
    [
        ("dlrm", "row", 1), ("dlrm", "table", 2), ("dlrm", "row", 4), ("dlrm", "column", 2), ("wide_deep", "row", 2),
        ("deepfm", "row", 1), ("deepfm", "table", 2), ("deepfm", "row", 2), ("dcn", "column", 4), ("dcn", "table", 2),
    ],
)  # fmt: skip
def test_step_computes_what_plain_torch_does(
    name: ClickModelName, sharding: Sharding, num_ranks: int, cache: CacheSpec | None
) -> None:
    """Loss, gradients, dense weights and all rows are those of plain torch on whole tables, to 1e-9."""
    errors = errors_after(*build(name, sharding, num_ranks, cache))
    assert max(errors.values()) < TOLERANCE, errors


def test_rows_move_both_ways_in_either_order() -> None:
    """Rows that give way keep their values, whichever way is first; the case moves rows both ways."""
    for order in ("evict_first", "fetch_first"):
        step, plan, batches = build("deepfm", "table", 2, CACHE, order)
        assert max(errors_after(step, plan, batches).values()) < TOLERANCE
    assert any(batch.num_in and batch.num_out for batch in batches)


@pytest.mark.parametrize(
    ("sharding", "left_out"), [("row", "all_reduce.0"), ("row", "sums.reduce_scatter"), ("table", "sums.all_to_all")]
)
def test_communication_that_is_left_out_is_noticed(sharding: Sharding, left_out: str) -> None:
    """A step without one of its collectives computes other numbers."""
    step, plan, batches = build("dlrm", sharding, 2, CACHE)
    assert any(op.name == left_out for program in plan.programs for *_, op in program.instances())
    assert max(errors_after(step, plan, batches, frozenset({left_out})).values()) > 1e-3


def test_maps_that_disagree_with_the_policy_are_refused() -> None:
    """Slots are read from the maps on the device, which must have the rows that the policy counts as hits."""
    _, plan, batches = build("dlrm", "row", 1, CACHE)
    assert batches[0].found is not None
    batches[0].found.is_hit[:] = np.invert(batches[0].found.is_hit)
    with pytest.raises(ExecutionError, match="disagree"):
        ranks_after_a_step(plan)
