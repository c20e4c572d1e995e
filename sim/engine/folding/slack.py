"""Links that can never be full, because other links hold back whoever uses them.

Let activity u demand d(u, l) seconds of link l, and progress at rate x(u). Link k carries no more than it can: the sum
of x(u) d(u, k) over all u is at most 1. Assign to each user u of l one link k(u) that it also uses. Then l carries

    sum over u of x(u) d(u, l)  <=  sum over k of [ max over u with k(u) = k of d(u, l) / d(u, k) ]

If the right side is at most 1, the limit of l follows from those of the other links, whatever runs at the same time and
at whatever rate; the max-min fair rates with and without l are the same. The links k are all inside nodes or at
adapters, and l in the network, so that none is left out because of one that is left out.

The right side is a solution of the dual of the linear program that asks how much l can carry; which links k(u) make it
least is a covering problem. It is solved greedily: users with few links choose first, and one with many, a ring say,
takes a link that others have been assigned to. Where one load alone can make l carry more than 1, no choice can do, and
none is looked for.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.engine.prices.traffic import Load

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_ROUNDING = 1e-12
_MARGIN = 1e-9
_UNCOVERED = 1e30
"""The ratio of users that no link outside the network holds back: those of the network alone."""
_MOST_TRIED = 16
"""So many of a link's covers are tried for a user that could take any of them: it bounds time and memory."""


def never_binding(loads: Sequence[Load], in_network: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which links of the network never bind for what these loads, and any multiples of them, put on links.

    Each user counts for the link outside the network that it uses longest: of several, once for the first (most often
    its way out) and once for the last (its way in); or for one that counts already. Links that nobody uses are among
    those returned.
    """
    reaching = [load for load in sorted(loads, key=_links_per_user) if in_network[load.links].any()]
    full = np.zeros(len(in_network), np.bool_)
    for load in reaching:
        full |= _carried(load, in_network) > 1 + _MARGIN
    open_links = in_network & ~full
    for last in (False, True):
        open_links &= _bounds(reaching, in_network, open_links, last=last) > 1 + _ROUNDING
    return in_network & ~(open_links | full)


def _carried(load: Load, in_network: NDArray[np.bool_]) -> Floats:
    """Return what links of the network carry while the users of one load progress at rates that other links allow.

    The rate of a user is the one at which the fullest of its links outside the network would be full, were all users
    equally fast. Whatever the choice of links k(u), the right side of the inequality is no less than this.
    """
    inside = in_network[load.links]
    outside = np.flatnonzero(~inside)
    on_link = np.bincount(load.links[outside], load.seconds[outside], minlength=len(in_network))
    slowest = np.zeros(int(load.groups.max(initial=0)) + 1)
    np.maximum.at(slowest, load.groups[outside], on_link[load.links[outside]])
    rates = np.divide(1.0, slowest, out=np.zeros_like(slowest), where=slowest > 0)
    these = np.flatnonzero(inside)
    carried = rates[load.groups[these]] * load.seconds[these]
    return np.bincount(load.links[these], carried, minlength=len(in_network)).astype(np.float64)


def _bounds(loads: Sequence[Load], in_network: NDArray[np.bool_], asked: NDArray[np.bool_], *, last: bool) -> Floats:
    """Return the right side of the inequality for the links asked for, 0 for others."""
    covers = _Covers(len(in_network), np.zeros(0, np.int64), np.zeros(0))
    for load in loads:
        if asked[load.links].any():
            covers = covers.joined_by(covers.chosen(load, _own_covers(load, in_network, asked, last=last)))
    return covers.sums()


def _links_per_user(load: Load) -> float:
    return len(load.links) / (int(load.groups.max(initial=0)) + 1)


class _Choice(Struct, frozen=True, eq=False):
    """User ``users[i]``, which uses ``links[i]`` for ``seconds[i]``, counts for ``covers[i]``.

    ``ratios[i]`` is the one time over the other.
    """

    users: Ints
    links: Ints
    seconds: Floats
    covers: Ints
    ratios: Floats


def _own_covers(load: Load, in_network: NDArray[np.bool_], asked: NDArray[np.bool_], *, last: bool) -> _Choice:
    """Return, for users of links asked for, the first or last link outside the network that each uses longest."""
    beyond = in_network[load.links]
    longest, cover = np.zeros(int(load.groups.max(initial=0)) + 1), np.zeros(int(load.groups.max()) + 1, np.int64)
    users, links, seconds = load.groups[~beyond], load.links[~beyond], load.seconds[~beyond]
    np.maximum.at(longest, users, seconds)
    tight = np.flatnonzero(seconds == longest[users])  # sorted by user, then link
    order = tight if last else tight[::-1]
    cover[users[order]] = links[order]  # of equal users, the one written last stays
    these = asked[load.links]
    users, links, seconds = load.groups[these], load.links[these], load.seconds[these]
    return _Choice(users, links, seconds, cover[users], _ratios(seconds, longest[users]))


def _ratios(seconds: Floats, on_cover: Floats) -> Floats:
    """Return by how much longer users use a link than its cover, very much where they do not use the cover."""
    ratios = np.full(len(seconds), _UNCOVERED)
    np.divide(seconds, on_cover, out=ratios, where=on_cover > 0)
    return ratios


class _Covers(Struct, frozen=True, eq=False):
    """The largest ratio of each pair, which is link x number of links + cover; sorted by pair."""

    num_links: int
    pairs: Ints
    ratios: Floats

    def sums(self) -> Floats:
        """Return, per link, the sum over its covers."""
        return np.bincount(self.pairs // self.num_links, self.ratios, minlength=self.num_links).astype(np.float64)

    def joined_by(self, choice: _Choice) -> "_Covers":
        """Return the covers with some users more."""
        more = self._added(choice.links, choice.covers, choice.ratios) > 0
        pairs = np.concatenate([self.pairs, choice.links[more] * self.num_links + choice.covers[more]])
        ratios = np.concatenate([self.ratios, choice.ratios[more]])
        order = np.lexsort((ratios, pairs))
        pairs, ratios = pairs[order], ratios[order]
        largest = np.flatnonzero(np.append(pairs[1:] != pairs[:-1], [True] * (len(pairs) > 0)))
        return _Covers(self.num_links, pairs[largest], ratios[largest])

    def chosen(self, load: Load, own: _Choice) -> _Choice:
        """Return what users choose: their own cover, or one of the link's that they also use, if that adds less."""
        added = self._added(own.links, own.covers, own.ratios)
        open_to = np.flatnonzero(added > 0)
        begins = np.searchsorted(self.pairs, own.links[open_to] * self.num_links)
        ends = np.searchsorted(self.pairs, (own.links[open_to] + 1) * self.num_links)
        tries = np.minimum(ends - begins, _MOST_TRIED)
        whose = np.repeat(np.arange(len(open_to)), tries)
        at = begins[whose] + np.arange(len(whose)) - (np.cumsum(tries) - tries)[whose]
        asked = open_to[whose]
        covers = self.pairs[at] % self.num_links
        ratios = _ratios(own.seconds[asked], self._seconds(load, own.users[asked], covers))
        more = np.maximum(ratios - self.ratios[at], 0.0)
        order = np.lexsort((more, asked))
        best = order[np.flatnonzero(np.append([True] * (len(order) > 0), asked[order][1:] != asked[order][:-1]))]
        best = best[more[best] < added[asked[best]]]
        chosen_covers, chosen_ratios = own.covers.copy(), own.ratios.copy()
        chosen_covers[asked[best]], chosen_ratios[asked[best]] = covers[best], ratios[best]
        return replace(own, covers=chosen_covers, ratios=chosen_ratios)

    def _added(self, links: Ints, covers: Ints, ratios: Floats) -> Floats:
        """Return by how much users raise the sums of their links."""
        wanted = links * self.num_links + covers
        held = np.zeros(len(wanted))
        if len(self.pairs):
            at = np.minimum(np.searchsorted(self.pairs, wanted), len(self.pairs) - 1)
            held = np.where(self.pairs[at] == wanted, self.ratios[at], 0.0)
        return np.maximum(ratios - held, 0.0)

    def _seconds(self, load: Load, users: Ints, links: Ints) -> Floats:
        """Return how long some users use some links, 0 for those that they do not use."""
        used, wanted = load.groups * self.num_links + load.links, users * self.num_links + links
        at = np.minimum(np.searchsorted(used, wanted), len(used) - 1)  # sorted by user, then link
        seconds: Floats = np.where(used[at] == wanted, load.seconds[at], 0.0)
        return seconds
