"""The persistent buffers on every rank of a session, and the check that the next plan fits them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct, field

from sim.plan.errors import SessionError
from sim.plan.facts.slices import buffer_slice
from sim.plan.words.buffer import Buffer, Scope
from sim.plan.words.calls import Calls
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective, CollectiveKind, Op
from sim.plan.words.program import Plan, Program
from sim.plan.words.steps import longest_lag

MOST_OBSERVED_BYTES: Final = 1 << 20
"""Size limit of an observed buffer, over all its micro-batches."""

Place = tuple[object, ...]
"""The identity of a buffer's contents: shape, type, tier, and slice. Buffers of equal place hold the same contents."""


class Held(NamedTuple):
    """A persistent buffer on a rank, as declared by the program that left it or needs it."""

    program: Program
    mesh: Mesh
    rank: int
    name: str

    @property
    def buffer(self) -> Buffer:
        """Return the buffer."""
        return self.program.buffers[self.name]

    @property
    def place(self) -> Place:
        """Return the identity of the buffer's contents.

        The slice is the buffer's own, or the slice of its parameter. A flat piece with axes is known by its number
        among the pieces; a flat piece without axes by the coordinates of its rank.
        """
        buffer, (_, mesh, rank, _) = self.buffer, self
        form: Place = (buffer.shape, buffer.dtype, buffer.tier)
        initial, parameter = buffer.initial, self._parameter
        if buffer.global_shape:
            return (*form, buffer.global_shape, buffer_slice(buffer, mesh, rank))
        if initial is not None and initial.axes:
            return (*form, initial.of, mesh.index(rank, initial.axes), mesh.degree(*initial.axes))
        if parameter is not None and parameter.global_shape:
            return (*form, parameter.global_shape, buffer_slice(parameter, mesh, rank))
        if initial is not None and initial.source:
            return form
        return (*form, mesh, rank)

    @property
    def _parameter(self) -> Buffer | None:
        initial = self.buffer.initial
        return None if initial is None else self.program.buffers.get(initial.source)


class _Left(NamedTuple):
    """Buffers that a program left on a rank, and the mesh and rank on which it ran."""

    program: Program
    mesh: Mesh
    rank: int
    names: frozenset[str]


class Residents(Struct, frozen=True):
    """The buffers left by the plans of a session: ``num_plans`` plans, and ``num_steps`` steps of the optimizer.

    In the first plan of a session every persistent buffer starts with its initial value. A later plan reads buffers
    that earlier plans left on the rank, or that it has written itself. ``left``: by rank of the session, newest first.
    """

    left: Mapping[int, tuple[_Left, ...]] = field(default_factory=dict)
    num_plans: int = 0
    num_steps: int = 0

    def find(self, rank: int, name: str) -> Held | None:
        """Return a buffer on a rank of the session, None if it is not there."""
        for source in self.left.get(rank, ()):
            if name in source.names:
                return Held(source.program, source.mesh, source.rank, name)
        return None

    def holders(self, name: str) -> list[int]:
        """Return the ranks of the session that hold a buffer, in order."""
        return sorted(rank for rank, sources in self.left.items() if any(name in source.names for source in sources))

    def lacking(self, plan: Plan, rank: int) -> tuple[str, ...]:
        """Return the buffers that a rank of the plan reads but lacks, in the order of first reads."""
        if not self.num_plans:
            return ()
        program = plan.program_of(rank)
        return self._missing(plan, program, rank, _read_first(plan, program, rank))

    def all_lacking(self, plan: Plan) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yield every rank of a plan that lacks buffers, with their names."""
        for program in plan.programs if self.num_plans else ():
            ranks = plan.ranks_of(program)
            names = _read_first(plan, program, ranks[0])
            for rank in ranks:
                if _has_broadcast(program):  # its root reads buffers that the other ranks do not
                    names = _read_first(plan, program, rank)
                if lacking := self._missing(plan, program, rank, names):
                    yield rank, lacking

    def _missing(self, plan: Plan, program: Program, rank: int, names: Sequence[str]) -> tuple[str, ...]:
        here = plan.session_ranks[rank]
        newest = next(iter(self.left.get(here, ())), None)
        again = newest is not None and newest.program is program and (newest.mesh, newest.rank) == (plan.mesh, rank)
        if again and newest is not None and newest.names.issuperset(names):
            return ()
        return tuple(name for name in names if not self._goes_on(Held(program, plan.mesh, rank, name), here))

    def _goes_on(self, needed: Held, here: int) -> bool:
        held = self.find(here, needed.name)
        if held is None:
            return False
        same = held.rank == needed.rank and held.mesh == needed.mesh and held.buffer == needed.buffer
        return (same and held.program is needed.program) or held.place == needed.place

    def check(self, plan: Plan, num_ranks: int) -> None:
        """Raise SessionError unless a plan may run next, in a session of ``num_ranks`` ranks.

        Its ranks are the session's. It completes its own steps. Its observed buffers are small. Each persistent buffer
        that a rank reads was left there by an earlier plan with the same shape, type and slice, or written before.
        """
        _check_ranks(plan, num_ranks)
        for program in plan.programs:
            if longest_lag(program):
                rule = "leaves work to the step after it; a session runs plans that complete their own steps"
                raise SessionError(f"plan {plan.name!r}: role {program.role_name} {rule}")
            strangers = sorted(program.released - _persistent(program))
            if strangers:
                raise SessionError(f"role {program.role_name} gives up {strangers[0]!r}, no persistent buffer of it")
        check_observed(plan)
        for rank, names in self.all_lacking(plan):
            raise SessionError(self._refusal(plan, rank, names[0]))

    def _refusal(self, plan: Plan, rank: int, name: str) -> str:
        program, here = plan.program_of(rank), plan.session_ranks[rank]
        held, needed = self.find(here, name), Held(program, plan.mesh, rank, name)
        who = f"plan {plan.name!r}: rank {here} (role {program.role_name}) reads {name!r}"
        if held is not None and held.buffer.shape != needed.buffer.shape:
            return f"{who} with shape {needed.buffer.shape}; an earlier plan left it there with {held.buffer.shape}"
        if held is not None:
            return f"{who} as {_words(needed)}; an earlier plan left it there as {_words(held)}"
        holders = ", ".join(map(str, self.holders(name))) or "none"
        remedy = "move it there in the plan before its first read"
        return f"{who}, which no earlier plan left there (ranks that hold it: {holders}); {remedy}"

    def after(self, plan: Plan) -> "Residents":
        """Return the residents after a plan has run."""
        left = {rank: sources for rank, sources in self.left.items() if rank not in plan.leavers}
        for program in plan.programs:
            touched = _touched(program)
            names = touched - program.released
            known: dict[int, tuple[_Left, frozenset[str]]] = {}
            for rank in plan.ranks_of(program):
                here = plan.session_ranks[rank]
                kept = [_Left(program, plan.mesh, rank, names)] if names else []
                for source in left.get(here, ()):
                    if id(source.names) not in known:
                        known[id(source.names)] = source, source.names - touched - program.released
                    rest = known[id(source.names)][1]
                    kept += [source._replace(names=rest)] if rest else []
                left[here] = tuple(kept)
        return Residents(left, self.num_plans + 1, self.num_steps + plan.num_steps)


def check_observed(plan: Plan) -> None:
    """Raise SessionError unless every observed buffer of a plan is touched by some program, and is small."""
    for name in sorted(plan.observed):
        owners = [program for program in plan.programs if name in observed_by(plan, program)]
        if not owners:
            raise SessionError(
                f"plan {plan.name!r} asks to see {name!r}, which no op of it touches, or which its ranks give up"
            )
        for program in owners:
            buffer = program.buffers[name]
            count = len(microbatches_of(program, name)) if buffer.scope is Scope.MICROBATCH else 1
            if count * buffer.num_bytes > MOST_OBSERVED_BYTES:
                rule = f"which has {count * buffer.num_bytes:,} bytes; a plan sees buffers of {MOST_OBSERVED_BYTES:,}"
                raise SessionError(f"plan {plan.name!r} asks to see {name!r}, {rule} at most")


def microbatches_of(program: Program, name: str) -> list[int | None]:
    """Return the micro-batches of the calls that use a buffer, in order."""
    tasks = {task for task, content in program.tasks.items() if name in _names(content.ops)}
    found = {call.microbatch for call in program.calls if call.task in tasks}
    return sorted(found, key=lambda microbatch: -1 if microbatch is None else microbatch)


def observed_by(plan: Plan, program: Program) -> frozenset[str]:
    """Return the buffers that the ranks of a program report: the observed ones, without those that they give up."""
    return (plan.observed & _named(program)) - program.released


def observed_shapes(plan: Plan, rank: int) -> dict[str, tuple[int, ...]]:
    """Return the buffers that a rank of the plan reports, by name, and the shapes of their values."""
    program = plan.program_of(rank)
    shapes = {}
    for name in sorted(observed_by(plan, program)):
        buffer = program.buffers[name]
        several = (len(microbatches_of(program, name)),) if buffer.scope is Scope.MICROBATCH else ()
        shapes[name] = (*several, *buffer.shape)
    return shapes


def _check_ranks(plan: Plan, num_ranks: int) -> None:
    ranks = plan.session_ranks
    if len(ranks) != plan.mesh.size or len(set(ranks)) != len(ranks):
        rule = f"lies on ranks {tuple(ranks)} of the session; a different rank for each of its {plan.mesh.size}"
        raise SessionError(f"plan {plan.name!r} {rule} is needed")
    outside = sorted(rank for rank in {*ranks, *plan.leavers} if not 0 <= rank < num_ranks)
    if outside:
        rule = f"names rank {outside[0]}; the session has {num_ranks} ranks, counted from 0"
        raise SessionError(f"plan {plan.name!r} {rule}")
    staying = sorted(plan.leavers & set(ranks))
    if staying:
        raise SessionError(f"plan {plan.name!r}: rank {staying[0]} leaves, and takes part")


def _words(held: Held) -> str:
    buffer, form = held.buffer, f"{held.buffer.dtype} in {held.buffer.tier} memory"
    place = held.place[3:]
    return f"{form}, elements {place}" if place else f"{form}, {buffer.shape}"


def _persistent(program: Program) -> frozenset[str]:
    return frozenset(name for name, buffer in program.buffers.items() if buffer.scope is Scope.PERSISTENT)


def _names(ops: Sequence[Op]) -> set[str]:
    return {name for op in ops for name in (*op.reads, *op.writes)}


def _named(program: Program) -> frozenset[str]:
    """Return the buffers named by ops of called tasks."""
    called = Calls.of(program.calls).counts()
    return frozenset(name for task in called for name in _names(program.tasks[task].ops))


def _touched(program: Program) -> frozenset[str]:
    return _named(program) & _persistent(program)


def _read_first(plan: Plan, program: Program, rank: int) -> tuple[str, ...]:
    """Return the persistent buffers that a rank reads before it writes them.

    Only the root of a broadcast reads; what the other ranks hold before it does not matter.
    """
    persistent, found, written = _persistent(program), dict[str, None](), set[str]()
    for task in Calls.of(program.calls).counts():
        for op in program.tasks[task].ops:
            found.update((name, None) for name in _reads(plan, op, rank) if name in persistent and name not in written)
            written.update(op.writes)
    return tuple(found)


def _has_broadcast(program: Program) -> bool:
    ops = (op for task in program.tasks.values() for op in task.ops)
    return any(isinstance(op, Collective) and op.kind is CollectiveKind.BROADCAST for op in ops)


def _reads(plan: Plan, op: Op, rank: int) -> Iterator[str]:
    if isinstance(op, Collective) and op.kind is CollectiveKind.BROADCAST:
        if op.group(plan.mesh, rank)[op.root] == rank:
            yield from op.reads
    else:
        yield from op.reads
