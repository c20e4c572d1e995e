"""Which links collectives and messages were bound by."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.cluster.topology.links import LinkKind
from sim.engine.findings.link_use import LinkUse
from sim.engine.running.period import Times
from sim.sorting import distinct, distinct_values, largest_first

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
    spans, counts, full = _fullest(use, kinds)
    binding = (full >= full.max(axis=0) * (1 - _TIE)).argmax(axis=0)
    names = sorted({(flow.op.stream, flow.kind) for flow in moved.flows})
    number = {name: at for at, name in enumerate(names)}
    group_of_flow = np.array([number[flow.op.stream, flow.kind] for flow in moved.flows], dtype=np.int64)
    ranks = np.array([flow.num_ranks for flow in moved.flows], dtype=np.float64) / (num_ranks * use.num_steps)
    latency_s = (moved.begin_s - moved.start_s) * moved.counts * ranks[moved.flow_of]
    waiting_s = np.bincount(group_of_flow[moved.flow_of], latency_s, minlength=len(names))
    flow_of = moved.flow_of[moved.span_of[spans]]
    group, moving_s = group_of_flow[flow_of], (moved.span_end_s - moved.span_begin_s)[spans] * counts * ranks[flow_of]
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


def _fullest(use: LinkUse, kinds: Sequence[LinkKind]) -> tuple[Ints, Ints, Times]:
    """Return spans of the transfers, how often they happen, and how full the fullest link of each kind is meanwhile.

    The last is kinds x spans: of the links that the span's transfer uses. At its constant speed, one of them is full.
    Spans that meet others on links come once more, each of their times for itself.
    """
    moved, kind_of = use.transfers, np.searchsorted(kinds, use.kind)
    counts, flow_of = moved.counts[moved.span_of], moved.flow_of[moved.span_of]
    slowest = _raised(np.zeros((len(kinds), len(moved.flows))), kind_of[use.rows], use.flows, use.seconds)
    alone = slowest[:, flow_of] * moved.span_speed
    met = use.meeting()
    times, which = distinct(met.spans * int(counts.max()) + met.passes)
    of_times = times // int(counts.max())
    each = np.ones_like(of_times) if moved.has_paces else counts[of_times]
    together = _raised(alone[:, of_times], kind_of[met.rows], which, met.shares)
    np.subtract.at(counts, of_times, each)
    every = np.append(np.arange(len(counts)), of_times)
    return every, np.append(counts, each), np.concatenate([alone, together], axis=1)


def _raised(table: Times, rows: Ints, columns: Ints, values: Times) -> Times:
    """Return a table with its cells raised to the values that are larger."""
    cells = table.ravel()
    np.maximum.at(cells, rows * table.shape[1] + columns, values)
    return cells.reshape(table.shape)
