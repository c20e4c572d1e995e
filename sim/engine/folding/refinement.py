"""Colour refinement: the coarsest partition of a graph's vertices whose classes see the same neighbours.

The one-dimensional Weisfeiler-Leman algorithm, as successive splitting where the largest part keeps its name (Hopcroft
1971; Paige and Tarjan 1987, section 3). Each round is a few operations on whole arrays, of what the last round changed.

Why the result is exact, though rounds compare hashes. A round splits two vertices of a class only if their hashes
differ, or if one has an edge to a changed class and the other none. Equal multisets of neighbours have equal hashes,
so a split is always forced: the partition never becomes finer than the coarsest equitable one. When nothing splits any
more, ``verify`` compares the neighbours of every vertex with those of its class's first, as integers, and sorts them
where their order differs. A partition that passes is equitable; being no finer than the coarsest equitable one, it is
that one. One that does not pass (hashes collided) is split where the comparison failed, which is forced too, and
refined on with other hashes.
"""

from collections.abc import Sequence
from itertools import count
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from sim.engine.prices.numbering import numbered
from sim.sorting import distinct_values, first_places, run_begins, sorted_order

Ints = NDArray[np.int64]
Narrow = NDArray[np.int32]
Hashes = NDArray[np.uint64]
Flags = NDArray[np.bool_]

_MANY: Final = 16
"""At least this part of all vertices is found by a pass over all of them, as sorting takes longer."""

_PORTION: Final = 2**16


class Relation(Struct, frozen=True):
    """Directed, labelled edges: ``sources[e]`` sees ``targets[e]`` as ``labels[e]``; repeated edges count.

    All three are integers, one per edge; a single number as ``labels`` is the label of all edges. One label in two
    relations is two labels. ``backs``: how often the target of each edge sees its source; None: once.
    """

    sources: ArrayLike
    targets: ArrayLike
    labels: ArrayLike = 0
    backs: Ints | None = None


class Partition(Struct, frozen=True):
    """``colour[v]`` is the class of vertex v; classes are numbered by their smallest members.

    ``representative[c]`` is the smallest member of class c, ``multiplicity[c]`` the number of its members.
    """

    colour: Ints
    representative: Ints
    multiplicity: Ints


def coarsest_equitable(initial: ArrayLike, relations: Sequence[Relation]) -> Partition:
    """Return the coarsest partition within the colours ``initial`` that is equitable for all relations.

    Any two vertices of one class see, for each relation, label, direction and class, equally many of that class. Takes
    time O((n + m) log n) for n vertices and m edges, and a constant per round. There are about as many rounds as steps
    from a vertex that differs to the farthest one that feels it: few where many vertices are members of one (a group, a
    switch), O(n) on a long chain.

    Raises ValueError for what is no array of integers, for lengths that differ, and for vertices that do not exist.
    """
    colours = _integers("initial", initial)
    refiner = _Refiner.begin(colours, *_incidences(len(colours), relations))
    for seed in count():  # ends: a verification that fails adds a class
        refiner.refine(seed)
        if refiner.verify():
            break
    return _by_smallest_member(refiner.colour)


class _Incidence(Struct, frozen=True):
    """All edges from both ends: vertex v has the far ends ``far[starts[v]:starts[v + 1]]``.

    Far ends are repeated as often as they see the vertex, or as often as it sees them. A kind is one label of one
    relation in one direction; ``kinds`` says what the far end sees the vertex as. Both columns are long, and of 32
    bits, as there are fewer vertices and labels than fit in these.
    """

    starts: Ints
    far: Narrow
    kinds: Narrow

    def of(self, vertices: Ints) -> tuple[Ints, Ints]:
        """Return the edges of some vertices, and whose each is, as positions in ``vertices``; vertex by vertex."""
        begins = self.starts[vertices]
        lengths = self.starts[vertices + 1] - begins
        owners = np.repeat(np.arange(len(vertices)), lengths)
        return (begins - (np.cumsum(lengths) - lengths))[owners] + np.arange(len(owners)), owners

    def portions(self, vertices: Ints) -> Sequence[Ints]:
        """Return some vertices in portions of bounded numbers of edges, or of one vertex.

        What is computed of each edge then stays in a processor's cache.
        """
        before = np.cumsum(self.starts[vertices + 1] - self.starts[vertices])
        cuts = np.searchsorted(before, np.arange(_PORTION, int(before[-1]) if len(before) else 0, _PORTION))
        return np.split(vertices, distinct_values(cuts + 1))


def _incidences(num_vertices: int, relations: Sequence[Relation]) -> tuple[_Incidence, _Incidence]:
    """Return the edges as often as the far end sees the vertex, and as often as the vertex sees the far end."""
    near, far, kinds, num_labels = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int32)], 0
    for index, relation in enumerate(relations):
        sources, targets, labels = _edges(index, num_vertices, relation)
        names, numbers = numbered(labels)
        seen_as = (2 * (num_labels + numbers)).astype(np.int32)
        near += [targets, sources]
        far += [sources, targets]
        kinds += [seen_as, seen_as + 1]
        num_labels += len(names)
    columns = [np.concatenate(parts, dtype=np.int32, casting="same_kind") for parts in (near, far, kinds)]
    if all(relation.backs is None for relation in relations):
        seen = sees = _incidence(num_vertices, *columns)
    else:
        once = [np.ones(len(np.asarray(relation.sources)), np.int64) for relation in relations]
        backs = [each if r.backs is None else r.backs for each, r in zip(once, relations, strict=True)]
        as_seen, as_seeing = (
            np.concatenate([part for pair in zip(*halves, strict=True) for part in pair])
            for halves in ((once, backs), (backs, once))
        )
        seen = _incidence(num_vertices, *(np.repeat(column, as_seen) for column in columns))
        sees = _incidence(num_vertices, *(np.repeat(column, as_seeing) for column in columns))
    return seen, sees


def _incidence(num_vertices: int, near: Narrow, far: Narrow, kinds: Narrow) -> _Incidence:
    order = np.argsort(near, kind="stable")
    starts = np.append(0, np.cumsum(np.bincount(near, minlength=num_vertices)))
    return _Incidence(starts, far[order], kinds[order])


def _edges(index: int, num_vertices: int, relation: Relation) -> tuple[Ints, Ints, Ints]:
    sources = _integers(f"sources of relation {index}", relation.sources)
    targets = _integers(f"targets of relation {index}", relation.targets)
    same = np.ndim(relation.labels) == 0
    labels = _integers(f"labels of relation {index}", [relation.labels] if same else relation.labels)
    labels = np.repeat(labels, len(sources)) if same else labels
    if not len(sources) == len(targets) == len(labels):
        raise ValueError(
            f"relation {index} has {len(sources)} sources, {len(targets)} targets and {len(labels)} labels; give one "
            "of each per edge"
        )
    for ends in (sources, targets):
        wrong = ends[(ends < 0) | (ends >= num_vertices)]
        if wrong.size:
            raise ValueError(f"relation {index} names vertex {wrong[0]}; there are {num_vertices}, numbered from 0")
    return sources, targets, labels


def _integers(name: str, values: object) -> Ints:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise ValueError(f"{name} must be a one-dimensional array of integers, not {array.ndim}-D of {array.dtype}")
    return array.astype(np.int64, copy=False)


class _Refiner(Struct):
    """A partition while it is refined.

    Class c is ``members[first[c]:first[c] + size[c]]``, and ``place`` says where in ``members`` a vertex is.
    ``first`` and ``size`` are as long as there can be classes. ``sums`` and ``marks`` are 0 and False between rounds.
    ``seen`` has edges as often as the far end sees the vertex, ``sees`` as often as the vertex sees the far end.
    """

    seen: _Incidence
    sees: _Incidence
    colour: Ints
    members: Ints
    place: Ints
    first: Ints
    size: Ints
    num_classes: int
    sums: Hashes
    marks: Flags

    @classmethod
    def begin(cls, initial: Ints, seen: _Incidence, sees: _Incidence) -> "_Refiner":
        """Return the partition by initial colours."""
        num = len(initial)
        names, colour = numbered(initial)
        counts = np.bincount(colour, minlength=len(names))
        members = sorted_order(colour)
        place = np.empty(num, np.int64)
        place[members] = np.arange(num)
        first, size = np.zeros(num, np.int64), np.zeros(num, np.int64)
        first[: len(names)] = np.cumsum(counts) - counts
        size[: len(names)] = counts
        sums, marks = np.zeros(num, np.uint64), np.zeros(num, np.bool_)
        return cls(seen, sees, colour, members, place, first, size, len(names), sums, marks)

    def refine(self, seed: int) -> None:
        """Split until no class splits any more, as far as hashes tell.

        After each round, any two members of a class have as many edges to each class of the round before. Where such
        a class has split, the edges to all parts but one tell those to the last: only those parts count as changed.
        """
        changed = np.arange(len(self.colour))
        while changed.size:
            touched = self._different([self._shown(portion, seed) for portion in self.seen.portions(changed)])
            hashes = self.sums[touched]
            self.sums[touched] = 0
            changed = self._split(touched, hashes)

    def _shown(self, vertices: Ints, seed: int) -> Ints:
        """Add a hash of each edge of some vertices to the sum of its far end; return the far ends."""
        at, owners = self.seen.of(vertices)
        far = self.seen.far[at].astype(np.int64)
        np.add.at(self.sums, far, _mix(self.seen.kinds[at].astype(np.int64), self.colour[vertices][owners], seed))
        return far

    def verify(self) -> bool:
        """Return whether the partition is equitable; if not, split each class by whether members equal its first."""
        model = self.members[self.first[self.colour]]
        degrees = np.diff(self.sees.starts)
        others = np.flatnonzero(model != np.arange(len(model)))
        as_many = degrees[others] == degrees[model[others]]
        wrong = others[~as_many]
        wrong = np.concatenate([wrong, *(self._unlike(part, model) for part in self.sees.portions(others[as_many]))])
        self._split(wrong, np.zeros(len(wrong), np.uint64))
        return not wrong.size

    def _unlike(self, vertices: Ints, model: Ints) -> Ints:
        """Return which vertices see other neighbours than their models, which have as many.

        Most see the same in the order in which their edges were given. Only what the others see is sorted.
        """
        for is_sorted in (False, True):
            at, owners = self.sees.of(vertices)
            shifts = self.sees.starts[model[vertices]] - self.sees.starts[vertices]
            mine, theirs = self._seen(at), self._seen(at + shifts[owners])
            if is_sorted:
                names, numbers = np.unique(np.concatenate([mine, theirs]), return_inverse=True)
                whose = owners * len(names)
                mine, theirs = np.sort(whose + numbers[: len(at)]), np.sort(whose + numbers[len(at) :])
            differs = np.zeros(len(vertices), np.bool_)
            differs[owners[mine != theirs]] = True
            vertices = vertices[differs]
        return vertices

    def _seen(self, at: Ints) -> Ints:
        """Return a number per edge, the same for equal kinds of edges to one class."""
        return self.sees.kinds[at].astype(np.int64) * self.num_classes + self.colour[self.sees.far[at]]

    def _different(self, vertices: Sequence[Ints]) -> Ints:
        """Return the different ones of some vertices, sorted: of many by marks on all, of few by a sort."""
        if _MANY * sum(map(len, vertices)) < len(self.marks):
            ordered = np.sort(np.concatenate(vertices))
            return ordered[run_begins(ordered)]
        for portion in vertices:
            self.marks[portion] = True
        found = np.flatnonzero(self.marks)
        self.marks[found] = False
        return found

    def _split(self, touched: Ints, hashes: Hashes) -> Ints:
        """Split classes by the hashes of touched vertices; return the vertices that have a new colour, part by part.

        Members of a class that are not touched, if any, are a part too. The largest part keeps the colour.
        """
        if not touched.size:
            return touched
        order = np.lexsort((hashes, self.colour[touched]))
        touched, hashes = touched[order], hashes[order]
        colours = self.colour[touched]
        new_class = run_begins(colours)
        class_at = np.flatnonzero(new_class)
        part_at = np.flatnonzero(new_class | run_begins(hashes))
        slots = self._move_to_end(touched, colours[class_at], np.diff(class_at, append=len(touched)))
        starts, sizes = slots[part_at], np.diff(part_at, append=len(touched))
        return self._name_parts(colours[part_at], starts, sizes)

    def _move_to_end(self, touched: Ints, classes: Ints, num_touched: Ints) -> Ints:
        """Put the touched vertices, in the order given, at the ends of their classes; return their places."""
        whose = np.repeat(np.arange(len(classes)), num_touched)
        begins = self.first[classes] + self.size[classes] - num_touched
        slots = (begins - (np.cumsum(num_touched) - num_touched))[whose] + np.arange(len(touched))
        self.marks[touched] = True
        occupants = self.members[slots]
        leaving = occupants[~self.marks[occupants]]
        self.marks[touched] = False
        vacated = self.place[touched]
        vacated = vacated[vacated < begins[whose]]  # as many as leave, class by class
        self.members[vacated], self.place[leaving] = leaving, vacated
        self.members[slots], self.place[touched] = touched, slots
        return slots

    def _name_parts(self, colours: Ints, starts: Ints, sizes: Ints) -> Ints:
        """Give all but the largest part of each class a new colour; return the members of the renamed parts.

        ``colours``, ``starts`` and ``sizes`` are those of the touched parts. What a class has before its first touched
        part is its still one.
        """
        at = np.flatnonzero(run_begins(colours))
        classes = colours[at]
        still = starts[at] - self.first[classes]
        largest = np.maximum.reduceat(sizes, at)
        whose = np.cumsum(run_begins(colours)) - 1
        candidates = np.flatnonzero(sizes == largest[whose])
        keeper = candidates[run_begins(whose[candidates])]
        stays = still >= largest  # the still part keeps the colour
        is_new = np.ones(len(colours), np.bool_)
        is_new[keeper[~stays]] = False
        old = ~stays & (still > 0)
        new_starts = np.concatenate([starts[is_new], self.first[classes[old]]])
        new_sizes = np.concatenate([sizes[is_new], still[old]])
        self.first[classes] = np.where(stays, self.first[classes], starts[keeper])
        self.size[classes] = np.where(stays, still, sizes[keeper])
        names = self.num_classes + np.arange(len(new_starts))
        self.first[names], self.size[names] = new_starts, new_sizes
        self.num_classes += len(names)
        begins = new_starts - (np.cumsum(new_sizes) - new_sizes)
        renamed: Ints = self.members[np.repeat(begins, new_sizes) + np.arange(new_sizes.sum())]
        self.colour[renamed] = np.repeat(names, new_sizes)
        return renamed


def _mix(kinds: Ints, colours: Ints, seed: int) -> Hashes:
    """Return 64 well-mixed bits per pair: the finaliser of SplitMix64 (Steele, Lea and Flood 2014, figure 17)."""
    z = (kinds.astype(np.uint64) << np.uint64(40)) ^ colours.astype(np.uint64)
    z += np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _by_smallest_member(colour: Ints) -> Partition:
    """Return the partition by classes that are numbered from 0."""
    counts = np.bincount(colour)
    firsts = first_places(colour, len(counts))
    order = np.argsort(firsts)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return Partition(rank[colour], firsts[order], counts[order])
