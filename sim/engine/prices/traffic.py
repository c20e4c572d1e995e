"""Who communicates with whom in a plan: collectives with their groups, messages with their two ends.

A copy between a device and its host is like a message of a rank to itself. So is a kernel on the host's cores, whose
bytes pass the link of the host's memory.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, cached_property, partial
from typing import TypeGuard

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from costmodels.digest import blake2b
from sim.plan.facts.description import kernel_signature, payload_bytes, runs_on_host
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective, Compute, Copy, LinkOp, Op, Send
from sim.plan.words.program import Plan, Program

Ints = NDArray[np.int64]
Exchanging = LinkOp | Compute
"""Ops that move bytes over links; of kernels those on the host's cores."""

Wanted = Sequence[Sequence[str]]
"""Some tasks of each program of a plan, by name."""


class Exchange(Struct, frozen=True, eq=False, dict=True):
    """Ops that are alike in all but the ranks: ``op`` of ``program`` is one of them.

    ``groups`` [groups, positions]: the ranks of each group of a collective; of a message, sender and receiver; of a
    copy or a kernel, its rank twice. ``streams``: all that such ops run on.
    """

    program: Program
    op: Exchanging
    groups: Ints
    streams: frozenset[str] = frozenset()

    @cached_property
    def digest(self) -> bytes:
        """Return a digest of the groups, which tells one group of two ranks from two groups of one."""
        return blake2b(self.groups.tobytes(), person=b"%d" % self.groups.shape[-1]).digest()


class Load(Struct, frozen=True, eq=False):
    """Loads of an exchange's groups on links: group ``groups[i]`` uses link ``links[i]`` for ``seconds[i]``.

    ``latencies``: a number per group, the same for groups that wait equally long; none where all do. ``counts``: where
    groups and links stand for several, how many groups like ``groups[i]`` there are per link like ``links[i]``.
    """

    groups: Ints
    links: Ints
    seconds: NDArray[np.float64]
    latencies: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    counts: NDArray[np.float64] | None = None


def exchanges(plan: Plan, among: Collection[int] | None = None, wanted: Wanted | None = None) -> Iterator[Exchange]:
    """Yield what moves bytes over links in a plan once for all that move equally many bytes the same way.

    ``among``: only what these ranks send, and groups that one of them is in. ``wanted``: only ops of these tasks.
    """
    asked = np.ones(plan.mesh.size, np.bool_)
    if among is not None:
        asked[:] = False
        asked[list(among)] = True
    ranks = [mine[asked[mine]] for mine in map(plan.rank_array_of, plan.programs)]
    every, known = cache(partial(all_groups, plan.mesh)), dict[tuple[object, ...], Ints]()
    for alike in _alike(plan, wanted):
        key = (*_ways(alike.op), *alike.programs)
        if key not in known:
            known[key] = groups_of(plan.mesh, alike.op, np.concatenate([ranks[p] for p in alike.programs]), every)
        yield Exchange(alike.program, alike.op, known[key], frozenset(alike.streams))


def exchanging_ops(plan: Plan) -> list[Exchanging]:
    """Return what moves bytes over links in a plan, of ops that move equally many bytes the same way the first."""
    return [alike.op for alike in _alike(plan)]


class _Alike(Struct, frozen=True, eq=False):
    """Ops with one signature: the first, its program, the places of all programs that have some, and their streams."""

    program: Program
    op: Exchanging
    programs: list[int] = []
    streams: set[str] = set()


def _alike(plan: Plan, wanted: Wanted | None = None) -> Collection[_Alike]:
    """Return the ops that move bytes over links in a plan, or in some tasks, in their order, once for all alike."""
    found: dict[tuple[object, ...], _Alike] = {}
    kinds: dict[tuple[object, ...], _Kinds] = {}
    tasks_of: Sequence[Sequence[str] | None] = wanted or [None] * len(plan.programs)
    for place, (program, tasks) in enumerate(zip(plan.programs, tasks_of, strict=True)):
        same = (id(program.tasks), *(tasks or ()))
        if same not in kinds:
            kinds[same] = _kinds(program, tasks)
        for key, (op, streams) in kinds[same].items():
            alike = found.setdefault(key, _Alike(program, op))
            alike.programs.append(place)
            alike.streams.update(streams)
    return found.values()


_Kinds = dict[tuple[object, ...], tuple[Exchanging, set[str]]]
"""By signature: the first op of a program that has it, and the streams of all that have."""


def _kinds(program: Program, tasks: Sequence[str] | None) -> _Kinds:
    """Return the ops of some tasks of a program, or all, that move bytes over links, once for all that are alike."""
    distinct, found = program.distinct_ops, _Kinds()
    for op in distinct.ops if tasks is None else distinct.of_tasks(tasks).values():
        if exchanges_bytes(op, program):
            found.setdefault(signature(program, op), (op, set()))[1].add(op.stream)
    return found


def _ways(op: Exchanging) -> tuple[object, ...]:
    """Return what is equal for ops that some ranks exchange in the same groups."""
    if isinstance(op, Collective):
        return (Collective, op.axes, op.members)
    return (Send, op.axis, op.offset) if isinstance(op, Send) else ()


def exchanges_bytes(op: Op, program: Program) -> TypeGuard[Exchanging]:
    """Return whether an op moves bytes over links."""
    return isinstance(op, LinkOp) or (isinstance(op, Compute) and runs_on_host(program, op))


def exchanging_places(programs: Sequence[Program]) -> dict[int, list[int]]:
    """Return the places of distinct ops that move bytes over links, by the identity of a program's distinct ops."""
    one_of = {id(program.distinct_ops): program for program in programs}
    return {
        key: [place for place, op in enumerate(program.distinct_ops.ops) if exchanges_bytes(op, program)]
        for key, program in one_of.items()
    }


def groups_of(mesh: Mesh, op: Exchanging, ranks: Ints, every: Callable[[tuple[str, ...]], Ints]) -> Ints:
    """Return the groups that some ranks are in, each once; the two ends of each message that they send.

    ``every``: all groups over some axes (``all_groups``).
    """
    if isinstance(op, Copy | Compute):
        return np.stack([ranks, ranks], axis=1)
    if isinstance(op, Send):
        return np.stack([ranks, shifted(mesh, ranks, op.axis, op.offset)], axis=1)
    groups = every(op.axes)
    if op.members:
        groups = groups[:, list(op.members)]
    asked = np.zeros(mesh.size, dtype=np.bool_)
    asked[ranks] = True
    return groups[asked[groups].any(axis=1)]


def all_groups(mesh: Mesh, axes: tuple[str, ...]) -> Ints:
    """Return all groups over some axes [groups, positions], in group order."""
    names = [name for name, _ in mesh.axes]
    ranks = mesh.ranks_along(0, names)
    inner = [names.index(name) for name in axes if name in names]
    outer = [index for index in range(len(names)) if index not in inner]
    return ranks.transpose(outer + inner).reshape(-1, mesh.degree(*axes))


def shifted(mesh: Mesh, ranks: Ints, axis: str, offset: int) -> Ints:
    """Return the ranks ``offset`` steps away along an axis, wrapping around."""
    groups = all_groups(mesh, (axis,))
    found = np.empty(mesh.size, dtype=np.int64)
    found[groups] = np.roll(groups, -offset, axis=1)
    return found[ranks]


def family(program: Program, op: Collective) -> tuple[object, ...]:
    """Return a key that is equal for collectives of a plan that differ in nothing but their root."""
    kind, axes, members, _, *rest = signature(program, op)
    return (kind, axes, members, *rest)


def signature(program: Program, op: Op) -> tuple[object, ...]:
    """Return a key that is equal for ops of a plan with the same number of bytes and the same way of moving them."""
    if isinstance(op, Compute):
        return ("host", *kernel_signature(program, op))
    num_bytes = payload_bytes(program, op.reads + op.writes)
    if isinstance(op, Collective):
        return (op.kind, op.axes, op.members, op.root, op.sizes, op.levelled, op.span, num_bytes, len(op.reads))
    if isinstance(op, Copy):
        return ("copy", program.buffers[op.reads[0]].tier, program.buffers[op.writes[0]].tier, num_bytes)
    assert isinstance(op, Send)
    return ("send", op.axis, op.offset, num_bytes)
