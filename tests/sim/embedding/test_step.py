"""The plan of a click model's step: bytes that move between hosts, devices and ranks, in closed form."""

import numpy as np
import pytest

from sim.embedding.click_model import ClickModel
from sim.embedding.ids import Table, id_source
from sim.embedding.rank_batch import RankBatch, Sharding, rank_batches, tables_of_ranks
from sim.embedding.run import CacheSpec, run_cache
from sim.embedding.step.builder import build_step
from sim.embedding.step.spec import ClickStep
from sim.plan.facts.description import collective_bytes, payload_bytes
from sim.plan.words.op import Collective, CollectiveKind, Copy
from sim.plan.words.program import Plan

TABLES = [
    Table(name=f"t{place}", num_rows=rows, num_lookups=count, zipf=1.05)
    for place, (rows, count) in enumerate([(400, 1), (90, 2), (7, 1), (1_000, 1), (60, 1)])
]
CACHE = CacheSpec(num_slots=600, policy="lru", warm_up=0.7)
BATCH_SIZE, DIM, NUMBER = 16, 8, 60


def built(sharding: Sharding, num_ranks: int) -> tuple[Plan, list[RankBatch]]:
    """Return the plan of a step on so many ranks, and what moves."""
    tables = (len(TABLES),) * num_ranks
    if sharding == "table":
        tables = tuple(map(len, tables_of_ranks(TABLES, num_ranks)))
    step = ClickStep(
        name="step", model=ClickModel(name="dlrm", embedding_dim=DIM, bottom=(4,), hidden=(4,)), tables=tables,
        batch_size=BATCH_SIZE, num_ranks=num_ranks, sharding=sharding,
    )  # fmt: skip
    (batches,) = rank_batches(TABLES, CACHE, (sharding, num_ranks), range(NUMBER, NUMBER + 1), BATCH_SIZE, 0)
    return build_step(step, batches), batches


def exchanged(plan: Plan, rank: int) -> list[int]:
    """Return the payloads of a rank's collectives, but for the sum of dense gradients."""
    program = plan.program_of(rank)
    ops = (op for *_, op in program.instances() if isinstance(op, Collective))
    return [collective_bytes(program, op) for op in ops if op.kind is not CollectiveKind.ALL_REDUCE]


def test_sums_are_exchanged_both_ways() -> None:
    """By table a rank sends its tables' sums, by column its columns of all; by row every rank has a term of all."""
    whole = BATCH_SIZE * len(TABLES) * DIM * 4
    plan, _ = built("table", 4)
    counts = [len(places) for places in tables_of_ranks(TABLES, 4)]
    own, back = BATCH_SIZE * DIM * 4, BATCH_SIZE // 4 * len(TABLES) * DIM * 4
    assert [exchanged(plan, rank) for rank in range(4)] == [[count * own, back] for count in counts]
    assert exchanged(built("column", 4)[0], 0) == [whole // 4] * 2
    assert exchanged(built("row", 4)[0], 3) == [whole] * 2


def test_moved_rows_are_copied_once_each_way() -> None:
    """Rows that are fetched and written back cross the link once, their numbers and the ids beside them."""
    plan, (batch,) = built("row", 1)
    program = plan.programs[0]
    copies = [op for *_, op in program.instances() if isinstance(op, Copy)]
    down = sum(payload_bytes(program, op.reads) for op in copies if op.stream == "h2d")
    up = sum(payload_bytes(program, op.reads) for op in copies if op.stream == "d2h")
    assert batch.num_in > 0
    assert batch.num_out > 0
    assert down == 8 * batch.num_lookups + 4 * DIM * batch.num_in
    assert up == 8 * (batch.num_in + batch.num_out) + 4 * DIM * batch.num_out


def test_one_rank_finds_what_the_run_counts() -> None:
    """A rank that has all tables finds and moves in its batch what the run of the cache counts there."""
    _, (batch,) = built("row", 1)
    run = run_cache(TABLES, CACHE, NUMBER + 1, BATCH_SIZE, 0)
    found = batch.num_hits, batch.num_unique, batch.num_in, batch.num_out
    assert found == tuple(
        int(counts[NUMBER].sum()) for counts in (run.hits, run.unique_rows, run.rows_in, run.rows_out)
    )


@pytest.mark.parametrize(("sharding", "num_ranks"), [("table", 3), ("row", 4), ("column", 2)])
def test_ranks_share_all_lookups_and_rows(sharding: Sharding, num_ranks: int) -> None:
    """Every lookup is one rank's, in the bag of its sample and table; by column all are every rank's."""
    _, batches = built(sharding, num_ranks)
    *_, ids = id_source(TABLES, 0).batches(NUMBER + 1, BATCH_SIZE)
    looked_up = np.concatenate([batch.owned[batch.ids] for batch in batches])
    assert np.array_equal(np.sort(looked_up), np.sort(ids))
    assert np.array_equal(np.sort(np.concatenate([batch.owned for batch in batches])), np.arange(1_557))
    if sharding != "table":
        first = np.cumsum([0, *(table.num_rows for table in TABLES)])
        for batch in batches:
            table = np.searchsorted(first, batch.owned[batch.ids], side="right") - 1
            assert np.array_equal(batch.bags % len(TABLES), table)


def test_tables_are_dealt_by_lookups_then_rows() -> None:
    """Equal numbers of lookups, and the largest tables apart."""
    dealt = tables_of_ranks(TABLES, 3)
    assert sorted(place for places in dealt for place in places) == list(range(5))
    assert sorted(sum(TABLES[place].num_lookups for place in places) for places in dealt) == [2, 2, 2]
