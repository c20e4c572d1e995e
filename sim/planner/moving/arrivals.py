"""Copies of experts on their way in the background: they take what other communication leaves of the links."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sim.cluster.network import Network
from sim.planner.moving.load import PlacedStep
from sim.planner.moving.tail import Holders
from sim.planner.moving.traffic import Busy

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def arrivals_s(step: PlacedStep, copy_bytes: float, network: Network, busy: Sequence[Busy]) -> Mapping[Holders, Floats]:
    """Return when the copies of experts with these holders have been sent and received [rank]; 0 of other ranks.

    A rank gets a copy from the nearest that has one (``sim.training.adjusting``), and all from one rank in one message.
    A message is over when each of its links has had as much time left by ``busy`` traffic as all messages need.
    """
    layers, targets, experts = np.nonzero(step.arriving)
    sources = _nearest(step.vexperts[layers, :, experts] > 0, targets)
    pairs, of_pair, copies = np.unique(np.stack([sources, targets]), axis=1, return_inverse=True, return_counts=True)
    ends_s = _message_ends_s(pairs, copies, copy_bytes, network, busy, step.search_s)
    held, found = step.held, dict[Holders, Floats]()
    for number, pair in enumerate(of_pair.ravel().tolist()):
        holders = tuple(np.flatnonzero(held[layers[number], :, experts[number]]).tolist())
        late_s = found.setdefault(holders, np.zeros(held.shape[1]))
        late_s[pairs[:, pair]] = np.maximum(late_s[pairs[:, pair]], ends_s[pair])
    return found


def _nearest(holds: NDArray[np.bool_], targets: Ints) -> Ints:
    """Return, for each target rank, the nearest of the ranks that hold its copy [copy, rank]; the lower of two."""
    distance = np.abs(np.arange(holds.shape[1]) - targets[:, None]).astype(np.float64)
    nearest: Ints = np.where(holds, distance, np.inf).argmin(1)
    return nearest


def _message_ends_s(
    pairs: Ints, copies: Ints, copy_bytes: float, network: Network, busy: Sequence[Busy], begin_s: float
) -> Floats:
    """Return when the message of so many copies [message] from each source to its target [2, message] is over."""
    latencies_s, rows, links, seconds = np.zeros(len(copies)), list[Ints](), list[Ints](), list[Floats]()
    for number in np.unique(copies).tolist():
        alike = np.flatnonzero(copies == number)
        use = network.messages(round(number * copy_bytes), *pairs[:, alike])
        latencies_s[alike] = use.latencies_s
        rows, links, seconds = [*rows, alike[use.rows]], [*links, use.links], [*seconds, use.seconds]
    link = np.concatenate(links)
    load_s: Floats = np.bincount(link, np.concatenate(seconds), minlength=network.topology.num_links).astype(np.float64)
    used, over_s = np.flatnonzero(load_s), np.full(len(load_s), begin_s)
    over_s[used] = _over_s(used, load_s[used], busy, begin_s)
    ends_s = np.full(len(copies), begin_s)
    np.maximum.at(ends_s, np.concatenate(rows), over_s[link])
    return ends_s + latencies_s


def _over_s(links: Ints, load_s: Floats, busy: Sequence[Busy], begin_s: float) -> list[float]:
    """Return when each link has been left free for so many seconds since a time."""
    late = [each for each in busy if each.end_s > begin_s]
    edges = np.unique([begin_s, *(max(begin_s, each.start_s) for each in late), *(each.end_s for each in late)])
    taken = np.zeros((len(edges), len(links)))
    for each in late:
        first, last = np.searchsorted(edges, [max(begin_s, each.start_s), each.end_s])
        taken[first:last] += each.use[links]
    free = np.cumsum(np.clip(1.0 - taken[:-1], 0.0, 1.0) * np.diff(edges)[:, None], axis=0)
    free = np.concatenate([np.zeros((1, len(links))), free])
    found = []
    for column, wanted_s in zip(free.T, load_s.tolist(), strict=True):
        place = int(np.searchsorted(column, wanted_s, side="left"))
        if place == len(edges):
            found.append(float(edges[-1]) + wanted_s - float(column[-1]))
        else:
            before = column[place - 1]
            part = (wanted_s - before) / (column[place] - before)
            found.append(float(edges[place - 1] + part * (edges[place] - edges[place - 1])))
    return found
