"""Orders over token slices: a sequence goes through the pipeline in q parts, each after those before it.

Slice j of sequence i has the number iq + j, where other orders have a micro-batch. Attention needs a sequence's earlier
slices forward, and its later ones backward: forwards run in the order 0..q-1, backwards in the order q-1..0.
With slices of equal times, tF and tB are those of a whole sequence on a stage, and tF/q and tB/q those of a slice.
"""

from collections.abc import Sequence

from sim.plan.words.program import Call
from sim.training.pipeline.actions import Action, Order


def terapipe(num_ranks: int, num_sequences: int, num_slices: int) -> list[Order]:
    """TeraPipe (Li et al. 2021): all slices of all sequences forward, then backward the other way round.

    Slices of equal times: makespan (m + (P-1)/q)(tF+tB). Of any times, the same on all stages: the sum of all tF and
    tB, and (P-1)(longest tF + longest tB). Every rank keeps mq slices, m sequences' worth.
    """
    total = num_sequences * num_slices
    return [
        [Action("F", r, k) for k in range(total)] + [Action("B", r, k) for k in reversed(range(total))]
        for r in range(num_ranks)
    ]


def seq_1f1b(num_ranks: int, num_sequences: int, num_slices: int) -> list[Order]:
    """Seq1F1B (Sun et al. 2024): P-2-r+q forwards of slices, then forward and backward in turn, then the rest.

    Backwards take the sequences in order, each from its last slice to its first. Slices of equal times: makespan
    (m + (P-1)/q)(tF+tB), as TeraPipe; rank r keeps min(P-1-r+q, mq) slices. One slice per sequence: plain 1F1B.
    """
    q, total, orders = num_slices, num_sequences * num_slices, []
    backwards = [i * q + j for i in range(num_sequences) for j in reversed(range(q))]
    for r in range(num_ranks):
        warmup = min(num_ranks - 2 - r + q, total)
        order = [Action("F", r, k) for k in range(warmup)]
        for forward, backward in zip(range(warmup, total), backwards, strict=False):
            order += [Action("F", r, forward), Action("B", r, backward)]
        orders.append(order + [Action("B", r, k) for k in backwards[total - warmup :]])
    return orders


def slice_calls(calls: Sequence[Sequence[Call]], num_slices: int) -> list[list[Call]]:
    """Return calls of the tasks of slices, from calls that have slice j of micro-batch i for micro-batch iq + j."""
    return [[_slice_call(call, num_slices) for call in of_rank] for of_rank in calls]


def _slice_call(call: Call, num_slices: int) -> Call:
    assert call.microbatch is not None
    microbatch, index = divmod(call.microbatch, num_slices)
    return Call(f"{call.task}@{index}", microbatch)
