"""Ranks that compile to the nodes of the rank before, counted on: stages in the middle of a pipeline.

What a rank is compiled to depends on its calls, on its prices, and on the messages of ranks that were compiled before.
Where three ranks in a row have equal calls and prices, and messages with the ranks beside them alone, the second and
the third find equal messages before them. So the third has the nodes of the second, with all that these refer to as
many nodes later.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from sim.engine.compiling.compiler import RankCompiler
from sim.engine.compiling.graph import NOTHING, Block, Graph, NodeKind, Wire
from sim.engine.compiling.tables import Recipe
from sim.engine.prices.activity import Activity
from sim.plan.words.calls import Calls

Activities = Mapping[int, Activity]
"""What the activities of one rank are on another, by identity."""


class _Compiled(Struct, frozen=True):
    """A rank that is compiled: its first node and call, and what its nodes waited for before later ranks came.

    ``activities``: those of the rank before on this one; None where the two are not alike.
    """

    node: int
    unit: int
    waits: list[int]
    activities: Activities | None


class _Messages(Struct, frozen=True):
    """A wire of a rank, and the one of the rank before that it is like; ``is_known``: its other rank is compiled."""

    wire: Wire
    like: Wire
    is_known: bool
    is_sent: bool


def compile_ranks(graph: Graph, ranks: Sequence[RankCompiler]) -> None:
    """Add the calls of all ranks to their graph, in order: a rank is compiled, or copied from the one before."""
    ends, done = _ends(ranks), list[_Compiled]()
    for place, rank in enumerate(ranks):
        node, unit = len(graph.kinds), len(graph.units)
        activities = _activities(ranks[place - 1], rank) if place else None
        messages = _messages(ranks, place, ends, done, node) if activities is not None else None
        if activities is None or messages is None:
            rank.compile()
        else:
            _copy(graph, rank, done, activities, messages)
        done.append(_Compiled(node, unit, graph.waits[node:], activities))


# --- which ranks are alike ---------------------------------------------------------------------------------


def _activities(before: RankCompiler, rank: RankCompiler) -> Activities | None:
    """Return what the activities of a rank are on the one after it; None where calls or prices are not equal."""
    exposed_from = rank.contention.exposed_from
    if before.program.tasks is not rank.program.tasks or exposed_from[before.rank] != exposed_from[rank.rank]:
        return None
    if before.team or rank.team or not _same_calls(before, rank):
        return None
    found: dict[int, Activity] = {id(NOTHING): NOTHING}
    for name, table in rank.tables.items():
        for mine, other in zip(before.tables[name].recipe, table.recipe, strict=True):
            *_, activity = other
            if found.setdefault(id(mine[-1]), activity) is not activity or not _cost_as_much(mine, other):
                return None
    return found


def _cost_as_much(mine: Recipe, other: Recipe) -> bool:
    """Return whether ops of two ranks are nodes of one kind that last equally long."""
    _, kind, lasting_s, activity = mine
    _, other_kind, other_s, other_activity = other
    return (
        kind == other_kind is not NodeKind.MEMBER and lasting_s == other_s
        and activity.latency_s == other_activity.latency_s and activity.duration_s == other_activity.duration_s
    )  # fmt: skip


def _same_calls(before: RankCompiler, rank: RankCompiler) -> bool:
    """Return whether two ranks call the same tasks for the same micro-batches."""
    mine, others = Calls.of(before.program.calls), Calls.of(rank.program.calls)
    if mine.names != others.names:
        return False
    return all(np.array_equal(one, other) for one, other in zip(mine.columns, others.columns, strict=True))


# --- messages ----------------------------------------------------------------------------------------------


def _ends(ranks: Sequence[RankCompiler]) -> Mapping[int, list[int]]:
    """Return the places of the ranks at both ends of a wire, in order, by its identity."""
    found: dict[int, list[int]] = {}
    for place, rank in enumerate(ranks):
        for wire in rank.wires.values():
            found.setdefault(id(wire), []).append(place)
    return found


def _messages(
    ranks: Sequence[RankCompiler], place: int, ends: Mapping[int, list[int]], done: Sequence[_Compiled], node: int
) -> list[_Messages] | None:
    """Return the messages of a rank that are those of the one before; None where these are not all that it has.

    Those with the rank after it come first: they are like those of the two ranks before, until these are complete.
    ``node``: the first one of the rank.
    """
    before, rank = ranks[place - 1], ranks[place]
    if len(done) < 2 or done[-1].activities is None or before.messages or before.collectives:
        return None
    later = node - done[-1].node
    if later != done[-1].node - done[-2].node or before.wires.keys() != rank.wires.keys():
        return None
    found = []
    for channel, like in before.wires.items():
        wire = rank.wires[channel]
        between = ends[id(wire)]
        if between != _shifted(ends[id(like)], 1) or max(between) - min(between) > 1:
            return None
        found.append(_Messages(wire, like, is_known=min(between) < place, is_sent=channel[3]))
        if not _is_as_like_was(found[-1], later):
            return None
    return sorted(found, key=lambda messages: messages.is_known)


def _is_as_like_was(messages: _Messages, later: int) -> bool:
    """Return whether a rank finds its messages as the rank before found the ones that they are like.

    Those whose sends are nodes of their own are linked later, so neither rank finds anything of the other.
    """
    wire, like = messages.wire, messages.like
    if (wire.latency_s, wire.at_once) != (like.latency_s, like.at_once):
        return False
    if not wire.at_once:
        return True
    if not messages.is_known:
        return not (wire.receives or wire.sends)
    sends = [] if messages.is_sent else _shifted(like.sends, later)
    return wire.receives == _shifted(like.receives, later) and wire.sends == sends


# --- the copy ----------------------------------------------------------------------------------------------


def _copy(
    graph: Graph, rank: RankCompiler, done: Sequence[_Compiled], activities: Activities, messages: Sequence[_Messages]
) -> None:
    """Add a rank that is a copy of the one before. ``activities``: the other's on this one."""
    ahead, before = done[-2:]
    own, later = slice(before.node, len(graph.kinds)), before.node - ahead.node
    nodes, patterns = graph.units.nodes[before.unit :], graph.units.patterns[before.unit :]
    for node in filter(graph.blocks.__contains__, nodes):
        block, size = graph.blocks[node], len(graph.blocks[node].pattern.entries)
        exits = {op: exit_node + later for op, exit_node in block.exits.items()}
        graph.blocks[node + later] = Block(block.pattern, [0.0] * size, size, exits)
    for entry in _entries(graph, own):
        block_node, slot = graph.entries[entry]
        graph.entries[entry + later] = block_node + later, slot
    for path, (block_node, slot, op) in list(graph.early_exits.items()):
        if path >= before.node:
            graph.early_exits[path + later] = block_node + later, slot, op
    graph.units.add(rank.rank, _shifted(nodes, later), patterns)
    graph.kinds += graph.kinds[own]
    graph.waits += before.waits
    graph.successors += [
        [after[0] + later] if len(after) == 1 else _shifted(after, later) for after in graph.successors[own]
    ]  # one is by far the most frequent number
    graph.durations_s += graph.durations_s[own]
    graph.shared += map(activities.__getitem__, map(id, graph.shared[own]))
    for found in messages:
        _send(graph, found, ahead, before)


def _entries(graph: Graph, own: slice) -> Iterator[int]:
    """Return the entries among some nodes."""
    kinds = np.frombuffer(bytes(graph.kinds[own]), dtype=np.uint8)
    yield from (np.flatnonzero(kinds == NodeKind.ENTRY) + own.start).tolist()


def _send(graph: Graph, messages: _Messages, ahead: _Compiled, before: _Compiled) -> None:
    """Let a rank's messages be those that they are like: with what waits for them, where the other rank is compiled."""
    wire, like, later = messages.wire, messages.like, before.node - ahead.node
    if messages.is_sent or wire.at_once:
        wire.sends = _shifted(like.sends, later)
    if not messages.is_sent or wire.at_once:
        wire.receives, wire.num_received = _shifted(like.receives, later), like.num_received
    if messages.is_known and wire.at_once:
        for node in like.receives:
            graph.waits[node + later] += graph.waits[node] - ahead.waits[node - ahead.node]
            graph.successors[node + later] += [
                after + later for after in graph.successors[node] if after >= before.node
            ]


def _shifted(nodes: Sequence[int], later: int) -> list[int]:
    return [node + later for node in nodes]
