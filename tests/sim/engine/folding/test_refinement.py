"""Colour refinement, against the definition, a naive refinement, all partitions, automorphisms and networkx."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.folding import refinement
from sim.engine.folding.refinement import Partition, Relation, coarsest_equitable
from tests.examples import examples

Edge = tuple[int, int, int]
Graph = tuple[list[int], list[list[Edge]]]


def neighbours(colours: Sequence[int], relations: Sequence[Sequence[Edge]]) -> list[Counter[tuple[object, ...]]]:
    """Return what each vertex sees: how many edges by relation, label, direction and colour."""
    seen: list[Counter[tuple[object, ...]]] = [Counter() for _ in colours]
    for index, edges in enumerate(relations):
        for source, target, label in edges:
            seen[source][index, label, "out", colours[target]] += 1
            seen[target][index, label, "in", colours[source]] += 1
    return seen


def by_smallest_member(names: Sequence[object]) -> list[int]:
    """Return the same classes, numbered in the order in which they first occur."""
    numbers: dict[object, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]


def is_equitable(colours: Sequence[int], relations: Sequence[Sequence[Edge]]) -> bool:
    """Return whether vertices of one colour see the same."""
    seen = neighbours(colours, relations)
    first = {colour: seen[colours.index(colour)] for colour in set(colours)}
    return all(what == first[colour] for colour, what in zip(colours, seen, strict=True))


def naive_refinement(initial: Sequence[int], relations: Sequence[Sequence[Edge]]) -> list[int]:
    """Return the stable colours: own colour and neighbours are the next colour, until there are no more of them."""
    colours = by_smallest_member(initial)
    while True:
        seen = neighbours(colours, relations)
        finer = by_smallest_member([(c, frozenset(what.items())) for c, what in zip(colours, seen, strict=True)])
        if finer == colours:
            return colours
        colours = finer


def all_partitions(size: int) -> Iterator[list[int]]:
    """Yield every partition of so many vertices, as colours by smallest member."""
    if not size:
        yield []
        return
    for rest in all_partitions(size - 1):
        for colour in range(max(rest, default=-1) + 2):
            yield [*rest, colour]


def refines(fine: Sequence[int], coarse: Sequence[object]) -> bool:
    """Return whether vertices of one colour in ``fine`` have one colour in ``coarse``."""
    return len(set(zip(fine, coarse, strict=True))) == len(set(fine))


def refined(graph: Graph) -> Partition:
    """Return the partition found by the code under test."""
    initial, relations = graph
    columns = [np.array(edges, np.int64).reshape(-1, 3).T for edges in relations]
    return coarsest_equitable(np.array(initial, np.int64), [Relation(*column) for column in columns])


@st.composite
def graphs(draw: st.DrawFn, max_size: int = 9) -> Graph:
    """Draw a labelled directed graph with loops and repeated edges."""
    size = draw(st.integers(1, max_size))
    vertex = st.integers(0, size - 1)
    edges = st.lists(st.tuples(vertex, vertex, st.integers(-1, 1)), max_size=2 * size)
    initial = st.lists(st.integers(0, 1), min_size=size, max_size=size)
    return draw(initial | st.just([0] * size)), draw(st.lists(edges, max_size=2))


@st.composite
def symmetric_graphs(draw: st.DrawFn) -> Graph:
    """Draw several rings with chords, joined by a hub or not, where one vertex may differ: few classes, many rounds."""
    length, copies = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    steps = draw(st.lists(st.integers(0, 7), min_size=1, max_size=2))
    edges = [
        (c * length + i, c * length + (i + step) % length, label)
        for label, step in enumerate(steps)
        for c in range(copies)
        for i in range(length)
    ]
    size = length * copies
    initial = [0] * size
    initial[draw(st.integers(0, size - 1))] = draw(st.integers(0, 1))
    if draw(st.booleans()):
        initial.append(2)
        edges += [(i, size, 9) for i in range(size)]
    return initial, [edges]


@settings(max_examples=examples(160), deadline=None)
@given(graph=graphs() | symmetric_graphs())
def test_the_partition_is_that_of_naive_refinement(graph: Graph) -> None:
    """Incremental rounds of hashes end where refining with whole multisets ends, classes numbered alike."""
    assert refined(graph).colour.tolist() == naive_refinement(*graph)


@settings(max_examples=examples(80), deadline=None)
@given(graph=graphs() | symmetric_graphs())
def test_the_partition_is_equitable_and_says_who_stands_for_whom(graph: Graph) -> None:
    """Members see the same; each class has its smallest member as representative, and its size."""
    found = refined(graph)
    colours = found.colour.tolist()
    assert is_equitable(colours, graph[1])
    assert refines(colours, graph[0])
    assert colours == by_smallest_member(colours)
    assert found.representative.tolist() == [colours.index(c) for c in range(len(set(colours)))]
    assert found.multiplicity.tolist() == [colours.count(c) for c in range(len(set(colours)))]


@settings(max_examples=examples(40), deadline=None)
@given(graph=graphs(max_size=5))
def test_every_equitable_partition_refines_it(graph: Graph) -> None:
    """Of all partitions of up to five vertices, each equitable one is as fine or finer."""
    found = refined(graph).colour.tolist()
    initial, relations = graph
    equitable = [p for p in all_partitions(len(initial)) if refines(p, initial) and is_equitable(p, relations)]
    assert found in equitable
    assert all(refines(other, found) for other in equitable)


@settings(max_examples=examples(40), deadline=None)
@given(graph=graphs(max_size=5))
def test_no_orbit_of_an_automorphism_is_split(graph: Graph) -> None:
    """A vertex that a symmetry of the graph moves to another has the other's class."""
    colours = refined(graph).colour
    initial, relations = graph
    size, edges = len(initial), [Counter(relation) for relation in relations]
    for image in permutations(range(size)):
        moved = [Counter((image[a], image[b], label) for a, b, label in relation) for relation in relations]
        if moved == edges and [initial[image[v]] for v in range(size)] == initial:
            assert [colours[image[v]] for v in range(size)] == colours.tolist()


@settings(max_examples=examples(40), deadline=None)
@given(graph=graphs(), seed=st.integers(0, 2**32))
def test_names_of_vertices_do_not_matter(graph: Graph, seed: int) -> None:
    """The partition of a renamed graph, with its edges in another order, is the renamed partition."""
    initial, relations = graph
    rng = np.random.default_rng(seed)
    name = rng.permutation(len(initial))
    renamed = [[(int(name[a]), int(name[b]), label) for a, b, label in edges] for edges in relations]
    shuffled = [[edges[i] for i in rng.permutation(len(edges))] for edges in renamed]
    other = refined(([initial[v] for v in np.argsort(name)], shuffled)).colour[name]
    assert by_smallest_member(other.tolist()) == refined(graph).colour.tolist()


@pytest.mark.parametrize("seed", range(20))
def test_undirected_graphs_get_the_colours_of_networkx(seed: int) -> None:
    """On random graphs, classes are those of networkx's Weisfeiler-Leman hashes after as many rounds as vertices."""
    size = 12
    graph = nx.gnm_random_graph(size, 8 + seed, seed=seed)
    initial = [int(v < seed % 3) for v in range(size)]
    nx.set_node_attributes(graph, {v: str(initial[v]) for v in range(size)}, "initial")
    hashes = nx.weisfeiler_lehman_subgraph_hashes(graph, node_attr="initial", iterations=size, digest_size=32)
    colours = refined((initial, [[(a, b, 0) for e in graph.edges for a, b in (e, e[::-1])]])).colour.tolist()
    assert colours == by_smallest_member([hashes[v][-1] for v in range(size)])


@pytest.mark.parametrize(
    "graph",
    [
        nx.cycle_graph(50),
        nx.complete_graph(12),
        nx.hypercube_graph(6),
        nx.grid_graph((4, 5, 6), periodic=True),
        nx.petersen_graph(),
        nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(4)),
        nx.empty_graph(9),
    ],
    ids=["ring", "complete", "hypercube", "torus", "Petersen", "two rings", "no edges"],
)
def test_graphs_where_all_vertices_see_alike_are_one_class(graph: nx.Graph) -> None:
    """Vertex-transitive graphs, and any regular graph, are one class."""
    number = {v: i for i, v in enumerate(graph)}
    edges = [(number[a], number[b], 0) for a, b in graph.edges]
    both = edges + [(b, a, label) for a, b, label in edges]
    found = refined(([0] * len(number), [both]))
    assert found.multiplicity.tolist() == [len(number)]
    assert found.representative.tolist() == [0]


def test_a_marked_vertex_splits_by_distance() -> None:
    """On a ring of 50 the classes are the distances from the marked vertex; on a complete graph it is one of two."""
    ring = [(i, (i + step) % 50, 0) for i in range(50) for step in (1, -1)]
    marked = [1] + [0] * 49
    assert refined((marked, [ring])).colour.tolist() == [min(i, 50 - i) for i in range(50)]
    everybody = [(i, j, 0) for i in range(50) for j in range(50) if i != j]
    assert refined((marked, [everybody])).multiplicity.tolist() == [1, 49]


def test_a_long_chain_is_refined_to_its_middle() -> None:
    """A directed chain has one class per vertex, an undirected one a class per pair from the ends."""
    chain = np.arange(1999)
    one_way, back = Relation(chain, chain + 1), Relation(chain + 1, chain)
    assert len(coarsest_equitable(np.zeros(2000, np.int64), [one_way]).multiplicity) == 2000
    both = Relation(np.append(chain, chain + 1), np.append(chain + 1, chain))
    assert coarsest_equitable(np.zeros(2000, np.int64), [both]).multiplicity.tolist() == [2] * 1000
    assert len(coarsest_equitable(np.zeros(2000, np.int64), [one_way, back]).multiplicity) == 2000


def test_the_largest_part_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a chain of n vertices, where each round splits a pair off the rest, O(n log n) edges are followed, not n²."""
    followed, mix = [], refinement._mix
    monkeypatch.setattr(refinement, "_mix", lambda k, c, seed: (followed.append(len(k)), mix(k, c, seed))[1])
    chain = np.arange(1999)
    both = Relation(np.append(chain, chain + 1), np.append(chain + 1, chain))
    assert len(coarsest_equitable(np.zeros(2000, np.int64), [both]).multiplicity) == 1000
    assert len(followed) >= 999
    assert sum(followed) <= 2 * 2 * 1999 * 11


@pytest.mark.parametrize(
    "mix",
    [lambda k, c, seed: np.zeros(len(k), np.uint64), lambda k, c, seed: ((k ^ c) & 1).astype(np.uint64)],
    ids=["always 0", "one bit"],
)
@settings(max_examples=examples(40), deadline=None)
@given(graph=graphs() | symmetric_graphs())
def test_hashes_that_collide_change_nothing(mix, graph: Graph) -> None:
    """With a hash that tells next to nothing apart, the exact comparison still leads to the same partition."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refinement, "_mix", mix)
        assert refined(graph).colour.tolist() == naive_refinement(*graph)


@settings(max_examples=examples(40), deadline=None)
@given(graph=graphs() | symmetric_graphs(), portion=st.integers(1, 9))
def test_edges_in_portions_change_nothing(graph: Graph, portion: int) -> None:
    """Edges that do not fit in one portion are hashed and compared portion by portion, to the same partition."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refinement, "_PORTION", portion)
        assert refined(graph).colour.tolist() == naive_refinement(*graph)


@st.composite
def wound_graphs(draw: st.DrawFn) -> tuple[int, list[int], list[int], list[tuple[int, int, int, int]]]:
    """Draw circles that turn together: how often, the length and colour of each, and edges from each one's first."""
    turns = draw(st.sampled_from([2, 4, 6]))
    lengths = draw(st.lists(st.sampled_from([n for n in range(1, 7) if turns % n == 0]), min_size=1, max_size=5))
    circle, size = st.integers(0, len(lengths) - 1), len(lengths)
    edge = st.tuples(circle, circle, st.integers(0, 5), st.integers(0, 1))
    edges = [(u, v, at % lengths[v], label) for u, v, at, label in draw(st.lists(edge, max_size=8))]
    return turns, lengths, draw(st.lists(st.integers(0, 1), min_size=size, max_size=size)), edges


@settings(max_examples=examples(160), deadline=None)
@given(wound=wound_graphs())
def test_a_graph_is_refined_by_its_orbits(wound: Any) -> None:
    """Orbits of unequal size, of which each end of an edge sees as many as its members do, are classed as these are."""
    turns, lengths, colours, edges = wound
    first = np.append(0, np.cumsum(lengths))
    whole = [
        (int(first[u]) + turn % lengths[u], int(first[v]) + (at + turn) % lengths[v], label)
        for u, v, at, label in edges
        for turn in range(turns)
    ]
    every = refined((np.repeat(colours, lengths).tolist(), [whole]))
    # per turn there is an edge; the first of a circle of n is on turns / n of them
    sees = [(u, v, label) for u, v, _, label in edges for _ in range(turns // lengths[u])]
    backs = [turns // lengths[v] if copy == 0 else 0 for u, v, _, _ in edges for copy in range(turns // lengths[u])]
    columns = np.array(sees, np.int64).reshape(-1, 3).T
    found = coarsest_equitable(np.array(colours), [Relation(*columns, np.array(backs, np.int64))])
    assert by_smallest_member(every.colour.tolist()) == by_smallest_member(np.repeat(found.colour, lengths).tolist())


def test_labels_and_relations_tell_edges_apart() -> None:
    """Two vertices that put other bytes on a link, or another relation's edge, are of two classes."""
    one = Relation([0, 1], [2, 2], [10**12, 10**12])
    assert coarsest_equitable([0, 0, 1], [one]).colour.tolist() == [0, 0, 1]
    assert coarsest_equitable([0, 0, 1], [Relation([0, 1], [2, 2], [10**12, 10**12 + 1])]).colour.tolist() == [0, 1, 2]
    assert coarsest_equitable([0, 0, 1], [Relation([0], [2]), Relation([1], [2])]).colour.tolist() == [0, 1, 2]
    assert coarsest_equitable([0, 0, 1], [Relation([0, 0, 1], [2, 2, 2])]).colour.tolist() == [0, 1, 2]


def test_nothing_to_refine_is_left_as_it_is() -> None:
    """No vertices have no classes; without relations the classes are the initial colours, whatever their numbers."""
    assert coarsest_equitable([], []).multiplicity.tolist() == []
    found = coarsest_equitable([7, -5, 7], [])
    assert (found.colour.tolist(), found.multiplicity.tolist()) == ([0, 1, 0], [2, 1])


@pytest.mark.parametrize(
    ("relation", "message"),
    [
        (Relation([0], [3]), "relation 0 names vertex 3; there are 3"),
        (Relation([-1], [0]), "relation 0 names vertex -1"),
        (Relation([0, 1], [0]), "2 sources, 1 targets and 2 labels"),
        (Relation([0, 1], [0, 1], [5]), "2 sources, 2 targets and 1 labels"),
        (Relation([0.5], [1]), "sources of relation 0 must be a one-dimensional array of integers"),
        (Relation([0], [1], 0.5), "labels of relation 0 must be a one-dimensional array of integers"),
        (Relation([[0]], [[1]]), "not 2-D"),
    ],
)
def test_what_is_no_relation_is_refused(relation: Relation, message: str) -> None:
    """An unknown vertex, lengths that differ and what is no integer are named."""
    with pytest.raises(ValueError, match=message):
        coarsest_equitable([0, 0, 0], [relation])


def training_mesh(tp: int, pp: int, dp: int, slow: int, *, dp_rings: bool) -> tuple[np.ndarray, list[Relation]]:
    """Return ranks and their tp, dp and pp groups, with pipeline neighbours; one rank is slow.

    ``dp_rings``: each rank also sees the next one of its dp group, as a ring's steps would have it.
    """
    rank = np.arange(tp * pp * dp)
    t, d, p = rank % tp, rank // tp % dp, rank // (tp * dp)
    role = p.copy()
    role[slow] = pp
    initial, relations = [role], [Relation(rank[p < pp - 1], rank[p < pp - 1] + tp * dp)]
    base = len(rank)
    for axis, group in enumerate((p * dp + d, p * tp + t, d * tp + t)):
        relations.append(Relation(rank, base + group))
        initial.append(np.full(group.max() + 1, pp + 1 + axis))
        base += group.max() + 1
    if dp_rings:
        relations.append(Relation(rank, p * tp * dp + (d + 1) % dp * tp + t))
    return np.concatenate(initial), relations


def num_rank_classes(tp: int, pp: int, dp: int, slow: int, *, dp_rings: bool) -> int:
    """Return in how many classes the ranks of a mesh fall."""
    found = coarsest_equitable(*training_mesh(tp, pp, dp, slow, dp_rings=dp_rings))
    return len(np.unique(found.colour[: tp * pp * dp]))


def test_one_slow_gpu_of_many_splits_each_stage_in_four() -> None:
    """16,384 GPUs, one of them slow: per stage, whether in its tensor group's replica and in its data group's place.

    These are the orbits of the symmetries that remain (exchange of the other tensor places, of the other replicas),
    so nothing coarser is equitable.
    """
    assert num_rank_classes(8, 16, 128, slow=5000, dp_rings=False) == 4 * 16


def test_groups_without_order_keep_classes_few_where_rings_do_not() -> None:
    """With 'next in the dp ring' as a relation, classes grow with the ring; with membership alone they do not."""
    sizes = (8, 16, 32)
    assert [num_rank_classes(4, 2, dp, slow=0, dp_rings=False) for dp in sizes] == [8, 8, 8]
    assert [num_rank_classes(4, 2, dp, slow=0, dp_rings=True) for dp in sizes] == [4 * dp for dp in sizes]


def test_the_same_graph_gives_the_same_partition_twice() -> None:
    """Two calls give equal arrays, of whole numbers, for a mesh of 1,024 with its rings."""
    mesh = training_mesh(4, 4, 64, slow=77, dp_rings=True)
    one, other = coarsest_equitable(*mesh), coarsest_equitable(*mesh)
    assert np.array_equal(one.colour, other.colour)
    assert np.array_equal(one.representative, other.representative)
    assert one.colour.dtype == one.representative.dtype == one.multiplicity.dtype == np.int64
