"""Tasks, programs and plans."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from sim.plan.words.buffer import Buffer
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Op


class Phase(StrEnum):
    """What part of a training step a task is.

    ``HEAD`` is a loss of a stage's own, forward and backward, as local updates have it. ``BACKWARD`` ends a
    micro-batch's stay: the whole backward, or its later part, for weights, where ``BACKWARD_INPUT`` is the earlier one.
    """

    FORWARD = "forward"
    HEAD = "head"
    BACKWARD = "backward"
    BACKWARD_INPUT = "backward_input"
    SEND = "send"
    RECV = "recv"
    GRADIENT_SYNC = "gradient_sync"
    OPTIMIZER = "optimizer"
    PREPARE = "prepare"


@dataclass(frozen=True, slots=True)
class Task:
    """A straight list of ops, stored once and called once per micro-batch (or once per step).

    ``stage`` is the virtual stage that it belongs to, -1 where it belongs to none.
    """

    name: str
    phase: Phase
    ops: tuple[Op, ...]
    stage: int = -1


@dataclass(frozen=True, slots=True)
class Call:
    """Run a task; its MICROBATCH buffers are those of ``microbatch`` (None: the step's own).

    ``lag``: the call completes the step that many before the one whose program it is in (see ``sim.plan.words.steps``).
    """

    task: str
    microbatch: int | None = None
    lag: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """What every rank of one role does: calls in issue order.

    Order on a stream and buffer hazards are the only dependencies between the ops of a rank.
    """

    role: Mapping[str, int]
    buffers: Mapping[str, Buffer]
    tasks: Mapping[str, Task]
    calls: tuple[Call, ...]

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


@dataclass(frozen=True, slots=True)
class Plan:
    """One program per role over a mesh; a rank runs the program whose fixed coordinates it has.

    A plan is one of many equal steps, or holds several. ``barrier``: no rank begins a step before all have ended the
    one before; else only what a rank's ops wait for holds them up.

    ``num_steps``: optimizer steps that it holds. Where they are several, a step has ``microbatches_per_step`` and its
    micro-batches are numbered on from those of the step before; calls of a step's end bear the number of its last one.
    """

    name: str
    mesh: Mesh
    programs: tuple[Program, ...]
    seed: int = 0
    barrier: bool = True
    num_steps: int = 1
    microbatches_per_step: int = 0

    def program_of(self, rank: int) -> Program:
        """Return the program that a rank runs."""
        for program in self.programs:
            if all(self.mesh.coordinate(rank, axis) == value for axis, value in program.role.items()):
                return program
        raise LookupError(f"no program for rank {rank}")

    def ranks_of(self, program: Program) -> tuple[int, ...]:
        """Return the ranks that run a program, in order."""
        free = tuple(name for name, _ in self.mesh.axes if name not in program.role)
        return self.mesh.group(self.mesh.rank(program.role), free)
