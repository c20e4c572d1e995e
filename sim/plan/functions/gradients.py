"""Automatic differentiation of plans: from the tape of a forward task to the ops of its backward."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sim.plan.errors import LayoutError
from sim.plan.functions.tracing import Record, TaskTracer, Tensor
from sim.plan.words.buffer import Kind
from sim.plan.words.layout import Layout, Partial, Shard
from sim.plan.words.op import Direction, Op, Recv, Send, reads_from_outside

RECOMPUTED: Final = ".recomputed"
"""Suffix of the names of recomputed ops."""


def is_recomputed(op: Op) -> bool:
    """Return whether an op of a backward recomputes a part of the forward."""
    return op.name.endswith(RECOMPUTED)


def backpropagate(
    tracer: TaskTracer, tape: Sequence[Record], seeds: Mapping[Tensor, Tensor | None]
) -> dict[Tensor, Tensor]:
    """Emit the backward ops of ``tape``; return the gradient of every tensor that has one.

    ``seeds``: gradients of outputs; None for a loss, because its backward kernel contains the constant.
    Kernels accumulate the gradients of parameters, which are not returned.
    A gradient may stay ``Partial`` until a record needs it in the layout of its forward tensor. Only then is the change
    of layout emitted.
    """
    pending = pending_gradients(tracer, tape, seeds)
    result: dict[Tensor, Tensor] = {}
    for tensor in list(pending):
        gradient = _collect(tracer, tensor, pending, settle=True)
        if gradient is not None:
            result[tensor] = gradient
    return result


def pending_gradients(
    tracer: TaskTracer, tape: Sequence[Record], seeds: Mapping[Tensor, Tensor | None]
) -> dict[Tensor, list[Tensor]]:
    """Emit the backward ops of ``tape``; return the terms of the gradient of every tensor that it did not make.

    ``seeds``: see ``backpropagate``.
    """
    pending: dict[Tensor, list[Tensor]] = {t: [g] for t, g in seeds.items() if g is not None}
    losses = {t for t, g in seeds.items() if g is None}
    for record in reversed(tape):
        gradients = [_collect(tracer, t, pending, settle=record.settles) for t in record.outputs]
        if all(g is None for g in gradients) and losses.isdisjoint(record.outputs):
            continue
        for tensor, gradient in zip(record.inputs, record.backward(tracer, gradients), strict=True):
            if gradient is not None:
                pending.setdefault(tensor, []).append(gradient)
    return pending


def _collect(tracer: TaskTracer, tensor: Tensor, pending: dict[Tensor, list[Tensor]], *, settle: bool) -> Tensor | None:
    """Return the sum of a tensor's pending gradients. ``settle``: bring it to the tensor's layout."""
    terms = pending.pop(tensor, [])
    if not terms:
        return None
    if any(term.layout != terms[0].layout for term in terms):
        terms = [settled(tracer, term, tensor.layout) for term in terms]
    total = terms[0]
    for term in terms[1:]:
        (total,) = tracer.compute(
            f"{tensor.name}.gradient_sum", "add", (total, term), (total.layout,), kind=Kind.WORKSPACE
        )
    return settled(tracer, total, tensor.layout) if settle else total


def settled(tracer: TaskTracer, gradient: Tensor, layout: Layout) -> Tensor:
    """Return a gradient in the layout of its forward tensor: summed, sliced or exchanged.

    If the forward tensor is partial, its gradient is replicated.
    """
    for axis, placement in gradient.layout.placements:
        wanted = layout.get(axis)
        if isinstance(placement, Partial):
            if isinstance(wanted, Shard):
                target = gradient.layout.without(axis).with_(axis, wanted)
                gradient = tracer.scatter_sum(gradient, axis, wanted.dim, target, Kind.WORKSPACE)
            else:
                gradient = tracer.all_reduce(gradient, axis)
        elif isinstance(wanted, Shard) and wanted != placement:
            gradient = tracer.exchange(gradient, axis, wanted.dim, Kind.WORKSPACE)
        elif placement != wanted:
            raise LayoutError(f"gradient {gradient.name} lies {placement} over {axis!r} where {wanted} is wanted")
    return gradient


def checkpoint(
    tracer: TaskTracer,
    function: Callable[[TaskTracer, Sequence[Tensor]], Tensor],
    inputs: Sequence[Tensor],
    *,
    stops_early: bool = False,
) -> Tensor:
    """Return ``function(inputs)`` without kept intermediate tensors: backward recomputes them (Chen et al. 2016).

    All ops of ``function`` run again, with their collectives, before the first op of its backward: autograd starts from
    the recomputed output (Megatron-LM, ``CheckpointFunction.backward``).
    ``stops_early``: only the ops that backward needs run again (``torch.utils.checkpoint``, ``use_reentrant=False``).
    In both cases a wait separates recomputation and backward. So a backward that is split in two parts has the
    recomputation in its first part.
    """
    was_recording, tracer.recording = tracer.recording, False
    y = function(tracer, inputs)
    tracer.recording = was_recording

    def backward(reverse: TaskTracer, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        (dy,) = gradients
        kept = [reverse.saved(x) for x in inputs]
        begin = len(reverse.ops)
        again, inner = _run_again(reverse, function, kept)
        end = len(reverse.ops)
        found = backpropagate(reverse, inner, {again: dy})
        before, made, later = reverse.ops[:begin], reverse.ops[begin:end], reverse.ops[end:]
        awaited: Sequence[str] = (again.name,)
        if stops_early:
            made = _needed_ops(made, later)
            written = {name for op in made for name in op.writes}
            awaited = [name for name in reads_from_outside(later) if name in written]
        reverse.ops = before + made
        reverse.wait_for(*awaited)
        reverse.ops += later
        return [found.get(x) for x in kept]

    tracer.record(inputs, (y,), backward)
    return y


def _run_again(
    reverse: TaskTracer, function: Callable[[TaskTracer, Sequence[Tensor]], Tensor], kept: Sequence[Tensor]
) -> tuple[Tensor, list[Record]]:
    """Emit a checkpointed function's ops again; return its output and its tape."""
    outer_tape, outer_suffix, outer_recording = reverse.tape, reverse.suffix, reverse.recording
    reverse.tape, reverse.suffix, reverse.recording = [], f"{outer_suffix}{RECOMPUTED}", True
    again = function(reverse, kept)
    inner = reverse.tape
    reverse.tape, reverse.suffix, reverse.recording = outer_tape, outer_suffix, outer_recording
    return again, inner


def _needed_ops(ops: Sequence[Op], later: Sequence[Op]) -> list[Op]:
    """Return the ops, in order, whose results the ops ``later`` read, directly or through other ops.

    Peers run the same ops. So a send is needed if this rank needs the receive of the same number and direction.
    """
    needed_later, receives = frozenset(reads_from_outside(later)), _receives(ops)
    kept: set[int] = set()
    while True:
        needed, found = set(needed_later), set[int]()
        for place in reversed(range(len(ops))):
            if receives.get(place) in kept or not needed.isdisjoint(ops[place].writes):
                found.add(place)
                needed.update(ops[place].reads)
        if found == kept:
            return [ops[place] for place in sorted(kept)]
        kept = found


def _receives(ops: Sequence[Op]) -> dict[int, int]:
    """Return the place of the receive that corresponds to each send, by the send's place."""
    ways = defaultdict[tuple[str, Direction, int], tuple[list[int], list[int]]](lambda: ([], []))
    for place, op in enumerate(ops):
        if isinstance(op, Send):
            ways[op.axis, op.direction, op.offset][0].append(place)
        elif isinstance(op, Recv):
            ways[op.axis, op.direction, -op.offset][1].append(place)
    return {send: receive for sends, receives in ways.values() for send, receive in zip(sends, receives, strict=True)}
