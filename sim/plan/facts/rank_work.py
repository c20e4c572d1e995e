"""The work of a rank in a plan: ops by kind, and the bytes of its messages and collectives."""

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from sim.plan.words.buffer import BYTES_PER_ELEMENT
from sim.plan.words.op import Collective, CollectiveKind, Compute, Copy, Op, Send
from sim.plan.words.program import Plan, Program


class RankWork(Struct, frozen=True):
    """The work of a rank. ``ops``: number of ops by kind; ``sent_bytes``: payload of its messages and collectives."""

    ops: Mapping[str, int] = field(default_factory=dict)
    sent_bytes: int = 0


def kind_of(op: Op) -> str:
    """Return the kind of an op in the counts: ``compute``, ``copy``, ``send``, ``recv`` or the collective's own."""
    return str(op.kind) if isinstance(op, Collective) else type(op).__name__.lower()


def payload_of(op: Op) -> tuple[str, ...]:
    """Return the buffers whose bytes count as sent; none for an op that sends nothing.

    For a broadcast and an all_gather these are the received buffers, for other collectives a rank's own buffers.
    """
    if isinstance(op, Send):
        return op.reads
    if not isinstance(op, Collective):
        return ()
    if op.kind is CollectiveKind.BROADCAST:
        return op.writes or op.reads
    return op.writes if op.kind is CollectiveKind.ALL_GATHER else op.reads


def sent_bytes(op: Op, payload_bytes: Iterable[int], bytes_per_element: int, group_size: int) -> int:
    """Return the bytes that count as sent, given the sizes of the buffers of ``payload_of``.

    A collective of one rank sends nothing. A collective that sums a span of its vector sends that span.
    """
    if isinstance(op, Collective):
        if group_size < 2:
            return 0
        if op.span is not None:
            first, end = op.span
            return (end - first) * bytes_per_element
    return sum(payload_bytes)


def program_work(plan: Plan, program: Program, calls: Mapping[str, int]) -> RankWork:
    """Return the work of a rank with these numbers of calls of its program's tasks."""
    ops: Counter[str] = Counter()
    total_bytes = 0
    for name, count in calls.items():
        for op in program.tasks[name].ops:
            ops[kind_of(op)] += count
            buffers = [program.buffers[buffer] for buffer in payload_of(op)]
            if buffers and not isinstance(op, Compute | Copy):
                group_size = op.group_size(plan.mesh) if isinstance(op, Collective) else 2
                payload = [buffer.num_bytes for buffer in buffers]
                total_bytes += count * sent_bytes(op, payload, BYTES_PER_ELEMENT[buffers[0].dtype], group_size)
    return RankWork(dict(ops), total_bytes)
