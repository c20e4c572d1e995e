"""Links in a summary: the busiest of each kind, and the links that held back each kind of communication."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from scenarios.summaries.steps.step import BusiestLink, CommunicationSummary, LinksSummary
from sim.cluster.topology.links import LinkKind
from sim.engine.findings.bottleneck import bottlenecks
from sim.engine.findings.link_use import LinkUse
from sim.sorting import largest_first

NUM_PARTS: Final = 100
"""The peak is that of the fullest of so many parts of the step."""


def links_of(use: LinkUse | None) -> tuple[LinksSummary, ...]:
    """Return links by kind, the busiest first; none where there is no cluster."""
    if use is None:
        return ()
    kinds = [_of_kind(use, kind) for kind in use.topology.kinds() if (use.kind == kind).any()]
    return tuple(largest_first(kinds, lambda entry: entry.busiest.busy_fraction, lambda entry: entry.kind))


def communication_of(use: LinkUse | None, num_ranks: int) -> tuple[CommunicationSummary, ...]:
    """Return communication by stream and kind of op, the longest first; none where there is no cluster."""
    return tuple(
        CommunicationSummary(
            stream=entry.stream,
            kind=entry.kind,
            time_s=entry.time_s,
            latency_s=entry.latency_s,
            bound_s=_worded(entry.bound_s),
            fullest_fraction=_worded(entry.fullest),
        )
        for entry in (bottlenecks(use, num_ranks) if use is not None else ())
    )


def _of_kind(use: LinkUse, kind: LinkKind) -> LinksSummary:
    rows = np.flatnonzero(use.kind == kind)
    count = int((use.topology.kind == kind).sum())
    busiest = int(rows[np.lexsort((use.example[rows], -np.round(use.busy_s[rows] / use.busy_s[rows].max(), 9)))[0]])
    return LinksSummary(
        kind=kind.words,
        count=count,
        bytes=float((use.num_bytes * use.count)[rows].sum()),
        busy_fraction=float((use.busy_fraction * use.count)[rows].sum()) / count,
        busiest=BusiestLink(
            link=use.topology.name_of(int(use.example[busiest])),
            count=int(use.count[busiest]),
            bytes=float(use.num_bytes[busiest]),
            busy_fraction=float(use.busy_fraction[busiest]),
            peak_fraction=float(use.over_time(busiest, NUM_PARTS).max()),
        ),
    )


def _worded(by_kind: Mapping[LinkKind, float]) -> dict[str, float]:
    """Return values by the words for kinds of links, the largest first."""
    in_order = largest_first(by_kind.items(), lambda item: item[1], lambda item: item[0])
    return {kind.words: round(value, 12) for kind, value in in_order}
