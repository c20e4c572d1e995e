"""Balancing of experts: reference cases with exact decisions and times, and the laws of assignments."""

import re
import runpy
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.moe.balancing.assignment import assigned, balance_ratio, in_whole_tokens
from sim.moe.balancing.estimate import Neighbours, Rates, estimate
from sim.moe.balancing.policy_maker import Change, Expand, Migrate, PolicyMaker, Shrink, applied
from sim.moe.balancing.shadowing import ShadowPolicy
from sim.moe.errors import RoutingError
from tests.examples import examples

SKEWED = np.tile([600, 200, 150, 50], (4, 1))
SMALL = Rates(tokens_per_s=1e6, token_bytes=2048, link_bytes_per_s=1e10, reduce_bytes_per_s=1e10, gradient_bytes=1e6)
LARGE = Rates(tokens_per_s=4e5, token_bytes=4096, link_bytes_per_s=2e10, reduce_bytes_per_s=2e10, gradient_bytes=67e6)
PAIRS = np.array([[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1], [0, 1, 1, 0]])


def zipf(num_experts: int, total: int) -> np.ndarray:
    """Return real tokens by expert, by Zipf's law with exponent 1.2617."""
    weights = np.arange(1, num_experts + 1) ** -1.2617
    tokens: np.ndarray = total * weights / weights.sum()
    return tokens


def traced(counts: np.ndarray, placement: np.ndarray, changes: Sequence[Change], rates: Rates) -> list[float]:
    """Return the estimated time at first and after every change."""
    times = [estimate(counts, placement, rates).time_s]
    for change in changes:
        placement = applied(placement, (change,))
        times.append(estimate(counts, placement, rates).time_s)
    return times


def test_free_slots_and_a_donor_balance_four_ranks() -> None:
    """One vExpert of each expert, and as many free slots: three expansions and one that takes a slot back."""
    first, maker = np.eye(4, dtype=np.int64), PolicyMaker(rates=SMALL, num_slots=2, threshold=1.1)
    before = estimate(SKEWED, first, SMALL)
    assert before.exchange_s == pytest.approx([1.47456e-3, 0.65536e-3, 0.69632e-3, 0.77824e-3])
    assert before.compute_s == pytest.approx([2.4e-3, 0.8e-3, 0.6e-3, 0.2e-3])
    changes = maker.changes(SKEWED, first)
    assert changes == (Expand(0, 3), Expand(0, 2), Expand(0, 0), Shrink(0, 0), Expand(2, 0))
    times = traced(SKEWED, first, changes, SMALL)
    assert [*times[:4], times[5]] == pytest.approx([3.87456e-3, 2.1144e-3, 2.0658133e-3, 1.8248533e-3, 1.6200533e-3])
    after = estimate(SKEWED, applied(first, changes), SMALL)
    assert after.load == pytest.approx([1100, 800, 1100, 1000])
    assert (before.balance_ratio, after.balance_ratio) == pytest.approx((2.4, 1.1))


def test_cold_experts_give_their_slots_to_hot_ones() -> None:
    """No slot is free, so that every expansion takes one from the least loaded expert."""
    maker = PolicyMaker(rates=SMALL, num_slots=2, threshold=1.1)
    changes = maker.changes(SKEWED, PAIRS)
    assert changes == (
        Shrink(3, 2), Expand(0, 2), Shrink(3, 1), Expand(0, 1), Shrink(2, 3), Expand(0, 3), Shrink(0, 2), Expand(1, 2),
    )  # fmt: skip
    after = estimate(SKEWED, applied(PAIRS, changes), SMALL)
    assert estimate(SKEWED, PAIRS, SMALL).time_s == pytest.approx(4.08821333e-3)
    assert after.time_s == pytest.approx(1.55178667e-3)
    assert after.load == pytest.approx([1000, 1066.67, 866.67, 1066.67], abs=0.01)


def test_exchanges_lower_the_time_and_may_raise_the_ratio() -> None:
    """Sixteen experts on eight ranks: expansions alone, then three exchanges."""
    counts = np.tile(zipf(16, 8192), (8, 1))
    first = (np.arange(16) % 8 == np.arange(8)[:, None]).astype(np.int64)
    maker = PolicyMaker(rates=LARGE, num_slots=3, threshold=1.1)
    changes = maker.changes(counts, first)
    expansions = tuple(change for change in changes if not isinstance(change, Migrate))
    between = applied(first, expansions)
    assert between.sum(0).tolist() == [5, 2, 1, 3, *[1] * 12]
    assert changes[len(expansions) :] == (Migrate(3, 0, 9, 1), Migrate(10, 2, 4, 4), Migrate(0, 0, 1, 1))
    found = [estimate(counts, placement, LARGE) for placement in (first, between, applied(first, changes))]
    assert [one.time_s for one in found] == pytest.approx([0.0867388, 0.0336582, 0.0324157], rel=2e-6)
    assert [one.balance_ratio for one in found] == pytest.approx([3.2915, 1.1480, 1.1812], abs=1e-4)


def test_a_balanced_placement_stays() -> None:
    """At or below the threshold nothing changes."""
    even = np.full((4, 4), 100)
    assert PolicyMaker(rates=SMALL, num_slots=2).changes(even, np.eye(4, dtype=np.int64)) == ()


def test_tokens_stay_on_their_rank_and_the_rest_is_split() -> None:
    """Sources without the expert split its tokens evenly over the two ranks with it."""
    tokens = assigned(SKEWED, PAIRS)[:, 1]
    assert tokens.tolist() == [[0, 100, 0, 100], [0, 200, 0, 0], [0, 100, 0, 100], [0, 0, 0, 200]]


@settings(max_examples=examples(40))
@given(data=st.data(), num_ranks=st.integers(1, 6), num_experts=st.integers(1, 6))
def test_no_token_is_lost_or_duplicated(data: st.DataObject, num_ranks: int, num_experts: int) -> None:
    """However experts are replicated, all tokens go to a rank with their expert, and loads are those of vExperts."""
    numbers = st.lists(st.integers(0, 50), min_size=num_ranks * num_experts, max_size=num_ranks * num_experts)
    counts = np.array(data.draw(numbers)).reshape(num_ranks, num_experts)
    placement = np.array(data.draw(numbers)).reshape(num_ranks, num_experts) % 3
    placement[data.draw(st.integers(0, num_ranks - 1))] += 1
    tokens = assigned(counts, placement)
    whole = in_whole_tokens(tokens, counts)
    np.testing.assert_array_equal(whole.sum(2), counts)
    np.testing.assert_allclose(tokens.sum(0), (counts.sum(0) * placement / placement.sum(0)).T, atol=1e-9)
    assert (whole >= 0).all()
    assert not whole[:, (placement == 0).T].any()
    assert (np.abs(whole - tokens) < 1.0).all()


@st.composite
def layers(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, Rates]:
    """Draw choices, vExperts and rates; ranks are on nodes of two, or all links are alike."""
    num_ranks, num_experts = draw(st.integers(2, 5)), draw(st.integers(2, 5))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    placement = rng.integers(0, 3, (num_ranks, num_experts))
    placement[rng.integers(0, num_ranks, num_experts), np.arange(num_experts)] += 1
    nodes = {"ranks_per_node": 2, "node_bytes_per_s": 3e9} if draw(st.booleans()) else {}
    return rng.integers(0, 300, (num_ranks, num_experts)), placement, replace(SMALL, **nodes)


@settings(max_examples=examples(12))
@given(layer=layers())
def test_closed_forms_are_the_sums_over_assigned_tokens(layer: tuple[np.ndarray, np.ndarray, Rates]) -> None:
    """Loads, exchanges and sums of gradients, also over shared adapters, are those of every token's way."""
    counts, placement, rates = layer
    found, tokens = estimate(counts, placement, rates), assigned(counts, placement).sum(1)  # [source, rank]
    node = np.arange(len(counts)) // (rates.ranks_per_node or len(counts))
    away, across = tokens * ~np.eye(len(counts), dtype=bool), tokens * (node[:, None] != node)
    own = np.maximum(away.sum(1), away.sum(0)) / rates.link_bytes_per_s
    shared = [max(across[node == n].sum(), across[:, node == n].sum()) / rates.node_bytes_per_s for n in node]
    np.testing.assert_allclose(found.load, tokens.sum(0), atol=1e-9)
    np.testing.assert_allclose(found.exchange_s, 4 * rates.token_bytes * np.maximum(own, shared), atol=1e-12)
    for rank in range(len(counts)):
        own_bytes = shared_bytes = 0.0
        for holders in (np.flatnonzero(column) for column in placement.T):
            summed = 2 * (len(holders) - 1) / len(holders) * rates.gradient_bytes
            own_bytes += summed * (rank in holders)
            shared_bytes += summed * (node[rank] in node[holders] and len(set(node[holders])) > 1)
        expected = max(own_bytes / rates.reduce_bytes_per_s, shared_bytes / rates.node_bytes_per_s)
        assert found.sync_s[rank] == pytest.approx(expected)


def exchanges(placement: np.ndarray) -> list[Migrate]:
    """Return all exchanges of two vExperts of different ranks and experts."""
    held = [np.flatnonzero(line).tolist() for line in placement]
    return [
        Migrate(expert, rank, other, other_rank)
        for rank in range(len(held)) for other_rank in range(rank + 1, len(held))
        for expert in held[rank] for other in held[other_rank] if other != expert
    ]  # fmt: skip


@settings(max_examples=examples(8))
@given(layer=layers())
def test_the_best_change_is_that_of_trying_all(layer: tuple[np.ndarray, np.ndarray, Rates]) -> None:
    """Exchanges that are left out would not lower the time, and the first of the best is taken."""
    counts, placement, rates = layer
    changes = PolicyMaker(rates=rates, num_slots=0, threshold=0.5, max_changes=0, max_migrations=1).changes(
        counts, placement
    )
    before = estimate(counts, placement, rates).time_s
    tried = exchanges(placement)
    here, after = Neighbours.of(counts, placement, rates), [applied(placement, (one,)) for one in tried]
    pairs = np.array([(one.expert, one.other_expert) for one in tried], dtype=np.int64).reshape(-1, 2)
    columns = np.array([there[:, pair].T for there, pair in zip(after, pairs, strict=True)]).reshape(-1, 2, len(counts))
    times = np.array([before, *here.times_s(pairs, columns.astype(np.int64))])
    assert times[1:3] == pytest.approx([estimate(counts, there, rates).time_s for there in after[:2]])
    best = int(np.flatnonzero(times <= times.min() + 1e-12)[0])
    assert changes == ((tried[best - 1],) if best else ())


SHADOWS = ShadowPolicy(hidden_size=1024, expansion=4, bandwidth_bytes_per_s=12.5e9, flop_per_s=60e12, element_bytes=4)
SLOW = ShadowPolicy(hidden_size=2048, expansion=2, bandwidth_bytes_per_s=6.25e9, flop_per_s=11.5e12, element_bytes=4)
HOT = np.round(zipf(16, 65536)).astype(np.int64)
SHADOW_TRACE_S = [0.0545520615, 0.0254355, 0.0190099, 0.0175413133, 0.0178977]
SLOW_TRACE_S = [0.3551958196, 0.158873, 0.110295, 0.0939915, 0.0895710488, 0.0907211]


@pytest.mark.parametrize(
    ("policy", "counts", "shadowed", "trace_s"),
    [
        (SHADOWS, HOT, (0, 1, 2), SHADOW_TRACE_S),
        (SLOW, HOT, (0, 1, 2, 3), SLOW_TRACE_S),
        (SHADOWS, np.full(16, 4096), (), [0.0088046830, 0.0114890]),
    ],
)
def test_the_hottest_experts_are_shadowed_until_it_does_not_pay(
    policy: ShadowPolicy, counts: np.ndarray, shadowed: tuple[int, ...], trace_s: list[float]
) -> None:
    """Latencies with none, one, two, ... shadowed experts, and the decision."""
    assert policy.shadowed(counts) == shadowed
    assert [policy.latency_s(counts, i) for i in range(len(trace_s))] == pytest.approx(trace_s, rel=5e-6)  # as printed


def test_placements_that_do_not_fit_are_refused() -> None:
    """An expert without a rank, and a placement of fewer experts, are named."""
    without = np.eye(4, dtype=np.int64)
    without[2, 2] = 0
    with pytest.raises(RoutingError, match="expert 2 lies on no rank; give every expert at least one vExpert"):
        assigned(SKEWED, without)
    with pytest.raises(RoutingError, match=r"the shape \(4, 3\), and the token counts \(4, 4\)"):
        estimate(SKEWED, PAIRS[:, :3], SMALL)


def test_the_examples_of_the_page_print_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The examples of docs/expert_placement.md, run as scripts."""
    page = Path(__file__).parents[3] / "docs" / "expert_placement.md"
    blocks = re.findall(r"```(?:python|text)\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 4
    for code, printed in zip(blocks[::2], blocks[1::2], strict=True):
        script = tmp_path / "example.py"
        script.write_text(code, encoding="utf-8")
        runpy.run_path(str(script))
        assert capsys.readouterr().out == printed


def plain_search(maker: PolicyMaker, counts: np.ndarray, placement: np.ndarray) -> tuple[Change, ...]:
    """Return the changes of a search that estimates every change which the rules allow."""
    found = list[Change]()
    for _ in range(maker.max_changes):
        if balance_ratio(counts, placement) <= maker.threshold:
            break
        steps = (best_of(tried, counts, placement, maker.rates) for tried in expansions(maker, counts, placement))
        step = next(filter(None, steps), ())
        found += step
        placement = applied(placement, step)
        if not step:
            break
    for _ in range(maker.max_migrations):
        step = best_of([(each,) for each in exchanges(placement)], counts, placement, maker.rates)
        found += step
        placement = applied(placement, step)
    return tuple(found)


def expansions(maker: PolicyMaker, counts: np.ndarray, placement: np.ndarray) -> Iterator[list[tuple[Change, ...]]]:
    """Yield what may be done for each expert, the hottest first: a vExpert on a free slot, or for one of the coldest.

    After those whose vExperts have more than the mean load one more is tried.
    """
    load, free = counts.sum(0) / placement.sum(0), np.flatnonzero(placement.sum(1) < maker.num_slots)
    by_load = np.argsort(-load, kind="stable").tolist()
    for expert in by_load[: 1 + int((load > load.mean()).sum())]:
        donors = [each for each in np.argsort(load, kind="stable").tolist() if placement[:, each].sum() > 1]
        donor = next((each for each in donors if each != expert), None)
        taken = [] if donor is None else np.flatnonzero(placement[:, donor]).tolist()
        yield [
            *((Expand(expert, rank),) for rank in free.tolist()),
            *((Shrink(int(donor or 0), rank), Expand(expert, rank)) for rank in taken),
        ]


def best_of(
    tried: Sequence[tuple[Change, ...]], counts: np.ndarray, placement: np.ndarray, rates: Rates
) -> tuple[Change, ...]:
    """Return the first of the changes after which the estimate is least, if it is less than now."""
    times = [estimate(counts, applied(placement, each), rates).time_s for each in tried]
    if not times or min(times) >= estimate(counts, placement, rates).time_s - 1e-12:
        return ()
    return tried[next(n for n, time_s in enumerate(times) if time_s <= min(times) + 1e-12)]


@pytest.mark.parametrize("seed", range(8))
def test_a_search_decides_as_one_that_estimates_all(seed: int) -> None:
    """Neighbours that are not estimated are not the best, with free slots and without, on nodes and on equal links."""
    rng = np.random.default_rng(seed)
    ranks, experts = (4, 8) if seed % 2 else (6, 6)
    counts = rng.multinomial(2000, rng.dirichlet(np.full(experts, 0.4)), size=ranks)
    rates = Rates(
        tokens_per_s=10 ** rng.uniform(3, 7), token_bytes=2048.0, link_bytes_per_s=10 ** rng.uniform(8, 11),
        reduce_bytes_per_s=10 ** rng.uniform(8, 11), gradient_bytes=10 ** rng.uniform(4, 8),
        ranks_per_node=int(rng.choice([0, 2])), node_bytes_per_s=10 ** rng.uniform(8, 11),
    )  # fmt: skip
    maker = PolicyMaker(rates=rates, num_slots=3, threshold=1.05)
    fixed = np.repeat(np.eye(ranks, dtype=np.int64), experts // ranks, axis=1)
    changes = maker.changes(counts, fixed)
    assert changes == plain_search(maker, counts, fixed)
    later = applied(fixed, changes)
    assert maker.changes(counts[:, ::-1], later) == plain_search(maker, counts[:, ::-1], later)
