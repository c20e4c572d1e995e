"""Collectives of one group on flat tensors: by the library (gloo, NCCL), or by step lists of messages.

gloo has all collectives that this backend uses (torch 2.13: also reduce, and all_to_all with uneven sizes). A barrier
is an all_reduce of one element, as in NCCL. So it blocks a stream and not the host.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from backends.execution.errors import ExecutionError
from backends.execution.request import ExplicitCollectives
from backends.torch.communication.algorithms import Numbering, num_chunks, numbering, rounds_of
from sim.plan.words.op import Reduction

Table = Sequence[Sequence[int]]
"""Number of elements from each group position to each other one."""
Message = tuple[int, Tensor]
"""Group position of a peer, and the tensor to send or receive."""
Exchange = Callable[[Sequence[Message], Sequence[Message]], None]
"""A function of outgoing and incoming messages; it returns when all of them are complete."""

_OPS = {Reduction.SUM: dist.ReduceOp.SUM, Reduction.MAX: dist.ReduceOp.MAX}


class GroupCollectives(Protocol):
    """The collectives of one group. Ranks are named by group position. Tensors are contiguous."""

    size: int
    position: int
    sent_bytes: int

    def all_reduce(self, flat: Tensor, reduction: Reduction) -> None:
        """Reduce ``flat`` in place."""

    def all_gather(self, pieces: Tensor, piece: Tensor) -> None:
        """Write everybody's ``piece`` [n] into ``pieces`` [g, n]."""

    def reduce_scatter(self, piece: Tensor, terms: Tensor, reduction: Reduction) -> None:
        """Write the reduction of everybody's row ``position`` of ``terms`` [g, n] into ``piece`` [n]."""

    def broadcast(self, flat: Tensor, root: int) -> None:
        """Write the root's ``flat`` into everybody's."""

    def reduce(self, flat: Tensor, root: int, reduction: Reduction) -> None:
        """Reduce into the root's ``flat``; the contents of the others become undefined."""

    def all_to_all(self, received: Tensor, sent: Tensor, table: Table) -> None:
        """Send ``table[position][t]`` elements to t, in order; write what comes from s, ``table[s][position]``."""

    def barrier(self, device: torch.device) -> None:
        """Wait until all members have come."""


class NativeCollectives:
    """The library's collectives: gloo on CPUs, NCCL on GPUs. ``sent_bytes`` is unknown."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.size, self.position, self.sent_bytes = group.size(), group.rank(), 0

    def all_reduce(self, flat: Tensor, reduction: Reduction) -> None:
        """Reduce ``flat`` in place."""
        dist.all_reduce(flat, _OPS[reduction], self._group)

    def all_gather(self, pieces: Tensor, piece: Tensor) -> None:
        """Write everybody's ``piece`` [n] into ``pieces`` [g, n]."""
        dist.all_gather_single(pieces.reshape(-1), piece, self._group)

    def reduce_scatter(self, piece: Tensor, terms: Tensor, reduction: Reduction) -> None:
        """Write the reduction of everybody's row ``position`` of ``terms`` [g, n] into ``piece`` [n]."""
        dist.reduce_scatter_single(piece, terms.reshape(-1), _OPS[reduction], self._group)

    def broadcast(self, flat: Tensor, root: int) -> None:
        """Write the root's ``flat`` into everybody's."""
        dist.broadcast(flat, group=self._group, group_src=root)

    def reduce(self, flat: Tensor, root: int, reduction: Reduction) -> None:
        """Reduce into the root's ``flat``; the contents of the others become undefined."""
        dist.reduce(flat, op=_OPS[reduction], group=self._group, group_dst=root)

    def all_to_all(self, received: Tensor, sent: Tensor, table: Table) -> None:
        """Send ``table[position][t]`` elements to t, in order; write what comes from s, ``table[s][position]``."""
        incoming = [row[self.position] for row in table]
        dist.all_to_all_single(received, sent, incoming, list(table[self.position]), group=self._group)

    def barrier(self, device: torch.device) -> None:
        """Wait until all members have come."""
        dist.all_reduce(torch.ones(1, device=device), group=self._group)


def exchange_over(group: dist.ProcessGroup) -> Exchange:
    """Return the function that exchanges one round's messages: it posts all messages, then waits for them."""

    def exchange(outgoing: Sequence[Message], incoming: Sequence[Message]) -> None:
        posts = [dist.P2POp(dist.irecv, tensor, group=group, group_peer=peer) for peer, tensor in incoming]
        posts += [dist.P2POp(dist.isend, tensor, group=group, group_peer=peer) for peer, tensor in outgoing]
        for work in dist.batch_isend_irecv(posts) if posts else ():
            work.wait()

    return exchange


class SteppedCollectives:
    """Collectives by step lists. ``nodes``: node of each group position. ``sent_bytes``: bytes sent by this rank.

    A rank posts all messages of a round at once, and starts the next round when they are complete. If a peer waits for
    this rank in some round, this rank never waits in a later round. So ranks cannot deadlock.
    """

    def __init__(
        self, exchange: Exchange, position: int, nodes: tuple[int, ...], explicit: ExplicitCollectives
    ) -> None:
        self._exchange, self._nodes, self._explicit = exchange, nodes, explicit
        self.size, self.position, self.sent_bytes = len(nodes), position, 0

    def all_reduce(self, flat: Tensor, reduction: Reduction) -> None:
        """Reduce ``flat`` in place."""
        order = numbering(self._nodes, None)
        places = self._cut("all_reduce", flat, order)
        held = dict(places)
        self._run("all_reduce", order, held, _sizes(places), flat, reduction)
        _deliver("all_reduce", held, places)

    def all_gather(self, pieces: Tensor, piece: Tensor) -> None:
        """Write everybody's ``piece`` [n] into ``pieces`` [g, n]."""
        order = numbering(self._nodes, None)
        held = {order.order.index(self.position): piece}
        self._run("all_gather", order, held, [piece.numel()] * self.size, piece)
        _deliver("all_gather", held, {number: pieces[position] for number, position in enumerate(order.order)})

    def reduce_scatter(self, piece: Tensor, terms: Tensor, reduction: Reduction) -> None:
        """Write the reduction of everybody's row ``position`` of ``terms`` [g, n] into ``piece`` [n]."""
        order = numbering(self._nodes, None)
        sums = terms.clone()
        held = {number: sums[position] for number, position in enumerate(order.order)}
        self._run("reduce_scatter", order, held, [piece.numel()] * self.size, piece, reduction)
        _deliver("reduce_scatter", held, {order.order.index(self.position): piece})

    def broadcast(self, flat: Tensor, root: int) -> None:
        """Write the root's ``flat`` into everybody's."""
        order = numbering(self._nodes, root)
        places = self._cut("broadcast", flat, order)
        held = dict(places) if self.position == root else {}
        self._run("broadcast", order, held, _sizes(places), flat)
        _deliver("broadcast", held, places)

    def reduce(self, flat: Tensor, root: int, reduction: Reduction) -> None:
        """Reduce into the root's ``flat``; the contents of the others become undefined."""
        order = numbering(self._nodes, root)
        places = self._cut("reduce", flat, order)
        self._run("reduce", order, dict(places), _sizes(places), flat, reduction)

    def all_to_all(self, received: Tensor, sent: Tensor, table: Table) -> None:
        """Send ``table[position][t]`` elements to t, in order; write what comes from s, ``table[s][position]``."""
        order = numbering(self._nodes, None)
        number, g = order.order.index(self.position), self.size
        pieces = torch.split_with_sizes(sent, list(table[self.position]))
        held = {number * g + t: pieces[position] for t, position in enumerate(order.order)}
        self._run("all_to_all", order, held, [table[s][t] for s in order.order for t in order.order], sent)
        places = torch.split_with_sizes(received, [row[self.position] for row in table])
        _deliver("all_to_all", held, {s * g + number: places[position] for s, position in enumerate(order.order)})

    def barrier(self, device: torch.device) -> None:
        """Wait until a message from every member has arrived, directly or through other members."""
        order = numbering(self._nodes, None)
        held = {order.order.index(self.position): torch.ones(1, dtype=torch.uint8, device=device)}
        heard = torch.zeros(self.size, dtype=torch.uint8, device=device)
        self._run("barrier", order, held, [1] * self.size, heard)
        _deliver("barrier", held, dict(enumerate(heard.tensor_split(self.size))))

    def _cut(self, kind: str, flat: Tensor, order: Numbering) -> dict[int, Tensor]:
        """Return views of a vector's chunks; sizes differ by one element at most."""
        parts = num_chunks(kind, self._explicit.algorithm(kind), order.ranks_per_node)
        return dict(enumerate(flat.tensor_split(parts)))

    def _run(
        self,
        kind: str,
        order: Numbering,
        held: dict[int, Tensor],
        sizes: Sequence[int],
        like: Tensor,
        reduction: Reduction = Reduction.SUM,
    ) -> None:
        """Run this rank's part of a step list on the held chunks. ``sizes``: elements of every chunk.

        Outgoing chunks of a round are copied before the round changes any chunk. Empty chunks are not sent.
        """
        number = order.order.index(self.position)
        for part in rounds_of(kind, self._explicit.algorithm(kind), order.ranks_per_node, number):
            outgoing, incoming, arriving = [], [], []
            for peer, chunks in part.sends:
                full = [_arrived(kind, held, chunk) for chunk in chunks if sizes[chunk]]
                if full:
                    outgoing.append((order.order[peer], torch.cat(full)))
            for peer, entries in part.receives:
                expected = [(chunk, reduce) for chunk, reduce in entries if sizes[chunk]]
                if expected:
                    length = sum(sizes[chunk] for chunk, _ in expected)
                    incoming.append((order.order[peer], like.new_empty(length)))
                    arriving.append(expected)
            self._exchange(outgoing, incoming)
            self.sent_bytes += sum(message.nbytes for _, message in outgoing)
            for (_, message), expected in zip(incoming, arriving, strict=True):
                pieces = torch.split_with_sizes(message, [sizes[chunk] for chunk, _ in expected])
                for (chunk, reduce), piece in zip(expected, pieces, strict=True):
                    held[chunk] = _reduced(_arrived(kind, held, chunk), piece, reduction) if reduce else piece


def _sizes(places: Mapping[int, Tensor]) -> list[int]:
    return [place.numel() for place in places.values()]


def _reduced(own: Tensor, other: Tensor, reduction: Reduction) -> Tensor:
    """Return ``own`` with ``other`` reduced into it."""
    return own.add_(other) if reduction is Reduction.SUM else torch.maximum(own, other, out=own)


def _arrived(kind: str, held: Mapping[int, Tensor], chunk: int) -> Tensor:
    """Return a chunk that this rank must hold by now. Raises ExecutionError if it does not."""
    if chunk not in held:
        raise ExecutionError(f"the steps of this {kind} never bring chunk {chunk} to where it is needed")
    return held[chunk]


def _deliver(kind: str, held: Mapping[int, Tensor], places: Mapping[int, Tensor]) -> None:
    """Copy chunks to their places, except chunks that are already there."""
    for chunk, place in places.items():
        if place.numel():
            tensor = _arrived(kind, held, chunk)
            if tensor is not place:
                place.copy_(tensor)
