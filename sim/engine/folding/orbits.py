"""Orbits: ranks and links that the symmetry of plan and cluster makes alike, found before any load is known.

A *shift* of a mesh axis takes each rank some steps along the axis, wrapping around. It is a symmetry if it takes
programs and devices to equal ones, every route to a route, and every link to one of its kind. Messages, and collectives
along other axes, then load the links to which the shift takes the links that they loaded before. A collective along the
axis itself has groups that the shift takes to themselves; its loads must go to themselves too (``Orbits.uneven``).

All ranks, or links, to which shifts take one are its *orbit*. Orbits are an equitable partition, so no class of the
coarsest one splits an orbit. It is enough to refine orbits: each sees what any of its members sees. Loads are listed
for the groups of the first rank of each orbit, and for the messages that it sends.
"""

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from math import prod
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.prices.activity import Pricing
from sim.engine.prices.traffic import Exchange, Load, all_groups, exchanging_ops, shifted
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import ROOTED, Collective, Send
from sim.plan.words.program import Plan

Ints = NDArray[np.int64]
Links = NDArray[np.int32]
Flags = NDArray[np.bool_]

FEWEST_RANKS: Final = 1024
"""For fewer ranks, looking for symmetry takes longer than it saves."""
_ROUNDING: Final = 1e-10


class Shift(Struct, frozen=True, eq=False):
    """Ranks go ``step`` steps along an axis, and links with them; ``order`` times the shift is none.

    ``powers[k]``: where links go by 2^k shifts.
    """

    axis: str
    step: int
    order: int
    powers: Sequence[Links]

    @classmethod
    def of(cls, axis: str, step: int, degree: int, images: Links) -> "Shift":
        """Return the shift by which links go to ``images``."""
        order, powers = degree // step, [images]
        while 2 ** len(powers) < order:
            powers.append(powers[-1][powers[-1]])
        return cls(axis, step, order, powers)

    def moved(self, links: Links, times: Ints) -> Links:
        """Return where each link goes by so many shifts."""
        for k, power in enumerate(self.powers):
            goes = (times >> k & 1).astype(np.bool_)
            if goes.any():
                links = np.where(goes, power[links], links)
        return links

    def least(self, values: Links) -> Links:
        """Return, per link, the least of the values of the links to which shifts take it."""
        found, times = values, 1
        for power in self.powers:  # ``found`` is the least of the first ``times``
            if 2 * times > self.order:
                rest = self.moved(np.arange(len(values), dtype=np.int32), np.array(self.order - times))
                return np.minimum(found, found[rest])
            found, times = np.minimum(found, found[power]), 2 * times
        return found


class Orbits(Struct, frozen=True, dict=True, eq=False):
    """The orbits of all shifts. ``rank[r]``: the number of rank r's orbit, ``first[o]``: the first rank of orbit o."""

    mesh: Mesh
    shifts: Sequence[Shift]
    rank: Ints
    first: Ints
    num_links: int

    @property
    def size(self) -> int:
        """Return the number of ranks of each orbit, as of combinations of shifts."""
        return prod(shift.order for shift in self.shifts)

    @cached_property
    def link(self) -> Links:
        """Return the first link of each link's orbit."""
        found = np.arange(self.num_links, dtype=np.int32)
        for shift in self.shifts:
            found = shift.least(found)
        return found

    @cached_property
    def link_size(self) -> Ints:
        """Return how many links the orbit of each first link has."""
        return np.bincount(self.link, minlength=self.num_links)

    def keeps(self, exchange: Exchange) -> Sequence[Shift]:
        """Return the shifts that take each group of an exchange to itself."""
        return [
            shift for shift in self.shifts if isinstance(exchange.op, Collective) and shift.axis in exchange.op.axes
        ]

    def num_groups(self, exchange: Exchange) -> int:
        """Return how many groups, or messages, of an exchange are in one orbit."""
        return self.size // prod(shift.order for shift in self.keeps(exchange))

    def uneven(self, exchange: Exchange, load: Load) -> Sequence[Shift]:
        """Return the shifts that take groups to themselves and not their loads."""
        cells = load.groups * self.num_links
        at = np.argsort(cells + load.links, kind="stable")
        found = []
        for shift in self.keeps(exchange):
            to = np.argsort(cells + shift.powers[0][load.links], kind="stable")
            same_links = np.array_equal(load.links[at], shift.powers[0][load.links][to])
            if not same_links or not np.allclose(load.seconds[at], load.seconds[to], rtol=_ROUNDING, atol=0):
                found.append(shift)
        return found

    def without(self, axes: Collection[str]) -> "Orbits | None":
        """Return the orbits of the shifts of other axes, None without any."""
        return _orbits(self.mesh, [shift for shift in self.shifts if shift.axis not in axes], self.num_links)


def orbits_of(plan: Plan, pricing: Pricing, rank_kinds: Ints) -> Orbits | None:
    """Return the orbits of ranks of a plan; None where there is one per rank, or this is unknown.

    It is unknown for few ranks, for what moves bytes to hosts, for collectives with a root, and where groups do not lie
    on nodes alike. Nothing shifts the positions of members that an op tells apart.
    """
    mesh = plan.mesh
    if mesh.size < FEWEST_RANKS:
        return None
    ops = exchanging_ops(plan)
    collectives = [op for op in ops if isinstance(op, Collective)]
    if not all(isinstance(op, Send | Collective) for op in ops) or any(op.kind in ROOTED for op in collectives):
        return None
    if not all(pricing.lie_alike(all_groups(mesh, each)) for each in sorted({op.axes for op in collectives})):
        return None
    stay = {axis for op in collectives if op.members or (op.sizes and not op.levelled) for axis in op.axes}
    axes = [(name, degree) for name, degree in mesh.axes if degree > 1 and name not in stay]
    shifts = [shift for name, degree in axes for shift in _shift(mesh, pricing, rank_kinds, name, degree)]
    return _orbits(mesh, shifts, len(pricing.link_kinds()))


def _shift(mesh: Mesh, pricing: Pricing, rank_kinds: Ints, axis: str, degree: int) -> Iterator[Shift]:
    """Yield the shortest shift of an axis that changes nothing, if any is shorter than the axis.

    All others are so many of it, so it is a divisor of the degree.
    """
    kinds = rank_kinds[all_groups(mesh, (axis,))]
    for step in (step for step in range(1, degree // 2 + 1) if degree % step == 0):
        if np.array_equal(np.roll(kinds, step, axis=1), kinds):
            images = pricing.link_images(shifted(mesh, np.arange(mesh.size), axis, step))
            if images is not None:
                yield Shift.of(axis, step, degree, images)
                return


def _orbits(mesh: Mesh, shifts: Sequence[Shift], num_links: int) -> Orbits | None:
    """Return the orbits of some shifts: ranks whose places along each axis are equal but for a multiple of its step."""
    if not shifts:
        return None
    first = np.arange(mesh.size)
    for shift in shifts:
        groups = all_groups(mesh, (shift.axis,))
        first[groups] = first[groups[:, np.arange(groups.shape[1]) % shift.step]]
    names = np.flatnonzero(first == np.arange(mesh.size))
    number = np.zeros(mesh.size, np.int64)
    number[names] = np.arange(len(names))
    return Orbits(mesh, shifts, number[first], names, num_links)
