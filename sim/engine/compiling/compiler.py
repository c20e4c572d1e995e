"""From a plan to a graph: every dependency, once, before time starts.

A call of a coalescing task whose ops meet nobody on any resource becomes one block; all others become one
node per op. The result is the same either way, to rounding.

Why a block needs so few links. Blocks of one rank follow each other on the ``compute`` stream, so a hazard
between two ops on the same stream is kept by stream order. Between streams, a hazard from an earlier block is
kept as well when another block stands between the two: that one's exits come no earlier than its last entry,
hence after the earlier block's compute, and the later op waits for an exit of it on its own stream. Only
hazards between a block and the next one, and between blocks and single ops, need links.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, islice, pairwise
from operator import itemgetter

import numpy as np
from msgspec import Struct, field

from sim.engine.compiling.contention import Contention
from sim.engine.compiling.graph import NOTHING, SENT, Block, Graph, NodeKind, Pattern, Wire
from sim.engine.compiling.patterns import call_pattern
from sim.engine.compiling.shape import NO_PATH, TaskShape
from sim.engine.compiling.tables import MAIN_STREAM, Shared, TaskTable
from sim.engine.compiling.teams import Part, Team
from sim.engine.prices.activity import Activity
from sim.integers import Integers, integer_type
from sim.plan.words.calls import NO_MICROBATCH, Calls
from sim.plan.words.op import Channel, Collective
from sim.plan.words.program import Program
from sim.sorting import sorted_order

_FIXED, _SHARED = NodeKind.FIXED, NodeKind.SHARED

Ref = tuple[int, int]
"""(call of the rank, op inside the call's task)."""

OwnCall = tuple[int, TaskTable, int | None]
"""(index, table, micro-batch) of a call that has no wire."""


class NotCoalescableError(Exception):
    """A task whose calls cannot be blocks of several ranks after all."""

    def __init__(self, task: str) -> None:
        super().__init__(task)
        self.task = task


class KnownBlocks(Struct, frozen=True):
    """What follows from tasks whatever the order of calls: found once for ranks that share them.

    A pattern is one object for ranks whose ops last equally long.
    """

    _patterns: dict[tuple[int, tuple[int, ...], tuple[float, ...]], Pattern | None] = {}
    _links: dict[tuple[int, int, bool], tuple[tuple[int, int], ...]] = {}
    _hazards: dict[tuple[int, ...], list[tuple[int, int, int]]] = {}

    def pattern(self, table: TaskTable, entries: tuple[int, ...]) -> Pattern | None:
        """Return how a call runs, None where it can be no block (``call_pattern``)."""
        key = id(table.shape), entries, tuple([activity.duration_s for activity in table.activities])
        if key not in self._patterns:
            self._patterns[key] = call_pattern(table, entries)
        return self._patterns[key]

    def links(self, before: TaskTable, after: TaskTable, *, same_microbatch: bool) -> tuple[tuple[int, int], ...]:
        """Return the hazards between two blocks in a row that stream order does not keep."""
        key = id(before.shape), id(after.shape), same_microbatch
        if key not in self._links:
            self._links[key] = _neighbour_links(before, after, same_microbatch)
        return self._links[key]

    def hazards(self, shared: Shared, before: Sequence[TaskTable], after: TaskTable) -> list[tuple[int, int, int]]:
        """Return what a call waits for because earlier ones touched buffers: (place in ``before``, op, waiting op).

        ``before``: the tasks of the last calls that did, in order. Stream order is kept anyway, and of other links
        there are the fewest.
        """
        key = id(shared), id(after.shape), *[id(table.shape) for table in before]
        if key not in self._hazards:
            self._hazards[key] = _hazards(shared.buffers, [table.shape for table in before], after.shape)
        return self._hazards[key]


class RankCompiler(Struct, dict=True):
    """Compiles one simulated rank's program into a graph that it shares with the other ranks."""

    graph: Graph
    rank: int
    program: Program
    tables: Mapping[str, TaskTable]
    contention: Contention
    known: KnownBlocks
    team: Team | None = None
    messages: dict[Channel, list[tuple[int, float]]] = field(default_factory=dict)
    """(node, latency) of messages in program order, where there is no wire."""
    collectives: dict[tuple[str, tuple[str, ...], tuple[int, ...]], list[tuple[int, Activity, Collective]]] = field(
        default_factory=dict
    )
    """(stream, axes, members) -> (node, what it demands, op) in program order."""

    def __post_init__(self) -> None:
        self.wires = {table.channel: table.wire for table in self.tables.values() if table.wire is not None}
        self._tails: dict[str, Ref] = {}
        self._patterns: dict[tuple[str, tuple[int, ...]], Pattern | None] = {}
        self._noted: dict[str, int] = {}
        self._steady: dict[tuple[str, str, bool], Pattern | None] = {}
        self._called, self._nodes, self._pattern_of = list[TaskTable](), list[int](), list[Pattern | None]()
        self._waited: set[tuple[int, int, str]] = set()
        self._parts: dict[int, Part] = {}
        self._entry_nodes: dict[int, list[int]] = {}
        self._early_exits: dict[Ref, int] = {}
        self._open_microbatches: set[int | None] = set()
        self._num_single = 0
        self._last_on_main = -1
        self._last_block: OwnCall | None = None

    def compile(self) -> None:
        """Add all calls to the graph: receives by wire, all other calls in order, and sends by wire.

        What has a wire has a stream for itself, so none of the other calls waits for such a send.
        """
        calls, tables = Calls.of(self.program.calls), [*self.tables.values()]
        tasks = calls.numbered(self.tables)
        self._called = list(map(tables.__getitem__, tasks.tolist()))
        self._nodes, self._pattern_of = [-1] * len(calls), [None] * len(calls)
        places = _by_channel(tasks, tables)
        for channel, received in places.items():
            if channel is not None and not channel[3]:
                self._add_receives(self.wires[channel], received, calls.microbatches[received].tolist())
        self._add_calls(calls, places[None])
        for channel, sent in places.items():
            if channel is not None and channel[3]:
                self._add_sends(self.wires[channel], sent, calls.microbatches[sent].tolist())
        for ref in self._tails.values():
            self._node(ref)
        self.graph.units.add(self.rank, self._nodes, self._pattern_of)
        self._forget_calls()

    def _forget_calls(self) -> None:
        """Free what calls are looked up in while they are added, for the next rank to use the memory."""
        self._called, self._nodes, self._pattern_of = [], [], []
        self._waited.clear()
        for table in self.tables.values():
            table.calls.clear()

    def _add_calls(self, calls: Calls, places: Sequence[int]) -> None:
        """Add some of the calls, in order: those that have no wire."""
        numbers = [None if number == NO_MICROBATCH else number for number in calls.microbatches[places].tolist()]
        own = list(zip(places, map(self._called.__getitem__, places), numbers, strict=True))
        place = 0
        while place < len(own):
            after = self._add_steady_blocks(own, place)
            if after == place:
                self._add_call(*own[place])
                after += 1
            place = after

    def _add_call(self, index: int, table: TaskTable, microbatch: int | None) -> None:
        """Add a call as a message, a block or single ops."""
        if table.message:
            self._add_message(index, table, microbatch)
        elif not self._may_be_block(index, table) or not self._add_block(index, table, microbatch):
            self._add_ops(index, table, microbatch)
        table.calls[microbatch] = table.last_call = index
        self._note_last(index, table)

    def _may_be_block(self, index: int, table: TaskTable) -> bool:
        """Return whether a call coalesces, and is not one that others may meet on a resource."""
        return table.candidate and not (table.contended and index >= self.contention.exposed_from[self.rank])

    def _note_last(self, index: int, table: TaskTable) -> None:
        """Note a call's ops as the last so far of their streams."""
        if table.on_main:
            self._last_on_main = index
        for stream, op in table.last_ops:
            self._tails[stream] = (index, op)

    # --- messages ------------------------------------------------------------------------------------------

    def _add_receives(self, wire: Wire, places: Sequence[int], microbatches: Sequence[int]) -> None:
        """Add the receives of a wire."""
        called, nodes = self._called, self._nodes
        for index, microbatch, node in zip(places, microbatches, wire.receive(len(places)), strict=True):
            called[index].calls[microbatch] = index
            nodes[index] = node

    def _add_sends(self, wire: Wire, places: Sequence[int], microbatches: Sequence[int]) -> None:
        """Add the sends of a wire: each waits for the one before it, and for what writes the buffer that it sends."""
        tables = list(map(self._called.__getitem__, places))
        if wire.at_once:
            self._add_immediate_sends(wire, places, tables, microbatches)
            return
        sends = wire.send([table.recipe[0] for table in tables])
        successors, waits, nodes, patterns = self.graph.successors, self.graph.waits, self._nodes, self._pattern_of
        for index, table, microbatch, node in zip(places, tables, microbatches, sends, strict=True):
            nodes[index] = node
            for writer, op, _ in table.sources:
                call = writer.calls.get(microbatch)
                if call is not None:
                    pattern = patterns[call]
                    is_exit = pattern is not None and pattern.main_exit == op
                    successors[nodes[call] if is_exit else self._node((call, op))].append(node)
                    waits[node] += 1

    def _add_immediate_sends(
        self, wire: Wire, places: Sequence[int], tables: Sequence[TaskTable], microbatches: Sequence[int]
    ) -> None:
        """Add sends that occupy no resource: each waits for what writes its buffer, or for what the last one does."""
        graph, before = self.graph, None
        sends = wire.send_at_once(len(places))
        for index, table, microbatch, node in zip(places, tables, microbatches, sends, strict=True):
            self._nodes[index], self._pattern_of[index] = node, SENT
            written = [(writer.calls.get(microbatch), op) for writer, op, _ in table.sources]
            refs = [(call, op) for call, op in written if call is not None]
            if before is not None and (not refs or max(refs) < before):
                refs.append(before)
            for ref in refs:
                graph.link(self._node(ref), node)
            before = max(refs, default=before)

    # --- single ops ----------------------------------------------------------------------------------------

    def _add_message(self, index: int, table: TaskTable, microbatch: int | None) -> None:
        """Add a call of a task that is one send or one receive without a wire."""
        graph, (op, kind, duration_s, activity) = self.graph, table.recipe[0]
        node = graph.add(kind, duration_s, activity if kind is _SHARED else NOTHING)
        self._nodes[index] = node
        tail = self._tails.get(op.stream)
        if tail is not None:
            graph.link(self._node(tail), node)
        for writer, written_by, _ in table.sources:
            call = writer.calls.get(microbatch)
            if call is not None:
                graph.link(self._node((call, written_by)), node)
        self.messages.setdefault(table.channel, []).append((node, activity.latency_s))

    def _add_ops(self, index: int, table: TaskTable, microbatch: int | None) -> None:
        """Add one node per op of a call."""
        graph, shape = self.graph, table.shape
        base = self._nodes[index] = graph.add_ops(table.nodes)
        if table.main:
            self._open_microbatches.add(microbatch)
        for channel, messages in table.messages.items():
            self.messages.setdefault(channel, []).extend([(base + j, latency_s) for j, latency_s in messages])
        for j, op, activity in table.joint:
            self.collectives.setdefault((op.stream, op.axes, op.members), []).append((base + j, activity, op))
        for stream, j in shape.first.items():
            if stream in self._tails:
                graph.link(self._node(self._tails[stream]), base + j)
        for ref, j in self._sources(table, microbatch, single_only=False):
            graph.link(self._node(ref), base + j)
            self._waited.add((*ref, shape.streams[j]))
        if table.tracked:
            self._num_single += 1
            for ref, j in self._hazards(table, table.shared, microbatch):
                graph.link(self._node(ref), base + j)

    # --- blocks --------------------------------------------------------------------------------------------

    def _add_steady_blocks(self, own: Sequence[OwnCall], place: int) -> int:
        """Add calls from a place on as long as each is a block in the steady state; return the place of the next call.

        Such a block waits for the main exit of the block before it, and for messages to its first op. The block before
        it is the last on all streams.
        """
        if self._last_block is None or self._last_on_main != self._last_block[0]:
            return place
        graph, (last, before, of_before) = self.graph, self._last_block
        successors, waits, nodes, patterns = graph.successors, graph.waits, self._nodes, self._pattern_of
        opened, exposed_from = self._open_microbatches, self.contention.exposed_from[self.rank]
        known, waited = dict[tuple[int, int, bool], Pattern | None](), self._waited
        first, node_before, added, spans_s = len(successors), nodes[last], list[int](), list[float]()
        for index, table, microbatch in islice(own, place, None):
            key = id(before), id(table), of_before == microbatch
            if key not in known:
                known[key] = self._steady_pattern(before, table, is_same=key[2])
            pattern = known[key]
            if pattern is None or microbatch in opened or (table.contended and index >= exposed_from):
                break
            if table.late_sources and not self._all_waited(table, microbatch):
                break
            table.calls[microbatch] = table.last_call = last = index
            node, num_waits = first + len(added), 1
            nodes[index], patterns[index] = node, pattern
            for writer, op, _ in table.first_sources:
                source = writer.calls.get(microbatch)
                if source is not None:  # no block, so its ops are nodes
                    successors[nodes[source] + op].append(node)
                    num_waits += 1
                    waited.add((source, op, MAIN_STREAM))
            added.append(node)
            waits.append(num_waits)
            spans_s.append(pattern.span_s)
            before, of_before = table, microbatch
        if added:
            graph.kinds += [_FIXED] * len(added)
            graph.durations_s += spans_s
            graph.shared += [NOTHING] * len(added)
            successors[node_before].append(first)
            successors += [[after] for after in added[1:]]
            successors.append([])
            self._last_block = last, before, of_before
            self._note_last(last, before)
        return place + len(added)

    def _steady_pattern(self, before: TaskTable, table: TaskTable, *, is_same: bool) -> Pattern | None:
        """Return a block's pattern where its links are those of the steady state; None where they are not.

        All of the block before it, which is of the same micro-batch or not, must be over when its compute is.
        """
        if not table.steady or (table.tracked and self._noted.get(table.task.name) != self._num_single):
            return None
        key = (before.task.name, table.task.name, is_same)
        if key not in self._steady:
            self._steady[key] = None if self._links_after(key) else self._single_entry(table)
        return self._steady[key]

    def _all_waited(self, table: TaskTable, microbatch: int | None) -> bool:
        """Return whether earlier ops of the same streams have waited for all that later ops of a task read."""
        waited, streams = self._waited, table.shape.streams
        for writer, op, readers in table.late_sources:
            call = writer.calls.get(microbatch)
            if call is not None:
                for j in readers:
                    if (call, op, streams[j]) not in waited:
                        return False
        return True

    def _single_entry(self, table: TaskTable) -> Pattern | None:
        return self._pattern(table, (table.shape.first[MAIN_STREAM],))

    def _links_after(self, key: tuple[str, str, bool]) -> bool:
        """Return whether a block needs more links to the one before it than that one's main exit."""
        before, after = self.tables[key[0]], self.tables[key[1]]
        kept = all(before.main_ends_last[s] and after.main_starts_first[s] for s in after.shape.first)
        return not kept or bool(self.known.links(before, after, same_microbatch=key[2]))

    def _add_block(self, index: int, table: TaskTable, microbatch: int | None) -> bool:
        """Add a call as one block; return False where its entries and exits do not allow it."""
        sources = self._sources(table, microbatch, single_only=microbatch not in self._open_microbatches)
        links = self._block_links(table, microbatch) + sources
        is_noted = self._noted.get(table.task.name) == self._num_single
        links += self._hazards(table, table.shared_each if is_noted else table.shared, microbatch)
        entries = _entries(links) or (table.shape.first[MAIN_STREAM],)
        if self.team is not None and table.joint_ops:
            self._parts[index] = self.team.part(self.rank, len(self.graph.units) + index, index, table)
            self._add_part(self._parts[index], index, entries, links)
        elif not self._add_own_block(index, table, entries, links):
            return False
        self._last_block = (index, table, microbatch)
        for ref, j in sources:
            self._waited.add((*ref, table.shape.streams[j]))
        self._noted[table.task.name] = self._num_single
        return True

    def _add_part(self, part: Part, index: int, entries: tuple[int, ...], links: list[tuple[Ref, int]]) -> None:
        """Add this rank's part of a block of its whole team."""
        self._nodes[index], self._pattern_of[index] = part.block.node, part.until_finished
        for op in entries:
            part.entry(op)
        for ref, op in links:
            self.graph.link(self._node(ref), part.entry(op))

    def _add_own_block(
        self, index: int, table: TaskTable, entries: tuple[int, ...], links: list[tuple[Ref, int]]
    ) -> bool:
        """Add a block of this rank alone; return False where its entries and exits do not allow it."""
        graph, pattern = self.graph, self._pattern(table, entries)
        if pattern is None:
            return False
        node = graph.add(_FIXED, pattern.span_s)
        self._nodes[index], self._pattern_of[index] = node, pattern
        if len(entries) == 1:
            for ref, _ in links:
                graph.link(self._node(ref), node)
            return True
        self._as_block(node, pattern)
        targets = {op: graph.add(NodeKind.ENTRY) for op in entries}
        self._entry_nodes[node] = list(targets.values())
        for slot, entry in enumerate(targets.values()):
            graph.entries[entry] = (node, slot)
        for ref, op in links:
            graph.link(self._node(ref), targets[op])
        return True

    def _pattern(self, table: TaskTable, entries: tuple[int, ...]) -> Pattern | None:
        """Return a block's pattern, None unless each stream's last op waits for every entry, and each op for one."""
        key = (table.task.name, entries)
        if key not in self._patterns:
            self._patterns[key] = self.known.pattern(table, entries)
        return self._patterns[key]

    def _as_block(self, node: int, pattern: Pattern) -> Block:
        """Return a block node's state, made on first need."""
        block = self.graph.blocks.get(node)
        if block is None:
            block = self.graph.blocks[node] = Block(pattern, [0.0] * len(pattern.entries), len(pattern.entries))
            self.graph.kinds[node] = NodeKind.BLOCK
        return block

    def _block_links(self, table: TaskTable, microbatch: int | None) -> list[tuple[Ref, int]]:
        """Return the waits of a block by stream order and by hazards with the block just before it."""
        links: list[tuple[Ref, int]] = []
        main_tail = self._tails.get(MAIN_STREAM)
        for stream, op in table.shape.first.items():
            tail = self._tails.get(stream)
            if tail is not None and not self._kept_by_main(stream, tail, main_tail, table):
                links.append((tail, op))
        if self._last_block is not None:
            index, before, of_before = self._last_block
            pairs = self.known.links(before, table, same_microbatch=of_before == microbatch)
            links += [((index, i), j) for i, j in pairs]
        return links

    def _kept_by_main(self, stream: str, tail: Ref, main_tail: Ref | None, table: TaskTable) -> bool:
        """Return whether order on ``stream`` follows from order on the main stream."""
        if stream == MAIN_STREAM or main_tail is None or main_tail[0] != tail[0]:
            return False
        return self._called[tail[0]].main_ends_last[stream] and table.main_starts_first[stream]

    # --- hazards -------------------------------------------------------------------------------------------

    def _sources(self, table: TaskTable, microbatch: int | None, *, single_only: bool) -> list[tuple[Ref, int]]:
        """Return what a call waits for because it reads what one earlier call of its micro-batch wrote.

        What an earlier op of the same stream has waited for need not be waited for again.
        """
        links: list[tuple[Ref, int]] = []
        for writer, op, readers in table.single_sources if single_only else table.sources:
            call = writer.calls.get(microbatch)
            if call is None:
                continue
            links += [((call, op), j) for j in readers if (call, op, table.shape.streams[j]) not in self._waited]
        return links

    def _hazards(
        self, table: TaskTable, several: Sequence[tuple[Shared, list[TaskTable]]], microbatch: int | None
    ) -> list[tuple[Ref, int]]:
        """Return the waits of a call's ops by buffers that several tasks write, beyond stream order."""
        found = list[list[tuple[Ref, int]]]()
        for shared, touching in several:
            if shared.each:
                before = [(other.calls[microbatch], other) for other in touching if microbatch in other.calls]
            else:
                before = [(other.last_call, other) for other in touching if other.last_call >= 0]
            if not before:
                continue
            before.sort(key=itemgetter(0))
            links = self.known.hazards(shared, [other for _, other in before], table)
            found.append([((before[place][0], op), j) for place, op, j in links])
        if len(found) < 2:
            return found[0] if found else []
        every = chain.from_iterable(found)
        return _fewest([(ref, self._called[ref[0]].shape.streams[ref[1]], j) for ref, j in every], table.shape)

    def _node(self, ref: Ref) -> int:
        """Return the node that is done when an op is done."""
        base, pattern = self._nodes[ref[0]], self._pattern_of[ref[0]]
        if pattern is None:
            return base + ref[1]
        if ref[1] == pattern.main_exit:
            return base
        if ref[0] in self._parts:
            return self._parts[ref[0]].exit(ref[1])
        if any(row[ref[1]] == NO_PATH for row in pattern.offsets):
            return self._early_exit(ref, base, pattern)
        exits = self._as_block(base, pattern).exits
        if ref[1] not in exits:
            exits[ref[1]] = self.graph.add(NodeKind.EXIT)
        return exits[ref[1]]

    def _early_exit(self, ref: Ref, block: int, pattern: Pattern) -> int:
        """Return the node that is done when an op is done that does not wait for all of its block's entries."""
        if ref not in self._early_exits:
            self._early_exits[ref] = self.graph.add(NodeKind.JOIN)
            self.graph.link_early_exit(self._early_exits[ref], block, pattern, ref[1], self._entry_nodes[block])
        return self._early_exits[ref]


def _by_channel(tasks: Integers, tables: Sequence[TaskTable]) -> dict[Channel | None, list[int]]:
    """Return the calls that are messages of each channel with a wire, and under None the others; all in order.

    ``tasks``: the place of each call's task in ``tables``.
    """
    channels = [None if table.wire is None else table.channel for table in tables]
    numbers = {channel: number for number, channel in enumerate(dict.fromkeys([None, *channels]))}
    number = np.array(list(map(numbers.__getitem__, channels)), integer_type(len(numbers))).take(tasks)
    order, stops = sorted_order(number), np.cumsum(np.bincount(number, minlength=len(numbers))).tolist()
    bounds = zip(numbers, pairwise([0, *stops]), strict=True)
    return {channel: order[begin:stop].tolist() for channel, (begin, stop) in bounds}


def _entries(links: list[tuple[Ref, int]]) -> tuple[int, ...]:
    """Return the ops that the links lead to, in order."""
    if len(links) == 1 or (len(links) == 2 and links[0][1] == links[1][1]):
        return (links[0][1],)
    return tuple(sorted({op for _, op in links}))


def _neighbour_links(before: TaskTable, after: TaskTable, same_microbatch: bool) -> tuple[tuple[int, int], ...]:
    """Return the hazards between two blocks in a row that stream order does not keep."""
    a, b = before.shape, after.shape
    links = set()
    for buffer, (writer, readers) in a.leaves.items():
        if not same_microbatch and before.per_microbatch[buffer]:
            continue
        writers = (writer,) if writer >= 0 else ()
        pairs = [(i, j) for i in writers for j in b.reads.get(buffer, ())]
        if buffer in b.overwrites:
            pairs += [(i, b.overwrites[buffer]) for i in (*readers, *writers)]
        for i, j in pairs:
            if a.streams[i] == b.streams[j] or b.descends(j, b.first[a.streams[i]]):
                continue
            if not a.descends(a.last[b.streams[j]], i):
                links.add((i, j))
    return tuple(sorted(links))


def _hazards(buffers: Sequence[str], before: Sequence[TaskShape], after: TaskShape) -> list[tuple[int, int, int]]:
    """Return what a call waits for because earlier ones, in order, touched buffers: see ``KnownBlocks.hazards``."""
    found: list[tuple[Ref, str, int]] = []
    for buffer in buffers:
        written, read = list[Ref](), list[Ref]()
        for place, shape in enumerate(before):
            writer, readers = shape.leaves[buffer]
            if writer >= 0:
                written, read = [(place, writer)], []
            read += [(place, op) for op in readers]
        links = [(ref, j) for ref in written for j in after.reads.get(buffer, ())]
        if buffer in after.overwrites:
            links += [(ref, after.overwrites[buffer]) for ref in written + read]
        found += [((place, op), before[place].streams[op], j) for (place, op), j in links]
    across = [(ref, stream, j) for ref, stream, j in found if stream != after.streams[j]]
    return [(place, op, j) for (place, op), j in _fewest(across, after)]


def _fewest(links: Sequence[tuple[Ref, str, int]], after: TaskShape) -> list[tuple[Ref, int]]:
    """Return links that imply all these: what is waited for, and which op of a call waits.

    Of the ops of a stream that one op waits for, it need only wait for the last; and no op for what one before it does.
    ``links``: what is waited for, its stream, and the op that waits. ``after``: the shape of the call.
    """
    last: dict[tuple[int, str], Ref] = {}
    for ref, stream, j in links:
        last[j, stream] = max(ref, last.get((j, stream), ref))
    by_ref: dict[Ref, list[int]] = {}
    for (j, _), ref in last.items():
        waiting = by_ref.setdefault(ref, [])
        if not any(after.descends(j, i) for i in waiting):
            waiting[:] = [i for i in waiting if not after.descends(i, j)] + [j]
    return [(ref, j) for ref, waiting in by_ref.items() for j in waiting]
