"""Which ranks are simulated, and whom each one stands for.

Ranks, groups of ranks and links are vertices of one graph, coloured by role, device and kind. The coarsest equitable
partition of that graph has classes whose members see the same: one rank per class is simulated, and what all groups
and messages of a class put on the links of a class is put on one. Where all of a class do the same at the same time,
each link of a class carries the same, and the simulated times are those of every member.

Links of the network that can never bind, whatever runs at the same time, are left out: they would tell ranks apart
that nothing else does (see ``sim.engine.slack``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sim.engine.activity import Activity, Pricing, Resource
from sim.engine.refinement import Relation, coarsest_equitable
from sim.engine.slack import never_binding
from sim.engine.traffic import Exchange, Load, exchanges
from sim.plan.mesh import Mesh
from sim.plan.op import Collective, CollectiveKind, Op, Send
from sim.plan.program import Plan

Ints = NDArray[np.int64]

NEVER_BINDS: Final = -1
_WORTH_LEAVING_OUT: Final = 0.75
"""Where fewer of the network's links never bind, the others split nearly all that there is to split."""


@dataclass(frozen=True)
class Folding:
    """``stands_for[r]`` is the simulated rank of rank r's class; ``multiplicity`` counts each class.

    ``link_class[l]`` is the class of link l (-1: it never binds) and ``class_size`` how many links a class has (none:
    links are not folded). ``group_counts``: by axes and members, of every simulated rank's group, how many groups are
    like it.
    """

    stands_for: Sequence[int]
    multiplicity: Mapping[int, int]
    link_class: Ints | None = None
    class_size: Ints | None = None
    group_counts: Mapping[tuple[object, ...], Mapping[int, int]] = field(default_factory=dict)
    _joint: dict[tuple[object, ...], bool] = field(default_factory=dict, repr=False)
    _folded: dict[tuple[int, int], tuple[Activity, Activity]] = field(default_factory=dict, repr=False)

    def is_joint(self, mesh: Mesh, rank: int, op: Collective) -> bool:
        """Return whether several simulated ranks take part where ``rank`` runs a collective."""
        key = (rank, op.axes, op.members)
        if key not in self._joint:
            self._joint[key] = len({self.stands_for[member] for member in op.group(mesh, rank)}) > 1
        return self._joint[key]

    def folded(self, op: Op, rank: int, activity: Activity) -> Activity:
        """Return what an op of a simulated rank and all that are like it demand of classes of links."""
        if self.link_class is None or self.class_size is None or not isinstance(op, Collective | Send):
            return activity
        key = (rank, id(activity))  # kept with the activity, so that no other gets its number
        if key not in self._folded:
            self._folded[key] = activity, self._fold(op, rank, activity)
        return self._folded[key][1]

    def _fold(self, op: Collective | Send, rank: int, activity: Activity) -> Activity:
        assert self.link_class is not None
        assert self.class_size is not None
        alike = self.multiplicity[rank] if isinstance(op, Send) else self.group_counts[op.axes, op.members][rank]
        demands: dict[Resource, float] = {}
        for resource, seconds in activity.demands:
            number = int(self.link_class[resource[1]])  # type: ignore[index]
            if number == NEVER_BINDS:
                continue
            share = seconds * alike / int(self.class_size[number])
            demands["link", number] = demands.get(("link", number), 0.0) + share
        return Activity(activity.latency_s, tuple(demands.items()), activity.occupancy_s)


def no_fold(plan: Plan, pricing: Pricing) -> Folding:
    """Return one class per rank."""
    ranks = range(plan.mesh.size)
    return Folding(ranks, dict.fromkeys(ranks, 1))


def fold(plan: Plan, pricing: Pricing) -> Folding:
    """Return the coarsest classes of ranks that cannot differ."""
    if all(len(plan.ranks_of(program)) == 1 for program in plan.programs):
        return no_fold(plan, pricing)
    loads = list(pricing.loads(plan, exchanges(plan)))
    in_network = pricing.network_links()
    used = np.zeros(len(in_network), dtype=np.bool_)
    for _, load in loads:
        used[load.links] = True
    used &= in_network
    idle = used & never_binding([load for _, load in loads], in_network)
    if np.array_equal(idle, used):
        return _refine(plan, pricing, loads, idle)
    folding = _refine(plan, pricing, loads, np.zeros_like(used))
    if idle.sum() < _WORTH_LEAVING_OUT * used.sum():
        return folding
    return _refine(plan, pricing, loads, _whole_classes(folding, idle))


def _refine(
    plan: Plan, pricing: Pricing, loads: Sequence[tuple[Exchange, Load]], left_out: NDArray[np.bool_]
) -> Folding:
    """Return the coarsest classes where some links do not count."""
    refinement = _Refinement(plan, pricing, left_out)
    for exchange, load in loads:
        refinement.add(exchange, load)
    return refinement.fold()


def _whole_classes(folding: Folding, links: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return those of some links all of whose class are among them: leaving these out splits no class."""
    assert folding.link_class is not None
    assert folding.class_size is not None
    among = np.bincount(folding.link_class[links], minlength=len(folding.class_size))
    whole: NDArray[np.bool_] = links & (among == folding.class_size)[folding.link_class]
    return whole


class _Refinement:
    """The graph that is refined: first the ranks, then the links, then the groups of every exchange."""

    def __init__(self, plan: Plan, pricing: Pricing, left_out: NDArray[np.bool_]) -> None:
        self.left_out = left_out
        self.num_ranks = plan.mesh.size
        roles = np.empty(self.num_ranks, dtype=np.int64)
        for index, program in enumerate(plan.programs):
            roles[list(plan.ranks_of(program))] = index
        ranks = np.unique(np.stack([roles, pricing.rank_kinds(plan)]), axis=1, return_inverse=True)[1].ravel()
        links = pricing.link_kinds()
        self.colours = [ranks, ranks.max() + 1 + links]
        self.num_colours = int(ranks.max()) + 1 + (int(links.max()) + 1 if len(links) else 0)
        self.num_vertices = self.num_ranks + len(links)
        self.relations: list[Relation] = []
        self.groups: dict[tuple[object, ...], list[tuple[Ints, int]]] = {}

    def add(self, exchange: Exchange, load: Load) -> None:
        """Add an exchange's groups, or its messages' senders, with what they put on links."""
        op, groups = exchange.op, exchange.groups
        if isinstance(op, Send):
            users = groups[:, 0]
            self.relations.append(Relation(groups[:, 0], groups[:, 1]))
        else:
            users = np.arange(self.num_vertices, self.num_vertices + len(groups))
            self.groups.setdefault((op.axes, op.members), []).append((groups, self.num_vertices))
            self.num_vertices += len(groups)
            self.colours.append(np.full(len(groups), self.num_colours))
            self.num_colours += 1
            places = np.tile(_places(op, groups.shape[1]), len(groups))
            self.relations.append(Relation(np.repeat(users, groups.shape[1]), groups.ravel(), places))
        if load.latencies.any():
            self.relations.append(Relation(users, users, load.latencies))
        kept = ~self.left_out[load.links]
        if kept.any():
            _, labels = np.unique(np.round(load.seconds[kept] / load.seconds.max(), 10), return_inverse=True)
            self.relations.append(Relation(users[load.groups[kept]], self.num_ranks + load.links[kept], labels.ravel()))

    def fold(self) -> Folding:
        """Refine, and return the classes."""
        partition = coarsest_equitable(np.concatenate(self.colours), self.relations)
        colour, first = partition.colour, partition.representative
        ranks, links = colour[: self.num_ranks], colour[self.num_ranks : self.num_ranks + self._num_links]
        stands_for = first[ranks]
        simulated, counts = np.unique(stands_for, return_counts=True)
        names, link_class = np.unique(links, return_inverse=True)
        group_counts = {}
        for key, parts in self.groups.items():
            by_rank = np.zeros(self.num_ranks, dtype=np.int64)
            for groups, base in parts:
                by_rank[groups] = partition.multiplicity[colour[base : base + len(groups)]][:, None]
            group_counts[key] = dict(zip(simulated.tolist(), by_rank[simulated].tolist(), strict=True))
        return Folding(
            stands_for.tolist(),
            dict(zip(simulated.tolist(), counts.tolist(), strict=True)),
            np.where(self.left_out, NEVER_BINDS, link_class.ravel()).astype(np.int64),
            np.bincount(link_class.ravel(), minlength=len(names)),
            group_counts,
        )

    @property
    def _num_links(self) -> int:
        return len(self.colours[1])


def _places(op: Collective, num_positions: int) -> Ints:
    """Return a label per position of a group: those that the op treats alike have the same."""
    positions = np.arange(num_positions)
    if op.sizes:
        return positions
    is_rooted = op.kind in {CollectiveKind.BROADCAST, CollectiveKind.REDUCE}
    is_root: Ints = ((positions == op.root) & is_rooted).astype(np.int64)
    return is_root
