"""From a plan and what lies where to the plan that first moves what it needs.

    plan = adjusted(build_dense_training(job, "next"), session.residents)

The moves are ops of an adjustment, a task that comes before the plan's own calls: they wait for wires like all else,
and are executed for real. What a rank needs and lacks comes from the ranks that hold it. Where all ranks of a role lack
it, as when a layer has gone to another pipeline rank, the ranks of the role that holds it send it, and give it up.
Where only some lack it, as when a replica joins, a rank that holds it broadcasts it. What the plan clears before it
reads it, as gradients are, is not moved but made anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sim.plan.errors import SessionError
from sim.plan.session.residents import Held, Residents
from sim.plan.words.buffer import Buffer
from sim.plan.words.op import Collective, CollectiveKind, Compute, Direction, Op, Recv, Send
from sim.plan.words.program import Call, Phase, Plan, Program, Task

ADJUSTMENT: Final = "adjustment"
"""The name of the task."""


def adjusted(plan: Plan, residents: Residents) -> Plan:
    """Return a plan that begins with the moves that it needs; the plan itself where it needs none.

    Raises SessionError where no rank of the plan holds what another one lacks, in the slice that it needs.
    """
    lacking = dict(residents.all_lacking(plan))
    if not lacking:
        return plan
    adjustments = [_Adjustment(plan, program, residents, lacking) for program in plan.programs]
    for adjustment in adjustments:
        adjustment.find()
    for adjustment in adjustments:
        for source, names in adjustment.from_roles.items():
            adjustments[source].give(names, adjustment.program, adjustment.offset_of(plan.programs[source]))
        for source, names in adjustment.replaced.items():
            adjustments[source].given |= {name: adjustment.program.buffers[name] for name in names}
    return replace(plan, programs=tuple(adjustment.written() for adjustment in adjustments))


@dataclass(slots=True)
class _Adjustment:
    """What the ranks of one program do before their own calls.

    ``from_roles``: what comes from the ranks of another program, by that program's number. ``gifts``: what goes to
    another program's ranks. ``replaced``: what another program's ranks give up, as it is made anew here.
    """

    plan: Plan
    program: Program
    residents: Residents
    lacking: dict[int, tuple[str, ...]]
    from_roles: dict[int, list[str]] = field(default_factory=dict)
    made_anew: list[str] = field(default_factory=list)
    replaced: dict[int, list[str]] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    given: dict[str, Buffer] = field(default_factory=dict)

    def find(self) -> None:
        """Find out where all that is lacking comes from; write what comes from the role itself, and what is anew."""
        ranks = self.plan.ranks_of(self.program)
        cleared = _cleared_first(self.program)
        names = dict.fromkeys(name for rank in ranks for name in self.lacking.get(rank, ()))
        self.made_anew = [name for name in names if name in cleared]
        for name in self.made_anew:
            source = self._holding_role(name) if self._lacked_by_all(name) else None
            if source is not None:
                self.replaced.setdefault(source, []).append(name)
        from_replicas: dict[tuple[str, int], list[str]] = {}
        for name in (name for name in names if name not in cleared):
            if self._lacked_by_all(name):
                self.from_roles.setdefault(self._role_that_holds(name), []).append(name)
            else:
                from_replicas.setdefault(self._replica_that_holds(name), []).append(name)
        for dtype, shapes in self._anew().items():
            buffers = tuple(name for name in self.made_anew if self.program.buffers[name].dtype == dtype)
            attributes = {"shapes": shapes, "dtype": dtype}
            self.ops.append(Compute(f"clear.{dtype}", "zeros", (), buffers, attributes))
        for (axis, root), held in from_replicas.items():
            for dtype, names_of_type in self._by_dtype(held).items():
                name, moved = f"broadcast_{axis}.{dtype}", tuple(names_of_type)
                self.ops.append(
                    Collective(
                        name, CollectiveKind.BROADCAST, (axis,), moved, moved, f"adjustment_broadcast_{axis}", root=root
                    )
                )
        for source, received in self.from_roles.items():
            axis, offset = self.offset_of(self.plan.programs[source])
            name = f"receive_{axis}{offset:+d}"
            stream = f"adjustment_{name}"
            self.ops.append(Recv(name, axis, offset, Direction.ADJUSTMENT, tuple(received), stream))

    def give(self, names: Sequence[str], receiver: Program, offset: tuple[str, int]) -> None:
        """Write the message to the ranks of another program, seen from which this one lies at ``offset``."""
        axis, back = offset
        name = f"send_{axis}{-back:+d}"
        self.ops.append(Send(name, axis, -back, Direction.ADJUSTMENT, tuple(names), f"adjustment_{name}"))
        self.given |= {name: receiver.buffers[name] for name in names}

    def offset_of(self, other: Program) -> tuple[str, int]:
        """Return the axis along which another program's ranks lie, and how many steps away."""
        [(axis, here)] = self.program.role.items()
        return axis, other.role[axis] - here

    def written(self) -> Program:
        """Return the program with its adjustment before its calls. What it has given away it gives up."""
        program, given = self.program, self.given
        released = program.released | (given.keys() - program.buffers.keys())
        program = replace(program, buffers={**given, **program.buffers}, released=released)
        if not self.ops:
            return program
        task = Task(ADJUSTMENT, Phase.PREPARE, tuple(self.ops))
        tasks = {ADJUSTMENT: task, **program.tasks}
        return replace(program, tasks=tasks, calls=(Call(ADJUSTMENT), *program.calls))

    def _lacked_by_all(self, name: str) -> bool:
        return all(name in self.lacking.get(rank, ()) for rank in self.plan.ranks_of(self.program))

    def _role_that_holds(self, name: str) -> int:
        """Return the number of the program whose ranks hold what every rank of this one lacks."""
        number = self._holding_role(name)
        if number is None:
            raise self._error(name)
        return number

    def _holding_role(self, name: str) -> int | None:
        for number, other in enumerate(self.plan.programs):
            if other is self.program or len(self.program.role) != 1 or self.program.role.keys() != other.role.keys():
                continue
            axis, offset = self.offset_of(other)
            if all(
                self._holds(name, rank, self.plan.mesh.shift(rank, axis, offset))
                for rank in self.plan.ranks_of(self.program)
            ):
                return number
        return None

    def _replica_that_holds(self, name: str) -> tuple[str, int]:
        """Return the axis and the position along it whose ranks hold what some ranks of this program lack."""
        ranks = self.plan.ranks_of(self.program)
        for axis, degree in self.plan.mesh.axes:
            for root in range(degree) if axis not in self.program.role else ():
                groups = {self.plan.mesh.group(rank, (axis,)) for rank in ranks}
                if all(self._holds(name, rank, group[root]) for group in groups for rank in group):
                    return axis, root
        raise self._error(name)

    def _holds(self, name: str, rank: int, other: int) -> bool:
        """Return whether a rank of the plan holds what another rank needs under this name."""
        held = self.residents.find(self.plan.session_ranks[other], name)
        return held is not None and held.place == Held(self.program, self.plan.mesh, rank, name).place

    def _error(self, name: str) -> SessionError:
        holders = ", ".join(map(str, self.residents.holders(name))) or "none"
        what = f"plan {self.plan.name!r}: the ranks of role {self.program.role_name} need {name!r}"
        rule = f"and no ranks of the plan hold it for all of them (ranks of the session that do: {holders})"
        return SessionError(f"{what}, {rule}; move it in an earlier plan, while its holders take part")

    def _anew(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Return the shapes of what is made anew, by element type."""
        return {
            dtype: tuple(self.program.buffers[name].shape for name in names)
            for dtype, names in self._by_dtype(self.made_anew).items()
        }

    def _by_dtype(self, names: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in names:
            found.setdefault(self.program.buffers[name].dtype, []).append(name)
        return found


def _cleared_first(program: Program) -> frozenset[str]:
    """Return the buffers that a program clears before it touches them otherwise."""
    touched: set[str] = set()
    cleared: set[str] = set()
    for task in dict.fromkeys(call.task for call in program.calls):
        for op in program.tasks[task].ops:
            names = {*op.reads, *op.writes} - touched
            if isinstance(op, Compute) and op.kernel == "zero":
                cleared |= names
            touched |= names
    return frozenset(cleared)
