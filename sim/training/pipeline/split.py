"""Split a backward into the part for inputs and the part for weights (Qi et al. 2023)."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from sim.plan.words.op import Op, Recv, Send


def split_backward(ops: Sequence[Op], targets: Collection[str]) -> tuple[list[Op], list[Op]]:
    """Return the ops that the buffers ``targets`` need, and the others, each in their order.

    ``targets`` holds the gradient that goes to the stage before. What it does not need feeds nothing but gradients of
    parameters, and may run later. An op also stays in the first part where a later op of that part overwrites what
    it reads, where it writes nothing (a wait for the arriving gradient), and where it is a message, so that all ranks
    exchange theirs in one order. The ops are copies: an op belongs to one task.
    """
    needed, overwritten = set(targets), set[str]()
    first: list[Op] = []
    later: list[Op] = []
    for op in reversed(ops):
        stays = not op.writes or isinstance(op, Send | Recv)
        if stays or not needed.isdisjoint(op.writes) or not overwritten.isdisjoint(op.reads):
            first.append(replace(op))
            needed.update(op.reads)
            overwritten.update(op.writes)
        else:
            later.append(replace(op))
    return first[::-1], later[::-1]
