"""The classes of a plan whose ranks are in orbits, from the loads of one group of each orbit."""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.engine.folding import around, slack
from sim.engine.folding.likeness import NONE, Classes, LikenessGraph, Sizes
from sim.engine.folding.orbits import Orbits
from sim.engine.prices.activity import Pricing
from sim.engine.prices.traffic import Exchange, Load, exchanges
from sim.plan.words.program import Plan
from sim.sorting import distinct_values

Ints = NDArray[np.int64]
Links = NDArray[np.int32]
Flags = NDArray[np.bool_]

Loads = Sequence[tuple[Exchange, Load]]


def kept_by_loads(plan: Plan, pricing: Pricing, orbits: Orbits | None) -> tuple[Orbits, Loads] | None:
    """Return the orbits of the shifts that keep all loads, and the loads of one group of each; None: no shift does."""
    while orbits is not None:
        loads = list(pricing.loads(plan, exchanges(plan, orbits.first)))
        broken = {shift.axis for each in loads for shift in orbits.uneven(*each)}
        if not broken:
            return orbits, loads
        orbits = orbits.without(broken)
    return None


def classes_of_orbits(pricing: Pricing, orbits: Orbits, loads: Loads, rank_kinds: Ints) -> Classes:
    """Return the coarsest classes under loads of one group of each orbit."""
    names = distinct_values(np.concatenate([orbits.link[load.links] for _, load in loads]))
    number = np.full(orbits.num_links, NONE, np.int32)
    number[names] = np.arange(len(names))
    sizes = Sizes(orbits.size, orbits.link_size[names])
    told = [_of_orbits(orbits, number, sizes, *each) for each in loads]
    idle = _idle(orbits, loads, [load for _, load in told], names, pricing.network_links())
    graph = LikenessGraph(rank_kinds[orbits.first], pricing.link_kinds()[names], idle, sizes=sizes)
    for each in told:
        graph.add(*each)
    return _expanded(graph.classes(), orbits, number)


def _of_orbits(orbits: Orbits, number: Links, sizes: Sizes, exchange: Exchange, load: Load) -> tuple[Exchange, Load]:
    """Return an exchange and its load with orbits in place of ranks and links."""
    links = number[orbits.link[load.links]].astype(np.int64)
    counts = orbits.num_groups(exchange) / sizes.of_links[links]
    return replace(exchange, groups=orbits.rank[exchange.groups]), replace(load, links=links, counts=counts)


def _expanded(classes: Classes, orbits: Orbits, number: Links) -> Classes:
    """Return the classes of ranks and links from those of their orbits."""
    return Classes(
        stands_for=orbits.first[classes.stands_for][orbits.rank],
        multiplicity=classes.multiplicity[orbits.rank],
        link_class=np.append(classes.link_class, NONE)[number[orbits.link]],  # NONE, of no orbit that is used: the last
        class_size=classes.class_size,
        groups_alike={key: alike[orbits.rank] for key, alike in classes.groups_alike.items()},
        group_class={key: of_groups[orbits.rank] for key, of_groups in classes.group_class.items()},
    )


def _idle(orbits: Orbits, loads: Loads, told: Sequence[Load], names: Links, in_network: Flags) -> Flags:
    """Return which orbits of links, of which ``names`` are the first links, never bind: what holds of one, of all."""
    network = np.flatnonzero(in_network[names])
    if not network.size:
        return np.zeros(len(names), np.bool_)
    loads_around = around.Around.of_links(orbits, names[network])
    whole = [loads_around.whole(exchange, load, in_network[load.links]) for exchange, load in loads]
    covers = distinct_values(np.concatenate([load.covers for load in whole]))
    each = [load.numbered(network, covers, len(names)) for load in whole]
    return slack.never_binding(told, np.append(in_network[names], np.zeros(len(covers), np.bool_)), each)[: len(names)]
