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
from sim.sorting import run_begins, sorted_order

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_ROUNDING = 1e-12
_MARGIN = 1e-9
_UNCOVERED = 1e30
"""The ratio of users that no link outside the network holds back: those of the network alone."""
_MOST_TRIED = 16
"""So many of a link's covers are tried for a user that could take any of them: it bounds time and memory."""


def never_binding(loads: Sequence[Load], in_network: Flags, whole: Sequence[Load] | None = None) -> Flags:
    """Return which links of the network never bind for what these loads, and any multiples of them, put on links.

    Each user counts for the link outside the network that it uses longest: of several, once for the first (most often
    its way out) and once for the last (its way in); or for one that counts already. Links that nobody uses are among
    those returned.

    ``whole``: where links of ``loads`` stand for several (``Load.counts``), for each load what all users of one of
    these put on links, links outside the network by numbers of their own.
    """
    reaching = [
        (_Users.of(load, inside), each)
        for load, each in sorted(zip(loads, whole or loads, strict=True), key=lambda pair: _links_per_user(pair[0]))
        if (inside := in_network[load.links]).any()
    ]
    full = np.zeros(len(in_network), np.bool_)
    for users, _ in reaching:
        full |= _carried(users, len(in_network)) > 1 + _MARGIN
    open_links = in_network & ~full
    of_one_link = [users if whole is None else _Users.of(each, in_network[each.links]) for users, each in reaching]
    for last in (False, True):
        open_links[open_links] = _bounds(of_one_link, open_links, last=last) > 1 + _ROUNDING
    return in_network & ~(open_links | full)


def _links_per_user(load: Load) -> float:
    return len(load.links) / (int(load.groups.max(initial=0)) + 1)


class _Users(Struct, frozen=True, eq=False):
    """The users of a load. User ``users[i]`` uses link ``links[i]`` of the network for ``seconds[i]``.

    Outside the network it uses the links ``covers[starts[user]:starts[user + 1]]``, sorted, for as many ``cover_s``.
    ``longest_s``: the most of a user's ``cover_s``, 0 where it has none. ``all_s`` and ``all_cover_s`` are ``seconds``
    and ``cover_s`` of all users that each stands for, per link of those that a link stands for.
    """

    users: Ints
    links: Ints
    seconds: Floats
    starts: Ints
    covers: Ints
    cover_s: Floats
    longest_s: Floats
    all_s: Floats
    all_cover_s: Floats

    @classmethod
    def of(cls, load: Load, inside: Flags) -> "_Users":
        """Return the users of a load; ``inside``: which of the links that it names are in the network."""
        here, beyond = np.flatnonzero(inside), np.flatnonzero(~inside)
        num_users = int(load.groups.max(initial=0)) + 1
        starts = np.append(0, np.cumsum(np.bincount(load.groups[beyond], minlength=num_users)))
        cover_s = load.seconds[beyond]
        all_s = load.seconds if load.counts is None else load.seconds * load.counts
        return cls(
            load.groups[here], load.links[here], load.seconds[here],
            starts, load.links[beyond], cover_s, _largest(cover_s, starts), all_s[here], all_s[beyond],
        )  # fmt: skip

    def choice(self, number: Ints, *, last: bool) -> "_Choice":
        """Return each user's own cover: the first or the last of those that it uses longest.

        ``number``: by link, the number of a link asked for, -1 for others.
        """
        numbers = number[self.links]
        kept = np.flatnonzero(numbers >= 0)
        users, seconds = self.users[kept], self.seconds[kept]
        cover = self._longest_used(last=last)
        return _Choice(users, numbers[kept], seconds, cover[users], _ratios(seconds, self.longest_s[users]))

    def _longest_used(self, *, last: bool) -> Ints:
        num_covers = np.diff(self.starts)
        longest = np.flatnonzero(self.cover_s == np.repeat(self.longest_s, num_covers))
        order = longest if last else longest[::-1]
        cover = np.zeros(len(num_covers), np.int64)
        cover[np.repeat(np.arange(len(num_covers)), num_covers)[order]] = self.covers[order]  # the last written stays
        return cover

    def seconds_on(self, users: Ints, covers: Ints) -> Floats:
        """Return how long some users use some links outside the network, 0 for those that they do not use."""
        places, used = _places(self.covers, self.starts[users], self.starts[users + 1], covers)
        seconds = np.zeros(len(users))
        seconds[used] = self.cover_s[places[used]]
        return seconds


def _carried(users: _Users, num_links: int) -> Floats:
    """Return what links of the network carry while the users of one load progress at rates that other links allow.

    The rate of a user is the one at which the fullest of its links outside the network would be full, were all users
    equally fast. Whatever the choice of links k(u), the right side of the inequality is no less than this.
    """
    on_link = np.bincount(users.covers, users.all_cover_s, minlength=num_links).astype(np.float64, copy=False)
    slowest = _largest(on_link[users.covers], users.starts)
    rates = np.divide(1.0, slowest, out=np.zeros_like(slowest), where=slowest > 0)
    return np.bincount(users.links, rates[users.users] * users.all_s, minlength=num_links).astype(
        np.float64, copy=False
    )


def _bounds(reaching: Sequence[_Users], asked: Flags, *, last: bool) -> Floats:
    """Return the right side of the inequality for each link asked for."""
    number = np.where(asked, np.cumsum(asked) - 1, -1)
    covers = _Covers.of_none(int(asked.sum()), len(asked))
    for users in reaching:
        choice = users.choice(number, last=last)
        if len(choice.links):
            covers = covers.joined_by(users, choice)
    return covers.sums()


class _Choice(Struct, frozen=True, eq=False):
    """User ``users[i]``, which uses the link of number ``links[i]`` for ``seconds[i]``, counts for ``covers[i]``.

    ``ratios[i]`` is the one time over the other.
    """

    users: Ints
    links: Ints
    seconds: Floats
    covers: Ints
    ratios: Floats


def _ratios(seconds: Floats, on_cover: Floats) -> Floats:
    """Return by how much longer users use a link than its cover, very much where they do not use the cover."""
    ratios = np.full(len(seconds), _UNCOVERED)
    np.divide(seconds, on_cover, out=ratios, where=on_cover > 0)
    return ratios


class _Covers(Struct, frozen=True, eq=False):
    """Of each link asked for, by number, the links that users count for, each with the largest ratio of any user.

    Link l has the covers ``covers[starts[l]:starts[l + 1]]``, sorted. Any link's number is below ``num_links``.
    """

    num_links: int
    starts: Ints
    covers: Ints
    ratios: Floats

    @classmethod
    def of_none(cls, num_asked: int, num_links: int) -> "_Covers":
        """Return no covers for so many links."""
        return cls(num_links, np.zeros(num_asked + 1, np.int64), np.zeros(0, np.int64), np.zeros(0))

    def sums(self) -> Floats:
        """Return, per link, the sum over its covers."""
        return np.bincount(self._links, self.ratios, minlength=len(self.starts) - 1).astype(np.float64)

    @property
    def _links(self) -> Ints:
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def joined_by(self, users: _Users, own: _Choice) -> "_Covers":
        """Return the covers with some users more, after their choice among these covers and their own."""
        choice, places, held = self._chosen(users, own)
        ratios = self.ratios.copy()
        np.maximum.at(ratios, places[held], choice.ratios[held])
        new = np.flatnonzero(~held)
        new = new[sorted_order(choice.links[new] * self.num_links + choice.covers[new])]
        links, covers = choice.links[new], choice.covers[new]
        first = np.flatnonzero(run_begins(links) | run_begins(covers))
        largest = np.maximum.reduceat(choice.ratios[new], first) if first.size else np.zeros(0)
        links, covers, places = links[first], covers[first], places[new[first]]
        return replace(
            self,
            starts=self.starts + np.append(0, np.cumsum(np.bincount(links, minlength=len(self.starts) - 1))),
            covers=np.insert(self.covers, places, covers),
            ratios=np.insert(ratios, places, largest),
        )

    def _chosen(self, users: _Users, own: _Choice) -> tuple[_Choice, Ints, Flags]:
        """Return what users choose, the place of each choice among these covers, and whether these have it.

        That is their own cover, or one of the link's that they also use, if that adds less to the sum: the first that
        adds least.
        """
        begins, ends = self.starts[own.links], self.starts[own.links + 1]
        places, held = _places(self.covers, begins, ends, own.covers)
        added = own.ratios.copy()
        added[held] = np.maximum(own.ratios[held] - self.ratios[places[held]], 0.0)
        open_to = np.flatnonzero((added > 0) & (ends > begins))
        if not open_to.size:
            return own, places, held
        tries = np.minimum(ends - begins, _MOST_TRIED)[open_to]
        first_try = np.append(0, np.cumsum(tries))
        whose = np.repeat(open_to, tries)
        at = np.repeat(begins[open_to] - first_try[:-1], tries) + np.arange(len(whose))
        ratios = _ratios(own.seconds[whose], users.seconds_on(own.users[whose], self.covers[at]))
        more = np.maximum(ratios - self.ratios[at], 0.0)
        best = np.flatnonzero(more == np.repeat(np.minimum.reduceat(more, first_try[:-1]), tries))
        best = best[run_begins(whose[best])]
        best = best[more[best] < added[whose[best]]]
        chosen, covers, chosen_ratios = whose[best], own.covers.copy(), own.ratios.copy()
        covers[chosen], chosen_ratios[chosen] = self.covers[at[best]], ratios[best]
        places[chosen], held[chosen] = at[best], True
        return replace(own, covers=covers, ratios=chosen_ratios), places, held


def _largest(values: Floats, starts: Ints) -> Floats:
    """Return the largest of the values ``values[starts[i]:starts[i + 1]]`` for each i, 0 where there are none."""
    largest = np.zeros(len(starts) - 1)
    some = np.flatnonzero(np.diff(starts))
    if some.size:
        largest[some] = np.maximum.reduceat(values, starts[some])
    return largest


def _places(keys: Ints, begins: Ints, ends: Ints, wanted: Ints) -> tuple[Ints, Flags]:
    """Return where each key wanted is, or would be, in ``keys[begin:end]``, which are sorted, and whether it is there.

    A search by halves for all keys at once: ranges are short.
    """
    low, high = begins.copy(), ends
    for _ in range(int((ends - begins).max(initial=0)).bit_length()):
        middle = (low + high) >> 1
        below = (low < high) & (keys[np.minimum(middle, len(keys) - 1)] < wanted)
        low, high = np.where(below, middle + 1, low), np.where(below, high, middle)
    found = low < ends
    found[found] = keys[low[found]] == wanted[found]
    return low, found
