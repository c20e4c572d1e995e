"""Collectives whose root takes turns, and whether the turns tell ranks apart.

A broadcast puts nothing on the links into its root, and a reduce nothing on those out of it. Where the ranks of a group
are roots in turn, as in the products of SUMMA, each rank has a turn in which its links carry less. What every turn puts
on every link tells all ranks of the group apart. Their times need not differ: the members of a collective begin
together and end together, and its time is that of its busiest links.

So folding first takes every turn for its *envelope*, the most that any turn puts on each link, and takes no notice of
roots. ``turns_matter`` says whether that is wrong. It is not, by this argument. Let all ranks of a class have done the
same until now. Then the groups of a class are in the same turn, and a stream of theirs is in one turn at a time. A link
is *slack* in a turn if it carries less than its envelope. Of the links of one class that one user loads alike, let at
least one be slack in none of the turns that go on. This link holds the user back as the envelope's links would, and no
link holds it back more. So the max-min fair speeds are those under the envelope, where all groups of a class are equal,
and the ranks go on to do the same.

A user has such a link if its links of that class outnumber those that are slack: the most of any turn of a stream,
summed over streams.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.engine.folding.likeness import NONE, Classes
from sim.engine.prices.activity import Activity, Resource
from sim.engine.prices.numbering import numbered
from sim.engine.prices.traffic import Exchange, Load, family
from sim.plan.words.op import ROOTED, Collective, Op
from sim.plan.words.program import Program
from sim.sorting import distinct, distinct_values

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Family = tuple[object, ...]
"""The common facts of one collective's turns: all but the root."""
Source = tuple[str, int]
"""A stream, and a class of ranks: such ranks are in one turn of the stream at a time."""

_ROUNDING: Final = 1e-10


class Turns(Struct, frozen=True, eq=False):
    """Exchanges that differ in nothing but their root, with the load of each, and the most that any puts on links."""

    exchanges: Sequence[Exchange]
    loads: Sequence[Load]
    envelope: Load

    @property
    def as_one(self) -> tuple[Exchange, Load]:
        """Return the first turn, with the load of the envelope."""
        return self.exchanges[0], self.envelope


def turns_of(
    loads: Sequence[tuple[Exchange, Load]], every: Sequence[Exchange], num_links: int
) -> tuple[Sequence[Turns], Sequence[tuple[Exchange, Load]]] | None:
    """Return the turns among some loads, and the loads of other exchanges.

    ``every``: all exchanges of the plan, of which ``loads`` has one for each proportion. Returns None where no root
    takes turns, where the turns of a family are not of the same groups, or where not all turns of one are given.
    """
    whole, given = defaultdict[Family, list[Exchange]](list), defaultdict[Family, list[int]](list)
    for exchange in every:
        if (key := _family(exchange)) is not None:
            whole[key].append(exchange)
    for place, (exchange, _) in enumerate(loads):
        if (key := _family(exchange)) is not None:
            given[key].append(place)
    if all(len(turns) == 1 for turns in whole.values()):
        return None
    same = all(np.array_equal(turn.groups, turns[0].groups) for turns in whole.values() for turn in turns)
    if not same or any(len(places) < len(whole[key]) for key, places in given.items()):
        return None
    turns = [_turns([loads[place] for place in places], num_links) for places in given.values()]
    return turns, [(exchange, load) for exchange, load in loads if _family(exchange) is None]


def _family(exchange: Exchange) -> Family | None:
    """Return the facts that a rooted exchange shares with its other turns; None for other exchanges."""
    op = exchange.op
    return family(exchange.program, op) if isinstance(op, Collective) and op.kind in ROOTED else None


def _turns(turns: Sequence[tuple[Exchange, Load]], num_links: int) -> Turns:
    """Return turns with their envelope. Its latencies are equal for groups that wait equally long in every turn."""
    exchanges, loads = zip(*turns, strict=True)
    cells = np.concatenate([load.groups * num_links + load.links for load in loads])
    names, where = distinct(cells)
    most = np.zeros(len(names))
    np.maximum.at(most, where, np.concatenate([load.seconds for load in loads]))
    latencies = np.stack([load.latencies for load in loads])
    waits = np.unique(latencies, axis=1, return_inverse=True)[1].ravel().astype(np.int64)
    return Turns(exchanges, loads, Load(names // num_links, names % num_links, most, waits))


class Slack(Struct, frozen=True, eq=False):
    """What of their envelope links carry in turns. ``of[source]``: a mask of slack links per turn that leaves any.

    ``carries_alike``: per link, a number, the same for links of a class that carry the same in every turn; NONE where
    none of the class is ever slack.
    """

    of: Mapping[Source, Sequence[Flags]]
    carries_alike: Ints


def slack_of(turns: Sequence[Turns], classes: Classes) -> Slack:
    """Return which links are slack in which turns."""
    masks = defaultdict[Source, dict[bytes, Flags]](dict)
    num_links = len(classes.link_class)
    alike = classes.link_class.copy()
    uneven = np.zeros(num_links, np.bool_)
    for each in turns:
        for sources, share in _shares(each, classes, num_links):
            mask = share < 1.0 - _ROUNDING
            if not mask.any():
                continue
            uneven |= mask
            alike = numbered(alike * (len(share) + 1) + numbered(np.round(share / _ROUNDING))[1])[1]
            for source in sources:
                masks[source][mask.tobytes()] = mask
    in_class = np.zeros(int(classes.link_class.max(initial=0)) + 1, np.bool_)
    in_class[classes.link_class[uneven]] = True
    of_uneven = (classes.link_class != NONE) & in_class[classes.link_class]
    return Slack({source: tuple(found.values()) for source, found in masks.items()}, np.where(of_uneven, alike, NONE))


def _shares(turns: Turns, classes: Classes, num_links: int) -> Iterator[tuple[Sequence[Source], NDArray[np.float64]]]:
    """Yield, per turn and class of groups, the sources, and per link which part of the envelope it carries (else 1)."""
    exchange, envelope = turns.as_one
    assert isinstance(exchange.op, Collective)
    group_class = classes.group_class[exchange.op.axes, exchange.op.members][exchange.groups[:, 0]]
    used = classes.link_class[envelope.links] != NONE
    for number in distinct_values(group_class).tolist():
        of_class = group_class == number
        members = exchange.groups[int(np.argmax(of_class))]
        rarest = int(classes.stands_for[members[np.argmin(classes.multiplicity[members])]])
        mine = used & of_class[envelope.groups]
        most = np.bincount(envelope.links[mine], envelope.seconds[mine], minlength=num_links)
        for turn, load in zip(turns.exchanges, turns.loads, strict=True):
            mine = of_class[load.groups]
            carried = np.bincount(load.links[mine], load.seconds[mine], minlength=num_links)
            share = np.divide(carried, most, out=np.ones(num_links), where=most > 0)
            yield [(stream, rarest) for stream in sorted(turn.streams)], share


def turns_matter(loads: Sequence[tuple[Exchange, Load]], classes: Classes, slack: Slack) -> bool:
    """Return whether some group or message might have all its links of a class slack at the same time."""
    for _, load in loads:
        used = np.flatnonzero(classes.link_class[load.links] != NONE)
        if not used.size:
            continue
        links = load.links[used]
        levels = numbered(np.round(load.seconds[used] / load.seconds.max(), 10))[1]
        kinds = classes.link_class[links] * (int(levels.max()) + 1) + levels
        where = distinct(load.groups[used] * (int(kinds.max()) + 1) + kinds)[1]
        num_slack = sum(
            np.max([np.bincount(where[mask[links]], minlength=int(where.max()) + 1) for mask in masks], axis=0)
            for masks in slack.of.values()
        )
        if (np.bincount(where) <= num_slack).any():
            return True
    return False


def as_envelopes(program: Program, ops: Sequence[Op], activities: Sequence[Activity]) -> Sequence[Activity]:
    """Return the activities of all ops of a rank; a rooted collective demands the most that any of its turns does."""
    families = [family(program, op) if isinstance(op, Collective) and op.kind in ROOTED else None for op in ops]
    turns = defaultdict[Family | None, dict[int, Activity]](dict)
    for key, activity in zip(families, activities, strict=True):
        turns[key][id(activity)] = activity
    taken = turns.pop(None, {})
    for each in turns.values():
        demands = _most(each.values())
        taken |= {number: replace(activity, demands=demands) for number, activity in each.items()}
    return [taken[id(activity)] for activity in activities]


def _most(activities: Iterable[Activity]) -> tuple[tuple[Resource, float], ...]:
    """Return the largest demand of each resource."""
    most: dict[Resource, float] = {}
    for activity in activities:
        for resource, seconds in activity.demands:
            most[resource] = max(most.get(resource, 0.0), seconds)
    return tuple(most.items())
