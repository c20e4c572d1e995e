"""Adjustments: moves of persistent buffers, written into a plan before its own calls.

    plan = adjusted(build_dense_training(job, "next"), session.residents)

The moves are ops of a task ``adjustment``. They share links with other ops, and are executed like them. A rank gets the
buffers that it lacks from the ranks that hold them. If all ranks of a role lack a buffer, for example when a layer goes
to another pipeline rank, the role that holds the buffer sends it and gives it up. If only some ranks lack it, for
example when a replica joins, a rank that holds it broadcasts it. A buffer that the plan clears before it reads it, such
as a gradient, is created anew instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from sim.plan.errors import SessionError
from sim.plan.session.residents import Held, Residents
from sim.plan.words.buffer import Buffer
from sim.plan.words.calls import Calls
from sim.plan.words.op import Collective, CollectiveKind, Compute, Direction, Op, Recv, Send
from sim.plan.words.program import Call, Phase, Plan, Program, Task

ADJUSTMENT: Final = "adjustment"
"""The name of the task."""


def adjusted(plan: Plan, residents: Residents) -> Plan:
    """Return the plan with the moves that it needs at its beginning; the plan itself if it needs none.

    Raises SessionError if no rank of the plan holds a slice of a buffer that another rank lacks.
    """
    lacking = {rank: dict.fromkeys(names) for rank, names in residents.all_lacking(plan)}
    if not lacking:
        return plan
    adjustments = [_Adjustment(plan, program, residents, lacking) for program in plan.programs]
    for adjustment in adjustments:
        adjustment.find_sources()
        adjustment.write_arrivals()
    for adjustment in adjustments:
        for source, names in adjustment.from_roles.items():
            adjustments[source].write_message(names, adjustment.offset_of(plan.programs[source]))
            adjustments[source].give_up(names, adjustment.program)
        for source, names in adjustment.replaced.items():
            adjustments[source].give_up(names, adjustment.program)
    return replace(plan, programs=tuple(adjustment.written() for adjustment in adjustments))


@dataclass(slots=True)
class _Adjustment:
    """The moves of the ranks of one program before their own calls.

    ``lacking``: the buffers that each rank of the plan lacks. Their sources are the three fields that follow.
    ``from_roles``: buffers from the ranks of another program, by that program's number.
    ``from_replicas``: buffers from a replica of this program's ranks, by axis and position.
    ``made_anew``: buffers that are created anew.
    ``replaced``: by program number, those of the buffers of ``made_anew`` that the ranks of another program hold.
    ``given``: buffers that these ranks hold and give up.
    """

    plan: Plan
    program: Program
    residents: Residents
    lacking: Mapping[int, Mapping[str, None]]
    from_roles: dict[int, list[str]] = field(default_factory=dict)
    from_replicas: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    made_anew: list[str] = field(default_factory=list)
    replaced: dict[int, list[str]] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    given: dict[str, Buffer] = field(default_factory=dict)
    ranks: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.ranks = self.plan.ranks_of(self.program)

    def find_sources(self) -> None:
        """Find the sources of all buffers that the ranks lack. Raises SessionError for a buffer without a source."""
        cleared = _cleared_first(self.program)
        for name in dict.fromkeys(name for rank in self.ranks for name in self.lacking.get(rank, ())):
            lacked_by_all = all(name in self.lacking.get(rank, ()) for rank in self.ranks)
            role = self._role_that_holds(name) if lacked_by_all else None
            if name in cleared:
                self.made_anew.append(name)
                if role is not None:
                    self.replaced.setdefault(role, []).append(name)
            elif role is not None:
                self.from_roles.setdefault(role, []).append(name)
            else:
                self.from_replicas.setdefault(self._replica_that_holds(name), []).append(name)

    def write_arrivals(self) -> None:
        """Write the ops that create or receive the buffers that the ranks lack."""
        for dtype, names in self._by_dtype(self.made_anew).items():
            shapes = tuple(self.program.buffers[name].shape for name in names)
            attributes = {"shapes": shapes, "dtype": dtype}
            self.ops.append(Compute(f"make_anew.{dtype}", "zeros", (), names, attributes))
        for (axis, root), held in self.from_replicas.items():
            stream = f"{ADJUSTMENT}_broadcast_{axis}"
            for dtype, names in self._by_dtype(held).items():
                name, kind = f"broadcast_{axis}_from_{root}.{dtype}", CollectiveKind.BROADCAST
                self.ops.append(Collective(name, kind, (axis,), names, names, stream, root=root))
        for role, received in self.from_roles.items():
            axis, offset = self.offset_of(self.plan.programs[role])
            name = f"receive_{axis}{offset:+d}"
            stream = f"{ADJUSTMENT}_{name}"
            self.ops.append(Recv(name, axis, offset, Direction.ADJUSTMENT, tuple(received), stream))

    def write_message(self, names: Sequence[str], back: tuple[str, int]) -> None:
        """Write the message to the ranks at an offset along an axis."""
        axis, offset = back
        name = f"send_{axis}{-offset:+d}"
        self.ops.append(Send(name, axis, -offset, Direction.ADJUSTMENT, tuple(names), f"{ADJUSTMENT}_{name}"))

    def give_up(self, names: Sequence[str], other: Program) -> None:
        """Note that other ranks now hold these buffers, and declare the buffers as that program does."""
        self.given |= {name: other.buffers[name] for name in names}

    def offset_of(self, other: Program) -> tuple[str, int]:
        """Return the axis along which another program's ranks lie, and the number of steps to them."""
        [(axis, here)] = self.program.role.items()
        return axis, other.role[axis] - here

    def written(self) -> Program:
        """Return the program with its adjustment before its calls, and without the buffers that it gives up."""
        program, given = self.program, self.given
        released = program.released | (given.keys() - program.buffers.keys())
        program = replace(program, buffers={**given, **program.buffers}, released=released)
        if not self.ops:
            return program
        task = Task(ADJUSTMENT, Phase.PREPARE, tuple(self.ops))
        tasks = {ADJUSTMENT: task, **program.tasks}
        return replace(program, tasks=tasks, calls=(Call(ADJUSTMENT), *program.calls))

    def _role_that_holds(self, name: str) -> int | None:
        """Return the number of the program whose ranks hold a buffer that all ranks of this one lack.

        Of several it is one that keeps the buffer, the nearest along the axis of their roles. None where none holds it.
        """
        if len(self.program.role) != 1:
            return None
        shift, found = self.plan.mesh.shift, list[tuple[bool, int, int]]()
        needed = {rank: Held(self.program, self.plan.mesh, rank, name).place for rank in self.ranks}
        for number, other in enumerate(self.plan.programs):
            if other is not self.program and self.program.role.keys() == other.role.keys():
                axis, offset = self.offset_of(other)
                if all(self._has(name, place, shift(rank, axis, offset)) for rank, place in needed.items()):
                    found.append((name not in other.buffers, abs(offset), number))
        return min(found)[2] if found else None

    def _replica_that_holds(self, name: str) -> tuple[str, int]:
        """Return the axis and the position along it of the replica that holds a buffer which other ranks lack."""
        for axis, degree in self.plan.mesh.axes:
            groups = {self.plan.mesh.group(rank, (axis,)) for rank in self.ranks}
            for root in range(degree) if axis not in self.program.role else ():
                if all(self._holds(name, rank, group[root]) for group in groups for rank in group):
                    return axis, root
        raise self._error(name)

    def _holds(self, name: str, rank: int, other: int) -> bool:
        """Return whether a rank of the plan holds the slice of a buffer that another rank needs."""
        return self._has(name, Held(self.program, self.plan.mesh, rank, name).place, other)

    def _has(self, name: str, place: object, rank: int) -> bool:
        """Return whether a rank of the plan holds a slice of a buffer."""
        held = self.residents.find(self.plan.session_ranks[rank], name)
        return held is not None and held.place == place

    def _error(self, name: str) -> SessionError:
        holders = ", ".join(map(str, self.residents.holders(name))) or "none"
        what = f"plan {self.plan.name!r}: the ranks of role {self.program.role_name} need {name!r}"
        rule = f"and no ranks of the plan hold it for all of them (ranks of the session that do: {holders})"
        return SessionError(f"{what}, {rule}; move it in an earlier plan, while its holders take part")

    def _by_dtype(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for name in names:
            found.setdefault(self.program.buffers[name].dtype, []).append(name)
        return {dtype: tuple(of_type) for dtype, of_type in found.items()}


def _cleared_first(program: Program) -> frozenset[str]:
    """Return the buffers whose first use in a program clears them."""
    touched: set[str] = set()
    cleared: set[str] = set()
    for task in Calls.of(program.calls).counts():
        for op in program.tasks[task].ops:
            names = {*op.reads, *op.writes} - touched
            if isinstance(op, Compute) and op.kernel == "zero":
                cleared |= names
            touched |= names
    return frozenset(cleared)
