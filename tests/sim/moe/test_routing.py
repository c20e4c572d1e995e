"""Routing as data: what is drawn or stated, its laws, and the choices that follow from it."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.moe.choices import GroupLimit, forced_choices
from sim.moe.errors import RoutingError
from sim.moe.routing import Routing, RoutingShape, of_ranks
from sim.moe.skew import Drift, Skew
from sim.moe.sources import Even, Shares
from sim.moe.statistics import max_over_mean
from sim.moe.within_groups import within_groups
from tests.examples import examples

PLAIN = {"fluctuation": 0.0, "concentration": None}


def shape(**keys: int) -> RoutingShape:
    """Return a small shape."""
    sizes = {"num_layers": 2, "num_sources": 4, "num_experts": 8, "num_tokens": 96, "top_k": 2}
    return RoutingShape(**sizes | keys)


@pytest.mark.parametrize(
    ("num_experts", "zipf", "top1", "peak", "kept"),
    [
        (64, 1.2599203849, 0.318418, 20.3788, 0.4062), (32, 1.2599203849, 0.3464, 11.086, 0.4674),
        (16, 1.2599203849, 0.3866, 6.186, 0.5377), (64, 0.5, 0.0685, 4.383, 0.7920), (64, 1.0, 0.2108, 13.491, 0.5328),
    ],
)  # fmt: skip
def test_zipf_shares_have_their_closed_forms(
    num_experts: int, zipf: float, top1: float, peak: float, kept: float
) -> None:
    """Largest share, largest over mean and kept part at a capacity factor of 1 are those of r^-s, summed by hand."""
    shares = next(Skew(zipf=zipf, **PLAIN).shares(1, num_experts))
    assert shares.max() == pytest.approx(top1, abs=5e-5)
    assert shares.max() * num_experts == pytest.approx(peak, abs=5e-3)
    large = shape(num_layers=1, num_sources=1, num_experts=num_experts, num_tokens=10**7, top_k=1)
    drawn = Skew(zipf=zipf, **PLAIN).routing(large)
    assert drawn.kept_fraction(10**7 // num_experts) == pytest.approx(kept, abs=2e-3)
    assert max_over_mean(drawn.by_expert)[0] == pytest.approx(peak, rel=0.01)


@given(st.integers(0, 2**32), st.floats(0.0, 4.0), st.integers(1, 3), st.integers(0, 5))
@settings(max_examples=examples(16), deadline=None)
def test_every_token_makes_its_choices_once(seed: int, zipf: float, top_k: int, step: int) -> None:
    """Whatever the skew, a source makes tokens times top_k choices, and no expert gets more than there are tokens."""
    sizes = shape(top_k=top_k)
    counts = Skew(zipf=zipf, step=step, seed=seed).routing(sizes).counts
    assert counts.shape == (2, 4, 8)
    assert np.all(counts.sum(2) == 96 * top_k)
    assert np.all((counts >= 0) & (counts <= 96))
    assert np.array_equal(counts, Skew(zipf=zipf, step=step, seed=seed).routing(sizes).counts)


@given(
    st.integers(0, 2**32), st.floats(0.0, 4.0), st.sampled_from([(4, 2, 1), (4, 1, 2), (2, 1, 3), (4, 2, 2), (2, 2, 1)])
)
@settings(max_examples=examples(16), deadline=None)
def test_forced_choices_obey_a_limit_of_groups(seed: int, zipf: float, limit: tuple[int, int, int]) -> None:
    """Every token chooses its experts once, as many in each of its groups, and the groups' visits are as foretold."""
    rule = GroupLimit(*limit)
    sizes = shape(top_k=rule.top_groups * rule.of_each)
    drawn = Skew(zipf=zipf, seed=seed).routing(sizes)
    kept = within_groups(drawn, rule, sizes.num_tokens)
    assert np.array_equal(within_groups(kept, rule, sizes.num_tokens).counts, kept.check(sizes).counts)
    counts = kept.counts[0, 0]
    chosen = forced_choices(counts.tolist(), sizes.num_tokens, rule)
    assert np.array_equal(np.bincount(chosen.ravel(), minlength=8), counts)
    assert all(len({*row}) == sizes.top_k for row in chosen.tolist())
    per_group = np.stack([(chosen * rule.num_groups // 8 == group).sum(1) for group in range(rule.num_groups)], 1)
    assert np.all((per_group == 0) | (per_group == rule.of_each))
    for num_parts in (1, 2, rule.num_groups):
        parts = [(chosen * num_parts // 8 == part).any(1).sum() for part in range(num_parts)]
        assert rule.tokens_of_parts(counts, num_parts).tolist() == parts


def test_an_even_routing_obeys_a_limit_as_it_is() -> None:
    """A routing whose groups get whole visits is not changed; one group's surplus goes to the others."""
    sizes, rule = shape(top_k=4), GroupLimit(4, 2, 2)
    even = Even().routing(sizes)
    assert np.array_equal(within_groups(even, rule, sizes.num_tokens).counts, even.counts)
    counts = np.array([[[96, 96, 96, 96, 0, 0, 0, 0]]])
    assert within_groups(Routing(counts), rule, 96).counts.tolist() == counts.tolist()
    lone = np.array([[[96, 0, 96, 0, 96, 0, 96, 0]]])
    assert within_groups(Routing(lone), rule, 96).counts.tolist() == [[[48] * 8]]


def test_shares_forget_as_fast_as_they_are_told() -> None:
    """The logarithm of a share correlates from step to step by 1 - 1/memory, around a mean that stays."""
    skew = Skew(zipf=0.0, fluctuation=0.5, memory_steps=10.0, swap_probability=0.0, seed=5)
    walk = skew.shares(1, 256)
    logs = np.array([np.log(next(walk)[0]) for _ in range(400)])
    before, after = logs[:-1] - logs.mean(0), logs[1:] - logs.mean(0)
    assert (before * after).sum() / (before**2).sum() == pytest.approx(0.9, abs=0.02)


def test_layers_correlate_as_much_as_they_are_told() -> None:
    """With a correlation of 1 all layers have the same popular experts; with 0 they share none but by chance."""
    alike = next(Skew(layer_correlation=1.0).shares(6, 64))
    assert np.allclose(alike, alike[0])
    unlike = next(Skew(layer_correlation=0.0).shares(6, 64))
    assert np.corrcoef(np.log(unlike))[0, 1:].max() < 0.5


def test_popular_experts_change_places_as_often_as_they_are_told() -> None:
    """From the second step on a pair of neighbours swaps in every step of probability 1, in none of probability 0."""
    for probability, count in ((1.0, 50), (0.0, 0)):
        walk = Skew(swap_probability=probability, fluctuation=0.0, memory_steps=1.0).shares(1, 16)
        orders = [tuple(np.argsort(-next(walk)[0])) for _ in range(52)]
        assert sum(a != b for a, b in pairwise(orders[1:])) == count


def test_stated_shares_are_dealt_out_whole() -> None:
    """Six tenths of 96 choices are 57.6: the largest remainders get the rest, and nothing is lost."""
    counts = Shares((0.6, 0.3, 0.1, 0.0)).routing(shape(num_experts=4, top_k=1)).counts
    assert counts[1, 3].tolist() == [57, 29, 10, 0]
    assert np.all(counts == counts[0, 0])
    assert Even().routing(shape(num_experts=5, top_k=1)).counts[0, 0].tolist() == [20, 19, 19, 19, 19]
    for bad in (Shares((0.5, 0.5)), Shares((0.5, 0.1, 0.1, 0.1)), Shares((0.7, 0.3, 0.0, 0.0))):
        with pytest.raises(RoutingError):
            bad.routing(shape(num_experts=4))


@given(st.data())
@settings(max_examples=examples(24), deadline=None)
def test_forced_choices_are_as_many_as_asked(data: st.DataObject) -> None:
    """Each expert is chosen as often as its count says, and no token chooses one twice."""
    num_tokens, top_k = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 3))
    counts, left = [], num_tokens * top_k
    while left:
        counts.append(data.draw(st.integers(0, min(left, num_tokens))))
        left -= counts[-1]
        if len(counts) > 30:
            counts += [min(left, num_tokens)] if left else []
            left -= counts[-1] if left else 0
    chosen = forced_choices(counts, num_tokens)
    assert chosen.shape == (num_tokens, top_k)
    assert np.bincount(chosen.ravel(), minlength=len(counts)).tolist() == counts
    assert all(len(set(line)) == top_k for line in chosen.tolist())


def test_loads_of_ranks_add_up_those_of_their_experts() -> None:
    """Four experts on two ranks: the first two are the first rank's."""
    assert of_ranks(np.array([[1, 2, 3, 4]]), 2).tolist() == [[3, 7]]
    assert max_over_mean(np.array([[1, 3], [2, 2]])).tolist() == [1.5, 1.0]


def test_a_routing_of_another_shape_is_refused() -> None:
    """Too few choices, and more choices of an expert than tokens, are errors that name layer and source."""
    with pytest.raises(RoutingError, match="source rank 0 makes 4 choices in expert layer 0"):
        Routing(np.full((1, 1, 2), 2)).check(shape(num_tokens=3, top_k=1))
    with pytest.raises(RoutingError, match="one expert gets 4 choices"):
        Routing(np.array([[[4, 0]]])).check(shape(num_tokens=2, top_k=2))


def test_steps_in_a_row_are_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of n steps advances n times, whatever is asked in between again; each step is what it is on its own."""
    keys: dict[str, Any] = {"seed": 4, "swap_probability": 0.5, "layer_correlation": 0.3}
    alone = [Skew(**keys, step=step).routing(shape()).counts for step in range(9)]
    first, plain = Skew(**keys), Drift.advance
    advances: list[int] = []

    def counted(drift: Drift) -> None:
        advances.append(drift.step)
        plain(drift)

    monkeypatch.setattr(Drift, "advance", counted)
    for step in (*range(6), 5, 8):
        assert np.array_equal(first.later(step).routing(shape()).counts, alone[step])
    assert advances == [*range(8)]
    assert np.array_equal(first.later(2).routing(shape()).counts, alone[2])
    assert all(np.array_equal(a.counts, b) for a, b in zip(first.steps(shape()), alone, strict=False))
