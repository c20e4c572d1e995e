"""Checks of collectives: each fits its kind, and the members of a group issue the same ones."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any, Final

from sim.plan.errors import CheckError
from sim.plan.facts.description import collective_bytes
from sim.plan.words.calls import Calls
from sim.plan.words.op import ROOTED, Collective, CollectiveKind, Op, Reduction, SizeTable
from sim.plan.words.program import Plan, Program

_REDUCING: Final = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.REDUCE)
_ALONG_A_DIMENSION: Final = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL)

Shape = tuple[int, ...]
GroupIssue = tuple[Program, Collective, int]
"""Program, collective, and the number of steps before its own that the collective completes."""

Group = tuple[str, tuple[str, ...], tuple[int, ...]]
"""The stream, axes and members of collectives."""

GroupIssues = dict[Group, list[GroupIssue]]
"""Issued collectives in order, by stream, axes and members."""

Spanning = Mapping[str, Sequence[Collective]]
"""By task: the collectives that span several roles."""


def where(program: Program, op: Op) -> str:
    """Return role, stream and op in words."""
    return f"role {program.role_name}, stream {op.stream!r}, op {op.name!r}"


# --- one collective ------------------------------------------------------------------------------------------------


def check_collective(plan: Plan, program: Program, op: Collective) -> None:
    """Raise CheckError if options, buffers or shapes do not fit the kind; the buffers are known to exist."""
    try:
        positions = _positions(plan, program, op)
        _check_options(op)
        _check_buffers(program, op)
        _RULES[op.kind](program, op, op.group_size(plan.mesh), positions)
    except _RuleError as rule:
        raise CheckError(f"{where(program, op)}: {rule}") from None


def depends_on_place(op: Collective) -> bool:
    """Return whether a collective may break a rule in one place of its group, and none in another."""
    return bool(op.members or op.sizes or op.kind in ROOTED)


class _RuleError(Exception):
    """A rule that a collective breaks, in words; it never leaves this file."""


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise _RuleError(rule)


def _positions(plan: Plan, program: Program, op: Collective) -> tuple[int, ...]:
    """Return the group positions of a program's ranks, () if the rules do not need them."""
    if not depends_on_place(op):
        return ()
    found = [0]
    for axis in op.axes:
        degree = plan.mesh.degree(axis)
        own = [program.role[axis]] if axis in program.role else range(degree)
        found = [position * degree + coordinate for position in found for coordinate in own]
    if not op.members:
        return tuple(found)
    size = plan.mesh.degree(*op.axes)
    proper = len(set(op.members)) == len(op.members) and all(0 <= m < size for m in op.members)
    _require(proper, f"members {op.members} are not distinct positions of a group of {size}")
    strangers = sorted(set(found) - set(op.members))
    _require(not strangers, f"position {strangers[:1]} issues it and is not among the members {op.members}")
    return tuple(op.members.index(position) for position in found)


def _check_options(op: Collective) -> None:
    kind = op.kind
    _require(op.root == 0 or kind in ROOTED, f"{_article(kind)} has no root, got {op.root}")
    _require(not op.root_only or kind is CollectiveKind.REDUCE, f"{_article(kind)} is not for its root only")
    _require(
        op.reduction is Reduction.SUM or kind in _REDUCING, f"{_article(kind)} reduces nothing, got {op.reduction}"
    )
    _require(op.dim is None or kind in _ALONG_A_DIMENSION, f"{_article(kind)} has no dimension, got {op.dim}")
    exchange = kind is CollectiveKind.ALL_TO_ALL
    _require(exchange or op.join_dim is None, f"{_article(kind)} joins along no other dimension, got {op.join_dim}")
    _require(exchange or not op.sizes, f"{_article(kind)} has no table of sizes")
    _require(op.span is None or kind is CollectiveKind.ALL_REDUCE, f"{_article(kind)} has no span, got {op.span}")


def _check_buffers(program: Program, op: Collective) -> None:
    _require(
        op.kind is not CollectiveKind.ALL_REDUCE or op.reads == op.writes,
        f"an all_reduce works in place, got {op.reads} and {op.writes}",
    )
    _require(
        op.dim is None or (len(op.reads), len(op.writes)) == (1, 1),
        f"along a dimension one buffer moves, got {op.reads} and {op.writes}",
    )
    dtypes = sorted({program.buffers[name].dtype for name in (*op.reads, *op.writes)})
    _require(len(dtypes) < 2, f"{_article(op.kind)} moves one element type, got {' and '.join(dtypes)}")
    silent = not op.reads and not op.writes
    _require(silent == (op.kind is CollectiveKind.BARRIER), f"{_article(op.kind)} {_moves(op)}")


def _moves(op: Collective) -> str:
    return f"moves nothing, got {op.reads} and {op.writes}" if op.kind is CollectiveKind.BARRIER else "needs buffers"


def _check_all_reduce(program: Program, op: Collective, parts: int, positions: Sequence[int]) -> None:
    del parts, positions
    if op.span is not None:
        (first, end), total = op.span, _elements(program, op.reads)
        _require(0 <= first < end <= total, f"span {op.span} is no part of {total} elements")


def _check_nothing_more(program: Program, op: Collective, parts: int, positions: Sequence[int]) -> None:
    del program, op, parts, positions


def _check_all_gather(program: Program, op: Collective, parts: int, positions: Sequence[int]) -> None:
    del positions
    _check_pieces(program, op, parts, op.reads, op.writes)


def _check_reduce_scatter(program: Program, op: Collective, parts: int, positions: Sequence[int]) -> None:
    del positions
    _check_pieces(program, op, parts, op.writes, op.reads)


def _check_pieces(program: Program, op: Collective, parts: int, piece: Sequence[str], whole: Sequence[str]) -> None:
    """Check that the pieces of ``parts`` ranks make up the whole; a flat piece may be padded, or lie in the whole."""
    if op.dim is None and op.reads == op.writes:
        return
    if op.dim is None:
        size, total = _elements(program, piece), _elements(program, whole)
        _require(parts * size >= total, f"{parts} pieces of {size} elements cannot hold {total}")
        return
    small, large = _shape(program, piece), _shape(program, whole)
    _check_dimension(op.dim, small)
    fits = large == _with(small, op.dim, small[op.dim] * parts)
    _require(fits, f"{parts} pieces of shape {small} along dimension {op.dim} do not make {large}")


def _check_broadcast(program: Program, op: Collective, parts: int, positions: Sequence[int]) -> None:
    _check_rooted(program, op, parts)
    _require(bool(op.reads) or op.root not in positions, f"the root of a broadcast, position {op.root}, reads nothing")
    _require(bool(op.writes) or set(positions) == {op.root}, "a rank that gets a broadcast writes nothing")


def _check_reduce(program: Program, op: Collective, parts: int, positions: Sequence[int]) -> None:
    _check_rooted(program, op, parts)
    _require(bool(op.reads), "every rank of a reduce gives a term, this one reads nothing")
    _require(bool(op.writes) or op.root not in positions, f"the root of a reduce, position {op.root}, writes nothing")


def _check_rooted(program: Program, op: Collective, parts: int) -> None:
    _require(0 <= op.root < parts, f"root {op.root} is no position of a group of {parts}")
    here, there = _elements(program, op.reads), _elements(program, op.writes)
    same = not op.reads or not op.writes or here == there
    _require(same, f"{_article(op.kind)} writes as many elements as it reads, got {here} and {there}")


def _check_all_to_all(program: Program, op: Collective, parts: int, positions: Sequence[int]) -> None:
    if op.dim is None:
        raise _RuleError("an all_to_all cuts along a dimension, got none")
    _require(op.reads != op.writes, f"an all_to_all does not work in place, got {op.reads}")
    given, got = _shape(program, op.reads), _shape(program, op.writes)
    join_dim = op.dim if op.join_dim is None else op.join_dim
    _check_dimension(op.dim, given)
    _check_dimension(join_dim, given)
    if op.sizes:
        _check_table(op, parts, positions, given, got)
    else:
        rows = given[op.dim]
        _require(rows % parts == 0, f"dimension {op.dim} of {given} does not divide by {parts}")
        cut = _with(given, op.dim, rows // parts)
        _require(got == _with(cut, join_dim, cut[join_dim] * parts), f"{parts} slices of {given} do not make {got}")


def _check_table(op: Collective, parts: int, positions: Sequence[int], given: Shape, got: Shape) -> None:
    """Check that buffers have the lengths that the table of sizes demands."""
    assert op.dim is not None
    square = len(op.sizes) == parts and {*map(len, op.sizes)} == {parts}
    _require(square, f"a group of {parts} needs {parts} x {parts} sizes")
    sizes = SizeTable.of(op.sizes).array
    _require(sizes.min() >= 0, "a size is negative")
    _require(op.join_dim in {None, op.dim}, f"uneven slices are joined along dimension {op.dim}, got {op.join_dim}")
    own = list(positions)
    sent, received = (int(sizes.sum(axis)[own].max()) for axis in (1, 0))
    _require(given[op.dim] == sent, f"it sends {sent} rows of dimension {op.dim}, and its buffer has {given[op.dim]}")
    expected = _with(given, op.dim, received)
    _require(got == expected, f"what it receives has shape {expected}, and its buffer {got}")


_RULES: Final[Mapping[CollectiveKind, Callable[[Program, Collective, int, Sequence[int]], None]]] = {
    CollectiveKind.ALL_REDUCE: _check_all_reduce,
    CollectiveKind.ALL_GATHER: _check_all_gather,
    CollectiveKind.REDUCE_SCATTER: _check_reduce_scatter,
    CollectiveKind.BROADCAST: _check_broadcast,
    CollectiveKind.REDUCE: _check_reduce,
    CollectiveKind.ALL_TO_ALL: _check_all_to_all,
    CollectiveKind.BARRIER: _check_nothing_more,
}


def _article(kind: CollectiveKind) -> str:
    return f"{'an' if kind.startswith('a') else 'a'} {kind}"


def _elements(program: Program, names: Sequence[str]) -> int:
    return sum(prod(program.buffers[name].shape) for name in names)


def _shape(program: Program, names: Sequence[str]) -> Shape:
    return program.buffers[names[0]].shape


def _with(shape: Shape, dim: int, extent: int) -> Shape:
    return (*shape[:dim], extent, *shape[dim + 1 :])


def _check_dimension(dim: int, shape: Shape) -> None:
    _require(0 <= dim < len(shape), f"shape {shape} has no dimension {dim}")


# --- a group's collectives -----------------------------------------------------------------------------------------


def check_groups(plan: Plan) -> None:
    """Raise CheckError unless the members of every group issue the same collectives in the same order."""
    found: dict[tuple[int, frozenset[str]], Spanning] = {}
    issued = {id(program): _by_group(program, found) for program in plan.programs}
    numbers, program_of = _numbered(issued), cache(plan.program_of)
    for program in plan.programs:
        rank = plan.mesh.rank(program.role)
        for group, mine in issued[id(program)].items():
            stream, axes, members = group
            for peer in {id(peer): peer for peer in map(program_of, _group(plan, rank, axes, members))}.values():
                if numbers[id(peer)].get(group) == numbers[id(program)][group]:
                    continue
                theirs = issued[id(peer)].get(group, [])
                for k in range(max(len(mine), len(theirs))):
                    _check_same(program, peer, stream, mine[k : k + 1], theirs[k : k + 1])


def _numbered(issued: Mapping[int, GroupIssues]) -> dict[int, dict[Group, list[int]]]:
    """Return the collectives of each program's groups as numbers, the same for collectives that agree."""
    known: dict[tuple[object, ...], int] = {}
    return {
        key: {
            group: [known.setdefault(tuple(_agreed(*issue).values()), len(known)) for issue in issues]
            for group, issues in groups.items()
        }
        for key, groups in issued.items()
    }


def _by_group(program: Program, found: dict[tuple[int, frozenset[str]], Spanning]) -> GroupIssues:
    """Return the collectives that span several roles; within one role all members run the same program.

    ``found``: those of tasks that programs share, by the axes of the roles.
    """
    groups: GroupIssues = defaultdict(list)
    key = id(program.tasks), frozenset(program.role)
    if key not in found:
        found[key] = {
            name: [op for op in task.ops if isinstance(op, Collective) and not key[1].isdisjoint(op.axes)]
            for name, task in program.tasks.items()
        }
    spanning, calls = found[key], Calls.of(program.calls)
    for call in calls.without([name for name, ops in spanning.items() if not ops]):
        for op in spanning[call.task]:
            groups[op.stream, op.axes, op.members].append((program, op, call.lag))
    return groups


def _group(plan: Plan, rank: int, axes: tuple[str, ...], members: tuple[int, ...]) -> Sequence[int]:
    """Return the ranks of a rank's group that take part."""
    group = plan.mesh.group(rank, axes)
    return [group[position] for position in members] if members else group


def _check_same(
    program: Program,
    peer: Program,
    stream: str,
    mine: Sequence[GroupIssue],
    theirs: Sequence[GroupIssue],
) -> None:
    here, there = (_agreed(*found[0]) if found else {} for found in (mine, theirs))
    if here == there:
        return
    names = [
        where(*found[0][:2]) if found else f"nothing of role {side.role_name}"
        for side, found in ((program, mine), (peer, theirs))
    ]
    differing = [f"{key}: {here[key]} and {there[key]}" for key in here if here and there and here[key] != there[key]]
    details = f" ({'; '.join(differing)})" if differing else ""
    raise CheckError(
        f"on stream {stream!r} {names[0]} meets {names[1]}; a group must issue the same collectives in order{details}"
    )


def _agreed(program: Program, op: Collective, lag: int) -> dict[str, Any]:
    """Return the properties on which the members of a group must agree; buffers of an uneven exchange may differ."""
    return {
        "kind": str(op.kind),
        "steps before": lag,
        "reduction": str(op.reduction),
        "dimension": op.dim,
        "joined dimension": op.join_dim,
        "root": op.root,
        "root only": op.root_only,
        "sizes": op.sizes,
        "span": op.span,
        "bytes": None if op.sizes else collective_bytes(program, op),
        "elements": tuple(sorted({program.buffers[name].dtype for name in (*op.reads, *op.writes)})),
    }
