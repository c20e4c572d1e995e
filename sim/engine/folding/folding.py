"""The choice of the simulated ranks, and the ranks that each of them stands for.

Ranks, groups of ranks and links are vertices of one graph, coloured by role, device and kind. The coarsest equitable
partition of that graph has classes whose members see the same: one rank per class is simulated, and what all groups
and messages of a class put on the links of a class is put on one. Where all of a class do the same at the same time,
each link of a class carries the same, and the simulated times are those of every member.

Links of the network that can never bind, whatever runs at the same time, are left out: they would tell ranks apart
that nothing else does (see ``sim.engine.folding.slack``). Ranks that take turns as the root of a collective are not
told apart by their turns where these change no time (see ``sim.engine.folding.turns``).
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from sim.engine.folding import slack, turns
from sim.engine.folding.likeness import NONE, Classes, LikenessGraph
from sim.engine.folding.orbit_classes import classes_of_orbits, kept_by_loads
from sim.engine.folding.orbits import Orbits, orbits_of
from sim.engine.prices.activity import Activity, Demand, LinkDemands, Pricing, Resource, is_link
from sim.engine.prices.traffic import Exchange, Load, exchanges
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective, Op
from sim.plan.words.program import Plan, Program
from sim.sorting import distinct_values

Ints = NDArray[np.int64]

NEVER_BINDS: Final = NONE


class Folding(Struct, frozen=True, dict=True):
    """``stands_for[r]`` is the simulated rank of rank r's class; ``multiplicity`` counts each class.

    ``link_class[l]`` is the class of link l (-1: it never binds, or nobody uses it) and ``class_size`` how many links a
    class has (none: links are not folded). ``group_counts``: by axes and members, of every simulated rank's group, how
    many groups are like it. ``carries_alike``: where roots take turns and their turns tell no ranks apart, a number per
    link, the same for links of a class that carry the same in every turn (-1: all of the class do); else None.
    ``orbits``: where the cluster's own symmetry was known, its orbits, whose links carry the same.
    """

    stands_for: Sequence[int]
    multiplicity: Mapping[int, int]
    link_class: Ints | None = None
    class_size: Ints | None = None
    group_counts: Mapping[tuple[object, ...], Mapping[int, int]] = field(default_factory=dict)
    carries_alike: Ints | None = None
    orbits: Orbits | None = None
    _classes: dict[tuple[object, ...], tuple[int, ...]] = field(default_factory=dict)
    _folded: dict[tuple[int, int], tuple[Activity, Activity]] = field(default_factory=dict)
    _places: dict[bytes, "_Places"] = field(default_factory=dict)

    def same_as(self, other: "Folding") -> bool:
        """Return whether another folding has the same classes of ranks, links and groups."""
        return (
            self.stands_for == other.stands_for
            and self.multiplicity == other.multiplicity
            and self.group_counts == other.group_counts
            and _equal(self.link_class, other.link_class)
            and _equal(self.class_size, other.class_size)
            and _equal(self.carries_alike, other.carries_alike)
        )

    def classes_of(self, mesh: Mesh, rank: int, op: Collective) -> tuple[int, ...]:
        """Return which simulated ranks take part where ``rank`` runs a collective, in order."""
        key = (rank, op.axes, op.members)
        if key not in self._classes:
            self._classes[key] = tuple(sorted({self.stands_for[member] for member in op.group(mesh, rank)}))
        return self._classes[key]

    def in_turn(self, program: Program, ops: Sequence[Op], activities: Sequence[Activity]) -> Sequence[Activity]:
        """Return the activities of all ops of a simulated rank, with those of rooted collectives as folding took them.

        Where turns tell no ranks apart, these are the envelopes of their turns.
        """
        if self.carries_alike is None:
            return activities
        return turns.as_envelopes(program, ops, activities)

    def folded(self, op: Op, rank: int, activity: Activity) -> Activity:
        """Return the demands on classes of links of an op of a simulated rank and of all ops like it."""
        if self.link_class is None or self.class_size is None or not activity.uses_links:
            return activity.listed
        alike = self.group_counts[op.axes, op.members][rank] if isinstance(op, Collective) else self.multiplicity[rank]
        key = (alike, id(activity))  # kept with the activity, so that no other gets its number
        if key not in self._folded:
            self._folded[key] = activity, self._fold(alike, activity)
        return self._folded[key][1]

    def _fold(self, alike: int, activity: Activity) -> Activity:
        """Return what an activity and all that are like it demand of one link of each class, and of simulated ranks."""
        demands = activity.demands
        folded = self._columns(alike, demands) if isinstance(demands, LinkDemands) else self._few(alike, demands)
        return Activity(activity.latency_s, tuple(folded), activity.occupancy_s, activity.yields)

    def _few(self, alike: int, demands: Sequence[Demand]) -> list[Demand]:
        """Return the same of a few demands, of which arrays would take longer."""
        assert self.link_class is not None
        assert self.class_size is not None
        own, of_classes = dict[Resource, float](), dict[int, float]()
        for resource, seconds in demands:
            if not is_link(resource):
                own[self._simulated(resource)] = seconds
            elif (found := int(self.link_class[resource[1]])) != NEVER_BINDS:
                of_classes[found] = of_classes.get(found, 0.0) + seconds * alike / int(self.class_size[found])
        return [*own.items(), *[(("link", found), of_classes[found]) for found in sorted(of_classes)]]

    def _columns(self, alike: int, demands: LinkDemands) -> list[Demand]:
        """Return the same of demands on links alone; of the same links they go to the same classes."""
        key = demands.links.tobytes()
        if key not in self._places:
            self._places[key] = self._place(demands.links)
        at = self._places[key]
        shares = demands.seconds[at.links] * alike / at.sizes
        return list(zip(at.classes, np.bincount(at.where, shares).tolist(), strict=True))

    def _place(self, links: Ints) -> "_Places":
        """Return where the demands on links go."""
        assert self.link_class is not None
        assert self.class_size is not None
        of_links = self.link_class[links]
        kept = np.flatnonzero(of_links != NEVER_BINDS)
        classes, where = np.unique(of_links[kept], return_inverse=True)
        return _Places(kept, where, self.class_size[of_links[kept]], [("link", name) for name in classes.tolist()])

    def _simulated(self, resource: Resource) -> Resource:
        """Return the resource of the rank that is simulated for the one whose resource this is."""
        assert isinstance(resource, tuple)
        kind, rank, *rest = resource
        return (kind, self.stands_for[rank], *rest)


class _Places(Struct, frozen=True):
    """Where an activity's demands go: those of numbers ``links`` to classes, the k-th to ``classes[where[k]]``.

    That class has ``sizes[k]`` links.
    """

    links: Ints
    where: Ints
    sizes: Ints
    classes: Sequence[Resource]


def _equal(one: Ints | None, other: Ints | None) -> bool:
    return one is other if one is None or other is None else np.array_equal(one, other)


def no_fold(plan: Plan, pricing: Pricing) -> Folding:
    """Return one class per rank."""
    ranks = range(plan.mesh.size)
    return Folding(ranks, dict.fromkeys(ranks, 1))


def fold(plan: Plan, pricing: Pricing) -> Folding:
    """Return the coarsest classes of ranks that cannot differ."""
    if all(plan.num_ranks_of(program) == 1 for program in plan.programs):
        return no_fold(plan, pricing)
    kinds = _rank_kinds(plan, pricing), pricing.link_kinds()
    if (kept := kept_by_loads(plan, pricing, orbits_of(plan, pricing, kinds[0]))) is not None:
        return _folding(classes_of_orbits(pricing, *kept, kinds[0]), orbits=kept[0])
    every = list(exchanges(plan))
    loads, in_network = list(pricing.loads(plan, iter(every))), pricing.network_links()
    idle = slack.never_binding([load for _, load in loads], in_network)
    if (taken := turns.turns_of(loads, every, len(in_network))) is not None:
        in_turns, others = taken
        as_one = [*others, *(turn.as_one for turn in in_turns)]
        classes = _classes(LikenessGraph(*kinds, idle, marks_roots=False), as_one)
        room = turns.slack_of(in_turns, classes)
        if not turns.turns_matter(as_one, classes, room):
            return _folding(classes, room.carries_alike)
    return _folding(_classes(LikenessGraph(*kinds, idle), loads))


def _classes(graph: LikenessGraph, loads: Sequence[tuple[Exchange, Load]]) -> Classes:
    """Return the coarsest classes under some exchanges and their loads."""
    for exchange, load in loads:
        graph.add(exchange, load)
    return graph.classes()


def _folding(classes: Classes, carries_alike: Ints | None = None, orbits: Orbits | None = None) -> Folding:
    """Return the folding into some classes."""
    simulated = distinct_values(classes.stands_for)
    return Folding(
        classes.stands_for.tolist(),
        dict(zip(simulated.tolist(), classes.multiplicity[simulated].tolist(), strict=True)),
        classes.link_class,
        classes.class_size,
        {
            key: dict(zip(simulated.tolist(), alike[simulated].tolist(), strict=True))
            for key, alike in classes.groups_alike.items()
        },
        carries_alike,
        orbits,
    )


def _rank_kinds(plan: Plan, pricing: Pricing) -> Ints:
    """Return a number per rank, the same for ranks with the same program and equal devices."""
    roles = np.empty(plan.mesh.size, dtype=np.int64)
    for index, program in enumerate(plan.programs):
        roles[plan.rank_array_of(program)] = index
    kinds = pricing.rank_kinds(plan)
    return roles * (int(kinds.max(initial=0)) + 1) + kinds
