"""A replay of a Chakra trace on the engine.

Ops begin when their dependencies have ended, at changed speeds if asked.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sim.engine.compiling.graph import Graph, Joint, NodeKind
from sim.engine.prices.activity import Activity
from sim.engine.running.loop import EventLoop
from sim.replay.changes import Changes
from sim.replay.transfers import NetworkSplit, split_network
from traces.chakra.node import HOST, ChakraTrace, Node
from traces.errors import TraceError
from traces.timeline import Timeline, TimelineBuilder

_REMEDY = "export the traces of all ranks of one run"


def replay_chakra(trace: ChakraTrace, changes: Changes) -> Timeline:
    """Return the replay of a trace as a timeline. Ranks do not share links: every op has its own duration.

    Raises TraceError for dependencies on unknown nodes, for circular dependencies, and for collectives and messages
    that do not match.
    """
    builder = _Builder(trace, changes)
    builder.add_ranks()
    builder.join_collectives()
    builder.join_messages()
    loop = EventLoop(builder.graph)
    loop.run()
    return builder.timeline(loop)


Place = tuple[int, int]
"""A rank, and the index of a node in its trace."""


@dataclass(slots=True)
class _Builder:
    """Builder of the graph of all ranks, and of the timeline from its times."""

    trace: ChakraTrace
    changes: Changes
    graph: Graph = field(default_factory=Graph)
    begin: dict[Place, int] = field(default_factory=dict)
    end: dict[Place, int] = field(default_factory=dict)
    duration_s: dict[Place, float] = field(default_factory=dict)
    joined: list[list[Place]] = field(default_factory=list)
    messages: list[tuple[Place, Place]] = field(default_factory=list)

    def add_ranks(self) -> None:
        """Add every node: its op, and before an op that waits for other ranks a delay of zero."""
        split = self._split()
        for rank, nodes in self.trace.ranks.items():
            changes = self.changes.of_rank(rank)
            places = {node.id: place for place, node in enumerate(nodes)}
            for place, node in enumerate(nodes):
                key = rank, place
                self.duration_s[key] = duration_s = _duration_s(node, split, changes)
                self.begin[key] = self.end[key] = self.graph.add(NodeKind.FIXED, duration_s)
                if node.is_collective:
                    self.graph.durations_s[self.begin[key]] = 0.0
                    self.end[key] = self.graph.add(NodeKind.MEMBER)
                    self.graph.link(self.begin[key], self.end[key])
                elif node.kind == "recv":
                    self.graph.durations_s[self.begin[key]] = 0.0
                    self.end[key] = self.graph.add(NodeKind.FIXED)
                    self.graph.link(self.begin[key], self.end[key])
            for place, node in enumerate(nodes):
                for other in sorted({*node.after}):
                    if other not in places:
                        rule = f"rank {rank}: node {node.id} ({node.name}) waits for node {other}, which is not there"
                        raise TraceError("", rule, _REMEDY)
                    self.graph.link(self.end[rank, places[other]], self.begin[rank, place])

    def join_collectives(self) -> None:
        """Join the k-th collectives of each process group into one, with the longest duration of its members."""
        issued: dict[str, dict[int, list[Place]]] = defaultdict(lambda: defaultdict(list))
        for rank, nodes in self.trace.ranks.items():
            for place, node in enumerate(nodes):
                if node.is_collective:
                    issued[node.group][rank].append((rank, place))
        for group, by_rank in issued.items():
            self._refuse_unequal(group, {rank: len(places) for rank, places in by_rank.items()})
            for members in zip(*by_rank.values(), strict=True):
                self._join(group, list(members))

    def _refuse_unequal(self, group: str, counts: Mapping[int, int]) -> None:
        """Raise TraceError if ranks outside a group issue its collectives, or its own ranks issue unequal numbers."""
        who = f"process group {group or 'of all'}"
        if strangers := counts.keys() - {*self.trace.groups.get(group, counts)}:
            raise TraceError(
                "", f"{who}: rank {min(strangers)} issues its collectives, and is none of its ranks", _REMEDY
            )
        least, most = min(counts.values()), max(counts.values())
        if least < most:
            raise TraceError("", f"{who}: its ranks issue {least:,} to {most:,} collectives", _REMEDY)

    def _join(self, group: str, members: list[Place]) -> None:
        kinds = {self._node(place).kind for place in members}
        if len(kinds) > 1:
            rule = f"process group {group or 'of all'}: a collective is {' here and '.join(sorted(kinds))} there"
            raise TraceError("", rule, _REMEDY)
        ends = [self.end[place] for place in members]
        for end in ends:
            self.graph.joint_of[end] = len(self.graph.joints)
        duration_s = max(self.duration_s[place] for place in members)
        self.graph.joints.append(Joint(ends, len(ends), Activity(latency_s=duration_s), shared=False))
        self.joined.append(members)

    def join_messages(self) -> None:
        """Make the k-th receive of a sender, receiver and tag wait for the k-th send and its travel time."""
        sends, receives = defaultdict(list), defaultdict(list)
        for rank, nodes in self.trace.ranks.items():
            for place, node in enumerate(nodes):
                if node.kind == "send":
                    sends[rank, node.peer, node.tag].append((rank, place))
                elif node.kind == "recv":
                    receives[node.peer, rank, node.tag].append((rank, place))
        for channel in sorted({*sends, *receives}):
            sent, received = sends[channel], receives[channel]
            if len(sent) != len(received) and channel[0] in self.trace.ranks and channel[1] in self.trace.ranks:
                rule = f"rank {channel[0]} sends {len(sent):,} messages with tag {channel[2]} to rank {channel[1]}, "
                raise TraceError("", f"{rule}which receives {len(received):,}", _REMEDY)
            for one, other in zip(sent, received, strict=False):
                journey = self.graph.add(NodeKind.FIXED, self.duration_s[other])
                self.graph.link(self.end[one], journey)
                self.graph.link(journey, self.end[other])
                self.messages.append((one, other))

    def timeline(self, loop: EventLoop) -> Timeline:
        """Return the timeline of the replay. Raises TraceError if some node never ran."""
        stuck = [place for place, end in self.end.items() if loop.ends_s[end] < 0.0]
        if stuck:
            rank, place = stuck[0]
            node = self.trace.ranks[rank][place]
            which = f"node {node.id} ({node.name}) of rank {rank}"
            raise TraceError("", f"{len(stuck):,} nodes wait for each other in a circle, among them {which}", _REMEDY)
        builder, rows = TimelineBuilder("simulated", "op"), dict[Place, int]()
        for rank, nodes in self.trace.ranks.items():
            builder.add_rank(rank, "")
            for place, node in enumerate(nodes):
                if node.on_device:
                    rows[rank, place] = self._add_row(builder, loop, (rank, place), node)
        for members in self.joined:
            builder.add_collective([rows[place] for place in members])
        if self.messages:
            builder.extend_messages(*np.array([(rows[one], rows[other]) for one, other in self.messages]).T)
        return builder.build()

    def _add_row(self, builder: TimelineBuilder, loop: EventLoop, place: Place, node: Node) -> int:
        waits = self.begin[place] != self.end[place]
        start_s = (loop.ends_s if waits else loop.starts_s)[self.begin[place]]
        end_s = loop.ends_s[self.end[place]]
        return builder.add(
            rank=place[0], stream=node.stream, name=node.name, kind=node.kind, start_s=start_s, end_s=end_s,
            num_bytes=node.num_bytes, flop=float(node.flop), group=node.group,
        )  # fmt: skip

    def _node(self, place: Place) -> Node:
        return self.trace.ranks[place[0]][place[1]]

    def _split(self) -> NetworkSplit:
        sizes: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for nodes in self.trace.ranks.values():
            for node in nodes:
                if node.is_collective or node.is_message:
                    sizes[node.kind].append((node.num_bytes, node.duration_s))
        return split_network(sizes) if self.changes.touches_network else NetworkSplit({})


def _duration_s(node: Node, split: NetworkSplit, changes: Changes) -> float:
    """Return the duration of a node in seconds after changes, without waits; a node of no kind keeps its duration."""
    duration_s = node.duration_s
    if node.is_collective or node.is_message:
        duration_s = split.changed_s(node.kind, duration_s, changes)
    elif node.kind in {"copy", "memcpy"}:
        duration_s /= changes.copies
    elif node.kind == HOST:
        duration_s /= changes.host
    elif node.kind:
        duration_s /= changes.compute
    return duration_s / changes.of_kernel(node.name)
