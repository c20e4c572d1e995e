"""A service: the reference cases to the last digit, and laws: no block is lost, no request is lost."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.serving import replica as replica_module
from sim.serving.batching import Batching
from sim.serving.blocks import BlockPool
from sim.serving.decoding.method import Decoding
from sim.serving.prices.microbatches import Chunk
from sim.serving.prices.steps import ContextTimes, context_times
from sim.serving.requests import Requests
from sim.serving.service import Failure, Served, ServiceSpec, serve
from tests.examples import examples


class TextbookCost:
    """Prefill 10 + 0.05 per token, decode 20 + 1 per position; milliseconds as seconds."""

    def steps(self, rows: int, positions: int) -> ContextTimes:
        """Return the time of a step, which no context lengthens."""
        return context_times((0.0,), (20.0 + rows * positions,))

    def pass_s(self, rows: int, positions: int, context: float, chunks: Sequence[Chunk] = ()) -> float:
        """Return the time of a pass."""
        del context
        prefill = 10 + 0.05 * sum(chunk.tokens for chunk in chunks) if chunks else 0.0
        return prefill + (20.0 + rows * positions if rows else 0.0)


def requests_of(*rows: tuple[float, int, int]) -> Requests:
    """Return requests of (arrival, prompt, output)."""
    arrival, prompt, output = zip(*rows, strict=True)
    return Requests(
        arrival_s=np.array(arrival, dtype=float), prompt_tokens=np.array(prompt), output_tokens=np.array(output)
    )


def served(requests: Requests, **keys: object) -> Served:
    """Return what comes of requests at one replica with ample memory, unless said otherwise."""
    spec = {"num_replicas": 1, "num_blocks": 10_000, "batching": Batching(max_rows=3)} | keys
    return serve(ServiceSpec(**spec), requests, TextbookCost())


THREE = ((0.0, 100, 3), (5.0, 200, 2), (40.0, 40, 4))


@pytest.mark.parametrize(
    ("decoding", "ttft", "tpot", "finish"),
    [
        (Decoding(), (15, 30, 29), (38, 22, 64 / 3), (91, 57, 133)),
        (Decoding(positions=2, lengths=(0.0, 1.0)), (15, 30, 31), (22, 24, 44 / 3), (59, 59, 115)),
    ],
)
def test_reference_case_of_three_requests(
    decoding: Decoding, ttft: tuple[float, ...], tpot: tuple[float, ...], finish: tuple[float, ...]
) -> None:
    """Three requests, prompts first: first tokens, times per token and ends are those worked out by hand."""
    requests = requests_of(*THREE)
    records = served(requests, decoding=decoding).records
    assert records.ttft_s(requests) == pytest.approx(ttft)
    assert records.tpot_s() == pytest.approx(tpot)
    assert records.finish_s == pytest.approx(finish)
    assert int(records.emitted.sum()) == 9


def test_latest_request_is_preempted_when_blocks_run_out() -> None:
    """Five blocks of 4 tokens: the second request is preempted once, waits for the first, and loses no token."""
    requests = requests_of((0.0, 7, 5), (1.0, 8, 4))
    found = served(requests, num_blocks=5, block_tokens=4)
    assert found.records.preemptions.tolist() == [0, 1]
    assert found.records.emitted.tolist() == [5, 4]
    assert found.records.finish_s[0] < found.records.finish_s[1]
    assert found.records.preempted_s[1] > 0.0


def test_only_decoding_steps_count_as_steps() -> None:
    """A step of plain decoding yields one token, also where a preempted prompt yields one more when it is computed."""
    found = served(requests_of((0.0, 7, 5), (1.0, 8, 4)), num_blocks=5, block_tokens=4).records
    assert found.decoded.tolist() == found.steps.tolist()
    assert (found.emitted - found.decoded).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("at_s", "emitted_before", "finish_s"),
    [(56.0, 2, 67 + 15.1), (57.0, 3, 57.0), (35.0, 1, 46 + 15.05 + 21), (15.0, 1, 26 + 15.05 + 21)],
)
def test_iteration_that_ends_when_its_replica_fails_has_ended(
    at_s: float, emitted_before: int, finish_s: float
) -> None:
    """A prompt until 15, tokens at 36 and 57; up again 11 s after the failure, with prompt and answer to compute."""
    found = served(requests_of((0.0, 100, 3)), failures=(Failure(replica=0, at_s=at_s, lasts_s=11.0),))
    assert found.records.finish_s.tolist() == pytest.approx([finish_s])
    assert found.records.emitted.tolist() == [3]
    assert found.records.preempted_s.tolist() == [0.0 if emitted_before == 3 else 11.0]
    assert found.replicas[0].pool.peak == 7
    assert found.replicas[0].busy_s == pytest.approx(finish_s - (0.0 if emitted_before == 3 else 11.0))


def test_chunks_fill_what_decoding_leaves_of_the_budget() -> None:
    """A long prompt is computed in chunks while another sequence goes on, and nobody stalls."""
    requests = requests_of((0.0, 8, 20), (20.0, 64, 2))
    whole = served(requests).records
    mixed = served(requests, batching=Batching(name="chunked", max_rows=3, max_tokens=17)).records
    assert whole.stalled_s[0] > 0.0
    assert mixed.stalled_s[0] == 0.0
    assert mixed.first_s[1] - mixed.started_s[1] == pytest.approx(4 * (10 + 0.05 * 16 + 21))


def test_users_who_wait_send_one_request_after_the_other() -> None:
    """Two users never have more than two requests, and the next arrives when one has ended."""
    requests = requests_of(*((0.0, 100, 4) for _ in range(6)))
    found = served(requests, concurrency=2)
    arrival_s, finish_s = found.requests.arrival_s, found.records.finish_s
    assert (arrival_s[2:] == np.sort(finish_s)[:-2]).all()
    assert requests.arrival_s.tolist() == [0.0] * 6


def test_time_before_the_queue_delays_the_first_token_alone() -> None:
    """A lone request gets its first token later by that time, and the others as fast as before."""
    requests = requests_of((0.0, 100, 4))
    plain, late = (served(requests, request_s=each).records for each in (0.0, 7.0))
    assert late.ttft_s(requests) == pytest.approx(plain.ttft_s(requests) + 7.0)
    assert late.tpot_s() == pytest.approx(plain.tpot_s())


def test_equal_prefixes_are_computed_once() -> None:
    """The second of two equal prompts finds the first one's pieces, and computes the rest alone."""
    requests = Requests(
        arrival_s=np.array([0.0, 1000.0]),
        prompt_tokens=np.array([1100, 1100]),
        output_tokens=np.array([2, 2]),
        prefixes=((1, 2), (1, 2)),
    )
    found = served(requests)
    assert found.records.cached.tolist() == [0, 1024]
    assert found.records.ttft_s(requests)[1] == pytest.approx(10 + 0.05 * 76)
    assert lost_blocks(found.replicas[0].pool) == 0


def lost_blocks(pool: BlockPool) -> int:
    """Return total less all blocks accounted for: 0 unless a block was lost or counted twice."""
    shared = len(pool.users) + len(pool.unused)
    return pool.total - pool.free - pool.private - shared * pool.blocks_per_piece


@st.composite
def services(draw: st.DrawFn) -> tuple[ServiceSpec, Requests]:
    """Draw a service under pressure: few blocks, shared prefixes, failures and users without patience."""
    count = draw(st.integers(1, 12))
    numbers = st.lists(st.integers(0, 60), min_size=count, max_size=count)
    arrival = np.sort(np.array(draw(numbers), dtype=float) * 7.0)
    prompt, output = (np.array(draw(numbers)) + 1 for _ in range(2))
    names = st.lists(st.integers(0, 2), max_size=4)
    prefixes = tuple(tuple(draw(names)) for _ in range(count)) if draw(st.booleans()) else ()
    requests = Requests(
        arrival_s=arrival, prompt_tokens=prompt, output_tokens=output, prefix_tokens=8,
        prefixes=tuple(tuple(hash(names[: n + 1]) for n in range(len(names))) for names in prefixes),
    )  # fmt: skip
    spec = ServiceSpec(
        num_replicas=draw(st.integers(1, 3)),
        num_blocks=draw(st.integers(16, 60)),
        num_groups=draw(st.sampled_from([1, 1, 2])),
        block_tokens=4,
        batching=Batching(
            name=draw(st.sampled_from(["prefill_first", "chunked", "static"])),
            max_rows=draw(st.integers(1, 5)),
            max_tokens=draw(st.integers(6, 80)),
        ),
        router=draw(st.sampled_from(["round_robin", "random", "least_outstanding", "prefix"])),
        decoding=draw(st.sampled_from([Decoding(), Decoding(positions=4, lengths=(0.3, 0.3, 0.2, 0.2))])),
        patience_s=draw(st.sampled_from([None, 60.0])),
        request_s=draw(st.sampled_from([0.0, 20.0, 70.0])),
        failures=tuple(
            Failure(replica=0, at_s=float(at), lasts_s=100.0) for at in draw(st.lists(st.integers(1, 400), max_size=2))
        ),
    )
    return spec, requests


def assert_nothing_is_lost(found: Served) -> None:
    """Check that all blocks came back, and that each request has exactly one end."""
    records, requests = found.records, found.requests
    ends = np.stack([records.finished, records.refused, records.cancelled]).sum(axis=0)
    assert ends.tolist() == [1] * len(requests)
    assert (records.emitted[records.finished] == requests.output_tokens[records.finished]).all()
    for replica in found.replicas:
        assert replica.outstanding == 0
        assert lost_blocks(replica.pool) == 0
        assert replica.pool.private == 0
        assert not replica.pool.users


@settings(max_examples=examples(60), deadline=None)
@given(services())
def test_no_block_and_no_request_is_lost(case: tuple[ServiceSpec, Requests]) -> None:
    """Under preemption, cancellation and failures all blocks come back, and each request has exactly one end."""
    spec, requests = case
    found = serve(spec, requests, TextbookCost())
    assert_nothing_is_lost(found)
    records = found.records
    started = records.finished
    assert (records.started_s[started] >= requests.arrival_s[started]).all()
    assert (records.finish_s[started] >= records.first_s[started]).all()


class GrowingCost(TextbookCost):
    """Steps take longer by the tokens that they see, more so up to 30 of them."""

    def steps(self, rows: int, positions: int) -> ContextTimes:
        """Return the time of a step."""
        return context_times((0.0, 30.0, 200.0), tuple(20.0 + rows * positions + more for more in (0.0, 3.0, 10.0)))

    def pass_s(self, rows: int, positions: int, context: float, chunks: Sequence[Chunk] = ()) -> float:
        """Return the time of a pass."""
        flat = super().pass_s(rows, positions, context, chunks)
        return flat if chunks else self.steps(rows, positions).at(context + positions)


@settings(max_examples=examples(40), deadline=None)
@given(services(), st.sampled_from([TextbookCost(), GrowingCost()]))
def test_runs_of_iterations_equal_single_iterations(case: tuple[ServiceSpec, Requests], cost: TextbookCost) -> None:
    """One event for many iterations, with drafts or without, gives all that an event for each gives."""
    spec, requests = case
    many = serve(spec, requests, cost)
    single = replace(spec, decoding=Decoding(lengths=(1.0, 0.0))) if spec.decoding.is_plain else spec
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_module, "_LONGEST_RUN", 1)
        one = serve(single, requests, cost)
    for name in ("started_s", "first_s", "finish_s", "preempted_s", "stalled_s", "emitted", "steps", "preemptions"):
        values = getattr(one.records, name).tolist()
        assert getattr(many.records, name).tolist() == pytest.approx(values, rel=1e-12, abs=1e-9, nan_ok=True), name
    for name in ("busy_s", "stall_s"):
        times_s = [getattr(each, name) for each in one.replicas]
        assert [getattr(each, name) for each in many.replicas] == pytest.approx(times_s), name
    assert [each.pool.peak for each in many.replicas] == [each.pool.peak for each in one.replicas]
