"""Collectives and messages on the buffers of a plan.

A muted op communicates nothing. Its result is then:

* in-place collectives and broadcast: the buffer as it was; all_gather: copies of the local piece;
* reduce_scatter: the local slice; reduce: the root's own term;
* all_to_all: zeros in place of the other ranks' slices; recv: zeros; barrier: no wait.

A check must notice every muted op except a barrier.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from backends.torch.communication.collectives import GroupCollectives
from backends.torch.values.packing import FlatMemory, unpack
from backends.torch.values.slicing import flat_piece, write_piece
from sim.plan.words.op import Collective, CollectiveKind

_FLAT: Final = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
"""Collectives that can work in place on the pieces of a flat vector."""


class Channel(NamedTuple):
    """The collectives of one group on one stream, and the flat memory of that stream."""

    group: GroupCollectives
    memory: FlatMemory


def run_collective(
    op: Collective,
    reads: Sequence[Tensor],
    writes: Sequence[Tensor],
    channel: Channel,
    device: torch.device,
    *,
    muted: bool,
) -> None:
    """Run a collective from tensors ``reads`` to tensors ``writes``. Positions follow the group's order of ranks."""
    if op.kind is CollectiveKind.ALL_REDUCE:
        _all_reduce(op, writes, channel, muted=muted)
    elif op.dim is None and op.reads == op.writes and op.kind in _FLAT:
        _in_place(op, writes, channel, muted=muted)
    elif op.kind is CollectiveKind.ALL_GATHER:
        _all_gather(op, reads, writes, channel, muted=muted)
    elif op.kind is CollectiveKind.REDUCE_SCATTER:
        _reduce_scatter(op, reads, writes[0], channel, muted=muted)
    elif op.kind is CollectiveKind.BROADCAST:
        _broadcast(op, reads, writes, channel, muted=muted)
    elif op.kind is CollectiveKind.REDUCE:
        _reduce(op, reads, writes, channel, muted=muted)
    elif op.kind is CollectiveKind.ALL_TO_ALL:
        _all_to_all(op, reads[0], writes[0], channel.group, muted=muted)
    elif not muted:
        channel.group.barrier(device)


def _all_reduce(op: Collective, tensors: Sequence[Tensor], channel: Channel, *, muted: bool) -> None:
    group, memory = channel
    if muted:
        return
    flat = tensors[0].view(-1) if len(tensors) == 1 else memory.packed(tensors)
    group.all_reduce(flat if op.span is None else flat[slice(*op.span)], op.reduction)
    if len(tensors) > 1:
        unpack(flat, tensors)


def _all_gather(
    op: Collective, reads: Sequence[Tensor], writes: Sequence[Tensor], channel: Channel, *, muted: bool
) -> None:
    group, memory = channel
    piece = reads[0].view(-1) if len(reads) == 1 else memory.packed(reads)
    joined = op.dim == 0  # the pieces of rows lie one after another in the result
    target = writes[0] if joined else memory.empty("received", group.size * piece.numel(), piece)
    pieces = target.view(group.size, -1)
    if muted:
        pieces.copy_(piece.expand_as(pieces))
    else:
        group.all_gather(pieces, piece)
    if op.dim is None:
        unpack(target, writes)
    elif not joined:
        torch.cat(pieces.view(group.size, *reads[0].shape).unbind(), op.dim, out=writes[0])


def _reduce_scatter(op: Collective, reads: Sequence[Tensor], piece: Tensor, channel: Channel, *, muted: bool) -> None:
    group, memory = channel
    if op.dim is None:
        terms = memory.packed(reads, group.size * piece.numel())
    else:
        terms = torch.cat(reads[0].chunk(group.size, op.dim)) if op.dim else reads[0]
    terms = terms.view(group.size, -1)
    if muted:
        piece.view(-1).copy_(terms[group.position])
    else:
        group.reduce_scatter(piece.view(-1), terms, op.reduction)


def _in_place(op: Collective, tensors: Sequence[Tensor], channel: Channel, *, muted: bool) -> None:
    """Sum this rank's piece of a flat vector, or receive the other ranks' pieces."""
    group, memory = channel
    if muted:
        return
    size = -(-sum(tensor.numel() for tensor in tensors) // group.size)
    if op.kind is CollectiveKind.ALL_GATHER:
        pieces = memory.empty("received", group.size * size, tensors[0])
        group.all_gather(pieces.view(group.size, size), flat_piece(tensors, group.position, size))
        unpack(pieces, tensors)
    else:
        terms = memory.packed(tensors, group.size * size).view(group.size, size)
        piece = memory.empty("received", size, terms)
        group.reduce_scatter(piece, terms, op.reduction)
        write_piece(tensors, group.position, piece)


def _broadcast(
    op: Collective, reads: Sequence[Tensor], writes: Sequence[Tensor], channel: Channel, *, muted: bool
) -> None:
    group, memory = channel
    flat = memory.packed(reads or writes)
    if not reads:
        flat.zero_()
    if not muted:
        group.broadcast(flat, op.root)
    unpack(flat, writes)


def _reduce(
    op: Collective, reads: Sequence[Tensor], writes: Sequence[Tensor], channel: Channel, *, muted: bool
) -> None:
    group, memory = channel
    flat = memory.packed(reads)
    if not muted:
        group.reduce(flat, op.root, op.reduction)
    if group.position == op.root:
        unpack(flat, writes)
    elif not op.root_only:
        unpack(flat.zero_(), writes)


def _all_to_all(op: Collective, source: Tensor, target: Tensor, group: GroupCollectives, *, muted: bool) -> None:
    assert op.dim is not None
    if source.is_floating_point() and source.itemsize == 1:  # of which gloo knows no type
        source, target = source.view(torch.uint8), target.view(torch.uint8)
    g, me, join_dim = group.size, group.position, op.dim if op.join_dim is None else op.join_dim
    rows = op.sizes or ((source.shape[op.dim] // g,) * g,) * g
    used = source.narrow(op.dim, 0, sum(rows[me]))
    pieces = [piece.reshape(-1) for piece in torch.split_with_sizes(used, rows[me], op.dim)]
    shapes = [(*source.shape[: op.dim], line[me], *source.shape[op.dim + 1 :]) for line in rows]
    row = torch.Size(shapes[0][: op.dim] + shapes[0][op.dim + 1 :]).numel()
    counts = [[n * row for n in line] for line in rows]
    received = source.new_zeros(sum(line[me] for line in counts))
    places = torch.split_with_sizes(received, [line[me] for line in counts])
    if muted:
        places[me].copy_(pieces[me])
    else:
        group.all_to_all(received, torch.cat(pieces), counts)
    joined = torch.cat([place.view(shape) for place, shape in zip(places, shapes, strict=True)], join_dim)
    target.zero_()
    target.narrow(join_dim, 0, joined.shape[join_dim]).copy_(joined)


def copy_alone(op: Collective, reads: Sequence[Tensor], writes: Sequence[Tensor]) -> None:
    """Run a collective in a group of one rank: it does nothing, or copies."""
    if op.reads != op.writes:
        total = sum(tensor.numel() for tensor in writes)
        unpack(flat_piece(reads, 0, total), writes)


def start_send(tensor: Tensor, group: dist.ProcessGroup) -> list[dist.Work]:
    """Start a send to the group's second rank."""
    return dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, group=group, group_peer=1)])


def receive(tensor: Tensor, group: dist.ProcessGroup) -> None:
    """Receive from the group's first rank."""
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, tensor, group=group, group_peer=0)]):
        work.wait()
