"""Which links collectives and messages were bound by."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.cluster.topology.links import LinkKind
from sim.engine.findings.link_use import LinkUse
from sim.engine.running.period import Times
from sim.sorting import distinct, distinct_values, largest_first, run_begins

Ints = NDArray[np.int64]

_TIE = 1e-6
"""Links whose use differs by less are equally full; of these, the one nearest to the device binds."""


class Bottlenecks(Struct, frozen=True):
    """Where the time of one kind of op goes, in seconds of the mean rank: ``time_s`` in all, ``latency_s`` of it before
    bytes move, ``bound_s`` of it held back by each kind of link.

    ``fullest``: how full the fullest link of each kind is, of those that an op uses, while its bytes move. Of links
    that folding leaves out, as they never bind: of those that any rank uses for which the simulated one stands.
    """

    stream: str
    kind: str
    time_s: float
    latency_s: float
    bound_s: dict[LinkKind, float]
    fullest: dict[LinkKind, float]


def bottlenecks(use: LinkUse, num_ranks: int) -> list[Bottlenecks]:
    """Return where the time of every kind of op went, the longest first; ops are alike in stream and kind.

    While an op moves bytes at one speed, the fullest of its links holds it back: alone, the slowest one; where rates
    are max-min fair, one that is full.
    """
    if not use.transfers.flows:
        return []
    moved = use.transfers
    kinds = list(map(LinkKind, distinct_values(use.kind).tolist()))
    flow_of, moving_s, full = _fullest(use, kinds)
    binding = (full >= full.max(axis=0) * (1 - _TIE)).argmax(axis=0)
    names = sorted({(flow.op.stream, flow.kind) for flow in moved.flows})
    number = {name: at for at, name in enumerate(names)}
    group_of_flow = np.array([number[flow.op.stream, flow.kind] for flow in moved.flows], dtype=np.int64)
    ranks = np.array([flow.num_ranks for flow in moved.flows], dtype=np.float64) / (num_ranks * use.num_steps)
    waiting_s = np.bincount(group_of_flow, moved.waiting_s * ranks, minlength=len(names))
    group, moving_s = group_of_flow[flow_of], moving_s * ranks[flow_of]
    whole_s = np.bincount(group, moving_s, minlength=len(names))
    cells = group * len(kinds) + binding
    bound_s = np.bincount(cells, moving_s, minlength=len(names) * len(kinds)).reshape(len(names), len(kinds))
    means = [np.bincount(group, moving_s * row, minlength=len(names)) / np.maximum(whole_s, 1e-300) for row in full]
    found = [
        Bottlenecks(
            stream=stream,
            kind=kind,
            time_s=float(waiting_s[at] + whole_s[at]),
            latency_s=float(waiting_s[at]),
            bound_s={link: float(bound_s[at, row]) for row, link in enumerate(kinds) if bound_s[at, row] > 0},
            fullest={link: float(means[row][at]) for row, link in enumerate(kinds) if means[row][at] > 0},
        )
        for at, (stream, kind) in enumerate(names)
    ]
    return largest_first(found, lambda entry: entry.time_s, lambda entry: (entry.stream, entry.kind))


def _fullest(use: LinkUse, kinds: Sequence[LinkKind]) -> tuple[Ints, Times, Times]:
    """Return parts of the time in which flows move bytes: the flow, the seconds, how full its links are meanwhile.

    The last is kinds x parts: the fullest link of each kind, of those that the flow uses. At its constant speed, one
    of them is full. Spans in a row of one flow and one speed are one part, but for those that meet others on links:
    each of their times is a part of its own.
    """
    moved, kind_of = use.transfers, np.searchsorted(kinds, use.kind)
    counts, flow_of = moved.counts.copy(), moved.flow_of
    slowest = _raised(np.zeros((len(kinds), len(moved.flows))), kind_of[use.rows], use.flows, use.seconds)
    met = use.meeting()
    times, which = distinct(met.spans * int(counts.max()) + met.passes)
    of_times = times // int(counts.max())
    each = np.ones_like(of_times) if moved.has_paces else counts[of_times]
    together = slowest[:, flow_of[of_times]] * moved.speed[of_times]
    np.subtract.at(counts, of_times, each)
    lasting_s = moved.end_s - moved.begin_s
    firsts = np.flatnonzero(run_begins(flow_of) | run_begins(moved.speed))
    alone = slowest[:, flow_of[firsts]] * moved.speed[firsts]
    seconds = np.append(np.add.reduceat(lasting_s * counts, firsts), lasting_s[of_times] * each)
    full = np.concatenate([alone, _raised(together, kind_of[met.rows], which, met.shares)], axis=1)
    return flow_of[np.append(firsts, of_times)], seconds, full


def _raised(table: Times, rows: Ints, columns: Ints, values: Times) -> Times:
    """Return a table with its cells raised to the values that are larger."""
    cells = table.ravel()
    np.maximum.at(cells, rows * table.shape[1] + columns, values)
    return cells.reshape(table.shape)
