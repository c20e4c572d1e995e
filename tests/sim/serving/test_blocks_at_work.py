"""The blocks of replicas at every moment of a run: none leaks, and none is shared by mistake."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings

from sim.serving.batching import Batching
from sim.serving.decoding.method import Decoding
from sim.serving.replica import Replica
from sim.serving.requests import Requests
from sim.serving.service import Failure, Served, ServiceSpec, serve
from tests.examples import examples
from tests.sim.serving.test_service import TextbookCost, assert_nothing_is_lost, lost_blocks, services


def check_blocks(replica: Replica) -> None:
    """Check that all blocks are accounted for, that each piece has its users, and that each row's tokens have room."""
    pool, rows, queue = replica.pool, replica.rows, replica.waiting.queue
    assert min(pool.free, pool.private) >= 0
    assert lost_blocks(pool) == 0
    assert pool.private == rows.num_blocks + sum(pending.blocks for pending in queue)
    used = [name for pending in queue for name in pending.pieces[: pending.used]]
    used += [name for pieces in replica.pieces.values() for name in pieces]
    assert Counter(pool.users) == Counter(used)
    assert len(replica.pieces) == len(rows)
    assert rows.lacking(0) == 0


def watched(spec: ServiceSpec, requests: Requests) -> tuple[Served, int]:
    """Return what comes of requests, and how often blocks were checked: before every run of iterations."""
    begin, checks = Replica._schedule, [0]

    def checked(replica: Replica) -> None:
        check_blocks(replica)
        checks[0] += 1
        begin(replica)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replica, "_schedule", checked)
        return serve(spec, requests, TextbookCost()), checks[0]


@settings(max_examples=examples(40), deadline=None)
@given(services())
def test_blocks_are_accounted_for_at_every_moment(case: tuple[ServiceSpec, Requests]) -> None:
    """Under preemption, cancellation and failures, with shared prefixes, drafts and all ways of batching."""
    found, checks = watched(*case)
    assert_nothing_is_lost(found)
    assert checks or not found.records.finished.any()


@pytest.mark.parametrize("batching", ["prefill_first", "chunked"])
@pytest.mark.parametrize("decoding", [Decoding(), Decoding(positions=4, lengths=(0.3, 0.3, 0.2, 0.2))])
def test_preemption_cancellation_and_failure_all_happen(batching: str, decoding: Decoding) -> None:
    """One run in which requests are preempted, users give up, and a replica fails with requests in its batch."""
    count = 60
    requests = Requests(
        arrival_s=np.arange(count) * 12.0,
        prompt_tokens=np.tile([20, 35, 50], count // 3),
        output_tokens=np.tile([30, 12], count // 2),
        prefixes=tuple((request % 2, 10 + request % 2) for request in range(count)),
        prefix_tokens=8,
    )
    spec = ServiceSpec(
        num_replicas=2,
        num_blocks=52,
        block_tokens=4,
        batching=Batching(name=batching, max_rows=8, max_tokens=64),
        decoding=decoding,
        patience_s=700.0,
        failures=(Failure(replica=0, at_s=200.0, lasts_s=150.0), Failure(replica=1, at_s=900.0, lasts_s=90.0)),
    )
    found, checks = watched(spec, requests)
    assert_nothing_is_lost(found)
    records = found.records
    assert records.preemptions.sum() > 3
    assert 3 < records.cancelled.sum() < count
    assert (records.preempted_s[records.preemptions == 0] > 0.0).any(), "a failure takes memory without a preemption"
    assert records.cached.sum() > 0
    assert checks > count / 2
