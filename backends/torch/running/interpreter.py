"""The interpreter of one rank's program, step by step."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor

from backends.execution.errors import CommunicationError, ExecutionError, OpError
from backends.execution.request import ExplicitCollectives
from backends.execution.result import InstanceKey
from backends.torch.communication.buffers import Channel, copy_alone, receive, run_collective, start_send
from backends.torch.communication.collectives import GroupCollectives
from backends.torch.communication.groups import Communicators, GroupKey, group_key
from backends.torch.kernels import DTYPES, KERNELS, KernelContext, RankContext
from backends.torch.running.devices import Device, RankTimes
from backends.torch.running.schedule import OpInstance, Schedule, Slot, Waits, unroll
from backends.torch.values.copying import copy_between_tiers, empty
from backends.torch.values.packing import FlatMemory
from sim.plan.facts.rank_work import RankWork, kind_of, payload_of, sent_bytes
from sim.plan.words.buffer import Scope
from sim.plan.words.op import Collective, Compute, Copy, Op, Recv, Send
from sim.plan.words.program import Plan, Program
from sim.plan.words.steps import program_of_step


@dataclass(slots=True)
class Interpreter:
    """The interpreter of one rank's program on one device.

    ``mute``: names of ops that communicate nothing.
    ``kept``: names of buffers whose tensors stay in ``schedule.slots`` after the step, as persistent tensors do.
    ``explicit``: how to run collectives as step lists; None: use the library's collectives.
    ``first_step``: number of optimizer steps before the first step of the plan.
    ``waits``: what the ops of programs wait for; interpreters of one process may share it.
    A call that completes an earlier step uses the optimizer's step number of that earlier step.
    """

    plan: Plan
    rank: int
    device: Device
    communicators: Communicators
    persistent: Mapping[str, Slot]
    mute: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    explicit: ExplicitCollectives | None = None
    first_step: int = 0
    waits: Waits = field(default_factory=Waits)
    program: Program = field(init=False)
    schedule: Schedule = field(init=False)
    _contexts: dict[int, RankContext] = field(init=False)
    _groups: dict[GroupKey, GroupCollectives] = field(init=False, default_factory=dict)
    _sent: dict[int, int] = field(init=False, default_factory=dict)
    _ran: list[tuple[Op, int]] = field(init=False, default_factory=list)
    _memory: defaultdict[str, FlatMemory] = field(init=False, default_factory=lambda: defaultdict(FlatMemory))

    def __post_init__(self) -> None:
        self.program = self.plan.program_of(self.rank)

    def prepare(self, step: int, num_steps: int) -> None:
        """Build the schedule of one step in a run of ``num_steps``. This work is not part of the step's time."""
        place = self.plan.mesh, self.rank, self.plan.seed
        device = self.device.torch_device, self.device.sleep
        lags = {call.lag for call in self.program.calls}
        self._contexts = {lag: RankContext(*place, self._number(step - lag), *device) for lag in lags}
        program = program_of_step(self.program, step, num_steps)
        self.schedule = unroll(program, self.persistent, self.kept, self.waits)

    def _number(self, step: int) -> int:
        """Return the number of optimizer steps before those of the plan's ``step``-th iteration."""
        return self.first_step + step * self.plan.num_steps

    def run(self, origin_s: float, *, time_ops: bool) -> RankTimes:
        """Run the prepared step. Raises OpError with the name of the op that failed."""
        self._ran = []
        return self.device.run(self.schedule, self, origin_s, time_ops=time_ops)

    def drain(self, num_steps: int, origin_s: float) -> None:
        """Run the calls that the last step has deferred; ``schedule`` remains that of the last step."""
        last, ran = self.schedule, self._ran
        self.prepare(num_steps, num_steps)
        self.run(origin_s, time_ops=False)
        self.schedule, self._ran = last, ran

    @property
    def work(self) -> RankWork:
        """Return the counts of the ops of the last step, and the bytes of its messages and collectives."""
        ran = list(self._ran)
        return RankWork(dict(Counter([kind_of(op) for op, _ in ran])), sum(num_bytes for _, num_bytes in ran))

    @property
    def slots(self) -> dict[InstanceKey, Slot]:
        """Return the buffers of the last step, with the persistent ones that no op of it touches."""
        return {(name, None): slot for name, slot in self.persistent.items()} | self.schedule.slots

    def persistent_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the persistent buffers that the last step has touched, by name."""
        slots = self.schedule.slots.values()
        return {
            slot.buffer.name: slot.tensor
            for slot in slots
            if slot.buffer.scope is Scope.PERSISTENT and slot.tensor is not None
        }

    @property
    def sent_bytes(self) -> int:
        """Return the bytes that this rank sent in collectives run as step lists, over all steps."""
        return sum(group.sent_bytes for group in self._groups.values())

    # --- one op, as the device asks for it -----------------------------------------------------------------

    def start(self, instance: OpInstance) -> Sequence[dist.Work]:
        """Run an op on the current stream; return its messages that are still in flight."""
        try:
            return self._start(instance)
        except ExecutionError:
            raise
        except Exception as error:
            raise self._error(instance, error) from error

    def complete(self, instance: OpInstance, works: Sequence[dist.Work]) -> None:
        """Wait until the messages of an op are complete."""
        try:
            for work in works:
                work.wait()
        except Exception as error:
            raise self._error(instance, error) from error

    def finish(self, instance: OpInstance) -> None:
        """Count a finished op, and free the buffers of which it was the last user."""
        is_local = isinstance(instance.op, Compute)
        self._ran.append((instance.op, 0 if is_local else self._sent_by(instance)))
        self.schedule.release(instance)

    def _sent_by(self, instance: OpInstance) -> int:
        """Return the bytes of the tensors that an op gave to a message or a collective."""
        op = instance.op
        names = payload_of(op)
        if not names:
            return 0
        if id(op) not in self._sent:
            self._sent[id(op)] = self._measured_bytes(instance, names)
        return self._sent[id(op)]

    def _measured_bytes(self, instance: OpInstance, names: Sequence[str]) -> int:
        op = instance.op
        slots = instance.reads if names == op.reads else instance.writes
        tensors = [slot.tensor for slot in slots if slot.tensor is not None]
        group = self.communicators.group(self.plan, op, self.rank)
        size = 1 if group is None else group.size()
        return sent_bytes(op, [tensor.nbytes for tensor in tensors], tensors[0].element_size(), size)

    def _error(self, instance: OpInstance, error: Exception) -> OpError:
        kind = OpError if isinstance(instance.op, Compute) else CommunicationError
        return kind(f"rank {self.rank}, {instance.where}: {type(error).__name__}: {error}")

    def _start(self, instance: OpInstance) -> Sequence[dist.Work]:
        op = instance.op
        reads = [self._read(instance, slot) for slot in instance.reads]
        if isinstance(op, Compute):
            self._compute(instance, op, reads)
            return ()
        muted = op.name in self.mute
        if isinstance(op, Copy):
            copy_between_tiers(reads, [self._allocated(slot) for slot in instance.writes], muted=muted)
            return ()
        group = self.communicators.group(self.plan, op, self.rank)
        if isinstance(op, Send):
            return [] if muted or group is None else [w for tensor in reads for w in start_send(tensor, group)]
        writes = [self._allocated(slot) for slot in instance.writes]
        if isinstance(op, Recv):
            for tensor in writes:
                if muted or group is None:
                    tensor.zero_()
                else:
                    receive(tensor, group)
        elif group is None:
            copy_alone(op, reads, writes)
        else:
            channel = Channel(self._collectives(op), self._memory[op.stream])
            run_collective(op, reads, writes, channel, self.device.torch_device, muted=muted)
        return ()

    def _collectives(self, op: Collective) -> GroupCollectives:
        """Return the collectives of an op's group. All ops of that group and stream share one object."""
        key = group_key(self.plan, op, self.rank)
        assert key is not None
        if key not in self._groups:
            self._groups[key] = self.communicators.collectives(self.plan, key, self.rank, self.explicit)
        return self._groups[key]

    def _compute(self, instance: OpInstance, op: Compute, reads: Sequence[Tensor]) -> None:
        step, microbatch = self._contexts[instance.call.lag], instance.call.microbatch or 0
        if self.plan.num_steps > 1:
            later, microbatch = divmod(microbatch, self.plan.microbatches_per_step)
            step = replace(step, step=step.step + later)
        context = KernelContext(step, microbatch, tuple([slot.buffer for slot in instance.writes]))
        outputs = KERNELS[op.kernel](context, reads, op.attributes)
        for slot, tensor in zip(instance.writes, outputs, strict=True):
            if slot.tensor is None:
                slot.fill(tensor)
                self._check_output(instance, slot, tensor)
            elif slot.tensor is not tensor:
                slot.tensor.copy_(tensor)

    def _check_output(self, instance: OpInstance, slot: Slot, tensor: Tensor) -> None:
        """Raise OpError unless the kernel's output has the declared shape and type, and owns its memory."""
        buffer = slot.buffer
        declared = (buffer.shape, DTYPES[buffer.dtype], buffer.num_bytes)
        given = (tensor.shape, tensor.dtype, slot.num_bytes)
        if declared != given or not tensor.is_contiguous():
            raise OpError(
                f"rank {self.rank}, {instance.where}: the plan declares {buffer.name!r} as {declared}, "
                f"the kernel gave {(tuple(tensor.shape), *given[1:])}"
            )

    def _read(self, instance: OpInstance, slot: Slot) -> Tensor:
        if slot.tensor is None:
            raise OpError(f"rank {self.rank}, {instance.where}: reads {slot.buffer.name!r}, which nothing has written")
        return slot.tensor

    def _allocated(self, slot: Slot) -> Tensor:
        if slot.tensor is None:
            slot.fill(empty(slot.buffer, DTYPES[slot.buffer.dtype], self.device.torch_device))
        assert slot.tensor is not None
        return slot.tensor
