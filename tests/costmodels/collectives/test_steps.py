"""Step lists, executed on symbolic chunks: every rank ends with the right sums and pieces, and nothing counts twice."""

from collections import defaultdict
from functools import cache
from itertools import groupby, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.collectives import steps
from costmodels.collectives.catalogue import STEP_LISTS, collective_steps
from costmodels.collectives.cost import collective_cost, exclusive_seconds
from costmodels.collectives.network import CollectiveCost, NetworkParameters, Protocol
from costmodels.collectives.steps import Step, StepList, step_list
from costmodels.collectives.stepwise import split_bytes, steps_cost, uneven_all_to_all_cost
from costmodels.errors import CollectiveError
from tests.examples import examples

SIZES = (*range(1, 18), 24, 31, 32, 33)
"""Every small group, and larger ones on both sides of a power of two and between two."""
CASES = [(kind, algorithm) for kind, algorithms in STEP_LISTS.items() for algorithm in algorithms]
by_node = st.lists(st.integers(1, 7), min_size=1, max_size=6).map(tuple)

NET = NetworkParameters(
    intra_bandwidth_bytes_per_s=200e9,
    intra_latency_s=1e-6,
    inter_bandwidth_bytes_per_s=25e9,
    inter_latency_s=5e-6,
    nics_per_node=2,
    intra_message_s=0.1e-6,
    inter_message_s=1e-6,
)
CHUNK_BYTES = 2**20
ALIKE = [*((g,) for g in SIZES), *((1,) * g for g in SIZES), (2, 2), (4, 4), (8, 8), (2,) * 8, (8,) * 4]
"""Groups in one node, of one rank per node, and of equal nodes of a power of two ranks."""
PIPELINED = {("all_reduce", "tree"), ("all_reduce", "hierarchical_tree"), ("broadcast", "ring"), ("reduce", "ring")}
"""Closed forms that take filling the pipeline for latency only."""

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
    held: Held = {vertex: {} for vertex in range(case.num_ranks + case.num_switches)}
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
    assert all(0 <= at < case.num_ranks + case.num_switches for s in now for at in (s.source, s.target))
    assert all(0 <= c < case.num_chunks and len(set(s.chunks)) == len(s.chunks) for s in now for c in s.chunks)


def prove(case: StepList) -> None:
    """Assert that everybody ends with what the collective promises."""
    held, start = execute(case), owners(case)
    for chunk, ranks in destinations(case).items():
        for rank in ranks:
            assert held[rank][chunk] == frozenset(start[chunk]), f"rank {rank} lacks terms of chunk {chunk}"


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
def test_every_rank_ends_with_the_right_sum_or_pieces(kind: str, algorithm: str) -> None:
    """Up to 33 ranks in one node, and one per node, no term is lost, counted twice or left behind."""
    for num_ranks in SIZES:
        for ranks_per_node in [(num_ranks,), (1,) * num_ranks]:
            case = collective_steps(kind, algorithm, ranks_per_node)
            assert (case.kind, case.num_ranks) == (kind, num_ranks)
            prove(case)


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
@settings(max_examples=examples(8))
@given(ranks_per_node=by_node)
def test_nodes_may_be_uneven(kind: str, algorithm: str, ranks_per_node: tuple[int, ...]) -> None:
    """Algorithms that know of nodes are right however many ranks each node has."""
    prove(collective_steps(kind, algorithm, ranks_per_node))


@given(
    num_ranks=st.integers(1, 33),
    root=st.integers(0, 32),
    pieces=st.integers(1, 9),
    nodes=by_node,
    build=st.sampled_from([steps.broadcast_ring, steps.reduce_ring]),
)
def test_any_root_and_any_number_of_pieces_will_do(
    num_ranks: int, root: int, pieces: int, nodes: tuple[int, ...], build
) -> None:
    """Chains reach everybody from every root, whatever the vector is cut into; trees too."""
    prove(build(num_ranks, root % num_ranks, pieces))
    for chain in (steps.broadcast_store_forward, steps.reduce_store_forward):
        prove(chain(num_ranks, root % num_ranks))
    for tree in (steps.broadcast_tree, steps.reduce_tree):
        prove(tree(nodes, root % sum(nodes)))


@settings(max_examples=examples(16))
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


@cache
def both_costs(kind: str, algorithm: str, group: tuple[int, ...]):
    """Return the cost of the step list, with equal chunks, and that of the closed form for the same payload."""
    case = collective_steps(kind, algorithm, group)
    size = 0 if kind == "barrier" else CHUNK_BYTES
    payload = size * (case.num_ranks if kind == "all_to_all" else case.num_chunks)
    sizes = [size] * case.num_chunks
    return steps_cost(algorithm, case, sizes, group, NET), collective_cost(kind, payload, group, NET, algorithm)


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
def test_bytes_are_those_of_the_closed_forms(kind: str, algorithm: str) -> None:
    """The busiest rank and node send, and add, exactly what the closed form says; NCCL's tree is charged more."""
    for group in ALIKE:
        steps_say, form_says = both_costs(kind, algorithm, group)
        if (kind, algorithm) == ("all_reduce", "tree"):
            least = {(group[0] > 2, "port"), (len(group) > 3, "nic")}
            for exact, link in least:
                sent, charged = getattr(steps_say, f"{link}_bytes"), getattr(form_says, f"{link}_bytes") * 0.92
                assert sent == pytest.approx(charged, rel=1e-12) if exact else sent <= charged
            assert steps_say.reduced_bytes == pytest.approx(form_says.reduced_bytes, rel=1e-12)
        else:
            assert steps_say.port_bytes == pytest.approx(form_says.port_bytes, rel=1e-12)
            assert steps_say.nic_bytes == pytest.approx(form_says.nic_bytes, rel=1e-12)
            assert steps_say.reduced_bytes == pytest.approx(form_says.reduced_bytes, rel=1e-12)


@pytest.mark.parametrize(("kind", "algorithm"), [case for case in CASES if case not in PIPELINED])
def test_time_is_that_of_the_rounds(kind: str, algorithm: str) -> None:
    """Round by round a step list takes what the closed form says, in one node and with one rank per node."""
    for group in ALIKE:
        if len(group) == 1 or group[0] == 1 or algorithm in {"hierarchical", "halving_doubling"}:
            durations = [exclusive_seconds(cost, group, NET) for cost in both_costs(kind, algorithm, group)]
            assert durations[0] == pytest.approx(durations[1], rel=1e-9)


@given(num_ranks=st.integers(2, 33), pieces=st.integers(1, 64), num_bytes=st.integers(2**16, 2**30))
def test_chains_fill_and_drain(num_ranks: int, pieces: int, num_bytes: int) -> None:
    """A chain of k pieces takes g-2+k rounds of one piece each; the closed form is its limit less k-1 hops."""
    for build in (steps.broadcast_ring, steps.reduce_ring):
        case = build(num_ranks, pieces=pieces)
        cost = steps_cost("ring", case, split_bytes(num_bytes, pieces), (num_ranks,), NET)
        rounds = num_ranks - 2 + pieces
        expected_s = rounds * (1e-6 + num_bytes / pieces / 200e9)
        assert exclusive_seconds(cost, (num_ranks,), NET) == pytest.approx(expected_s, rel=1e-3)


@pytest.mark.parametrize(("kind", "algorithm"), [case for case in CASES if case[0] != "barrier"])
@settings(max_examples=examples(8))
@example(group=(1, 1, 2, 1, 2, 1))
@given(group=by_node.filter(lambda group: sum(group) > 1))
def test_uneven_nodes_are_charged_no_less(kind: str, algorithm: str, group: tuple[int, ...]) -> None:
    """Wherever the closed form is not exact it charges more: to the node's adapters, and to every node in all.

    In all, a node's busiest port and its adapters: maxima of different nodes may be busy in one and the same round.
    """
    steps_say, form_says = both_costs(kind, algorithm, group)
    assert form_says.nic_bytes >= steps_say.nic_bytes * (1 - 1e-12)
    for node in range(len(group)):
        of_node = cost_of_node(kind, algorithm, group, node)
        in_all = of_node.port_bytes + of_node.nic_bytes
        assert form_says.port_bytes + form_says.nic_bytes >= in_all * (1 - 1e-12)


def cost_of_node(kind: str, algorithm: str, group: tuple[int, ...], node: int) -> CollectiveCost:
    """Return the cost of the steps that go from or to a node, with equal chunks."""
    case, first = collective_steps(kind, algorithm, group), sum(group[:node])
    own = range(first, first + group[node])
    steps_of_node = tuple(step for step in case.steps if step.source in own or step.target in own)
    return steps_cost(algorithm, replace(case, steps=steps_of_node), [CHUNK_BYTES] * case.num_chunks, group, NET)


uneven_pairs = st.integers(2, 9).flatmap(
    lambda g: st.lists(st.lists(st.integers(0, 2**24), min_size=g, max_size=g), min_size=g, max_size=g)
)


@given(pairs=uneven_pairs)
def test_uneven_all_to_all_is_as_slow_as_its_busiest_rank(pairs: list[list[int]]) -> None:
    """Sent at once, the largest row or column decides; pair after pair, the largest message of every round."""
    g = len(pairs)
    rows = [sum(row) - row[s] for s, row in enumerate(pairs)]
    columns = [sum(row[t] for row in pairs) - pairs[t][t] for t in range(g)]
    direct = uneven_all_to_all_cost(pairs, (g,), NET)
    pairwise = uneven_all_to_all_cost(pairs, (g,), NET, "pairwise")
    assert direct.port_bytes == pairwise.port_bytes == max(*rows, *columns)
    largest = [max(pairs[r][(r + i) % g] for r in range(g)) for i in range(1, g)]
    expected_s = sum(1e-6 + 0.1e-6 + size / 200e9 for size in largest if size)
    assert exclusive_seconds(pairwise, (g,), NET) == pytest.approx(expected_s, rel=1e-9, abs=1e-15)


@settings(max_examples=examples(16))
@given(pairs=uneven_pairs, data=st.data())
def test_every_uneven_all_to_all_brings_the_rows_of_the_flat_one(pairs: list[list[int]], data: st.DataObject) -> None:
    """With a leader, in two rounds or pair after pair, on uneven nodes: the same rows, of any number, arrive."""
    g = len(pairs)
    cuts = sorted(data.draw(st.sets(st.integers(1, g - 1))))
    group = tuple(end - start for start, end in pairwise([0, *cuts, g]))
    rows = [[(s, t, i) for i in range(pairs[s][t] % 5)] for s in range(g) for t in range(g)]
    flat = received(collective_steps("all_to_all", "direct", group), rows)
    assert flat == [[row for s in range(g) for row in rows[s * g + t]] for t in range(g)]
    for algorithm in ("hierarchical", "leader", "pairwise", "bruck"):
        assert received(collective_steps("all_to_all", algorithm, group), rows) == flat


def received(case: StepList, rows: list[list[tuple[int, int, int]]]) -> list[list[tuple[int, int, int]]]:
    """Return the rows that each rank has for itself at the end, by source, where chunk i consists of ``rows[i]``."""
    g = case.num_ranks
    held = [{s * g + t: rows[s * g + t] for t in range(g)} for s in range(g)]
    for _, in_round in groupby(case.steps, key=lambda step: step.round):
        sent = [(step.target, {chunk: held[step.source][chunk] for chunk in step.chunks}) for step in in_round]
        for target, chunks in sent:
            held[target] |= chunks
    return [[row for s in range(g) for row in held[t][s * g + t]] for t in range(g)]


@given(pairs=uneven_pairs, data=st.data())
def test_what_leaves_the_nodes_arrives(pairs: list[list[int]], data: st.DataObject) -> None:
    """However an uneven all_to_all is done, the busiest node sends or gets what lies between it and the others."""
    g = len(pairs)
    cut = data.draw(st.integers(1, g - 1))
    out = sum(pairs[s][t] for s in range(cut) for t in range(cut, g))
    into = sum(pairs[s][t] for s in range(cut, g) for t in range(cut))
    for algorithm in ("direct", "pairwise", "hierarchical", "leader"):
        cost = uneven_all_to_all_cost(pairs, (cut, g - cut), NET, algorithm)
        assert cost.nic_bytes == max(out, into)


@given(sizes=st.lists(st.integers(0, 2**24), min_size=2, max_size=16))
def test_uneven_pieces_gather_and_scatter(sizes: list[int]) -> None:
    """Pieces of any size: a rank of the ring passes on all but its neighbour's, the busiest all but the smallest."""
    g = len(sizes)
    for kind in ("all_gather", "reduce_scatter"):
        ring = steps_cost("ring", collective_steps(kind, "ring", (g,)), sizes, (g,), NET)
        assert ring.port_bytes == sum(sizes) - min(sizes)
        direct = steps_cost("direct", collective_steps(kind, "direct", (g,)), sizes, (g,), NET)
        assert direct.port_bytes == max(sum(sizes) - min(sizes), max(sizes) * (g - 1))


@given(num_bytes=st.integers(0, 10**9), num_chunks=st.integers(1, 100))
def test_chunks_are_as_equal_as_they_can_be(num_bytes: int, num_chunks: int) -> None:
    """Chunks add up to the payload and differ by one byte at most."""
    sizes = split_bytes(num_bytes, num_chunks)
    assert (len(sizes), sum(sizes)) == (num_chunks, num_bytes)
    assert max(sizes) - min(sizes) <= 1


def test_sizes_that_do_not_fit_are_refused() -> None:
    """Too few sizes, other ranks or negative bytes are refused, and so are protocols that do not take the payload."""
    case = collective_steps("all_gather", "ring", (4,))
    for sizes, group in [([1] * 3, (4,)), ([1] * 4, (3,)), ([1, 1, 1, -1], (4,))]:
        with pytest.raises(CollectiveError, match="all_gather of 4 ranks and 4 chunks cannot have"):
            steps_cost("ring", case, sizes, group, NET)
    with pytest.raises(CollectiveError, match="needs 3 x 3 sizes"):
        uneven_all_to_all_cost([[1, 2], [3, 4]], (3,), NET)
    small = replace(NET, protocols=(Protocol(name="ll", limit_bytes=3),))
    with pytest.raises(CollectiveError, match="no protocol of this network takes all_gather"):
        steps_cost("ring", case, [1] * 4, (4,), small)
