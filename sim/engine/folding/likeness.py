"""The graph of ranks, groups and links. Its coarsest equitable partition gives the classes of like ranks.

A vertex per rank, per group that communicates, and per link that ranks share. Most links are not shared: a device's
ports, cables and adapter are used by its rank's messages and by groups that it is in, and by nobody else. Such a link
is no vertex; what is known of it is known of its owner. It loses nothing: ranks of one class own links that are used
alike, and the others who use them are the ranks and groups that the owner communicates with.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.folding.refinement import Partition, Relation, coarsest_equitable
from sim.engine.prices.numbering import in_order_of_first, numbered, numbered_to_ten_digits
from sim.engine.prices.traffic import Exchange, Load
from sim.plan.words.op import ROOTED, Collective, SizeTable
from sim.sorting import distinct, first_places

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Owners = NDArray[np.int32]
"""A vertex per link: of all links there is such a table, so it is of 32 bits."""

NONE: Final = -1
_MANY: Final = -2
_MOST: Final = 2**62


class _Facts(Struct):
    """A number per thing, equal where all that has been told of two things is equal; less than ``count``."""

    numbers: Ints
    count: int

    @classmethod
    def of(cls, numbers: NDArray[np.integer[Any]]) -> "_Facts":
        return cls(numbers.astype(np.int64), int(numbers.max(initial=0)) + 1)

    def tell(self, things: Ints, facts: Ints, num_facts: int) -> None:
        """Tell one fact, from 0 to ``num_facts`` - 1, of each of some things."""
        self._make_room(num_facts + 1)
        self.numbers[things] += (facts + 1) * self.count
        self.count *= num_facts + 1

    def tell_counts(self, things: Ints, most: int) -> None:
        """Tell how often each thing is named, at most ``most`` times."""
        self._make_room(most + 1)
        np.add.at(self.numbers, things, self.count)
        self.count *= most + 1

    def _make_room(self, factor: int) -> None:
        if self.count * factor >= _MOST:
            names, self.numbers = numbered(self.numbers)
            self.count = len(names)


class _Use(Struct, frozen=True, eq=False):
    """Vertex ``users[i]`` puts load ``labels[i]`` on link ``links[i]``.

    ``receivers``: of messages, whose users are the senders; ``group_of``: of collectives, each rank's group;
    ``counts``: how many users like ``users[i]`` link ``links[i]`` has; None: one.
    """

    users: Ints
    links: Ints
    labels: Ints
    receivers: Ints | None
    group_of: Ints | None
    counts: Floats | None


class Classes(Struct):
    """Who is like whom. ``stands_for`` and ``multiplicity`` are per rank: its class's first rank, and their number.

    ``link_class``: per link, NONE for one that nobody uses or that was left out; ``class_size``: links of each class.
    ``groups_alike``: by axes and members, per rank, how many groups are like the one that it is in;
    ``group_class``: the number of their class, where their positions do not matter.
    """

    stands_for: Ints
    multiplicity: Ints
    link_class: Ints
    class_size: Ints
    groups_alike: dict[tuple[object, ...], Ints]
    group_class: dict[tuple[object, ...], Ints]


class Sizes(Struct, frozen=True, eq=False):
    """How many ranks each orbit of ranks has, and how many links each orbit of links."""

    of_ranks: int
    of_links: Ints


class LikenessGraph:
    """Grows by exchanges, then finds the classes. Links that are ``left_out`` tell nobody apart.

    ``marks_roots``: the root of a broadcast, or of a reduce, is told apart from other members. ``sizes``: ranks and
    links are orbits of so many; groups then name one orbit several times, and loads have counts.
    """

    def __init__(
        self,
        rank_kinds: Ints,
        link_kinds: NDArray[np.int32],
        left_out: NDArray[np.bool_],
        *,
        marks_roots: bool = True,
        sizes: "Sizes | None" = None,
    ) -> None:
        self._sizes = sizes
        self._left_out = left_out
        self._marks_roots = marks_roots
        self._num_ranks = len(rank_kinds)
        self._ranks = _Facts.of(rank_kinds)
        self._links = _Facts.of(link_kinds)
        self._groups = _Facts.of(np.zeros(0, np.int64))
        self._group_of: dict[tuple[tuple[str, ...], tuple[int, ...], bytes], Ints] = {}
        self._relations: list[Relation] = []
        self._uses: list[_Use] = []
        self._group_repeats: list[Ints] = []

    def add(self, exchange: Exchange, load: Load) -> None:
        """Add an exchange's groups, or its messages, with their loads on links."""
        op, groups = exchange.op, exchange.groups
        latencies = load.latencies if len(load.latencies) else np.zeros(len(groups), np.int64)
        num_latencies = int(latencies.max(initial=0)) + 1
        group_of = None
        if not isinstance(op, Collective):
            users = groups[:, 0]
            self._relations.append(Relation(users, groups[:, 1]))
            self._ranks.tell(users, latencies, num_latencies)
        else:
            group_of = self._groups_of(op, groups)
            users = group_of[groups[:, 0]]
            self._groups.tell(users - self._num_ranks, latencies, num_latencies)
        kept = ~self._left_out[load.links]
        if kept.any():
            rows, links, labels = load.groups, load.links, numbered_to_ten_digits(load.seconds)
            if not kept.all():
                rows, links, labels = rows[kept], links[kept], labels[kept]
            receivers = None if isinstance(op, Collective) else groups[:, 1][rows]
            counts = None if load.counts is None else load.counts[kept]
            self._uses.append(_Use(users[rows], links, labels, receivers, group_of, counts))

    def _groups_of(self, op: Collective, groups: Ints) -> Ints:
        """Return the vertex of each rank's group, NONE for ranks without one, and make those that are new."""
        places = _places(op, groups.shape[1], marks_roots=self._marks_roots)
        key = (op.axes, op.members, places.tobytes())
        group_of = self._group_of.setdefault(key, np.full(self._num_ranks, NONE))
        new = groups[group_of[groups[:, 0]] == NONE]
        if len(new):
            vertices = self._num_ranks + len(self._groups.numbers) + np.arange(len(new))
            group_of[new] = vertices[:, None]
            self._groups.numbers = np.concatenate([self._groups.numbers, np.zeros(len(new), np.int64)])
            edges = np.repeat(vertices, new.shape[1]), new.ravel(), np.tile(places, len(new))
            counts = None if self._sizes is None else np.repeat(1.0 / _repeats(new), new.shape[1])
            self._relations.append(_relation(*edges, counts))
            self._group_repeats.append(_repeats(new))
        return group_of

    def classes(self) -> Classes:
        """Return the coarsest classes of ranks, groups and links that see the same."""
        owner = self._owners()
        owned = np.flatnonzero(owner >= 0)
        for use in self._uses:
            self._tell_owned(use, owner)
        codes = np.full(len(owner), NONE)
        codes[owned] = numbered(self._links.numbers[owned])[1]
        self._tell_owners(owner[owned], codes[owned])
        shared = np.flatnonzero(owner == _MANY)
        vertex = np.full(len(owner), NONE)
        vertex[shared] = self._num_ranks + len(self._groups.numbers) + np.arange(len(shared))
        relations = [*self._relations, *self._shared_uses(vertex)]
        partition = coarsest_equitable(self._colours(shared), relations)
        return self._named(partition, owner, codes, vertex)

    # --- links with an owner -------------------------------------------------------------------------------

    def _owners(self) -> Owners:
        """Return, per link, the one rank or group to whom all its users belong; _MANY: none; NONE: unused.

        Of messages that is their sender or their receiver, and of collectives with them the groups that it is in.
        """
        if self._sizes is not None:
            return self._all_shared()
        sent_by, received_by, grouped_by = (np.full(len(self._links.numbers), NONE, np.int32) for _ in range(3))
        for use in self._uses:
            if use.receivers is not None:
                _note(sent_by, use.links, use.users)
                _note(received_by, use.links, use.receivers)
        owner = np.where(sent_by >= 0, sent_by, received_by)
        has_messages = owner != NONE
        for use in self._uses:
            if use.group_of is not None:
                alone = ~has_messages[use.links]
                _note(grouped_by, use.links[alone], use.users[alone])
                rank = owner[use.links]
                apart = (rank >= 0) & (use.group_of[rank] != use.users)
                owner[use.links[apart]] = _MANY
        return np.where(has_messages, owner, grouped_by)

    def _all_shared(self) -> Owners:
        """Return that all links that are used have several users, as orbits of links may."""
        owner = np.full(len(self._links.numbers), NONE, np.int32)
        for use in self._uses:
            owner[use.links] = _MANY
        return owner

    def _tell_owned(self, use: _Use, owner: Owners) -> None:
        """Tell links with an owner how a use loads them: by a group, by what the owner sends, by what it receives."""
        among = owner[use.links] >= 0
        links, facts = use.links[among], 2 * use.labels[among]
        if use.receivers is not None:
            facts += owner[links] != use.users[among]
        if len(links):
            self._links.tell(links, facts, int(facts.max()) + 1)

    def _tell_owners(self, owners: Owners, codes: Ints) -> None:
        """Tell ranks and groups how many links of each code they own."""
        for code in range(int(codes.max(initial=-1)) + 1):
            those = owners[codes == code]
            for facts, things in (
                (self._ranks, those[those < self._num_ranks]),
                (self._groups, those[those >= self._num_ranks] - self._num_ranks),
            ):
                if len(things):
                    facts.tell_counts(things, int(np.bincount(things).max()))

    # --- links that ranks share ----------------------------------------------------------------------------

    def _shared_uses(self, vertex: Ints) -> Sequence[Relation]:
        """Return the loads of owners on the links that are vertices."""
        relations = []
        for use in self._uses:
            among = vertex[use.links] >= 0
            if among.any():
                counts = None if use.counts is None else use.counts[among]
                relations.append(_relation(use.users[among], vertex[use.links[among]], use.labels[among], counts))
        return relations

    def _colours(self, shared: Ints) -> Ints:
        """Return the first colours of all vertices: of the facts of each vertex alone."""
        parts, first = [], 0
        for numbers in (self._ranks.numbers, self._groups.numbers, self._links.numbers[shared]):
            names, colours = numbered(numbers)
            parts.append(first + colours)
            first += len(names)
        return np.concatenate(parts)

    def _multiplicity(self, partition: Partition, shared: Ints) -> Ints:
        """Return how many ranks, groups or links each class has."""
        if self._sizes is None:
            return partition.multiplicity
        of_ranks = np.full(self._num_ranks, self._sizes.of_ranks)
        sizes = [of_ranks, self._sizes.of_ranks // np.concatenate([np.ones(0, np.int64), *self._group_repeats])]
        return _rounded(np.bincount(partition.colour, np.concatenate([*sizes, self._sizes.of_links[shared]])))

    def _named(self, partition: Partition, owner: Owners, codes: Ints, vertex: Ints) -> Classes:
        colour, ranks = partition.colour, slice(0, self._num_ranks)
        multiplicity = self._multiplicity(partition, np.flatnonzero(vertex >= 0))
        keys = np.full(len(owner), NONE)
        num_codes = int(codes.max(initial=0)) + 2
        owned, shared = owner >= 0, vertex >= 0
        keys[owned] = colour[owner[owned]] * num_codes + 1 + codes[owned]
        keys[shared] = colour[vertex[shared]] * num_codes
        used = owned | shared
        link_class = in_order_of_first(keys[used])
        keys[used] = link_class
        of_links = None if self._sizes is None else self._sizes.of_links[used]
        groups_alike: dict[tuple[object, ...], Ints] = {}
        group_class: dict[tuple[object, ...], Ints] = {}
        for (axes, members, places), group_of in self._group_of.items():
            alike = np.where(group_of >= 0, multiplicity[colour[group_of]], 0)
            groups_alike[axes, members] = np.maximum(alike, groups_alike.get((axes, members), 0))
            if not any(places):
                group_class[axes, members] = np.where(group_of >= 0, colour[group_of], NONE)
        return Classes(
            stands_for=partition.representative[colour[ranks]],
            multiplicity=multiplicity[colour[ranks]],
            link_class=keys,
            class_size=_rounded(np.bincount(link_class, of_links)),
            groups_alike=groups_alike,
            group_class=group_class,
        )


def _note(table: Owners, links: Ints, who: Ints) -> None:
    """Note the user of links: the only user so far, or _MANY."""
    fresh = table[links] == NONE
    table[links[fresh]] = who[fresh]
    table[links[table[links] != who]] = _MANY


def _relation(sources: Ints, targets: Ints, labels: Ints, counts: Floats | None) -> Relation:
    """Return edges whose targets see the source of edge i ``counts[i]`` times, which are whole in all of equal edges.

    No counts: once.
    """
    if counts is None:
        return Relation(sources, targets, labels)
    num_targets, num_labels = int(targets.max(initial=0)) + 1, int(labels.max(initial=0)) + 1
    different, where = distinct((sources * num_targets + targets) * num_labels + labels)
    backs = np.zeros(len(where), np.int64)
    backs[first_places(where, len(different))] = _rounded(np.bincount(where, counts))
    return Relation(sources, targets, labels, backs)


def _repeats(groups: Ints) -> Ints:
    """Return how often each group names its first member."""
    repeats: Ints = (groups == groups[:, :1]).sum(axis=1)
    return repeats


def _rounded(sums: NDArray[Any]) -> Ints:
    whole: Ints = np.rint(sums).astype(np.int64)
    return whole


def _places(op: Collective, num_positions: int, *, marks_roots: bool) -> Ints:
    """Return a label per position of a group: those that the op treats alike have the same.

    With a table of sizes those are positions that keep as much, and send and get the same sizes, from whomever: links
    tell apart what differs beyond that.
    """
    positions = np.arange(num_positions)
    if op.sizes and not op.levelled:
        table = SizeTable.of(op.sizes).array
        own = np.diag(table)[:, None]
        others = np.where(np.eye(num_positions, dtype=bool), -1, table)
        facts = np.concatenate([own, np.sort(others, axis=1), np.sort(others.T, axis=1)], axis=1)
        return np.unique(facts, axis=0, return_inverse=True)[1].ravel()
    is_root: Ints = ((positions == op.root) & (marks_roots and op.kind in ROOTED)).astype(np.int64)
    return is_root
