"""A rank's unrolled program: every op instance in issue order, its buffer instances, and the ops it waits for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from msgspec import Struct
from torch import Tensor

from backends.execution.result import InstanceKey
from sim.plan.facts.dependencies import hazards, per_microbatch
from sim.plan.words.buffer import Buffer, Scope, Tier
from sim.plan.words.op import Compute, Op, Send
from sim.plan.words.program import Call, Program, Task

Positions = tuple[tuple[int, ...], ...]
"""Positions of other ops, for each op in issue order."""


@dataclass(slots=True, eq=False)
class Slot:
    """One buffer instance: its tensor while it lives, and the number of ops that will still use it.

    ``num_bytes``: size of its tensor's storage; 0 until the first write.
    """

    buffer: Buffer
    tensor: Tensor | None = None
    num_bytes: int = 0
    touches_left: int = 0
    kept: bool = False

    def fill(self, tensor: Tensor) -> None:
        """Give the instance its tensor."""
        self.tensor = tensor
        self.num_bytes = tensor.untyped_storage().nbytes()


class OpInstance(Struct, frozen=True):
    """One op of one call. ``waits``: positions, in issue order, of ops on other streams that must end before it.

    ``touched``: each slot that it reads or writes, once.
    A send leaves its stream before its message is complete. So ops on its own stream wait for it too.
    """

    position: int
    call: Call
    task: Task
    op: Op
    reads: tuple[Slot, ...]
    writes: tuple[Slot, ...]
    touched: tuple[Slot, ...]
    waits: tuple[int, ...]

    @property
    def name(self) -> str:
        """Return the op's name in a timeline."""
        return f"{self.task.name}/{self.op.name}"

    @property
    def on_host(self) -> bool:
        """Return whether this op is a kernel that runs on the host's cores."""
        buffers = (slot.buffer for slot in (*self.reads, *self.writes))
        return isinstance(self.op, Compute) and any(buffer.tier is Tier.HOST for buffer in buffers)

    @property
    def where(self) -> str:
        """Return stream, op and micro-batch in words."""
        microbatch = "" if self.call.microbatch is None else f", micro-batch {self.call.microbatch}"
        return f"stream {self.op.stream!r}, op {self.name!r}{microbatch}"


@dataclass(slots=True)
class Schedule:
    """The schedule of one step of one rank: its ops and its buffer instances."""

    instances: list[OpInstance]
    slots: dict[InstanceKey, Slot]
    _lock: Lock = field(default_factory=Lock)

    def release(self, instance: OpInstance) -> None:
        """Free the buffer instances whose last use was this op."""
        with self._lock:
            for slot in instance.touched:
                slot.touches_left -= 1
                if not slot.touches_left and not slot.kept:
                    slot.tensor = None


@dataclass(slots=True)
class Waits:
    """The ops that every op of a program waits for, found once for equal steps and for all ranks that run them."""

    _known: dict[tuple[int, Sequence[Call]], tuple[Program, Positions]] = field(default_factory=dict)

    def of(self, program: Program) -> Positions:
        """Return ``OpInstance.waits`` of every op in issue order."""
        key = (id(program.tasks), program.calls)
        if key not in self._known:
            self._known[key] = program, _waits(program)  # kept, so that no other tasks get this identity
        return self._known[key][1]


def _waits(program: Program) -> Positions:
    ops = [op for *_, op in program.instances()]
    return tuple(
        tuple([p for p in earlier if ops[p].stream != op.stream or isinstance(ops[p], Send)])
        for earlier, op in zip(hazards(program), ops, strict=True)
    )


def unroll(
    program: Program,
    persistent: Mapping[str, Slot],
    kept: frozenset[str] = frozenset(),
    waits: Waits | None = None,
) -> Schedule:
    """Return one step of a program over the given persistent slots.

    Slots of buffers named in ``kept`` hold their tensors to the end of the step. ``waits``: those found before.
    """
    slots: dict[InstanceKey, Slot] = {}
    repeated, names = per_microbatch(program), {name: _names(task) for name, task in program.tasks.items()}

    def slot_of(name: str, call: Call) -> Slot:
        key = (name, call.microbatch if name in repeated else None)
        slot = slots.get(key)
        if slot is None:
            buffer = program.buffers[name]
            slot = persistent[name] if buffer.scope is Scope.PERSISTENT else Slot(buffer, kept=name in kept)
            slots[key] = slot
        return slot

    instances: list[OpInstance] = []
    waiting = iter((waits or Waits()).of(program))
    for call in program.calls:
        task, of_call = program.tasks[call.task], {name: slot_of(name, call) for name in names[call.task]}
        for op in task.ops:
            reads = tuple([of_call[name] for name in op.reads])
            writes = tuple([of_call[name] for name in op.writes])
            touched = tuple(dict.fromkeys(reads + writes))
            for slot in touched:
                slot.touches_left += 1
            instances.append(OpInstance(len(instances), call, task, op, reads, writes, touched, next(waiting)))
    return Schedule(instances, slots)


def _names(task: Task) -> tuple[str, ...]:
    """Return the buffers that a task's ops read or write, each once, in the order of first use."""
    return tuple(dict.fromkeys(name for op in task.ops for name in (*op.reads, *op.writes)))
