"""Split a backward into the part for inputs and the part for weights (Qi et al. 2023)."""

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from sim.plan.words.op import Op, Recv, Send


def split_backward(ops: Sequence[Op], targets: Collection[str]) -> tuple[list[Op], list[Op]]:
    """Return the ops that the buffers ``targets`` need, and the other ops, both in their order.

    ``targets`` holds the gradient for the previous stage. Ops that ``targets`` does not need serve only gradients of
    parameters, and may run later. Three kinds of op stay in the first part all the same: an op that reads a buffer
    which a later op of that part overwrites; an op that writes nothing (a wait for the arriving gradient); and a
    message, so that all ranks exchange messages in the same order. The ops are copies, since an op belongs to one task.
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
