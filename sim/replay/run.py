"""A replay of a profile, with changes if asked."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sim.engine.running.loop import EventLoop
from sim.replay.build import MeasuredRank, RankNodes, ReplayGraph
from sim.replay.changes import Changes
from sim.replay.device import order_device
from sim.replay.host import read_host
from sim.replay.transfers import NetworkSplit, find_transfers, sizes_by_kind, split_network
from traces.errors import TraceError
from traces.kineto.clock import unmoved
from traces.kineto.trace import KinetoTrace
from traces.timeline import Floats


class Replay(Struct, frozen=True):
    """A replayed run: the trace with its new times, on one clock from 0, and the span from first start to last end."""

    trace: KinetoTrace
    span_s: float


class Replayer:
    """A profile whose dependencies are read once; ``run`` replays it with changes.

    Assumptions: the order of launches and all dependencies do not depend on time; an activity's delay after its
    predecessors stays; kernels slow each other down as measured.
    ``measured_s``: the measured span in seconds.
    ``num_inferred``: number of dependencies between streams that the trace does not state.
    ``unsplit_kinds``: kinds of communication with one message size, whose latency is unknown; all their time scales
        with the bandwidth.
    """

    def __init__(self, trace: KinetoTrace) -> None:
        self.trace = trace
        shifts_s = trace.alignment.shift_s.tolist()
        hosts = [read_host(rank, shift_s) for rank, shift_s in zip(trace.ranks, shifts_s, strict=True)]
        pairs = list(zip(trace.ranks, shifts_s, strict=True))
        zero_s = min(float(rank.rows.start_s.min()) + shift_s for rank, shift_s in pairs)
        zero_s = min([zero_s, *(host.calls[0].start_s for host in hosts if host.calls)])
        start_s = [rank.rows.start_s + (shift_s - zero_s) for rank, shift_s in pairs]
        end_s = [rank.rows.end_s + (shift_s - zero_s) for rank, shift_s in pairs]
        self._transfers = find_transfers(trace, start_s, end_s)
        released_s = [times_s.copy() for times_s in end_s]
        for transfer in self._transfers:
            for position, row in transfer.members:
                released_s[position][row] = max(transfer.begin_s, transfer.end_s)
        self._ranks = []
        for position, rank in enumerate(trace.ranks):
            host = hosts[position].moved(-zero_s)
            order = order_device(rank, host, start_s[position], released_s[position])
            self._ranks.append(MeasuredRank(rank.rank, rank.rows, host, order, released_s[position]))
        sizes = sizes_by_kind(trace, self._transfers)
        self._split = split_network(sizes)
        self.measured_s = _span_s(start_s, end_s)
        self.num_inferred = sum(rank.order.num_inferred for rank in self._ranks)
        self.unsplit_kinds = tuple(sorted(sizes.keys() - self._split.latency_s.keys()))

    @property
    def split(self) -> NetworkSplit:
        """Return the latency of each kind of communication."""
        return self._split

    def run(self, changes: Changes) -> Replay:
        """Return the run with changes. Raises TraceError for circular dependencies in the trace."""
        builder = ReplayGraph(self._split, changes)
        shared: list[set[int]] = [set() for _ in self._ranks]
        for transfer in self._transfers:
            for position, row in transfer.members:
                shared[position].add(row)
        nodes = [builder.add_rank(rank, frozenset(rows)) for rank, rows in zip(self._ranks, shared, strict=True)]
        firsts = [transfer.members[0] for transfer in self._transfers]
        builder.join(self._transfers, nodes, [self._ranks[rank].rows.name.at(row) for rank, row in firsts])
        loop = EventLoop(builder.graph)
        loop.run()
        if min(loop.ends_s, default=0.0) < 0.0:
            rule = "the dependencies read from this trace form a circle"
            raise TraceError(self.trace.ranks[0].file, rule, "choose whole steps with --steps")
        return self._result(nodes, np.array(loop.ends_s))

    def _result(self, nodes: Sequence[RankNodes], ends_s: Floats) -> Replay:
        """Return the trace with the replayed times. The curve of allocated memory has no new times."""
        ranks = []
        nothing = np.empty(0), np.empty(0, dtype=np.int64)
        for trace, part in zip(self.trace.ranks, nodes, strict=True):
            end_s = ends_s[part.end]
            start_s = np.where(part.arrival >= 0, ends_s[part.arrival], end_s - part.duration_s)
            rows = replace(trace.rows, start_s=start_s, end_s=end_s)
            ranks.append(replace(trace, rows=rows, allocated=nothing))
        replayed = KinetoTrace(tuple(ranks), self.trace.matches, unmoved(len(ranks)), self.trace.warnings)
        return Replay(replayed, _span_s([r.rows.start_s for r in ranks], [r.rows.end_s for r in ranks]))


def _span_s(start_s: Sequence[Floats], end_s: Sequence[Floats]) -> float:
    """Return the time from the first start to the last end of any rank."""
    return max(float(times_s.max()) for times_s in end_s) - min(float(times_s.min()) for times_s in start_s)
