"""Speculative decoding: closed forms, reference values, brute force, and drawn lengths."""

from collections.abc import Iterable, Sequence
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.serving.decoding.drafts import chain_decoding, chain_lengths
from sim.serving.decoding.method import Decoding
from sim.serving.decoding.tree import Path, Table, greedy_tree, length_probabilities, path_probability, ranked_rates
from tests.examples import examples

TABLE = tuple(ranked_rates(first) for first in (0.60, 0.45, 0.35, 0.28, 0.22))
_NODES = """
0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001
"""
CLOVER2 = tuple(tuple(int(rank) for rank in path) for path in _NODES.split())
"""The 25 nodes of EAGLE-1's and Clover-2's tree."""
SQUARE = tuple((first,) for first in range(2)) + tuple(product(range(2), repeat=2))


def chain(depth: int) -> tuple[Path, ...]:
    """Return the tree of the best guesses alone."""
    return tuple((0,) * length for length in range(1, depth + 1))


def expected_tokens(tree: Iterable[Path], table: Table) -> float:
    """Return the expected tokens of a step: the one that is sure, and the probability of each node."""
    return 1.0 + sum(path_probability(path, table) for path in tree)


def mean_length(lengths: Sequence[float]) -> float:
    """Return the expected tokens of a step that yields 1, 2, ... tokens with these probabilities."""
    return sum(length * p for length, p in enumerate(lengths, 1))


def test_ranked_rates_are_the_stated_ones() -> None:
    """The first head's ranks share 85 % of what its best guess misses."""
    assert TABLE[0][1:4] == pytest.approx((0.121517, 0.078986, 0.051341), abs=1e-6)
    assert TABLE[0][-1] == pytest.approx(0.003872, abs=1e-6)


@pytest.mark.parametrize(
    ("tree", "tokens", "lengths"),
    [
        (chain(1), 1.6, (0.4, 0.6)),
        (chain(3), 1.9645, (0.4, 0.33, 0.1755, 0.0945)),
        (SQUARE, 2.166755, (0.278483, 0.276279, 0.445238)),
        (CLOVER2, 2.798914, (0.148156, 0.269598, 0.290077, 0.231603, 0.048474, 0.012091)),
        (greedy_tree(TABLE, 1), 1.6, None),
        (greedy_tree(TABLE, 2), 1.87, None),
        (greedy_tree(TABLE, 4), 2.091768, None),
        (greedy_tree(TABLE, 8), 2.3851, None),
        (greedy_tree(TABLE, 16), 2.698303, None),
        (greedy_tree(TABLE, 25), 2.894799, None),
        (greedy_tree(TABLE, 32), 2.999642, None),
        (greedy_tree(TABLE, 63), 3.287827, None),
        (greedy_tree(TABLE, 128), 3.576444, None),
    ],
)
def test_tokens_of_a_step_are_the_reference_values(tree, tokens: float, lengths: tuple[float, ...] | None) -> None:
    """Expected tokens and the distribution of lengths, to the last stated digit; both agree."""
    found = length_probabilities(tree, TABLE)
    assert expected_tokens(tree, TABLE) == pytest.approx(tokens, abs=1e-6)
    assert mean_length(found) == pytest.approx(tokens, abs=1e-6)
    if lengths is not None:
        assert found == pytest.approx(lengths, abs=1e-6)


def test_greedy_tree_chooses_the_stated_nodes() -> None:
    """The order in which nodes are added."""
    stated = ((0,), (0, 0), (1,), (0, 1), (0, 0, 0), (2,), (0, 2), (1, 0))
    assert greedy_tree(TABLE, 8) == stated


@settings(max_examples=examples(16), deadline=None)
@given(st.lists(st.lists(st.floats(0.01, 0.33), min_size=3, max_size=3), min_size=3, max_size=3), st.integers(1, 4))
def test_greedy_tree_equals_brute_force(rates: list[list[float]], num_nodes: int) -> None:
    """No tree of as many nodes has more expected tokens."""
    table = [sorted(row, reverse=True) for row in rates]
    paths = [path for depth in (1, 2, 3) for path in product(range(3), repeat=depth)]
    best = max(
        expected_tokens(tree, table)
        for tree in combinations(paths, num_nodes)
        if all(len(path) == 1 or path[:-1] in tree for path in tree)
    )
    assert expected_tokens(greedy_tree(table, num_nodes), table) == pytest.approx(best)


@pytest.mark.parametrize(
    ("acceptance", "tokens"),
    [
        (0.6, (1.6, 1.96, 2.176, 2.3056, 2.38336, 2.474806)),
        (0.7, (1.7, 2.19, 2.533, 2.7731, 2.94117, 3.198821)),
        (0.8, (1.8, 2.44, 2.952, 3.3616, 3.68928, 4.328911)),
        (0.9, (1.9, 2.71, 3.439, 4.0951, 4.68559, 6.125795)),
    ],
)
def test_tokens_of_a_draft_model_are_the_reference_values(acceptance: float, tokens: tuple[float, ...]) -> None:
    """Leviathan's formula, for 1, 2, 3, 4, 5 and 8 drafted tokens."""
    for drafted, expected in zip((1, 2, 3, 4, 5, 8), tokens, strict=True):
        assert mean_length(chain_lengths(acceptance, drafted)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("acceptance", "cost", "drafted", "speedup"),
    [
        (0.6, 0.02, 6, 2.169657), (0.6, 0.05, 4, 1.921333), (0.6, 0.2, 2, 1.4),
        (0.8, 0.02, 11, 3.816723), (0.8, 0.05, 8, 3.092080), (0.8, 0.2, 4, 1.867556),
        (0.9, 0.02, 19, 6.365387), (0.9, 0.05, 13, 4.674134), (0.9, 0.2, 7, 2.373053),
    ],
)  # fmt: skip
def test_best_number_of_drafted_tokens(acceptance: float, cost: float, drafted: int, speedup: float) -> None:
    """Leviathan et al. 2023, theorem 3.8: tokens over time, where a draft's pass takes ``cost`` of the target's."""
    speedups = {}
    for number in range(1, 33):
        decoding = chain_decoding(acceptance, number, cost)
        speedups[number] = mean_length(decoding.lengths) / (1.0 + decoding.draft_s(1))
    best = max(speedups, key=speedups.__getitem__)
    assert (best, speedups[best]) == (drafted, pytest.approx(speedup, abs=1e-6))


def test_eagle_chain_of_published_acceptances() -> None:
    """Acceptances that depend on the position: 1 plus the sums of their products."""
    assert expected_tokens(chain(4), [[0.79], [0.74], [0.72], [0.73]]) == pytest.approx(3.102778, abs=1e-6)


def test_drawn_lengths_have_the_closed_form_and_no_memory_of_the_schedule() -> None:
    """Drawn lengths have the stated distribution; a draw depends on seed, request and step alone."""
    lengths = length_probabilities(greedy_tree(TABLE, 25), TABLE)
    decoding = Decoding(positions=26, lengths=lengths)
    ids, steps = np.repeat(np.arange(400), 250), np.tile(np.arange(250), 400)
    drawn = decoding.drawn(3, ids, steps)
    found = np.bincount(drawn, minlength=len(lengths) + 1)[1:] / len(drawn)
    assert found == pytest.approx(lengths, abs=0.006)
    assert drawn.mean() == pytest.approx(2.894799, abs=0.02)
    assert (decoding.drawn(3, ids[7:9], steps[7:9]) == drawn[7:9]).all()
