"""The event loop: a compiled graph in, start and end times out. SimPy keeps the time."""

from collections import deque
from dataclasses import dataclass, field

import simpy
from simpy.events import Timeout

from sim.engine.graph import Graph, NodeKind
from sim.engine.sharing import SharedResources


@dataclass
class EventLoop:
    """Runs a graph once. ``starts_s`` and ``ends_s`` are per node, negative where it never ran."""

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
        self._ready: deque[int] = deque()
        self._on_finish = [self._finished]
        self._on_demand = [self._demand]
        self._on_arrival = [self._arrival]
        self._on_shared = [self._shared_finished]
        self._on_joint = [self._joint_finished]

    def run(self) -> float:
        """Run to the end of all events; return the time of the last one in seconds."""
        self._ready.extend(n for n, count in enumerate(self._waits) if count == 0 and self._runs_alone(n))
        self._drain()
        self.environment.run()
        return max(self.ends_s, default=0.0)

    def _runs_alone(self, node: int) -> bool:
        kind = self.graph.kinds[node]
        return kind != NodeKind.EXIT and not (kind == NodeKind.BLOCK and self._pending[node] > 1)

    def _after(self, delay_s: float, value: object, callbacks: list) -> None:  # type: ignore[type-arg]
        event = Timeout(self.environment, delay_s, value)
        event.callbacks = callbacks
        self.num_events += 1

    # --- starting ------------------------------------------------------------------------------------------

    def _release(self, node: int) -> None:
        """Note that a node is done, and put what waited for it alone on the ready list."""
        waits, ready = self._waits, self._ready
        for successor in self.graph.successors[node]:
            waits[successor] -= 1
            if not waits[successor]:
                ready.append(successor)

    def _drain(self) -> None:
        """Start everything that is ready, in the order in which it became so."""
        graph, kinds, ready = self.graph, self.graph.kinds, self._ready
        environment, starts, ends, durations = self.environment, self.starts_s, self.ends_s, self.graph.durations_s
        fixed, block, join, on_finish = NodeKind.FIXED, NodeKind.BLOCK, NodeKind.JOIN, self._on_finish
        while ready:
            node = ready.popleft()
            kind = kinds[node]
            if starts[node] < 0:
                starts[node] = environment.now
            if kind == fixed or (kind == NodeKind.SEND and node not in graph.demands):
                Timeout(environment, durations[node], node).callbacks = on_finish
                self.num_events += 1
            elif kind == block:
                self._start_block(node)
            elif kind == join:
                ends[node] = environment.now
                self._release(node)
            elif kind == NodeKind.ENTRY:
                self._enter(node)
            elif kind == NodeKind.MEMBER:
                self._arrive(node)
            else:
                self._start_shared(node)

    def _start_block(self, node: int) -> None:
        """Schedule the exits of a block whose entries have all been released, at the latest now."""
        block, now = self.graph.blocks[node], self.environment.now
        if len(block.entries) == 1:
            block.released_s[0] = now
        self.starts_s[node] = now
        for op, exit_node in block.exits.items():
            time_s = max(t + row[op] for t, row in zip(block.released_s, block.offsets, strict=True))
            delay_s = time_s + block.durations_s[op] - now
            Timeout(self.environment, delay_s if delay_s > 0.0 else 0.0, exit_node).callbacks = self._on_finish
            self.num_events += 1

    def _enter(self, node: int) -> None:
        block_node, slot = self.graph.entries[node]
        self.graph.blocks[block_node].released_s[slot] = self.environment.now
        self._pending[block_node] -= 1
        if not self._pending[block_node]:
            self._ready.append(block_node)

    def _start_shared(self, node: int) -> None:
        latency_s = self.graph.durations_s[node]
        if latency_s:
            self._after(latency_s, node, self._on_demand)
        else:
            self._resources.start(node, self.graph.demands[node], self.environment.now)

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

    # --- finishing -----------------------------------------------------------------------------------------

    def _finished(self, event: simpy.Event) -> None:
        node = event._value
        self.ends_s[node] = self.environment.now
        if node in self.graph.arrivals:
            self._dispatch(node)
        self._release(node)
        self._drain()

    def _dispatch(self, node: int) -> None:
        """Let a sent message travel: it arrives a wire latency after its sender is done."""
        receive, latency_s = self.graph.arrivals[node]
        if latency_s:
            self._after(latency_s, node, self._on_arrival)
        else:
            self._arrive_message(node, receive)

    def _arrival(self, event: simpy.Event) -> None:
        node = event._value
        self._arrive_message(node, self.graph.arrivals[node][0])
        self._drain()

    def _arrive_message(self, send: int, receive: int) -> None:
        self._waits[receive] -= 1
        if not self._waits[receive]:
            self._ready.append(receive)

    def _demand(self, event: simpy.Event) -> None:
        """Begin the demand that follows a latency (negative: a joint activity's)."""
        key = event._value
        demands = self.graph.joints[-key - 1].demands if key < 0 else self.graph.demands[key]
        self._resources.start(key, demands, self.environment.now)

    def _schedule_shared(self, delay_s: float, key: int, version: int) -> None:
        self._after(delay_s, (key, version), self._on_shared)

    def _shared_finished(self, event: simpy.Event) -> None:
        key, version = event._value
        if not self._resources.finish(key, version, self.environment.now):
            return
        if key < 0:
            self._finish_joint(-key - 1)
        else:
            self.ends_s[key] = self.environment.now
            if key in self.graph.arrivals:
                self._dispatch(key)
            self._release(key)
        self._drain()

    def _joint_finished(self, event: simpy.Event) -> None:
        self._finish_joint(event._value)
        self._drain()

    def _finish_joint(self, index: int) -> None:
        for member in self.graph.joints[index].members:
            self.ends_s[member] = self.environment.now
            self._release(member)
