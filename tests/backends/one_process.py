"""Runs all ranks of a plan in this process, in the order of issue: many ranks at the price of none.

Kernels, buffers and checks are the torch backend's own; only the collectives between the ranks are made here, in two
passes over the members of a group: each gives its tensor, then each gets its result. So it says whether a plan computes
the right numbers, and not whether its streams can run at once.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backends.execution.request import ExecutionRequest
from backends.execution.result import CheckReport, Execution, InstanceKey, RankResult, joined
from backends.torch.communication.buffers import Channel, copy_alone, run_collective
from backends.torch.communication.collectives import GroupCollectives, Table
from backends.torch.reference.checking import checked, kept_by
from backends.torch.reference.references import References
from backends.torch.running.interpreter import Interpreter
from backends.torch.running.memory import account_memory
from backends.torch.running.schedule import OpInstance, Positions, Waits
from backends.torch.running.state import persistent_slots
from backends.torch.values.packing import FlatMemory
from sim.inference.spec import InferenceJob
from sim.plan.facts.liveness import lifetimes
from sim.plan.words.buffer import Tier
from sim.plan.words.op import Collective, Op, Recv, Reduction, Send
from sim.plan.words.program import Plan, Program
from sim.plan.words.steps import longest_lag
from sim.training.spec.job import DenseTraining

CPU = torch.device("cpu")


class _Given(Exception):  # noqa: N818 - no error: it ends a member's first pass
    """The tensor that a member gives to a collective."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.tensor = tensor.clone()


@dataclass(slots=True)
class _Meeting:
    """What the members of a group give to a collective, in order; nothing in the first pass, which asks for it.

    What is the same for all members is computed once.
    """

    given: list[Tensor] = field(default_factory=list)
    _stacked: Tensor | None = None
    _reduced: Tensor | None = None

    def stacked(self) -> Tensor:
        """Return the members' tensors, one row each."""
        if self._stacked is None:
            self._stacked = torch.stack(self.given)
        return self._stacked

    def reduced(self, reduction: Reduction) -> Tensor:
        """Return the sum, or the maxima, of the members' tensors."""
        if self._reduced is None:
            terms = self.stacked()
            self._reduced = terms.amax(0) if reduction is Reduction.MAX else terms.sum(0)
        return self._reduced


@dataclass(slots=True)
class _Member:
    """The collectives of one member of a group: the first pass asks what all but the last give, the second has it.

    The last member begins the second pass, and adds what it gives itself.
    """

    meeting: _Meeting
    size: int
    position: int
    sent_bytes: int = 0

    def all_reduce(self, flat: Tensor, reduction: Reduction) -> None:
        flat.copy_(self._all_with(flat).reduced(reduction))

    def all_gather(self, pieces: Tensor, piece: Tensor) -> None:
        pieces.copy_(self._all_with(piece).stacked())

    def reduce_scatter(self, piece: Tensor, terms: Tensor, reduction: Reduction) -> None:
        piece.copy_(self._all_with(terms).reduced(reduction)[self.position])

    def broadcast(self, flat: Tensor, root: int) -> None:
        flat.copy_(self._all_with(flat).given[root])

    def reduce(self, flat: Tensor, root: int, reduction: Reduction) -> None:
        total = self._all_with(flat).reduced(reduction)
        flat.copy_(total if self.position == root else torch.full_like(flat, torch.nan))

    def all_to_all(self, received: Tensor, sent: Tensor, table: Table) -> None:
        rows = zip(self._all_with(sent).given, table, strict=True)
        received.copy_(torch.cat([flat.split(list(counts))[self.position] for flat, counts in rows]))

    def barrier(self, _device: torch.device) -> None:
        """All ranks are here."""

    def _all_with(self, own: Tensor) -> _Meeting:
        """Return what all members give. Raises _Given in the first pass."""
        given = self.meeting.given
        if self.position == self.size - 1 == len(given):
            given.append(own.clone())
        elif not given:
            raise _Given(own)
        return self.meeting


class _InTurn(Waits):
    """Ops wait for nothing: each rank's run one after the other, in the order of issue."""

    def of(self, program: Program) -> Positions:
        """Return nothing to wait for."""
        return ((),) * sum(len(program.tasks[call.task].ops) for call in program.calls)


def run_in_one_process(
    plan: Plan, job: DenseTraining | InferenceJob, references: References | None = None,
    mute: frozenset[str] = frozenset(), num_steps: int = 1,
) -> CheckReport:  # fmt: skip
    """Return every rank's comparison with the dense reference after some steps, as one report.

    A plan that leaves work to the next step runs three. ``references``: dense runs to be used again.
    ``mute``: ops that communicate nothing.
    """
    iterations = 3 if any(longest_lag(program) for program in plan.programs) else num_steps
    request = ExecutionRequest(plan=plan, check_against=job, mute=mute, iterations=iterations)
    references = references or References(CPU)
    report = joined({rank.rank: checked(rank, request, references) for rank in _ran(request).ranks})
    assert report is not None
    return report


def execute_in_one_process(request: ExecutionRequest, references: References) -> Execution:
    """Return what all ranks find out about a request; its times are counts of ops."""
    run, results = _ran(request), []
    lives = {id(program): lifetimes(program) for program in request.plan.programs}
    for rank in run.ranks:
        slots, of_program = rank.slots, lives[id(rank.program)]
        results.append(RankResult(
            rank=rank.rank, role=rank.program.role_name, starts_s=run.starts[rank.rank], ends_s=run.ends[rank.rank],
            step_s=max(run.ends[rank.rank], default=0.0), cpu_s=0.0,
            memory=account_memory(rank.program, slots, lives=of_program),
            check=checked(rank, request, references), allocator_peak_bytes=None,
            values=_kept_values(rank, request.keep),
            host_peak_bytes=account_memory(rank.program, slots, Tier.HOST, of_program).peak_bytes, work=rank.work,
        ))  # fmt: skip
    return Execution(request.plan, tuple(results))


def _ran(request: ExecutionRequest) -> "_AllRanks":
    """Return all ranks after the steps of a request."""
    run = _AllRanks(request.plan, _interpreters(request))
    run.steps(request.iterations, drained=bool(request.longest_lag))
    return run


def _kept_values(rank: Interpreter, names: frozenset[str]) -> Mapping[InstanceKey, NDArray[np.float64]]:
    slots = rank.slots.items()
    return {key: slot.tensor.double().numpy() for key, slot in slots if key[0] in names and slot.tensor is not None}


def ranks_after_a_step(plan: Plan, mute: frozenset[str] = frozenset()) -> Sequence[Interpreter]:
    """Return every rank with the buffers that it has after one step. ``mute``: ops that communicate nothing."""
    run = _AllRanks(plan, _interpreters(ExecutionRequest(plan=plan, mute=mute)))
    run.steps(1, drained=False)
    return run.ranks


def _interpreters(request: ExecutionRequest) -> list[Interpreter]:
    communicators: Any = SimpleNamespace(group=_group_of)
    device: Any = SimpleNamespace(torch_device=CPU, sleep=lambda _: None)
    plan, ranks, waits = request.plan, [], _InTurn()
    for rank in range(plan.mesh.size):
        kept = request.keep | kept_by(request, rank)
        slots = persistent_slots(plan, rank, CPU)
        ranks.append(Interpreter(plan, rank, device, communicators, slots, request.mute, kept, waits=waits))
    return ranks


def _group_of(plan: Plan, op: Op, _rank: int) -> Any:
    """Return what the interpreter asks of a group when it counts bytes."""
    return SimpleNamespace(size=lambda: op.group_size(plan.mesh) if isinstance(op, Collective) else 2)


class _AllRanks:
    """Every rank's program, run in turn up to what the rank must wait for."""

    def __init__(self, plan: Plan, ranks: Sequence[Interpreter]) -> None:
        self._plan, self.ranks = plan, ranks
        self._waiting: list[deque[OpInstance]] = []
        self._mail = defaultdict[tuple[int, int, str], deque[list[Tensor]]](deque)
        self._count = 0
        self.starts: list[list[float]] = []
        self.ends: list[list[float]] = []

    @torch.inference_mode()
    def steps(self, iterations: int, *, drained: bool) -> None:
        """Run so many steps, then what the last one leaves to the next; schedules and times stay those of the last."""
        for step in range(iterations):
            self._run(step, iterations)
        if drained:
            last = [rank.schedule for rank in self.ranks], self.starts, self.ends
            self._run(iterations, iterations)
            schedules, self.starts, self.ends = last
            for rank, schedule in zip(self.ranks, schedules, strict=True):
                rank.schedule = schedule

    def _run(self, step: int, iterations: int) -> None:
        for rank in self.ranks:
            rank.prepare(step, iterations)
            rank._ran.clear()
        self._waiting = [deque(rank.schedule.instances) for rank in self.ranks]
        self._count = 0
        self.starts = [[0.0] * len(rank.schedule.instances) for rank in self.ranks]
        self.ends = [[0.0] * len(rank.schedule.instances) for rank in self.ranks]
        while left := sum(map(len, self._waiting)):
            for rank in range(len(self.ranks)):
                while self._waiting[rank] and self._step(rank):
                    pass
            assert sum(map(len, self._waiting)) < left, "ranks wait for each other"

    def _step(self, rank: int) -> bool:
        """Run a rank's next op; return whether it could."""
        instance = self._waiting[rank][0]
        if isinstance(instance.op, Collective):
            return self._meet(instance.op, rank)
        if isinstance(instance.op, Send | Recv):
            if not self._pass_on(instance, instance.op, rank):
                return False
            self.ranks[rank].finish(instance)
        else:
            self.ranks[rank].start(instance)
            self.ranks[rank].finish(instance)
        self._ended([rank])
        return True

    def _ended(self, members: Sequence[int]) -> None:
        """Note that the next op of some ranks has been run, at once."""
        for rank in members:
            position = self._waiting[rank].popleft().position
            self.starts[rank][position], self.ends[rank][position] = self._count, self._count + 1.0
        self._count += 1

    def _pass_on(self, instance: OpInstance, op: Send | Recv, rank: int) -> bool:
        """Send a message, or receive it if it is there; a muted one is not sent, and zeros arrive."""
        peer = self._plan.mesh.shift(rank, op.axis, op.offset)
        if op.name in self.ranks[rank].mute:
            for slot in instance.writes:
                self.ranks[rank]._allocated(slot).zero_()
            return True
        if isinstance(op, Send):
            tensors = [slot.tensor.clone() for slot in instance.reads if slot.tensor is not None]
            self._mail[rank, peer, op.direction].append(tensors)
            return True
        if not self._mail[peer, rank, op.direction]:
            return False
        for slot, tensor in zip(instance.writes, self._mail[peer, rank, op.direction].popleft(), strict=True):
            slot.fill(tensor)
        return True

    def _meet(self, op: Collective, rank: int) -> bool:
        """Run a collective on all members of a group, if they have all come to it."""
        group = op.group(self._plan.mesh, rank)
        instances = [self._waiting[member][0] for member in group if self._waiting[member]]
        if len(instances) < len(group) or not all(_is_same(op, instance.op) for instance in instances):
            return False
        parts = [_Part(self.ranks[member], instance) for member, instance in zip(group, instances, strict=True)]
        if len(group) == 1:
            parts[0].copy_alone()
        else:
            meeting = _Meeting()
            members = [_Member(meeting, len(group), position) for position in range(len(group))]
            first = [part.gives(member) for part, member in zip(parts[:-1], members[:-1], strict=True)]
            meeting.given = [tensor for tensor in first if tensor is not None]
            parts[-1].communicate(members[-1])
            if meeting.given:
                for part, member in zip(parts[:-1], members[:-1], strict=True):
                    part.communicate(member)
        for part in parts:
            part.rank.finish(part.instance)
        self._ended(group)
        return True


def _is_same(op: Collective, other: Op) -> bool:
    if op is other or not isinstance(other, Collective):
        return op is other
    here, there = ((x.kind, x.axes, x.members, x.stream) for x in (op, other))
    return here == there


class _Part:
    """One rank's side of a collective."""

    def __init__(self, rank: Interpreter, instance: OpInstance) -> None:
        assert isinstance(instance.op, Collective)
        self.rank, self.instance, self.op = rank, instance, instance.op
        self.reads = [slot.tensor for slot in instance.reads if slot.tensor is not None]
        assert len(self.reads) == len(instance.reads)
        self.writes = [rank._allocated(slot) for slot in instance.writes]

    def copy_alone(self) -> None:
        """Do what the op does in a group of one."""
        copy_alone(self.op, self.reads, self.writes)

    def gives(self, member: _Member) -> Tensor | None:
        """Return the tensor that the rank gives; None where it communicates nothing, and is done."""
        try:
            self.communicate(member)
        except _Given as given:
            return given.tensor
        return None

    def communicate(self, member: _Member) -> None:
        """Communicate from the rank's buffers into its buffers."""
        channel = Channel(cast("GroupCollectives", member), FlatMemory())
        muted = self.op.name in self.rank.mute
        run_collective(self.op, self.reads, self.writes, channel, CPU, muted=muted)
