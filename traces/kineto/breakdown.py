"""The breakdown of one rank's device time: compute, communication, memory, idle, and overlap.

The figures are those of Holistic Trace Analysis (``get_temporal_breakdown``, ``get_comm_comp_overlap``): activities of
one class are merged over all streams, so a second counts once for any number of busy streams.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from traces.kineto.collective import COMMUNICATION_KINDS
from traces.kineto.rank import DeviceRows
from traces.timeline import Floats, Spans

COMPUTE: Final = "compute"
COMMUNICATION: Final = "communication"
MEMORY: Final = "memory"
CLASSES: Final[Mapping[str, str]] = {
    "compute": COMPUTE, "memcpy": MEMORY, "memset": MEMORY, **dict.fromkeys(sorted(COMMUNICATION_KINDS), COMMUNICATION),
}  # fmt: skip
"""The class of each kind of row. A kind without a class (waits and synchronisation) is no work and does not count."""


class Breakdown(Struct, frozen=True):
    """Seconds of one rank, between its first start and its last end (``span_s``).

    ``idle_s``: nothing runs.
    ``overlap_s``: compute and communication run at once.
    ``exposed_communication_s``: communication runs without compute.
    ``non_compute_s``: something runs, but no compute.
    """

    span_s: float
    idle_s: float
    compute_s: float
    communication_s: float
    memory_s: float
    overlap_s: float

    @property
    def non_compute_s(self) -> float:
        """Return the seconds in which the device is busy with communication or memory alone."""
        return max(0.0, self.span_s - self.idle_s - self.compute_s)

    @property
    def exposed_communication_s(self) -> float:
        """Return the seconds of communication without compute at the same time."""
        return self.communication_s - self.overlap_s

    @property
    def overlap_fraction(self) -> float | None:
        """Return the fraction of communication hidden by compute, None without communication."""
        return self.overlap_s / self.communication_s if self.communication_s else None


def break_down(rows: DeviceRows | Spans, classes: Mapping[str, str] = CLASSES) -> Breakdown:
    """Return the seconds of the rows of each class, zero without rows; ``classes``: by kind."""
    counted = rows.kind.isin(classes)
    span_s = float(rows.end_s[counted].max() - rows.start_s[counted].min()) if counted.any() else 0.0
    merged = {name: _merged(rows, classes, name) for name in (COMPUTE, COMMUNICATION, MEMORY)}
    lasting = {name: _length(*intervals) for name, intervals in merged.items()}
    both = _union([merged[COMPUTE], merged[COMMUNICATION]])
    hidden_s = lasting[COMPUTE] + lasting[COMMUNICATION] - _length(*both)
    busy_s = _length(*merge(rows.start_s[counted], rows.end_s[counted]))
    return Breakdown(
        span_s=span_s,
        idle_s=max(0.0, span_s - busy_s),
        compute_s=lasting[COMPUTE],
        communication_s=lasting[COMMUNICATION],
        memory_s=lasting[MEMORY],
        overlap_s=max(0.0, min(hidden_s, lasting[COMPUTE], lasting[COMMUNICATION])),  # rounding makes no part negative
    )


def merge(start_s: Floats, end_s: Floats) -> tuple[Floats, Floats]:
    """Return the union of intervals as disjoint intervals, by start; touching ones become one."""
    if not len(start_s):
        return start_s, end_s
    order = np.argsort(start_s, kind="stable")
    starts, reached = start_s[order], np.maximum.accumulate(end_s[order])
    first = np.flatnonzero(np.concatenate([[True], starts[1:] > reached[:-1]]))
    last = np.append(first[1:], len(starts)) - 1
    return starts[first], reached[last]


def _merged(rows: DeviceRows | Spans, classes: Mapping[str, str], name: str) -> tuple[Floats, Floats]:
    chosen = rows.kind.isin(kind for kind, its_class in classes.items() if its_class == name)
    return merge(rows.start_s[chosen], rows.end_s[chosen])


def _union(parts: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    return merge(np.concatenate([starts for starts, _ in parts]), np.concatenate([ends for _, ends in parts]))


def _length(start_s: Floats, end_s: Floats) -> float:
    return float(np.sum(end_s - start_s))
