"""Trees of drafted tokens: who sees whom, what is accepted, and how trees grow from a draft's probabilities."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from sim.serving.decoding.draft_tree import (
    DraftTree,
    GreedyAcceptance,
    RejectionAcceptance,
    TypicalAcceptance,
    chain_of,
    residual,
    typical_limits,
)
from sim.serving.decoding.growth import ByConfidence, Drawn, FixedRanks, Node, Reranked, grown_tree
from sim.serving.decoding.tree import greedy_tree

TREE = DraftTree((9, 1, 2, 3, 4), (-1, 0, 0, 1, 3))


def logits_of(*choices: int) -> np.ndarray:
    """Return logits whose largest is at each of these tokens."""
    return np.eye(10)[list(choices)]


def test_a_node_sees_itself_and_what_is_above_it() -> None:
    """The mask, depths and children of a tree of five nodes."""
    assert TREE.ancestors().astype(int).tolist() == [
        [1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 0, 1, 1]]  # fmt: skip
    assert TREE.depths() == (0, 1, 1, 2, 3)
    assert TREE.children(0) == (1, 2)


@pytest.mark.parametrize(
    ("choices", "path", "next_token"),
    [((1, 3, 0, 4, 7), (0, 1, 3, 4), 7), ((2, 3, 6, 4, 7), (0, 2), 6), ((5, 3, 6, 4, 7), (0,), 5)],
)
def test_greedy_acceptance_follows_first_choices(
    choices: Sequence[int], path: tuple[int, ...], next_token: int
) -> None:
    """The path goes on while a child is the target's first choice; the choice after it is the next root."""
    found = GreedyAcceptance().accept(TREE, logits_of(*choices))
    assert (found.path, found.next_token) == (path, next_token)


@pytest.mark.parametrize(
    ("target", "limit", "accepted"),
    [
        ((0.9, 0.05, 0.05), 0.09, 1),
        ((0.4, 0.3, 0.2, 0.1), 0.083427, 4),
        ((0.05,) * 20, 0.015003, 20),
    ],
)
def test_typical_limits_are_the_reference_values(target: tuple[float, ...], limit: float, accepted: int) -> None:
    """The entropy sets how likely a token must be: three distributions."""
    found = float(typical_limits(np.array(target), 0.09, 0.3))
    assert found == pytest.approx(limit, abs=1e-6)
    assert sum(chance > found for chance in target) == accepted


def test_typical_acceptance_takes_the_longest_then_the_likeliest_path() -> None:
    """Two paths of equal length: the likelier one stays, and a path behind an unlikely token is cut."""
    tree = DraftTree((0, 1, 2, 0, 0), (-1, 0, 0, 1, 2))
    chances = np.array([[0.1, 0.5, 0.4], [0.9, 0.05, 0.05], [0.9, 0.05, 0.05], [0.2, 0.4, 0.4], [0.2, 0.4, 0.4]])
    rule = TypicalAcceptance(np.random.default_rng(0))
    assert rule.accept(tree, np.log(chances)).path == (0, 1, 3)
    chances[0] = [0.0999, 0.0001, 0.9]
    assert rule.accept(tree, np.log(chances)).path == (0, 2, 4)


@pytest.mark.parametrize(
    ("target", "draft", "acceptance", "rest"),
    [
        ((0.5, 0.3, 0.2), (0.2, 0.5, 0.3), 0.7, (1, 0, 0)),
        ((0.1, 0.6, 0.1, 0.2), (0.4, 0.3, 0.2, 0.1), 0.6, (0, 0.75, 0, 0.25)),
    ],
)
def test_rejection_sampling_has_the_distribution_of_the_target(
    target: tuple[float, ...], draft: tuple[float, ...], acceptance: float, rest: tuple[float, ...]
) -> None:
    """Tokens drawn from one distribution and accepted for another one have the latter: a chi-square test."""
    wanted, proposed = np.array(target), np.array(draft)
    assert residual(wanted, proposed) == pytest.approx(rest)
    generator = np.random.default_rng(7)
    rule, logits, counts, accepted = RejectionAcceptance(generator), np.log([target, target]), np.zeros(len(target)), 0
    for token in generator.choice(len(draft), size=3000, p=draft).tolist():
        found = rule.accept(chain_of((0, token), np.stack([proposed, proposed])), logits)
        accepted += len(found.path) - 1
        counts[token if len(found.path) == 2 else found.next_token] += 1
    assert accepted / 3000 == pytest.approx(acceptance, abs=0.03)
    assert chisquare(counts, 3000 * wanted).pvalue > 1e-3


@pytest.mark.parametrize("widths", [(1, 1), (2, 2), (3, 1)])
def test_rejection_sampling_over_a_tree_has_the_distribution_of_the_target(widths: tuple[int, ...]) -> None:
    """The first two tokens of an answer have the target's joint distribution; wider trees accept more of them."""
    first, second = np.array([0.5, 0.3, 0.2]), np.array([[0.1, 0.6, 0.3], [0.3, 0.3, 0.4], [0.8, 0.1, 0.1]])
    proposed = (np.array([0.2, 0.5, 0.3]), np.array([0.3, 0.2, 0.5]))
    generator = np.random.default_rng(3)
    rule, growth, counts, accepted = RejectionAcceptance(generator), Drawn(widths, generator), np.zeros((3, 3)), 0

    def guess(depth: int, frontier: Sequence[Node]) -> np.ndarray:
        return np.broadcast_to(proposed[depth], (len(frontier), 3))

    for _ in range(1200):
        tree, nodes = grown_tree(0, growth, 2, 12, guess)
        logits = np.log([second[node.token] if len(node.path) == 1 else first for node in nodes])
        found = rule.accept(tree, logits)
        accepted += len(found.path) - 1
        tokens = [tree.tokens[node] for node in found.path[1:]] + [found.next_token]
        if len(tokens) == 1:  # the answer goes on, one token at a time
            tokens.append(int(generator.choice(3, p=second[tokens[0]])))
        counts[tokens[0], tokens[1]] += 1
    assert chisquare(counts.ravel(), (1200 * first[:, None] * second).ravel()).pvalue > 1e-3
    overlap = np.minimum(first, proposed[0])
    chain = overlap.sum() + (overlap * np.minimum(second, proposed[1]).sum(axis=1)).sum()
    if widths == (1, 1):
        assert accepted / 1200 == pytest.approx(chain, abs=0.08)
    else:
        assert accepted / 1200 > chain + 0.1


def test_rejection_sampling_needs_the_drafts_distributions() -> None:
    """A greedy chain cannot be judged by rejection."""
    with pytest.raises(ValueError, match="distributions from which"):
        RejectionAcceptance(np.random.default_rng(0)).accept(chain_of((0, 1)), np.zeros((2, 3)))


def test_clovers_tree_is_the_published_example() -> None:
    """Budget 4: two tokens of the first head, the best of each one's successors, and 2.29 expected tokens."""
    after = {0: (0.5, 0.3, 0.1, 0.05, 0.05), 1: (0.8, 0.1, 0.05, 0.05, 0), 2: (0.3, 0.1, 0.01, 0, 0)}

    def guess(depth: int, frontier: Sequence[Node]) -> np.ndarray:
        rows = np.zeros((len(frontier), 20))
        for row, node in zip(rows, frontier, strict=True):
            row[1 + 5 * depth + 5 * (node.token == 2) : 6 + 5 * depth + 5 * (node.token == 2)] = after[node.token]
        return rows

    tree, nodes = grown_tree(0, ByConfidence(), 3, 4, guess)
    assert tree.parents == (-1, 0, 0, 1, 2)
    assert [node.path for node in nodes[1:]] == [(0,), (1,), (0, 0), (1, 0)]
    assert [node.joint for node in nodes] == pytest.approx([1, 0.5, 0.3, 0.4, 0.09])
    assert sum(node.joint for node in nodes) == pytest.approx(2.29)


@given(st.integers(1, 12), st.integers(0, 1000))
def test_fixed_ranks_and_confidence_agree_where_heads_are_blind(num_nodes: int, seed: int) -> None:
    """Both rules give prefix-closed trees; fixed ranks give exactly the stated paths, with the heads' tokens."""
    tables = np.random.default_rng(seed).dirichlet(np.ones(8), size=3)

    def guess(depth: int, frontier: Sequence[Node]) -> np.ndarray:
        return np.broadcast_to(tables[depth], (len(frontier), 8))

    ranked = [np.sort(table)[::-1] for table in tables]
    paths = greedy_tree(ranked, num_nodes)
    _, nodes = grown_tree(0, FixedRanks(frozenset(paths)), 3, num_nodes, guess)
    assert {node.path for node in nodes} == {(), *paths}
    for rule in (FixedRanks(frozenset(paths)), ByConfidence(top_p=0.99, least=0.0)):
        tree, nodes = grown_tree(0, rule, 3, num_nodes, guess)
        assert len(tree) <= num_nodes + 1
        for node, parent in zip(nodes[1:], tree.parents[1:], strict=True):
            assert nodes[parent].path == node.path[:-1]
            assert node.joint == pytest.approx(nodes[parent].joint * ranked[len(node.path) - 1][node.path[-1]])


@given(st.integers(1, 40), st.integers(0, 1000))
def test_reranked_tree_is_the_likeliest_of_all(num_nodes: int, seed: int) -> None:
    """Where width leaves nothing out, the tree has the nodes of the greedy one, which brute force confirms; narrower
    drafts find a tree that is no likelier, and has as many nodes as were drafted.
    """
    tables = np.random.default_rng(seed).dirichlet(np.ones(6), size=3)

    def guess(depth: int, frontier: Sequence[Node]) -> np.ndarray:
        return np.broadcast_to(tables[depth], (len(frontier), 6))

    best = greedy_tree([np.sort(table)[::-1] for table in tables], num_nodes)
    tree, nodes = grown_tree(0, Reranked(width=36), 3, num_nodes, guess)
    assert {node.path for node in nodes} == {(), *best}
    assert [nodes[parent].path for parent in tree.parents[1:]] == [node.path[:-1] for node in nodes[1:]]
    narrow, few = grown_tree(0, Reranked(width=2), 3, num_nodes, guess)
    assert len(narrow) == 1 + min(num_nodes, 2 + 4 + 4)
    assert sum(node.joint for node in few) <= sum(node.joint for node in nodes) + 1e-12
