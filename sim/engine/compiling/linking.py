"""Links between ranks: messages and collectives."""

from collections.abc import Mapping, Sequence

from sim.engine.compiling.compiler import RankCompiler
from sim.engine.compiling.graph import Graph, Joint
from sim.engine.prices.activity import Activity, Resource
from sim.plan.errors import CheckError
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Channel, Collective


def link_messages(
    graph: Graph, ranks: Mapping[int, RankCompiler], mesh: Mesh, stands_for: Sequence[int], *, all_received: bool
) -> None:
    """Make each receive wait for its message: the k-th send of a peer meets the k-th receive.

    ``stands_for`` maps any rank to the simulated rank of its class. Raises CheckError where counts differ; but there
    may be more sends if not ``all_received``.
    """
    for rank, compiler in ranks.items():
        for channel, receives in compiler.messages.items():
            axis, offset, direction, is_send = channel
            if is_send:
                continue
            peer = stands_for[mesh.shift(rank, axis, offset)]
            sends = ranks[peer].messages.get((axis, -offset, direction, True), [])
            _check_messages(rank, peer, channel, len(sends), len(receives), all_received=all_received)
            graph.add_messages(sends[: len(receives)], [receive for receive, _ in receives])
        for channel, wire in compiler.wires.items():
            axis, offset, _, is_send = channel
            if not is_send:
                peer = stands_for[mesh.shift(rank, axis, offset)]
                _check_messages(rank, peer, channel, len(wire.sends), wire.num_received, all_received=all_received)
                wire.link()


def _check_messages(
    rank: int, peer: int, channel: Channel, num_sends: int, num_receives: int, *, all_received: bool
) -> None:
    axis, _, direction, _ = channel
    if num_sends < num_receives or (all_received and num_sends > num_receives):
        raise CheckError(
            f"rank {rank} posts {num_receives} {direction} receives along {axis!r} from rank {peer}, "
            f"which posts {num_sends} sends"
        )


def link_collectives(
    graph: Graph,
    ranks: Mapping[int, RankCompiler],
    mesh: Mesh,
    stands_for: Sequence[int],
    contended: frozenset[Resource],
) -> None:
    """Make one joint activity of the k-th collectives of all members of each group."""
    done: set[tuple[object, ...]] = set()
    for rank, compiler in ranks.items():
        for (stream, axes, members), issued in compiler.collectives.items():
            group = mesh.group(rank, axes)
            group = tuple(group[i] for i in members) if members else group
            classes = tuple(sorted({stands_for[member] for member in group}))
            if (stream, axes, members, classes) in done:
                continue
            done.add((stream, axes, members, classes))
            parts = [ranks[c].collectives.get((stream, axes, members), []) for c in classes]
            _check_equal_counts(parts, classes, axes, stream)
            for k in range(len(issued)):
                _join(graph, [part[k] for part in parts], contended)


def _check_equal_counts(
    parts: Sequence[Sequence[object]], classes: Sequence[int], axes: tuple[str, ...], stream: str
) -> None:
    if len({len(part) for part in parts}) > 1:
        counts = ", ".join(f"rank {c}: {len(part)}" for c, part in zip(classes, parts, strict=True))
        raise CheckError(f"one group over {axes} issues different numbers of collectives on {stream!r}: {counts}")


def _join(graph: Graph, members: Sequence[tuple[int, Activity, Collective]], contended: frozenset[Resource]) -> None:
    """Make one activity of several ranks' parts: each states the demands of the whole group."""
    _, activity, _ = members[0]
    graph.joints.append(
        Joint(
            members=[node for node, _, _ in members],
            pending=len(members),
            activity=activity,
            shared=any(r in contended and d > 0 for r, d in activity.demands),
        )
    )
    for node, _, _ in members:
        graph.joint_of[node] = len(graph.joints) - 1
