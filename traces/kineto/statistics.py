"""Statistics of a profile: its longest kernels, and the rates of its collectives."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from traces.kineto.matching import Collective, durations_s
from traces.kineto.rank import RankTrace
from traces.kineto.trace import KinetoTrace

_SHARE_OF_GROUP: Final = frozenset({"all_gather", "reduce_scatter", "all_to_all"})


class KernelTotal(Struct, frozen=True):
    """All runs of one kernel on all ranks: their number, their seconds, and their fraction of all kernels' seconds."""

    name: str
    kind: str
    count: int
    total_s: float
    fraction: float


class CollectiveRate(Struct, frozen=True):
    """Collectives of one kind, group, type and size: their number and rate.

    ``time_s``: the median, over the collectives, of the shortest kernel of any rank read: the last rank to arrive did
        not wait. If ``num_seen`` is less than ``num_ranks`` (0: unknown) that rank may be missing, the time too long,
        and the bandwidths too low. Bandwidths are None if bytes, time or ``num_ranks`` are unknown.
    """

    kind: str
    group: str
    num_ranks: int
    num_seen: int
    dtype: str
    num_bytes: int
    count: int
    time_s: float

    @property
    def algorithm_bandwidth_bytes_per_s(self) -> float | None:
        """Return bytes over time."""
        return self.num_bytes / self.time_s if self.num_bytes > 0 and self.time_s > 0 else None

    @property
    def bus_bandwidth_bytes_per_s(self) -> float | None:
        """Return the load of every link, after the definitions of nccl-tests (doc/PERFORMANCE.md)."""
        rate, ranks = self.algorithm_bandwidth_bytes_per_s, self.num_ranks
        return None if rate is None or ranks < 2 else rate * bus_factor(self.kind, ranks)


def bus_factor(kind: str, num_ranks: int) -> float:
    """Return bus bandwidth over bytes per second, as nccl-tests defines it, of a collective among two ranks or more."""
    if kind == "all_reduce":
        return 2 * (num_ranks - 1) / num_ranks
    return (num_ranks - 1) / num_ranks if kind in _SHARE_OF_GROUP else 1.0


def longest_kernels(ranks: Sequence[RankTrace], limit: int) -> tuple[KernelTotal, ...]:
    """Return the kernels, copies and fills with the most seconds, over all ranks; at most ``limit``."""
    totals: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0])
    for rank in ranks:
        rows = rank.rows
        lasting_s = rows.end_s - rows.start_s
        cells = rows.name.codes.astype(np.int64) * len(rows.kind.values) + rows.kind.codes
        present, position, counts = np.unique(cells, return_inverse=True, return_counts=True)
        seconds = np.bincount(position, weights=lasting_s)
        for cell, count, total_s in zip(present.tolist(), counts.tolist(), seconds.tolist(), strict=True):
            name, kind = divmod(cell, len(rows.kind.values))
            entry = totals[rows.name.values[name], rows.kind.values[kind]]
            entry[0] += count
            entry[1] += total_s
    whole_s = sum(total_s for _, total_s in totals.values())
    ordered = sorted(totals.items(), key=lambda item: (-item[1][1], item[0]))[:limit]
    return tuple(
        KernelTotal(name, kind, int(count), total_s, total_s / whole_s if whole_s else 0.0)
        for (name, kind), (count, total_s) in ordered
    )


def collective_rates(trace: KinetoTrace) -> tuple[CollectiveRate, ...]:
    """Return the collectives by kind, group, type and size, those with the most seconds first."""
    whole_job = max(rank.world_size for rank in trace.ranks)
    times: dict[tuple[str, str, int, str, int], list[float]] = defaultdict(list)
    seen: dict[tuple[str, str, int, str, int], int] = {}
    for collective in trace.matches.collectives:
        facts = collective.facts
        size = facts.group.size or (0 if facts.group.label else whole_job)
        key = facts.kind, facts.group.label, size, facts.dtype, _mean_bytes(trace.ranks, collective)
        times[key].append(float(durations_s(trace.ranks, collective).min()))
        seen[key] = min(seen.get(key, len(collective.members)), len(collective.members))
    rates = [
        CollectiveRate(kind, group, size, seen[key], dtype, num_bytes, len(lasting), float(np.median(lasting)))
        for key, lasting in times.items()
        for kind, group, size, dtype, num_bytes in [key]
    ]
    return tuple(sorted(rates, key=lambda rate: (-rate.count * rate.time_s, rate.kind, rate.group, rate.num_bytes)))


def _mean_bytes(ranks: Sequence[RankTrace], collective: Collective) -> int:
    """Return the bytes of a collective, -1 if a member does not state them; for uneven all_to_all the mean."""
    sizes = [ranks[rank].rows.facts[row].num_bytes for rank, row in collective.members]
    return round(sum(sizes) / len(sizes)) if min(sizes) >= 0 else -1
