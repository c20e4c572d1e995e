"""Exact op orders of the pipeline schedules.

Conventions: P ranks, v virtual stages ("chunks") per rank, m micro-batches. Virtual stage s lies on rank
s mod P (looping placement). Each builder returns one list of actions per rank.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from sim.training.spec import PipelineSpec


class Action(NamedTuple):
    """Run one virtual stage forward ("F") or backward ("B") for one micro-batch."""

    kind: str
    stage: int
    microbatch: int


Order = list[Action]


def gpipe(num_ranks: int, num_microbatches: int, _: int = 1) -> list[Order]:
    """All forwards, then all backwards (Huang et al. 2019), first micro-batch first as in torch's ScheduleGPipe.

    Makespan (m+P-1)(tF+tB); every rank keeps m micro-batches.
    """
    m = num_microbatches
    return [[Action("F", r, i) for i in range(m)] + [Action("B", r, i) for i in range(m)] for r in range(num_ranks)]


def one_forward_one_backward(num_ranks: int, num_microbatches: int, _: int = 1) -> list[Order]:
    """PipeDream-flush, DAPPLE: P-1-r forwards, then forward and backward in turn, then the rest.

    Makespan (m+P-1)(tF+tB); rank r keeps min(P-r, m) micro-batches.
    """
    m, orders = num_microbatches, []
    for r in range(num_ranks):
        warmup = min(num_ranks - 1 - r, m)
        order = [Action("F", r, i) for i in range(warmup)]
        for i in range(m - warmup):
            order += [Action("F", r, warmup + i), Action("B", r, i)]
        orders.append(order + [Action("B", r, i) for i in range(m - warmup, m)])
    return orders


def interleaved(num_ranks: int, num_microbatches: int, virtual_stages: int) -> list[Order]:
    """Megatron-LM's interleaved 1F1B (Narayanan et al. 2021, section 2.2); m must be a multiple of P.

    Makespan (m+(P-1)/v)(tF+tB); rank r keeps min(2(P-1-r)+(v-1)P+1, mv) chunks.
    """
    p, m, v = num_ranks, num_microbatches, virtual_stages
    total = m * v

    def chunk(k: int) -> int:
        return k % (p * v) // p

    def microbatch(k: int) -> int:
        return k // (p * v) * p + k % p

    orders = []
    for r in range(p):
        forwards = [Action("F", chunk(k) * p + r, microbatch(k)) for k in range(total)]
        backwards = [Action("B", (v - 1 - chunk(k)) * p + r, microbatch(k)) for k in range(total)]
        warmup = total if m == p else min(2 * (p - 1 - r) + (v - 1) * p, total)
        order = forwards[:warmup]
        for forward, backward in zip(forwards[warmup:], backwards, strict=False):
            order += [forward, backward]
        orders.append(order + backwards[total - warmup :])
    return orders


SCHEDULES: Mapping[str, Callable[[int, int, int], list[Order]]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved_1f1b": interleaved,
}


def orders(pipeline: PipelineSpec, num_microbatches: int) -> list[Order]:
    """Return every rank's actions under the pipeline's schedule."""
    return SCHEDULES[pipeline.schedule](pipeline.degree, num_microbatches, pipeline.virtual_stages)
