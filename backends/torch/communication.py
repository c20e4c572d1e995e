"""Collectives and messages on tensors.

A muted op communicates nothing: an all_reduce or broadcast keeps what is there, an all_gather repeats the local
piece, a reduce_scatter takes the local slice, a recv gives zeros. Checks must notice each of them.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from backends.torch.slicing import flat_piece
from sim.plan.op import Collective, CollectiveKind, Reduction

_REDUCTIONS = {Reduction.SUM: dist.ReduceOp.SUM, Reduction.MAX: dist.ReduceOp.MAX}


def run_collective(
    op: Collective, reads: Sequence[Tensor], writes: Sequence[Tensor], group: dist.ProcessGroup, *, muted: bool
) -> None:
    """Communicate ``reads`` into ``writes`` within a group, whose order is the group's order of ranks."""
    if op.kind is CollectiveKind.ALL_REDUCE:
        _all_reduce(op, writes, group, muted=muted)
    elif op.kind is CollectiveKind.ALL_GATHER:
        _all_gather(op, reads, writes, group, muted=muted)
    elif op.kind is CollectiveKind.REDUCE_SCATTER:
        _reduce_scatter(op, reads, writes[0], group, muted=muted)
    else:
        _broadcast(reads, writes, group, muted=muted)


def _all_reduce(op: Collective, tensors: Sequence[Tensor], group: dist.ProcessGroup, *, muted: bool) -> None:
    if muted:
        return
    flat = tensors[0] if len(tensors) == 1 else _flat(tensors)
    dist.all_reduce(flat, _REDUCTIONS[op.reduction], group)
    if len(tensors) > 1:
        _unflatten(flat, tensors)


def _all_gather(
    op: Collective, reads: Sequence[Tensor], writes: Sequence[Tensor], group: dist.ProcessGroup, *, muted: bool
) -> None:
    parts = group.size()
    piece = reads[0] if len(reads) == 1 else _flat(reads)
    pieces = piece.new_empty((parts, *piece.shape))
    if muted:
        pieces.copy_(piece.expand_as(pieces))
    else:
        dist.all_gather_single(pieces.flatten(0, 1), piece, group)
    if op.dim is None:
        _unflatten(pieces.reshape(-1), writes)
    else:
        torch.cat(pieces.unbind(), op.dim, out=writes[0])


def _reduce_scatter(
    op: Collective, reads: Sequence[Tensor], piece: Tensor, group: dist.ProcessGroup, *, muted: bool
) -> None:
    parts = group.size()
    if op.dim is None:
        flat = _flat(reads)
        padded = flat_piece(flat, 0, parts * piece.numel())
    else:
        padded = torch.cat(reads[0].chunk(parts, op.dim)) if op.dim else reads[0]
    if muted:
        piece.copy_(padded.reshape(parts, *piece.shape)[group.rank()])
    else:
        dist.reduce_scatter_single(piece, padded, _REDUCTIONS[op.reduction], group)


def _broadcast(reads: Sequence[Tensor], writes: Sequence[Tensor], group: dist.ProcessGroup, *, muted: bool) -> None:
    flat = _flat(reads)
    if not muted:
        dist.broadcast(flat, group=group, group_src=0)
    _unflatten(flat, writes)


def copy_alone(op: Collective, reads: Sequence[Tensor], writes: Sequence[Tensor]) -> None:
    """Do what a collective does in a group of one: nothing, or a copy."""
    if op.reads != op.writes:
        total = sum(tensor.numel() for tensor in writes)
        _unflatten(flat_piece(_flat(reads), 0, total), writes)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _unflatten(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy a flat vector (its end may be padding) into tensors, in order."""
    start = 0
    for tensor in tensors:
        tensor.copy_(flat[start : start + tensor.numel()].reshape(tensor.shape))
        start += tensor.numel()


def start_send(tensor: Tensor, group: dist.ProcessGroup) -> list[dist.Work]:
    """Begin to send to the group's second rank."""
    return dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, group=group, group_peer=1)])


def receive(tensor: Tensor, group: dist.ProcessGroup) -> None:
    """Receive from the group's first rank."""
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, tensor, group=group, group_peer=0)]):
        work.wait()
