"""Prompts on replicas of their own: times worked out by hand, and laws: no block is lost, no request is lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.serving.batching import Batching
from sim.serving.requests import Requests
from sim.serving.service import Failure, ServiceSpec, serve
from tests.examples import examples
from tests.sim.serving.test_service import TextbookCost, assert_nothing_is_lost, requests_of, services


class TextbookLinks:
    """5 seconds, and 0.1 per token."""

    def transfer_s(self, source: int, target: int, tokens: int) -> float:
        """Return the time of a transfer."""
        assert source < target
        return 5.0 + 0.1 * tokens


def split(**keys: object) -> ServiceSpec:
    """Return one replica for prompts and one that decodes, unless said otherwise."""
    spec = {"num_replicas": 2, "prompt_replicas": 1, "num_blocks": 1000, "links": TextbookLinks()}
    return ServiceSpec(**(spec | {"batching": Batching(max_rows=3)} | keys))


def test_a_request_takes_its_prompt_the_transfer_and_its_tokens() -> None:
    """Prompt 10 + 5, transfer 5 + 10, two steps of 21: the first token is not later for it, the others are."""
    requests = requests_of((0.0, 100, 3))
    records = serve(split(), requests, TextbookCost()).records
    assert records.ttft_s(requests).tolist() == [15.0]
    assert records.finish_s.tolist() == [15.0 + 15.0 + 2 * 21.0]
    assert records.moved_s.tolist() == [15.0]


def test_prompts_do_not_hold_up_decoding() -> None:
    """The first of two requests decodes through the second's prompt, which stalls it on a replica of both kinds."""
    requests = requests_of((0.0, 100, 40), (60.0, 2000, 2))
    together = serve(ServiceSpec(num_replicas=1, num_blocks=1000), requests, TextbookCost()).records
    apart = serve(split(), requests, TextbookCost()).records
    assert together.stalled_s[0] == pytest.approx(110.0)
    assert apart.stalled_s[0] == 0.0
    assert apart.tpot_s()[0] < together.tpot_s()[0]


def test_a_link_carries_one_prompt_at_a_time() -> None:
    """The second and third prompt are computed together and leave in turn; requests join at the end of a step."""
    requests = requests_of((0.0, 100, 3), (1.0, 100, 3), (2.0, 100, 3))
    records = serve(split(), requests, TextbookCost()).records
    assert records.first_s.tolist() == [15.0, 35.0, 35.0]
    assert records.moved_s == pytest.approx([30 - 15, 51 - 35, 73 - 35])


@settings(max_examples=examples(24), deadline=None)
@given(services(), st.integers(1, 2), st.lists(st.integers(1, 600), max_size=3))
def test_no_block_and_no_request_is_lost_between_replicas(
    case: tuple[ServiceSpec, Requests], prompts: int, failures: list[int]
) -> None:
    """Under preemption, cancellation, and failures on either side, all blocks come back; each request has one end."""
    drawn, requests = case
    lost = tuple(Failure(replica=at % 3, at_s=float(at), lasts_s=50.0) for at in failures)
    spec = replace(drawn, num_replicas=3, prompt_replicas=prompts, links=TextbookLinks(), failures=lost)
    found = serve(spec, requests, TextbookCost())
    assert_nothing_is_lost(found)
    records = found.records
    parts = records.preempted_s + records.stalled_s + records.moved_s
    whole = (records.finish_s - records.first_s)[records.finished]
    assert (parts[records.finished] <= whole + 1e-9).all()
