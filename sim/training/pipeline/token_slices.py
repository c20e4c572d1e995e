"""Orders over token slices: a sequence goes through the pipeline in q slices, each after the slices before it.

Slice j of sequence i has the number iq + j in place of a micro-batch's number. Attention needs a sequence's earlier
slices in forward, and its later slices in backward, so forwards run in the order 0..q-1 and backwards in the order
q-1..0. With slices of equal times, tF and tB are the times of a whole sequence on a stage, tF/q and tB/q those of a
slice.
"""

from collections.abc import Sequence

import numpy as np

from sim.integers import narrowed, widened
from sim.plan.words.calls import Calls
from sim.training.pipeline.actions import Order, alternating


def terapipe(num_ranks: int, num_sequences: int, num_slices: int) -> list[Order]:
    """TeraPipe (Li et al. 2021): all slices of all sequences forward, then backward in reverse.

    Slices of equal times: makespan (m + (P-1)/q)(tF+tB). Slices of any times, equal on all stages: the sum of all tF
    and tB, plus (P-1)(longest tF + longest tB). Every rank keeps mq slices, which are m sequences.
    """
    every = np.arange(num_sequences * num_slices)
    return [Order.joined(Order.alike("F", r, every), Order.alike("B", r, every[::-1])) for r in range(num_ranks)]


def seq_1f1b(num_ranks: int, num_sequences: int, num_slices: int) -> list[Order]:
    """Seq1F1B (Sun et al. 2024): P-2-r+q forwards of slices, then alternating forwards and backwards, then the rest.

    Backwards take the sequences in order, each from its last slice to its first. Slices of equal times: makespan (m +
    (P-1)/q)(tF+tB), as for TeraPipe; rank r keeps min(P-1-r+q, mq) slices. With one slice per sequence this is 1F1B.
    """
    q, every = num_slices, np.arange(num_sequences * num_slices)
    backwards, orders = every // q * q + (q - 1 - every % q), []
    for r in range(num_ranks):
        warmup = min(num_ranks - 2 - r + q, len(every))
        orders.append(alternating(Order.alike("F", r, every), Order.alike("B", r, backwards), warmup))
    return orders


def slice_calls(calls: Sequence[Calls], num_slices: int) -> list[Calls]:
    """Return the calls of the tasks of slices; in ``calls``, slice j of micro-batch i has the number iq + j."""
    return [_slice_calls(of_rank, num_slices) for of_rank in calls]


def _slice_calls(calls: Calls, num_slices: int) -> Calls:
    names = tuple(f"{name}@{index}" for name in calls.names for index in range(num_slices))
    microbatches, index = np.divmod(widened(calls.microbatches), num_slices)
    tasks = num_slices * widened(calls.tasks) + index
    return Calls(names, narrowed(tasks), narrowed(microbatches), calls.lags)
