"""Explain a run that got stuck: which ops wait, for which other ranks' ops, and the circle in which they wait.

The dependencies are those of a plan: order on a stream, hazards of buffers, messages, and groups that must meet.
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import Final

from msgspec import Struct

from sim.engine.errors import DeadlockError
from sim.engine.running.run import SimulatedRun
from sim.plan.words.buffer import Scope
from sim.plan.words.op import Collective, Op, Recv, Send
from sim.plan.words.program import Call, Program

_MOST_LINES: Final = 20
_MOST_NAMED: Final = 4
_MOST_IN_CIRCLE: Final = 12

Channel = tuple[object, ...]


class _Place(Struct, frozen=True):
    """An op of a rank: its number in issue order. ``rank`` is the one that is meant, not the one that stands for it."""

    rank: int
    number: int


def refuse_deadlock(run: SimulatedRun) -> None:
    """Raise DeadlockError if an op never ran. It names the first such op of each rank and stream, and its wait."""
    tangle = _Tangle(run)
    heads = tangle.heads()
    if not heads:
        return
    shown = heads[:_MOST_LINES]
    lines = [f"  rank {place.rank}, stream {tangle.op(place).stream}: {tangle.words(place)}" for place in shown]
    more = [f"  and {len(heads) - _MOST_LINES} more"] if len(heads) > _MOST_LINES else []
    told = ["the run is stuck; these ops wait for ever:", *lines, *more]
    if circle := tangle.circle(heads[0]):
        told.append(f"they wait in a circle: {circle}")
    raise DeadlockError("\n".join(told))


class _Tangle:
    """The ops of a deadlocked run, and the waits between them."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._mesh = run.plan.mesh
        self._stands_for = run.folding.stands_for
        self._stuck: dict[int, list[bool]] = {rank: [] for rank in run.programs}
        for rank, index, base, pattern in run.graph.units:
            task = run.programs[rank].tasks[run.programs[rank].calls[index].task]
            ends = [run.loop.ends_s[base if pattern is not None else base + j] for j in range(len(task.ops))]
            self._stuck[rank] += [end < 0.0 for end in ends]

    @cached_property
    def _ops(self) -> dict[int, list[tuple[Call, Op]]]:
        """Return the calls and ops of each simulated rank in issue order."""
        programs = self._run.programs.items()
        return {rank: [(call, op) for _, call, _, op in program.instances()] for rank, program in programs}

    @cached_property
    def _names(self) -> dict[int, list[str]]:
        """Return the names of the ops of each simulated rank in issue order."""
        called = {
            rank: [program.named(call.task) for call in program.calls] for rank, program in self._run.programs.items()
        }
        return {rank: [f"{task.name}/{op.name}" for task in tasks for op in task.ops] for rank, tasks in called.items()}

    @cached_property
    def _channels(self) -> dict[int, dict[Channel, list[int]]]:
        """Return the sends, receives and collectives of each simulated rank by who meets, in issue order."""
        found: dict[int, dict[Channel, list[int]]] = {}
        for rank, ops in self._ops.items():
            of_rank = found[rank] = defaultdict(list)
            for number, (_, op) in enumerate(ops):
                if isinstance(op, Send | Recv | Collective):
                    of_rank[_channel(op)].append(number)
        return found

    def op(self, place: _Place) -> Op:
        """Return the op at a place."""
        return self._at(place)[1]

    def heads(self) -> list[_Place]:
        """Return the first op of each simulated rank and stream that never ran, by rank and stream."""
        found: dict[tuple[int, str], _Place] = {}
        for rank, stuck in self._stuck.items():
            for number, waits in enumerate(stuck):
                if waits:
                    found.setdefault((rank, self._ops[rank][number][1].stream), _Place(rank, number))
        return [found[key] for key in sorted(found)]

    # --- in words ------------------------------------------------------------------------------------------

    def words(self, place: _Place) -> str:
        """Return an op's name, and the op or message that it waits for."""
        op, said = self.op(place), self._name(place)
        if held := next(self._held_by(place), None):
            return f"{said}, waits for {self._name(held)} on stream {self.op(held).stream}"
        if isinstance(op, Recv):
            [send] = self._partners(place)
            return f"{said}, waits for rank {send.rank} along {op.axis!r} to run {self._name(send)}{self._after(send)}"
        if isinstance(op, Collective):
            late = [member for member in self._partners(place) if any(self._held_by(member))]
            named = [f"rank {member.rank}{self._after(member)}" for member in late[:_MOST_NAMED]]
            named += [f"{len(late) - _MOST_NAMED} more"] if len(late) > _MOST_NAMED else []
            return f"{said}, waits in its group over {', '.join(op.axes)} for {'; '.join(named)}"
        return said

    def circle(self, start: _Place) -> str:
        """Return a circle of ops in which each waits for the next, in words; empty where there is none."""
        path: list[_Place] = []
        place: _Place | None = start
        while place is not None and place not in path:
            path.append(place)
            place = next(self._waits_for(place), None)
        if place is None:
            return ""
        round_trip = [*path[path.index(place) :], place]
        named = [f"rank {at.rank} {self._name(at)}" for at in round_trip]
        if len(named) > _MOST_IN_CIRCLE:
            named = [*named[: _MOST_IN_CIRCLE - 1], f"{len(named) - _MOST_IN_CIRCLE} more", named[-1]]
        return " -> ".join(named)

    def _name(self, place: _Place) -> str:
        call, _ = self._at(place)
        name = self._names[self._stands_for[place.rank]][place.number]
        return name + ("" if call.microbatch is None else f" (micro-batch {call.microbatch})")

    def _after(self, place: _Place) -> str:
        held = next(self._held_by(place), None)
        return "" if held is None else f", where it comes after {self._name(held)}"

    # --- who waits for whom --------------------------------------------------------------------------------

    def _waits_for(self, place: _Place) -> Iterator[_Place]:
        """Yield the ops that an op waits for: of its own rank first, then of others that are held up there."""
        yield from self._held_by(place)
        op = self.op(place)
        if isinstance(op, Recv):
            yield from self._partners(place)
        elif isinstance(op, Collective):
            yield from (member for member in self._partners(place) if any(self._held_by(member)))

    def _held_by(self, place: _Place) -> Iterator[_Place]:
        """Yield the ops of the same rank that an op comes after: the first on its stream, those that touch its data."""
        rank = self._stands_for[place.rank]
        call, op = self._at(place)
        touched = None
        for number, waits in enumerate(self._stuck[rank][: place.number]):
            earlier_call, earlier = self._ops[rank][number]
            if waits and earlier.stream == op.stream:
                yield _Place(place.rank, number)
                return
            if waits and touched is None and self._conflict(rank, (earlier_call, earlier), (call, op)):
                touched = _Place(place.rank, number)
        if touched is not None:
            yield touched

    def _conflict(self, rank: int, first: tuple[Call, Op], second: tuple[Call, Op]) -> bool:
        """Return whether one of two ops writes a buffer that the other reads or writes, of one micro-batch."""
        (before, earlier), (after, later) = first, second
        shared = set(earlier.writes) & {*later.reads, *later.writes} | set(earlier.reads) & set(later.writes)
        same = before.microbatch == after.microbatch
        program: Program = self._run.programs[rank]
        return any(same or program.buffers[name].scope is not Scope.MICROBATCH for name in shared)

    def _partners(self, place: _Place) -> list[_Place]:
        """Return the send that a receive waits for; the same collective of the other members of its group."""
        op, rank = self.op(place), self._stands_for[place.rank]
        assert isinstance(op, Recv | Collective)
        channel = _channel(op)
        kth = self._channels[rank][channel].index(place.number)
        if isinstance(op, Recv):
            peers = [self._mesh.shift(place.rank, op.axis, op.offset)]
            channel = ("send", op.axis, -op.offset, op.direction)
        else:
            peers = [member for member in op.group(self._mesh, place.rank) if member != place.rank]
        return [_Place(peer, self._channels[self._stands_for[peer]][channel][kth]) for peer in peers]

    def _at(self, place: _Place) -> tuple[Call, Op]:
        return self._ops[self._stands_for[place.rank]][place.number]


def _channel(op: Send | Recv | Collective) -> Channel:
    if isinstance(op, Collective):
        return ("group", op.stream, op.axes, op.members)
    return ("send" if isinstance(op, Send) else "receive", op.axis, op.offset, op.direction)
