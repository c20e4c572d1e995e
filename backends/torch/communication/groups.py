"""Communicators of torch.distributed: one per group of ranks and stream."""

from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

from backends.execution.request import ExplicitCollectives
from backends.torch.communication.collectives import (
    GroupCollectives,
    NativeCollectives,
    SteppedCollectives,
    exchange_over,
)
from sim.plan.words.op import Collective, Op, Recv, Send
from sim.plan.words.program import Plan

GroupKey = tuple[str, tuple[int, ...]]
"""The traffic of a communicator (a stream, or a message's axis and direction), and its ranks in group order."""


def group_key(plan: Plan, op: Op, rank: int) -> GroupKey | None:
    """Return the key of the communicator that ``rank`` needs for an op; None if the op has no peer.

    Collectives of two streams never share a communicator. A message has one per sender, receiver and
    direction, so forward and backward traffic of a pipeline of two cannot be confused.
    """
    if isinstance(op, Collective):
        members = op.group(plan.mesh, rank)
        return (op.stream, members) if len(members) > 1 else None
    if isinstance(op, Send | Recv):
        peer = plan.mesh.shift(rank, op.axis, op.offset)
        sender, receiver, offset = (rank, peer, op.offset) if isinstance(op, Send) else (peer, rank, -op.offset)
        return (f"{op.axis}{offset:+d} {op.direction}", (sender, receiver))
    return None


def _keys(plan: Plan) -> Iterator[GroupKey]:
    for program in plan.programs:
        ops = [op for task in program.tasks.values() for op in task.ops if not _is_silent(op)]
        for rank in plan.ranks_of(program):
            for op in ops:
                key = group_key(plan, op, rank)
                if key is not None:
                    yield key


def _is_silent(op: Op) -> bool:
    return not isinstance(op, Collective | Send | Recv)


def _in_job(plan: Plan, key: GroupKey) -> GroupKey:
    """Return a group's key with ranks of the job in place of ranks of the plan."""
    what, members = key
    return what, tuple(plan.session_ranks[member] for member in members)


class Communicators:
    """The process groups of a rank: made in the same order on all ranks, and kept from plan to plan."""

    def __init__(self, device: torch.device, timeout_s: float) -> None:
        self._device = device
        self._timeout = timedelta(seconds=timeout_s)
        self._groups: dict[GroupKey, dist.ProcessGroup] = {}
        """Keyed by ranks of the job."""

    def prepare(self, plan: Plan, *, explicit: bool = False) -> None:
        """Make every process group of a plan. All ranks of the job must call this, members of a group or not.

        ``explicit``: collectives run as step lists, so members of a group also send messages to each other.
        """
        rank = dist.get_rank()
        for key in sorted({_in_job(plan, key) for key in _keys(plan)} - set(self._groups)):
            _, members = key
            group = dist.new_group(list(members), timeout=self._timeout, sort_ranks=False)
            self._groups[key] = group
            if rank in members and self._device.type == "cuda":
                # NCCL connects at first use and blocks the host; connect now, in the same order on all ranks
                dist.all_reduce(torch.zeros(1, device=self._device), group=group)
                if explicit:
                    pairs = torch.zeros(len(members), device=self._device)
                    dist.all_to_all_single(torch.empty_like(pairs), pairs, group=group)

    def group(self, plan: Plan, op: Op, rank: int) -> dist.ProcessGroup | None:
        """Return the process group of an op on ``rank``; None if the op has no peer."""
        key = group_key(plan, op, rank)
        return None if key is None else self._groups[_in_job(plan, key)]

    def collectives(
        self, plan: Plan, key: GroupKey, rank: int, explicit: ExplicitCollectives | None
    ) -> GroupCollectives:
        """Return the collectives of a prepared group: the library's, or step lists."""
        key = _in_job(plan, key)
        group, (_, members) = self._groups[key], key
        if explicit is None:
            return NativeCollectives(group)
        nodes = tuple(explicit.node_of(member) for member in members)
        return SteppedCollectives(exchange_over(group), members.index(plan.session_ranks[rank]), nodes, explicit)
