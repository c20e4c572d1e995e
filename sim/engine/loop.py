"""The event loop: a compiled graph in, start and end times out. SimPy keeps the time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import simpy
from simpy.events import NORMAL, Event

from sim.engine.graph import Graph, NodeKind
from sim.engine.sharing import SharedResources

_FIXED, _SEND, _JOIN = int(NodeKind.FIXED), int(NodeKind.SEND), int(NodeKind.JOIN)


def _reusable(environment: simpy.Environment) -> Event:
    """Return an event that can be scheduled again and again; it always succeeds."""
    event = Event(environment)
    event._ok = True
    return event


@dataclass
class EventLoop:
    """Runs a graph once. ``starts_s`` and ``ends_s`` are per node, negative where it never ran.

    One SimPy timeout per node that takes time; its callback releases what waited for the node.
    """

    graph: Graph
    environment: simpy.Environment = field(default_factory=simpy.Environment)
    num_events: int = 0

    def __post_init__(self) -> None:
        size = len(self.graph.kinds)
        self.starts_s = [-1.0] * size
        self.ends_s = [-1.0] * size
        self._waits = list(self.graph.waits)
        self._arrived = [joint.pending for joint in self.graph.joints]
        self._pending = {node: block.pending for node, block in self.graph.blocks.items()}
        self._resources = SharedResources(self._schedule_shared)
        self._processed: list[Event] = []
        self._after = self._make_after()
        self._release = self._make_release()
        self._begin: dict[int, Callable[[int], None]] = {
            NodeKind.SHARED: self._start_shared,
            NodeKind.SEND: self._start_shared,
            NodeKind.BLOCK: self._start_block,
            NodeKind.ENTRY: self._enter,
            NodeKind.MEMBER: self._arrive,
        }
        self._on_demand = [self._demand]
        self._on_shared = [self._shared_finished]
        self._on_joint = [self._joint_finished]

    def run(self) -> float:
        """Run to the end of all events; return the time at which the last node is done, in seconds."""
        start = self._start
        for node in [node for node, count in enumerate(self.graph.waits) if not count]:
            if self._runs_alone(node):
                start(node)
        self.environment.run()
        self.num_events = next(self.environment._eid)  # SimPy numbers every event that it schedules
        starts, ends, durations = self.starts_s, self.ends_s, self.graph.durations_s
        for node in [node for node, kind in enumerate(self.graph.kinds) if kind == _FIXED]:
            if starts[node] >= 0.0:
                ends[node] = starts[node] + durations[node]
        return max(ends, default=0.0)

    def _runs_alone(self, node: int) -> bool:
        kind = self.graph.kinds[node]
        return kind != NodeKind.EXIT and not (kind == NodeKind.BLOCK and self._pending[node] > 1)

    # --- the hot path --------------------------------------------------------------------------------------
    #
    # These functions run for every event, so they hold what they need in local variables, read SimPy's clock
    # without its property, and use an event object again once it has been processed.

    def _make_after(self) -> Callable[[float, object, Sequence[Callable[[Event], None]]], None]:
        """Return the function that calls back after a delay."""
        environment, processed, schedule = self.environment, self._processed, self.environment.schedule

        def after(delay_s: float, value: object, callbacks: Sequence[Callable[[Event], None]]) -> None:
            event = processed.pop() if processed else _reusable(environment)
            event._value, event.callbacks = value, callbacks  # type: ignore[assignment]
            schedule(event, NORMAL, delay_s)

        return after

    def _make_release(self) -> Callable[[int], None]:
        """Return the function that starts what waited for a node alone; make the callbacks of nodes and messages.

        The end of a fixed node follows from its start and is filled in after the run.
        """
        graph, environment, waits, after = self.graph, self.environment, self._waits, self._after
        kinds, durations, successors = graph.kinds, graph.durations_s, graph.successors
        demands, arrivals, starts, ends = graph.demands, graph.arrivals, self.starts_s, self.ends_s
        processed, schedule = self._processed, environment.schedule

        def finished(event: Event) -> None:
            processed.append(event)
            for successor in successors[event._value]:
                left = waits[successor] = waits[successor] - 1
                if not left:
                    start(successor)

        def sent(event: Event) -> None:
            dispatch(event._value)
            finished(event)

        def arrived(event: Event) -> None:
            processed.append(event)
            left = waits[event._value] = waits[event._value] - 1
            if not left:
                start(event._value)

        on_finish, on_sent, on_arrival = [finished], [sent], [arrived]

        def start(node: int) -> None:
            kind = kinds[node]
            now = starts[node] = environment._now
            if kind == _FIXED:
                event = processed.pop() if processed else _reusable(environment)
                event._value, event.callbacks = node, on_finish  # type: ignore[assignment]
                schedule(event, NORMAL, durations[node])
            elif kind == _JOIN:
                ends[node] = now
                release(node)
            elif kind == _SEND and node not in demands:
                ends[node] = now + durations[node]
                if durations[node]:
                    after(durations[node], node, on_sent)
                else:
                    dispatch(node)
                    release(node)
            else:
                self._begin[kind](node)

        def dispatch(node: int) -> None:
            """Let a sent message travel: it arrives a wire latency after its sender is done."""
            receive, latency_s = arrivals[node]
            after(latency_s, receive, on_arrival)

        def release(node: int) -> None:
            for successor in successors[node]:
                left = waits[successor] = waits[successor] - 1
                if not left:
                    start(successor)

        self._start, self._on_exit, self._dispatch = start, on_finish, dispatch
        return release

    # --- blocks --------------------------------------------------------------------------------------------

    def _start_block(self, node: int) -> None:
        """Schedule the exits of a block whose entries have all been released, at the latest now."""
        block, now = self.graph.blocks[node], self.environment.now
        pattern = block.pattern
        if len(pattern.entries) == 1:
            block.released_s[0] = now
        for op, exit_node in ((pattern.main_exit, node), *block.exits.items()):
            begin_s = max(t + row[op] for t, row in zip(block.released_s, pattern.offsets, strict=True))
            end_s = self.ends_s[exit_node] = max(begin_s + pattern.durations_s[op], now)
            self._after(end_s - now, exit_node, self._on_exit)

    def _enter(self, node: int) -> None:
        block_node, slot = self.graph.entries[node]
        self.ends_s[node] = self.graph.blocks[block_node].released_s[slot] = self.environment.now
        self._pending[block_node] -= 1
        if not self._pending[block_node]:
            self._start(block_node)

    # --- shared resources ----------------------------------------------------------------------------------

    def _start_shared(self, node: int) -> None:
        latency_s = self.graph.durations_s[node]
        if latency_s:
            self._after(latency_s, node, self._on_demand)
        else:
            self._resources.start(node, self.graph.demands[node], self.environment.now)

    def _demand(self, event: Event) -> None:
        """Begin the demand that follows a latency (negative: a joint activity's)."""
        self._processed.append(event)
        key = event._value
        demands = self.graph.joints[-key - 1].demands if key < 0 else self.graph.demands[key]
        self._resources.start(key, demands, self.environment.now)

    def _schedule_shared(self, delay_s: float, key: int, version: int) -> None:
        self._after(delay_s, (key, version), self._on_shared)

    def _shared_finished(self, event: Event) -> None:
        self._processed.append(event)
        key, version = event._value
        if not self._resources.finish(key, version, self.environment.now):
            return
        if key < 0:
            self._finish_joint(-key - 1)
            return
        self.ends_s[key] = self.environment.now
        if self.graph.kinds[key] == _SEND:
            self._dispatch(key)
        self._release(key)

    # --- messages and collectives --------------------------------------------------------------------------

    def _arrive(self, node: int) -> None:
        """Note that a member of a collective has arrived; begin when it is the last."""
        index = self.graph.joint_of[node]
        joint = self.graph.joints[index]
        self._arrived[index] -= 1
        if self._arrived[index]:
            return
        for member in joint.members:
            self.starts_s[member] = self.environment.now
        if joint.shared:
            self._after(joint.latency_s, -index - 1, self._on_demand)
        else:
            occupancy_s = max((d for _, d in joint.demands), default=0.0)
            self._after(joint.latency_s + occupancy_s, index, self._on_joint)

    def _joint_finished(self, event: Event) -> None:
        self._processed.append(event)
        self._finish_joint(event._value)

    def _finish_joint(self, index: int) -> None:
        for member in self.graph.joints[index].members:
            self.ends_s[member] = self.environment.now
        for member in self.graph.joints[index].members:
            self._release(member)
