"""Channels: the messages from one simulated rank to another along one axis and direction, in order."""

from collections.abc import Mapping, Sequence, Set

from sim.engine.compiling.graph import Graph, Wire
from sim.engine.compiling.tables import MAIN_STREAM, TaskTable
from sim.plan.words.calls import NO_MICROBATCH, Calls
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Channel
from sim.plan.words.program import Program

Tables = Mapping[str, TaskTable]


def find_channels(
    graph: Graph, ranks: Mapping[int, Tables], programs: Mapping[int, Program], mesh: Mesh, stands_for: Sequence[int]
) -> None:
    """Make wires of the channels whose messages come in order: all travel equally long, and nothing comes between.

    Each is of one micro-batch. ``ranks`` has the tables of every simulated rank, ``stands_for`` maps any rank to the
    simulated rank of its class.
    """
    of_step = {rank: _of_the_step(program) for rank, program in programs.items()}
    messages = {rank: _by_channel(tables) for rank, tables in ranks.items()}
    for rank, tables in ranks.items():
        for (axis, offset, direction, is_send), receives in messages[rank].items():
            if is_send:
                continue
            peer = stands_for[mesh.shift(rank, axis, offset)]
            mutual = stands_for[mesh.shift(peer, axis, -offset)] == rank
            sends = messages[peer].get((axis, -offset, direction, True), [])
            latencies_s = {table.activities[0].latency_s for table in sends}
            if not mutual or len(latencies_s) != 1 or not _alone_on_its_stream(tables, receives):
                continue
            if not _alone_on_its_stream(ranks[peer], sends):
                continue
            if _are_wired(receives, of_step[rank]) and _are_wired(sends, of_step[peer]):
                wire = Wire(graph, latencies_s.pop(), _leave_at_once(ranks[peer], sends))
                for table in (*sends, *receives):
                    table.wire = wire


def _of_the_step(program: Program) -> set[str]:
    """Return the tasks that are called for no micro-batch."""
    calls = Calls.of(program.calls)
    numbers = calls.tasks[calls.microbatches == NO_MICROBATCH].tolist()
    return set(map(calls.names.__getitem__, numbers))


def _are_wired(messages: Sequence[TaskTable], of_step: Set[str]) -> bool:
    """Return whether messages may have a wire: nobody wants them one by one, and each is of a micro-batch."""
    return all(table.may_coalesce and table.task.name not in of_step for table in messages)


def _by_channel(tables: Tables) -> dict[Channel, list[TaskTable]]:
    """Return the tasks that are one message, by channel; no channel that others use as well."""
    found: dict[Channel, list[TaskTable]] = {}
    for table in tables.values():
        for channel in table.channels:
            found.setdefault(channel, []).append(table)
    return {channel: users for channel, users in found.items() if all(table.message for table in users)}


def _alone_on_its_stream(tables: Tables, messages: list[TaskTable]) -> bool:
    """Return whether a channel has one stream for itself."""
    streams = {table.task.ops[0].stream for table in messages}
    users = [table for table in tables.values() if not streams.isdisjoint(table.shape.first)]
    return len(streams) == 1 and len(users) == len(messages)


def _leave_at_once(tables: Tables, sends: list[TaskTable]) -> bool:
    """Return whether a channel's sends occupy no resource and send only buffers of the main stream."""
    if any(table.activities[0].occupancy_s for table in sends):
        return False
    ops = [op for table in tables.values() for op in table.task.ops if op.stream != MAIN_STREAM]
    off_main = {buffer for op in ops for buffer in op.writes}
    return all(off_main.isdisjoint(table.task.ops[0].reads) for table in sends)
