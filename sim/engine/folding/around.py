"""All users of one link of each orbit, from the loads of one group of each orbit.

A shift takes a group that loads a link to a group that loads the link's image. So the users of one link are the images
of groups under those shifts that take a link of theirs to this one.
"""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.folding.orbits import Orbits
from sim.engine.prices.traffic import Exchange, Load
from sim.sorting import distinct, run_begins, sorted_order

Ints = NDArray[np.int64]
Links = NDArray[np.int32]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Whole(Struct, frozen=True, eq=False):
    """What users put on links. User ``users[i]`` uses the asked link of number ``asked[i]`` for ``seconds[i]``.

    User ``owners[i]`` uses link ``covers[i]``, which is none of those asked for, for ``cover_s[i]``.
    """

    users: Ints
    asked: Ints
    seconds: Floats
    owners: Ints
    covers: Links
    cover_s: Floats

    def numbered(self, names: Ints, covers: Links, first_cover: int) -> Load:
        """Return the load on links of other numbers: ``names`` of those asked for, places in ``covers`` of the others.

        Sorted by user and link, as places count from ``first_cover``.
        """
        users = np.concatenate([self.users, self.owners])
        links = np.concatenate([names[self.asked], first_cover + np.searchsorted(covers, self.covers)])
        order = sorted_order(users * (first_cover + len(covers)) + links)
        return Load(users[order], links[order], np.concatenate([self.seconds, self.cover_s])[order])


class Around(Struct, frozen=True, eq=False):
    """The images of some links under all combinations of shifts, sorted.

    Combination ``combined[i]`` takes the link of number ``of[i]`` to ``links[i]``. Combination c is
    ``c // places[k] % order`` times shift k.
    """

    orbits: Orbits
    places: Ints
    links: Links
    of: Ints
    combined: Ints

    @classmethod
    def of_links(cls, orbits: Orbits, asked: Links) -> "Around":
        """Return where links go that are of different orbits."""
        places = np.cumprod([1, *(shift.order for shift in orbits.shifts)])[:-1]
        every = np.repeat(np.arange(orbits.size), len(asked))
        links = np.tile(asked, orbits.size)
        for shift, place in zip(orbits.shifts, places.tolist(), strict=True):
            links = shift.moved(links, every // place % shift.order)
        order = sorted_order(links)
        return cls(orbits, places, links[order], order % len(asked), every[order])

    def whole(self, exchange: Exchange, load: Load, is_asked: Flags) -> Whole:
        """Return all users of the links asked for, among groups like those of a load, with all links that they use.

        ``is_asked``: which links of the load are of the orbits of the links asked for.
        """
        here, outside = np.flatnonzero(is_asked), np.flatnonzero(~is_asked)
        begins, ends = (np.searchsorted(self.links, load.links[here], side=side) for side in ("left", "right"))
        entries = np.repeat(here, ends - begins)
        at = np.repeat(begins - (np.cumsum(ends - begins) - (ends - begins)), ends - begins) + np.arange(len(entries))
        back = self._inverse(exchange, self.combined[at])
        names = load.groups[entries] * self.orbits.size + back
        pairs, where = distinct(names * (int(self.of.max()) + 1) + self.of[at])
        seconds = np.empty(len(pairs))
        seconds[where] = load.seconds[entries]
        users, asked = np.divmod(pairs, int(self.of.max()) + 1)
        firsts = np.flatnonzero(run_begins(users))
        covers = self._covers(load, outside, users[firsts])
        return Whole(np.cumsum(run_begins(users)) - 1, asked, seconds, *covers)

    def _inverse(self, exchange: Exchange, combined: Ints) -> Ints:
        """Return the combinations that undo others, without shifts that take each group to itself."""
        kept, found = self.orbits.keeps(exchange), np.zeros(len(combined), np.int64)
        for shift, place in zip(self.orbits.shifts, self.places.tolist(), strict=True):
            if shift not in kept:
                found += -(combined // place) % shift.order * place
        return found

    def _covers(self, load: Load, outside: Ints, users: Ints) -> tuple[Ints, Links, Floats]:
        """Return the other links of users, which are group x number of combinations + combination."""
        groups, combined = np.divmod(users, self.orbits.size)
        num_groups = int(load.groups.max(initial=0)) + 1
        starts = np.append(0, np.cumsum(np.bincount(load.groups[outside], minlength=num_groups)))
        lengths = starts[groups + 1] - starts[groups]
        owners = np.repeat(np.arange(len(users)), lengths)
        at = outside[(starts[groups] - (np.cumsum(lengths) - lengths))[owners] + np.arange(len(owners))]
        links = load.links[at].astype(np.int32)
        for shift, place in zip(self.orbits.shifts, self.places.tolist(), strict=True):
            links = shift.moved(links, (combined // place % shift.order)[owners])
        return owners, links, load.seconds[at]
