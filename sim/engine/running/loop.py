"""The event loop: a compiled graph in, start and end times out. SimPy keeps the time.

The loop is for compiled plans alone. It leaves out what such plans do not need of SimPy: processes, conditions,
interrupts, events that fail, values that are handed on, priorities, callbacks that are added later, and ``run(until)``.
Worlds with a clock of their own (job mixes, services, failures) are processes on a plain ``simpy.Environment``, and ask
``sim.engine.step_times`` how long their steps take.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from heapq import heappop, heappush
from typing import Any

import numpy as np
from simpy.core import Environment
from simpy.events import NORMAL, Event

from sim.engine.compiling.graph import Graph, NodeKind
from sim.engine.prices.activity import Activity
from sim.engine.running import stretches
from sim.engine.running.collector import collector_paused
from sim.engine.running.period import Times
from sim.engine.running.rows import Ints, Rows, edges
from sim.engine.running.sharing import LATER, Flow, SharedResources, Use

_FIXED, _JOIN = int(NodeKind.FIXED), int(NodeKind.JOIN)

Callbacks = Sequence[Callable[[Event], None]]


class Clock(Environment):
    """SimPy's environment for events that only ever succeed, and that are scheduled again once processed.

    It is no place for processes: ``drain`` does not mark events as processed, so a process that asks for an event of
    the past waits for ever; and an event that fails raises nothing. Processes need a plain ``simpy.Environment``.

    ``drain`` is SimPy's ``run`` to the end of the queue with ``step`` written into the loop: a compiled plan has
    hundreds of thousands of events, each of which does little more than release the next.
    """

    def drain(self) -> None:
        """Process all events, in SimPy's order: by time, priority and number."""
        queue, pop = self._queue, heappop
        while queue:
            self._now, _, _, event = pop(queue)
            for callback in event.callbacks:
                callback(event)

    def reusable_event(self) -> Event:
        """Return an event that can be scheduled again and again."""
        event = Event(self)
        event._ok = True
        return event


class EventLoop:
    """Runs a graph once. ``starts_s`` and ``ends_s`` are per node, negative where it never ran.

    One SimPy timeout per node that takes time; its callback releases what waited for the node.
    """

    def __init__(self, graph: Graph, edges: tuple[Ints, Ints] | None = None) -> None:
        self.graph, self.environment, self.num_events, self._edges = graph, Clock(), 0, edges
        size = len(graph.kinds)
        self.starts_s = [-1.0] * size
        self.ends_s = [-1.0] * size
        self._waits = list(self.graph.waits)
        self._arrived = [joint.pending for joint in self.graph.joints]
        self._pending = {node: block.pending for node, block in self.graph.blocks.items()}
        self._uses: dict[int, Use] = {}
        self._on_earlier = self._begins_again
        self._processed: list[Event] = []
        self._awaited: set[int] = set()
        self._held: list[Any] = []
        self._noted_spans: Times | None = None
        self._begin: dict[int, Callable[[int], None]] = {
            NodeKind.BLOCK: self._start_block,
            NodeKind.ENTRY: self._enter,
            NodeKind.MEMBER: self._arrive,
            NodeKind.LEFT_OUT: self._leave_out,
        }
        self._at = self._make_at()
        self._start, self._release, self._on_exit = self._make_hot_path()
        self._on_demand = [self._demand]
        self._resources, self._begin[NodeKind.SHARED], self._on_shared = self._make_shared_path()
        self._on_joint = [self._joint_finished]
        self._on_stretch = [self._stretch_finished]

    @cached_property
    def _stretches(self) -> "stretches.Stretches":
        """Return the stretches of the graph; one whose nodes share nothing but links needs no rows."""
        return stretches.Stretches(self.graph, self._waits, self._resources, Rows.of(self.graph, *self.edges))

    @cached_property
    def edges(self) -> tuple[Ints, Ints]:
        """Return how many nodes wait for each node, and these nodes, one node's after the other's."""
        return self._edges or edges(self.graph)

    @cached_property
    def times_s(self) -> tuple[Times, Times]:
        """Return the starts and ends of nodes as arrays; to be asked for once the loop has run, and not written to."""
        return self.times_so_far_s

    @property
    def times_so_far_s(self) -> tuple[Times, Times]:
        """Return the same of a loop that may pause."""
        starts_s, ends_s = (np.fromiter(times, np.float64, len(times)) for times in (self.starts_s, self.ends_s))
        return starts_s, ends_s

    @property
    def is_stuck(self) -> bool:
        """Return whether a node never ran, once the loop has: what it waits for never comes."""
        return min(self.ends_s, default=0.0) < 0.0

    def run(self, pauses: Iterable[Collection[int]] = (), is_known: Callable[[], bool] = bool) -> bool:
        """Run to the end of all events; return whether it was known before.

        ``pauses``: nodes that stand for periods left out. When all of a pause have begun, ``is_known`` says whether
        times and spans are known to the end, and notes them; then the run ends there.
        """
        with collector_paused():
            for node in self._roots():
                self._start(node)
            waiting = ({node for node in nodes if self.starts_s[node] < 0.0} for nodes in pauses)
            was_known = any(nodes and self._comes_to_pause(nodes) and is_known() for nodes in waiting)
            if not was_known:
                self._comes_to_pause(set())
        self.num_events = next(self.environment._eid)  # SimPy numbers every event that it schedules
        return was_known

    def _comes_to_pause(self, nodes: set[int]) -> bool:
        """Go on until all of some nodes have begun, or to the end; return whether there are events left."""
        self.environment._queue += self._held
        self._held, self._awaited = [], nodes
        self.environment.drain()
        return bool(self._held)

    def _pause(self, _: Event) -> None:
        """Leave all further events for later."""
        queue = self.environment._queue
        self._held = queue[:]
        queue.clear()

    def note(self, starts_s: Times, ends_s: Times, spans: Times) -> None:
        """Take the times of nodes and the spans of a run whose rest is known."""
        self.starts_s, self.ends_s = starts_s.tolist(), ends_s.tolist()
        self.times_s, self._noted_spans = (starts_s, ends_s), spans
        self._resources.spans.clear()

    def _roots(self) -> list[int]:
        """Return the nodes that wait for nothing: not exits, nor blocks, which their entries start."""
        waits, roots, at = self.graph.waits, [], -1
        with suppress(ValueError):
            while True:
                at = waits.index(0, at + 1)
                kind = self.graph.kinds[at]
                if kind != NodeKind.EXIT and not (kind == NodeKind.BLOCK and self._pending[at] > 1):
                    roots.append(at)
        return roots

    @property
    def shared_spans(self) -> Times:
        """Return how fast activities on shared resources went so far, four numbers each, in a table of its own.

        They are key, from, until, and the part of it done per second. The key is a node, or of a collective over
        several ranks -1 less its joint.
        """
        if self._noted_spans is not None:
            return self._noted_spans.copy()
        spans = self._resources.spans
        return np.fromiter(spans, np.float64, len(spans)).reshape(-1, 4)

    # --- the hot path --------------------------------------------------------------------------------------
    #
    # These functions run for every event, so they hold what they need in local variables, schedule as SimPy's
    # ``schedule`` does, and use an event object again once it has been processed.

    def _make_at(self) -> Callable[[float, object, Callbacks], None]:
        """Return the function that calls back at a time."""
        environment, processed = self.environment, self._processed
        queue, numbers = environment._queue, environment._eid

        def at(time_s: float, value: object, callbacks: Callbacks) -> None:
            event = processed.pop() if processed else environment.reusable_event()
            event._value, event.callbacks = value, callbacks  # type: ignore[assignment]
            heappush(queue, (time_s, NORMAL, next(numbers), event))

        return at

    def _make_hot_path(self) -> tuple[Callable[[int], None], Callable[[int], None], Callbacks]:
        """Return the functions that start a node and that release what waits for one.

        Third comes what to call when a node is done whose end has been noted.
        """
        graph, environment, waits = self.graph, self.environment, self._waits
        kinds, durations, successors = graph.kinds, graph.durations_s, graph.successors
        starts, ends, begin = self.starts_s, self.ends_s, self._begin
        queue, numbers, processed = environment._queue, environment._eid, self._processed

        def finished(event: Event) -> None:
            processed.append(event)
            for successor in successors[event._value]:
                left = waits[successor] = waits[successor] - 1
                if not left:
                    start(successor)

        on_finish = (finished,)

        def start(node: int) -> None:
            now = starts[node] = environment._now
            kind = kinds[node]
            if kind == _FIXED:
                end_s = ends[node] = now + durations[node]
                event = processed.pop() if processed else environment.reusable_event()
                event._value, event.callbacks = node, on_finish  # type: ignore[assignment]
                heappush(queue, (end_s, NORMAL, next(numbers), event))
            elif kind == _JOIN:
                ends[node] = now
                release(node)
            else:
                begin[kind](node)

        def release(node: int) -> None:
            for successor in successors[node]:
                left = waits[successor] = waits[successor] - 1
                if not left:
                    start(successor)

        return start, release, on_finish

    def _make_shared_path(self) -> tuple[SharedResources, Callable[[int], None], Callbacks]:
        """Return the shared resources, the function that starts a node which uses some, and what ends its use."""
        environment, processed, release = self.environment, self._processed, self._release
        activities, durations, ends, uses = self.graph.shared, self.graph.durations_s, self.ends_s, self._uses
        queue, numbers = environment._queue, environment._eid

        def schedule(delay_s: float, key: int, version: int) -> None:
            event = processed.pop() if processed else environment.reusable_event()
            event._value, event.callbacks = (key, version), on_finish  # type: ignore[assignment]
            heappush(queue, (environment._now + delay_s, NORMAL, next(numbers), event))

        resources = SharedResources(schedule)

        def finished(event: Event) -> None:
            processed.append(event)
            key, version = event._value
            if not resources.finish(key, version, environment._now):
                return
            if key < 0:
                self._finish_joint(-key - 1)
            else:
                ends[key] = environment._now
                release(key)

        on_finish = (finished,)

        def start(node: int) -> None:
            activity = activities[node]
            use = uses.get(id(activity))
            if use is not None and activity.uses_links and not durations[node]:
                resources.begin(node, use, environment._now)
            else:
                self._start_shared(node, activity)

        return resources, start, on_finish

    # --- blocks --------------------------------------------------------------------------------------------

    def _start_block(self, node: int) -> None:
        """Schedule the exits of a block whose entries have all been released, at the latest now."""
        block, now = self.graph.blocks[node], self.environment.now
        pattern = block.pattern
        if len(pattern.entries) == 1:
            block.released_s[0] = now
        for op, exit_node in ((pattern.main_exit, node), *block.exits.items()):
            end_s = self.ends_s[exit_node] = max(pattern.end_s(op, block.released_s), now)
            self._at(end_s, exit_node, self._on_exit)

    def _enter(self, node: int) -> None:
        block_node, slot = self.graph.entries[node]
        self.ends_s[node] = self.graph.blocks[block_node].released_s[slot] = self.environment.now
        self._pending[block_node] -= 1
        if not self._pending[block_node]:
            self._start(block_node)
        self._release(node)

    def _leave_out(self, node: int) -> None:
        """Let the periods go by that a node stands for."""
        left_out, ends_s = self.graph.left_out, self.ends_s
        later, earlier = left_out.apart[node]
        ends_s[node] = self.environment.now + left_out.times * max(ends_s[later] - ends_s[earlier], 0.0)
        self._at(ends_s[node], node, self._on_exit)
        if node in self._awaited:
            self._awaited.remove(node)
            if not self._awaited:
                self._at(self.environment.now, None, [self._pause])

    # --- shared resources ----------------------------------------------------------------------------------

    def _start_shared(self, node: int, activity: Activity) -> None:
        if not activity.uses_links and self._stretches.rows.stops[node] > node:
            stretch = self._stretches.begin(node, self.environment._now, self._interrupted)
            if stretch is not None:
                self._at(stretch.end_s, stretch, self._on_stretch)
                return
        self._use(node, activity, self.graph.durations_s[node])

    def _use(self, key: int, activity: Activity, latency_s: float) -> None:
        """Use resources after a latency (negative key: a joint activity's)."""
        now, use = self.environment._now, self._uses.get(id(activity)) or self._use_of(key, activity)
        if not latency_s:
            self._resources.begin(key, use, now)
        elif self._resources.begin_later(key, use, now + latency_s, self._on_earlier):
            self._at(now + latency_s + use.alone_s, (key, LATER), self._on_shared)
        else:
            self._at(now + latency_s, (key, use), self._on_demand)

    def _use_of(self, key: int, activity: Activity) -> Use:
        """Return what an activity of the graph uses, found once."""
        use = self._resources.use_of(key, activity.demands, activity.single_s, yields=activity.yields)
        self._uses[id(activity)] = use
        return use

    def _begins_again(self, flow: Flow) -> None:
        """Let an activity begin when its latency is over, as another one begins before it on its resources."""
        self._at(flow.since_s, (flow.key, flow.use), self._on_demand)

    def _demand(self, event: Event) -> None:
        """Begin the demand that follows a latency."""
        self._processed.append(event)
        key, use = event._value
        self._resources.begin(key, use, self.environment._now)

    # --- ops in a row --------------------------------------------------------------------------------------

    def _stretch_finished(self, event: Event) -> None:
        self._processed.append(event)
        stretch = event._value
        if not stretch.is_interrupted:
            if stretch.hold is not None:
                stretch.hold.leave()
                stretch.hold = None  # which knows the stretch: it goes now, as the cycle collector waits
            stretch.note(self.starts_s, self.ends_s)
            self._release(stretch.last_node)

    def _interrupted(self, stretch: "stretches.Stretch") -> None:
        """Let the op of a stretch that is under way go on by itself; later ones follow when it is done."""
        now, stretch.hold = self.environment._now, None
        found = stretch.cut(now, self.starts_s, self.ends_s)
        if found is None:
            return
        stretch.is_interrupted = True
        node, used_from_s, end_s = found
        if self.graph.kinds[node] == _FIXED:
            self.ends_s[node] = end_s
            self._at(end_s, node, self._on_exit)
            return
        activity = self.graph.shared[node]
        use = self._uses.get(id(activity)) or self._use_of(node, activity)
        if used_from_s > now:
            self._at(used_from_s, (node, use), self._on_demand)
        else:
            self._resources.resume(node, use, used_from_s)
            self._at(end_s, (node, 1), self._on_shared)

    # --- collectives --------------------------------------------------------------------------------------

    def _arrive(self, node: int) -> None:
        """Note that a member of a collective has arrived; begin when it is the last."""
        index = self.graph.joint_of[node]
        joint = self.graph.joints[index]
        self._arrived[index] -= 1
        if self._arrived[index]:
            return
        now = self.environment.now
        for member in joint.members:
            self.starts_s[member] = now
        if joint.shared:
            self._use(-index - 1, joint.activity, joint.activity.latency_s)
        else:
            self._at(now + joint.activity.duration_s, index, self._on_joint)

    def _joint_finished(self, event: Event) -> None:
        self._processed.append(event)
        self._finish_joint(event._value)

    def _finish_joint(self, index: int) -> None:
        for member in self.graph.joints[index].members:
            self.ends_s[member] = self.environment.now
        for member in self.graph.joints[index].members:
            self._release(member)
