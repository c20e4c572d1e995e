"""The time for which each collective uses the network, and the part of it that is latency."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from scipy.optimize import nnls

from sim.replay.changes import Changes
from traces.kineto.ends import synchronising
from traces.kineto.trace import KinetoTrace
from traces.timeline import Floats


class Transfer(Struct, frozen=True):
    """Rows that wait for each other, as (index of the rank, row).

    Fields: kind, bytes (-1: unknown), and start and end in seconds on the common clock; a transfer starts when its last
    row does.
    """

    kind: str
    num_bytes: int
    members: tuple[tuple[int, int], ...]
    begin_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Return the seconds from the last arrival to the end; never negative, even if clocks disagree."""
        return max(0.0, self.end_s - self.begin_s)


def find_transfers(trace: KinetoTrace, start_s: Sequence[Floats], end_s: Sequence[Floats]) -> list[Transfer]:
    """Return the collectives and messages among several ranks of a trace; times by rank and row, on the common clock.

    Broadcasts and reduces are not returned, since some members leave early; their rows are treated like any other row.
    """
    shared = [(c.facts.kind, c.facts.num_bytes, c.members) for c in synchronising(trace.matches.collectives)]
    for (sender, sent), (receiver, received) in trace.matches.messages:
        facts = trace.ranks[sender].rows.facts[sent]
        shared.append((facts.kind, facts.num_bytes, ((sender, sent), (receiver, received))))
    return [
        Transfer(
            kind, num_bytes, members,
            max(float(start_s[rank][row]) for rank, row in members),
            max(float(end_s[rank][row]) for rank, row in members),
        )
        for kind, num_bytes, members in shared
    ]  # fmt: skip


class NetworkSplit(Struct, frozen=True):
    """Latency in seconds by kind of transfer. A kind is missing where sizes are unknown or all the same."""

    latency_s: Mapping[str, float]

    def changed_s(self, kind: str, duration_s: float, changes: Changes) -> float:
        """Return the duration of a transfer on a changed network."""
        latency_s = min(duration_s, self.latency_s.get(kind, 0.0))
        return latency_s * changes.latency + (duration_s - latency_s) / changes.bandwidth


def split_network(sizes: Mapping[str, Sequence[tuple[int, float]]]) -> NetworkSplit:
    """Return the latencies of kinds from (bytes, seconds): latency + bytes/rate by non-negative least squares."""
    latencies = {}
    for kind, points in sizes.items():
        known = np.array([(b, t) for b, t in points if b >= 0], dtype=np.float64).reshape(-1, 2)
        if len(np.unique(known[:, 0])) < 2:
            continue
        num_bytes, time_s = known.T
        weights = 1.0 / np.maximum(time_s, 1e-9)  # weigh relative errors
        scale = num_bytes.max()
        matrix = np.stack([weights, num_bytes / scale * weights], axis=1)
        solution, _ = nnls(matrix, time_s * weights)
        latencies[kind] = float(solution[0])
    return NetworkSplit(latencies)


def sizes_by_kind(trace: KinetoTrace, transfers: Sequence[Transfer]) -> dict[str, list[tuple[int, float]]]:
    """Return bytes and seconds of all communication by kind: transfers, and kernels of ranks that were read alone."""
    sizes: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for transfer in transfers:
        sizes[transfer.kind].append((transfer.num_bytes, transfer.duration_s))
    taken = {member for transfer in transfers for member in transfer.members}
    for position, rank in enumerate(trace.ranks):
        for row, facts in rank.rows.facts.items():
            if (position, row) not in taken:
                duration_s = float(rank.rows.end_s[row] - rank.rows.start_s[row])
                sizes[facts.kind].append((facts.num_bytes, duration_s))
    return sizes
