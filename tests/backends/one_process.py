"""Runs all ranks of a plan in this process, in the order of issue: many ranks at the price of none.

Kernels, buffers and checks are the torch backend's own; only the collectives between the ranks are made here, in two
passes over the members of a group: each gives its tensor, then each gets its result. So it says whether a plan computes
the right numbers, and not whether its streams can run at once.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from backends.execution.result import CheckReport
from backends.torch.communication.buffers import Channel, copy_alone, run_collective
from backends.torch.communication.collectives import GroupCollectives, Table
from backends.torch.reference.check import check_rank, kept_for_check
from backends.torch.reference.dense import Reference, backpropagation, run_reference
from backends.torch.running.interpreter import Interpreter
from backends.torch.running.schedule import OpInstance
from backends.torch.running.state import persistent_slots
from backends.torch.values.packing import FlatMemory
from sim.plan.words.op import Collective, Op, Recv, Reduction, Send
from sim.plan.words.program import Plan
from sim.training.spec.job import DenseTraining

CPU = torch.device("cpu")


class _Given(Exception):  # noqa: N818 - no error: it ends a member's first pass
    """The tensor that a member gives to a collective."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.tensor = tensor.clone()


@dataclass(slots=True)
class _Member:
    """The collectives of one member of a group: the first pass asks what all members give, the second has it."""

    size: int
    position: int
    given: Sequence[Tensor] = ()
    sent_bytes: int = 0

    def all_reduce(self, flat: Tensor, reduction: Reduction) -> None:
        flat.copy_(_reduced(self._all_of(flat), reduction))

    def all_gather(self, pieces: Tensor, piece: Tensor) -> None:
        pieces.copy_(torch.stack(self._all_of(piece)))

    def reduce_scatter(self, piece: Tensor, terms: Tensor, reduction: Reduction) -> None:
        piece.copy_(_reduced(self._all_of(terms), reduction)[self.position])

    def broadcast(self, flat: Tensor, root: int) -> None:
        flat.copy_(self._all_of(flat)[root])

    def reduce(self, flat: Tensor, root: int, reduction: Reduction) -> None:
        total = _reduced(self._all_of(flat), reduction)
        flat.copy_(total if self.position == root else torch.full_like(flat, torch.nan))

    def all_to_all(self, received: Tensor, sent: Tensor, table: Table) -> None:
        rows = zip(self._all_of(sent), table, strict=True)
        received.copy_(torch.cat([flat.split(list(counts))[self.position] for flat, counts in rows]))

    def barrier(self, _device: torch.device) -> None:
        """All ranks are here."""

    def _all_of(self, own: Tensor) -> list[Tensor]:
        """Return the tensors of all members, in order. Raises _Given in the first pass."""
        if not self.given:
            raise _Given(own)
        return list(self.given)


def _reduced(terms: list[Tensor], reduction: Reduction) -> Tensor:
    stacked = torch.stack(terms)
    return stacked.amax(0) if reduction is Reduction.MAX else stacked.sum(0)


def run_in_one_process(
    plan: Plan, job: DenseTraining, references: dict[Any, Reference] | None = None, mute: frozenset[str] = frozenset()
) -> Mapping[int, CheckReport]:
    """Return every rank's comparison with the dense reference after one step of a plan that leaves nothing over.

    ``references``: dense runs to be used again, by model and batch. ``mute``: ops that communicate nothing.
    """
    ranks = ranks_after_a_step(plan, mute)
    references = {} if references is None else references
    key = job.model, job.training.global_batch_size, job.training.optimizer, job.seed
    if key not in references:
        references[key] = run_reference(job, 1, CPU, backpropagation(job.model), 0)
    return {rank.rank: check_rank(rank, references[key], job.training.precision) for rank in ranks}


def ranks_after_a_step(plan: Plan, mute: frozenset[str] = frozenset()) -> Sequence[Interpreter]:
    """Return every rank with the buffers that it has after one step. ``mute``: ops that communicate nothing."""
    communicators: Any = SimpleNamespace(group=_group_of)
    device: Any = SimpleNamespace(torch_device=CPU, sleep=lambda _: None)
    ranks = []
    for rank in range(plan.mesh.size):
        kept, persistent = kept_for_check(plan.program_of(rank)), persistent_slots(plan, rank, CPU)
        ranks.append(Interpreter(plan, rank, device, communicators, persistent, mute, kept))
        ranks[-1].prepare(0, 1)
    _AllRanks(plan, ranks).run()
    return ranks


def _group_of(plan: Plan, op: Collective, _rank: int) -> Any:
    """Return what the interpreter asks of a group when it counts bytes."""
    return SimpleNamespace(size=lambda: op.group_size(plan.mesh))


class _AllRanks:
    """Every rank's program, run in turn up to what the rank must wait for."""

    def __init__(self, plan: Plan, ranks: Sequence[Interpreter]) -> None:
        self._plan, self._ranks = plan, ranks
        self._waiting = [deque(rank.schedule.instances) for rank in ranks]
        self._mail = defaultdict[tuple[int, int, str], deque[list[Tensor]]](deque)

    def run(self) -> None:
        """Run all programs to their ends."""
        while left := sum(map(len, self._waiting)):
            for rank in range(len(self._ranks)):
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
            self._ranks[rank].schedule.release(instance)
        else:
            self._ranks[rank].start(instance)
            self._ranks[rank].finish(instance)
        self._waiting[rank].popleft()
        return True

    def _pass_on(self, instance: OpInstance, op: Send | Recv, rank: int) -> bool:
        """Send a message, or receive it if it is there; a muted one is not sent, and zeros arrive."""
        peer = self._plan.mesh.shift(rank, op.axis, op.offset)
        if op.name in self._ranks[rank].mute:
            for slot in instance.writes:
                self._ranks[rank]._allocated(slot).zero_()
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
        parts = [_Part(self._ranks[member], instance) for member, instance in zip(group, instances, strict=True)]
        if len(group) == 1:
            parts[0].copy_alone()
        else:
            members = [_Member(len(group), position) for position in range(len(group))]
            given = [part.gives(member) for part, member in zip(parts, members, strict=True)]
            for part, member in zip(parts, members, strict=True):
                member.given = [tensor for tensor in given if tensor is not None]
                if member.given:
                    part.communicate(member)
        for member, part in zip(group, parts, strict=True):
            part.rank.schedule.release(part.instance)
            self._waiting[member].popleft()
        return True


def _is_same(op: Collective, other: Op) -> bool:
    if not isinstance(other, Collective):
        return False
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
