"""Step lists, executed on symbolic chunks: every rank ends with the right sums and pieces, and nothing counts twice."""

from collections import defaultdict
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.collectives import steps
from costmodels.collectives.catalogue import STEP_LISTS, collective_steps
from costmodels.collectives.steps import Step, StepList, step_list
from costmodels.errors import CollectiveError

SIZES = range(1, 34)
CASES = [(kind, algorithm) for kind, algorithms in STEP_LISTS.items() for algorithm in algorithms]
by_node = st.lists(st.integers(1, 7), min_size=1, max_size=6).map(tuple)

Held = dict[int, dict[int, frozenset[int]]]
"""What ranks hold: of every chunk, the ranks whose terms are in it."""


def owners(case: StepList) -> dict[int, tuple[int, ...]]:
    """Return who holds each chunk at the start."""
    g, everyone = case.num_ranks, tuple(range(case.num_ranks))
    if case.kind in {"all_gather", "barrier"}:
        return {chunk: (chunk,) for chunk in range(g)}
    if case.kind == "all_to_all":
        return {chunk: (chunk // g,) for chunk in range(g * g)}
    if case.kind == "broadcast":
        return dict.fromkeys(range(case.num_chunks), (case.root,))
    return dict.fromkeys(range(case.num_chunks), everyone)


def destinations(case: StepList) -> dict[int, tuple[int, ...]]:
    """Return who must hold each chunk, with all its terms, at the end."""
    g, everyone = case.num_ranks, tuple(range(case.num_ranks))
    if case.kind == "reduce_scatter":
        return {chunk: (chunk,) for chunk in range(g)}
    if case.kind == "all_to_all":
        return {chunk: (chunk % g,) for chunk in range(g * g)}
    if case.kind == "reduce":
        return dict.fromkeys(range(case.num_chunks), (case.root,))
    return dict.fromkeys(range(case.num_chunks), everyone)


def execute(case: StepList) -> Held:
    """Return what ranks hold after all rounds; fail where a step sends what is not there or counts a term twice."""
    held: Held = {rank: {} for rank in range(case.num_ranks)}
    for chunk, ranks in owners(case).items():
        for rank in ranks:
            held[rank][chunk] = frozenset({rank})
    for _, in_round in groupby(case.steps, key=lambda step: step.round):
        now = list(in_round)
        sent = [(step, chunk, held[step.source][chunk]) for step in now for chunk in step.chunks]
        check_round(case, now)
        for step, chunk, terms in sent:
            there = held[step.target].get(chunk, frozenset())
            if step.reduce:
                assert not there & terms, f"{step} counts {sorted(there & terms)} twice in chunk {chunk}"
            else:
                assert there <= terms, f"{step} overwrites {sorted(there - terms)} of chunk {chunk}"
            held[step.target][chunk] = there | terms
    return held


def check_round(case: StepList, now: list[Step]) -> None:
    """Fail where a step names no rank or chunk, or a rank both sends and gets a chunk, or gets it twice unreduced."""
    sends = {(s.source, c) for s in now for c in s.chunks}
    gets = [(s.target, c, s.reduce) for s in now for c in s.chunks]
    copied = [(rank, chunk) for rank, chunk, reduce in gets if not reduce]
    assert not sends & {(rank, chunk) for rank, chunk, _ in gets}, "a chunk is sent and changed in one round"
    assert len(copied) == len(set(copied)), "a chunk arrives twice in one round"
    assert all(s.source != s.target and s.chunks for s in now)
    assert all(0 <= rank < case.num_ranks for s in now for rank in (s.source, s.target))
    assert all(0 <= c < case.num_chunks and len(set(s.chunks)) == len(s.chunks) for s in now for c in s.chunks)


def prove(case: StepList) -> None:
    """Assert that everybody ends with what the collective promises."""
    held, start = execute(case), owners(case)
    for chunk, ranks in destinations(case).items():
        for rank in ranks:
            assert held[rank][chunk] == frozenset(start[chunk]), f"rank {rank} lacks terms of chunk {chunk}"


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
def test_every_rank_ends_with_the_right_sum_or_pieces(kind: str, algorithm: str) -> None:
    """From 1 to 33 ranks in one node, and one per node, no term is lost, counted twice or left behind."""
    for num_ranks in SIZES:
        for ranks_per_node in [(num_ranks,), (1,) * num_ranks]:
            case = collective_steps(kind, algorithm, ranks_per_node)
            assert (case.kind, case.num_ranks) == (kind, num_ranks)
            prove(case)


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
@given(ranks_per_node=by_node)
def test_nodes_may_be_uneven(kind: str, algorithm: str, ranks_per_node: tuple[int, ...]) -> None:
    """Algorithms that know of nodes are right however many ranks each node has."""
    prove(collective_steps(kind, algorithm, ranks_per_node))


@given(
    num_ranks=st.integers(1, 33),
    root=st.integers(0, 32),
    pieces=st.integers(1, 9),
    build=st.sampled_from([steps.broadcast_ring, steps.reduce_ring]),
)
def test_any_root_and_any_number_of_pieces_will_do(num_ranks: int, root: int, pieces: int, build) -> None:
    """Chains reach everybody from every root, whatever the vector is cut into; trees too."""
    prove(build(num_ranks, root % num_ranks, pieces))
    for other in (steps.broadcast_tree, steps.reduce_tree, steps.broadcast_store_forward, steps.reduce_store_forward):
        prove(other(num_ranks, root % num_ranks))


@given(num_ranks=st.integers(1, 33), channels=st.integers(1, 4), nodes=by_node, pieces=st.integers(1, 5))
def test_channels_and_pieces_cut_an_all_reduce(
    num_ranks: int, channels: int, nodes: tuple[int, ...], pieces: int
) -> None:
    """A ring of several channels has g chunks in each; a double tree one per piece and tree."""
    ring, tree = steps.all_reduce_ring(num_ranks, channels), steps.all_reduce_tree(nodes, pieces)
    assert (ring.num_chunks, tree.num_chunks) == (channels * num_ranks, 2 * pieces)
    prove(ring)
    prove(tree)


@given(num_nodes=st.integers(1, 200))
def test_double_tree_spreads_its_inner_nodes(num_nodes: int) -> None:
    """Both trees are binary, reach every node within ceil(log2 n), and load no node with more than four halves."""
    degree: dict[int, int] = defaultdict(int)
    for parents in steps.double_binary_tree(num_nodes):
        assert sorted(parents, key=lambda p: p is not None)[0] is None
        assert sum(parent is None for parent in parents) == 1
        children: dict[int, int] = defaultdict(int)
        for node, parent in enumerate(parents):
            if parent is not None:
                children[parent] += 1
                degree[node] += 1
                degree[parent] += 1
            hops, above = 0, parent
            while above is not None:
                hops, above = hops + 1, parents[above]
            assert hops <= (num_nodes - 1).bit_length()
        assert max(children.values(), default=0) <= 2
    assert max(degree.values(), default=0) <= 4


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ([Step(0, 1, (0,), True, 0), Step(0, 1, (0,), True, 1)], "twice"),
        ([Step(0, 1, (0,), False, 0)], "overwrites"),
        ([Step(0, 1, (0,), True, 0), Step(1, 0, (0,), True, 0)], "sent and changed"),
        ([Step(0, 1, (0,), True, 0)], "lacks terms"),
    ],
)
def test_wrong_steps_are_caught(wrong: list[Step], problem: str) -> None:
    """The executor refuses to count twice, to lose a term, to race, and to leave a rank short."""
    with pytest.raises(AssertionError, match=problem):
        prove(step_list("all_reduce", 2, 1, wrong))


def test_a_missing_chunk_is_caught() -> None:
    """The executor refuses to send what a rank does not have."""
    with pytest.raises(KeyError):
        prove(step_list("all_gather", 2, 2, [Step(0, 1, (1,), False, 0)]))


@pytest.mark.parametrize(
    ("kind", "algorithm", "group", "problem"),
    [
        ("all_reduce", "in_switch", (8,), "'in_switch' has no step list; known: ring, tree"),
        ("gossip", "ring", (8,), "known: all_reduce, all_gather"),
        ("all_reduce", "ring", (2, 0), "1 rank or more"),
    ],
)
def test_unknown_step_lists_are_refused(kind: str, algorithm: str, group: tuple[int, ...], problem: str) -> None:
    """What has no step list is refused by name."""
    with pytest.raises(CollectiveError, match=problem):
        collective_steps(kind, algorithm, group)
