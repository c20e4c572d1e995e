"""Tasks, programs and plans."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.plan.words.buffer import Buffer
from sim.plan.words.distinct_ops import DistinctOps
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Op
from sim.plan.words.touches import Touches


class Traits(Struct, frozen=True):
    """Properties of a task that do not follow from its ops. Backends read these properties and no phase names.

    ``coalesces``: the task is part of the main line of work, and one call of it may be simulated as one event.
        ``opens`` / ``closes``: a call begins / ends the stay of a micro-batch on the task's stage. A task that does
        both counts only on a stage where no other task opens or closes stays.
    ``launched``: a host thread launches the ops one by one.
    ``derived``: a reverse pass derived the ops, so a framework launches them from its own loop.
    """

    coalesces: bool = False
    opens: bool = False
    closes: bool = False
    launched: bool = False
    derived: bool = False


class Phase(StrEnum):
    """The part of a step that a task belongs to: a label for timelines, with the traits of such tasks.

    ``HEAD``: the loss of a single stage, forward and backward, under local updates. ``PREFILL``, ``DECODE``: a forward
    over prompts, or over the next tokens of answers, after which nothing goes backward.
    ``BACKWARD``: the whole backward, or the later part for weights where ``BACKWARD_INPUT`` is the earlier part.
    ``FORWARD_PART``, ``BACKWARD_PART``: pieces of passes that take turns; a forward's first piece is a ``FORWARD``, a
    backward's last a ``BACKWARD``.
    """

    traits: Traits

    def __new__(cls, label: str, traits: Traits | None = None) -> Self:
        """Return the member with this label; without ``traits`` it has none."""
        member = str.__new__(cls, label)
        member._value_, member.traits = label, traits or Traits()
        return member

    FORWARD = "forward", Traits(coalesces=True, launched=True, opens=True)
    HEAD = "head", Traits(coalesces=True, launched=True, opens=True, closes=True)
    BACKWARD = "backward", Traits(coalesces=True, launched=True, derived=True, closes=True)
    BACKWARD_INPUT = "backward_input", Traits(coalesces=True, launched=True, derived=True)
    FORWARD_PART = "forward_part", Traits(coalesces=True, launched=True)
    BACKWARD_PART = "backward_part", Traits(coalesces=True, launched=True, derived=True)
    PREFILL = "prefill", Traits(coalesces=True, launched=True)
    DECODE = "decode", Traits(coalesces=True, launched=True)
    SEND = "send", Traits(launched=True)
    RECV = "recv"
    GRADIENT_SYNC = "gradient_sync"
    OPTIMIZER = "optimizer"
    PREPARE = "prepare"


class Task(Struct, frozen=True):
    """A list of ops without branches, stored once and called once per micro-batch (or once per step).

    ``stage``: the virtual stage of the task, -1 for none.
    """

    name: str
    phase: Phase
    ops: tuple[Op, ...]
    stage: int = -1

    @property
    def label(self) -> str:
        """Return the name of the task's phase."""
        return str(self.phase)

    @property
    def traits(self) -> Traits:
        """Return the properties of the task that do not follow from its ops."""
        return self.phase.traits


class Call(NamedTuple):
    """One run of a task; a tuple, as plans have a hundred thousand of them.

    ``microbatch``: the micro-batch whose MICROBATCH buffers it uses; None: the step's own.
    ``lag``: the call completes the step that many steps earlier (see ``sim.plan.words.steps``).
    """

    task: str
    microbatch: int | None = None
    lag: int = 0


class Namesake(Struct, frozen=True, dict=True, eq=False):
    """A program under its own names, for one that has the buffers and tasks of another, equal but for names.

    ``shared``: the names of the other's tasks, in their order. ``write``: returns the program; called once, if ever.
    """

    shared: Sequence[str]
    write: "Callable[[], Program]"

    @cached_property
    def program(self) -> "Program":
        """Return the program under its own names."""
        return self.write()

    @cached_property
    def tasks(self) -> Mapping[str, Task]:
        """Return its tasks under its own names, by the names that it shares them by."""
        return dict(zip(self.shared, self.program.tasks.values(), strict=True))


class Program(Struct, frozen=True, dict=True):
    """The program of every rank of one role: calls in issue order; long ones are held as numbers (``Calls``).

    Stream order and buffer hazards are the only dependencies between the ops of a rank.
    ``released``: persistent buffers that the rank gives up at the end of the plan, because another rank now holds them.
    ``own``: where a program has the buffers and tasks of one that is equal but for names, itself under its own names
        (see ``sim.plan.facts.namesakes``).
    """

    role: Mapping[str, int]
    buffers: Mapping[str, Buffer]
    tasks: Mapping[str, Task]
    calls: Sequence[Call]
    released: frozenset[str] = frozenset()
    own: Namesake | None = None

    @cached_property
    def distinct_ops(self) -> DistinctOps:
        """Cache of the distinct ops of its tasks: passes that ask about many ops ask about each of these once."""
        return DistinctOps.of(self.buffers, [(name, task.ops) for name, task in self.tasks.items()])

    @cached_property
    def touches(self) -> Touches:
        """Cache of the reads and writes of its ops."""
        return Touches.of(self.buffers, (task.ops for task in self.tasks.values()))

    @cached_property
    def bytes_of(self) -> Mapping[str, int]:
        """Cache of the bytes of each buffer, by name: ops of many buffers are asked for their sum again and again."""
        return {name: buffer.num_bytes for name, buffer in self.buffers.items()}

    def calling(self, calls: Sequence[Call], **changes: Any) -> "Program":
        """Return a program of the same buffers and tasks with other calls, and other changes; it shares what they are.

        ``changes``: fields by name.
        """
        found = replace(self, calls=calls, **changes)
        found.__dict__.update(distinct_ops=self.distinct_ops, touches=self.touches, bytes_of=self.bytes_of)
        return found

    def named(self, task: str) -> Task:
        """Return a task under its own names, to be shown."""
        return self.tasks[task] if self.own is None else self.own.tasks[task]

    @property
    def role_name(self) -> str:
        """Return the role in words, e.g. ``pp=3``."""
        return ",".join(f"{axis}={value}" for axis, value in self.role.items()) or "all"

    def instances(self) -> Iterator[tuple[int, Call, Task, Op]]:
        """Yield every op in issue order as (call index, call, task, op)."""
        for index, call in enumerate(self.calls):
            task = self.tasks[call.task]
            for op in task.ops:
                yield index, call, task, op


class Plan(Struct, frozen=True, dict=True):
    """One program per role over a mesh; a rank runs the program whose fixed coordinates it has.

    A plan is one of many equal steps, or holds several steps.
    ``barrier``: no rank begins a step before all ranks have ended the previous one. Without it a rank's ops wait only
        for their dependencies.
    ``num_steps``: optimizer steps in the plan. In a plan of several steps each has ``microbatches_per_step``
        micro-batches, numbered consecutively over the steps. Calls at the end of a step have the number of its last
        micro-batch.

    In a session (``sim.plan.session``) plans run one after the other on the same ranks.
    ``ranks``: the session rank of each mesh rank; empty: 0, 1, 2, ... Other session ranks idle.
    ``leavers``: session ranks that idle from now on and give up all their buffers.
    ``observed``: small buffers whose values every rank that has them reports at the end of the plan.
    """

    name: str
    mesh: Mesh
    programs: tuple[Program, ...]
    seed: int = 0
    barrier: bool = True
    num_steps: int = 1
    microbatches_per_step: int = 0
    ranks: tuple[int, ...] = ()
    leavers: frozenset[int] = frozenset()
    observed: frozenset[str] = frozenset()

    @property
    def session_ranks(self) -> Sequence[int]:
        """Return the session rank of each mesh rank."""
        return self.ranks or range(self.mesh.size)

    def program_of(self, rank: int) -> Program:
        """Return the program that a rank runs."""
        for axes, of_place in self._by_role.items():
            program = of_place.get(tuple([self.mesh.coordinate(rank, axis) for axis in axes]))
            if program is not None:
                return program
        raise LookupError(f"no program for rank {rank}")

    @cached_property
    def _by_role(self) -> dict[tuple[str, ...], dict[tuple[int, ...], Program]]:
        """Return the programs by the axes of their roles, and by their coordinates along these."""
        found: dict[tuple[str, ...], dict[tuple[int, ...], Program]] = {}
        for program in self.programs:
            found.setdefault(tuple(program.role), {}).setdefault(tuple(program.role.values()), program)
        return found

    def ranks_of(self, program: Program) -> tuple[int, ...]:
        """Return the ranks that run a program, in order."""
        role = tuple(program.role.items())
        if role not in self._ranks_of:
            self._ranks_of[role] = self.mesh.group(self.mesh.rank(program.role), self._free_axes(program))
        return self._ranks_of[role]

    def rank_array_of(self, program: Program) -> NDArray[np.int64]:
        """Return the same as an array that is not to be written, which of many ranks takes less."""
        role = tuple(program.role.items())
        if role not in self._rank_arrays:
            ranks = self.mesh.ranks_along(self.mesh.rank(program.role), self._free_axes(program)).ravel()
            ranks.flags.writeable = False
            self._rank_arrays[role] = ranks
        return self._rank_arrays[role]

    def num_ranks_of(self, program: Program) -> int:
        """Return how many ranks run a program."""
        return self.mesh.degree(*self._free_axes(program))

    def _free_axes(self, program: Program) -> tuple[str, ...]:
        """Return the axes along which all ranks run a program."""
        return tuple(name for name, _ in self.mesh.axes if name not in program.role)

    @cached_property
    def _ranks_of(self) -> dict[tuple[tuple[str, int], ...], tuple[int, ...]]:
        """Cache of the ranks of roles: many passes ask for them."""
        return {}

    @cached_property
    def _rank_arrays(self) -> dict[tuple[tuple[str, int], ...], NDArray[np.int64]]:
        return {}
