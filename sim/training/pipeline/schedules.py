"""Exact action orders of the pipeline schedules, and the table of all of them.

Conventions: P ranks, v virtual stages ("chunks") per rank, m micro-batches. Each builder returns one list of actions
per rank. Times in docstrings are per rank (all its stages) and micro-batch, without the time of messages: tF forward,
tB backward for inputs, tW backward for weights.
"""

from collections.abc import Callable, Mapping

import numpy as np

from sim.integers import integer_type
from sim.training.pipeline import evaluate, greedy
from sim.training.pipeline.actions import LETTERS, Order, alternating, alternating_turns
from sim.training.pipeline.bidirectional import chimera, dualpipe, dualpipe_v
from sim.training.pipeline.placement import Placement, bidirectional, blocks, loop, v_shape
from sim.training.pipeline.rules import TRAITS, custom_placement
from sim.training.pipeline.spec import PipelineSpec
from sim.training.pipeline.token_slices import seq_1f1b, terapipe
from sim.training.pipeline.two_versions import NUM_STEPS
from sim.training.pipeline.zero_bubble import zb_h1, zb_h2, zb_v


def gpipe(num_ranks: int, num_microbatches: int, _: int = 1) -> list[Order]:
    """GPipe (Huang et al. 2019): all forwards, then all backwards, first micro-batch first as in torch's ScheduleGPipe.

    Makespan (m+P-1)(tF+tB+tW); every rank keeps m micro-batches.
    """
    every = np.arange(num_microbatches)
    return [Order.joined(Order.alike("F", r, every), Order.alike("B", r, every)) for r in range(num_ranks)]


def one_forward_one_backward(num_ranks: int, num_microbatches: int, _: int = 1) -> list[Order]:
    """1F1B (PipeDream-flush, DAPPLE).

    P-1-r forwards, then alternating forwards and backwards, then the other backwards.

    Makespan (m+P-1)(tF+tB+tW); rank r keeps min(P-r, m) micro-batches.
    """
    every = np.arange(num_microbatches)
    both, orders = Order.joined(Order.alike("F", 0, every), Order.alike("B", 0, every)), []
    for r in range(num_ranks):
        turns = alternating_turns(num_microbatches, min(num_ranks - 1 - r, num_microbatches))
        stages = np.full(len(turns), r, integer_type(r))
        orders.append(Order(both.kinds.take(turns), stages, both.microbatches.take(turns), both.overlaps))
    return orders


def interleaved(num_ranks: int, num_microbatches: int, virtual_stages: int, group_size: int = 0) -> list[Order]:
    """Megatron-LM's interleaved 1F1B (Narayanan et al. 2021, section 2.2).

    ``group_size``: number N of micro-batches that run through a chunk before the next chunk's turn, P <= N <= m
        (Megatron-Core's microbatch_group_size_per_vp_stage; N = m is breadth-first with a 1F1B tail). 0 means N = P
        with m a multiple of P and, as in Megatron-LM, all forwards first where m = P.

    Makespan (m+(P-1)/v)(tF+tB+tW) where m is a multiple of N; rank r keeps min(2(P-1-r)+(v-1)N+1, mv) chunks.
    """
    p, m, v = num_ranks, num_microbatches, virtual_stages
    size, total = group_size or p, m * v
    chunk, i = np.divmod(np.arange(total), m)
    in_groups = np.lexsort((i, chunk, i // size))
    chunk, i = chunk[in_groups], i[in_groups]
    orders = []
    for r in range(p):
        forwards, backwards = Order.alike("F", chunk * p + r, i), Order.alike("B", (v - 1 - chunk) * p + r, i)
        all_first = m == p and not group_size
        warmup = total if all_first else min(2 * (p - 1 - r) + (v - 1) * size, total)
        orders.append(alternating(forwards, backwards, warmup))
    return orders


def breadth_first(num_ranks: int, num_microbatches: int, virtual_stages: int) -> list[Order]:
    """Breadth-first (Lamy-Poirier 2022), torch's LoopedBFS.

    All micro-batches run through a chunk before the next chunk.

    Backward is the reverse. Fold3D's all-in-all-out (Li et al. 2023) is the same order with other gradient
    synchronisation. Makespan (m+(P-1)/v)(tF+tB+tW) where m >= P; every rank keeps mv chunks.
    """
    chunk, i = np.divmod(np.arange(virtual_stages * num_microbatches), num_microbatches)
    stages = np.concatenate([chunk, chunk[::-1]]) * num_ranks + np.arange(num_ranks)[:, None]
    both, overlaps = np.concatenate([i, i[::-1]]), np.zeros(2 * len(i), dtype=np.bool_)
    kinds = np.repeat([LETTERS.index(kind) for kind in "FB"], len(i))
    return [Order(kinds, of_rank, both, overlaps) for of_rank in stages]


def pipedream_2bw(num_ranks: int, num_microbatches: int, _: int = 1) -> list[Order]:
    """PipeDream-2BW: 1F1B over the micro-batches of several steps, numbered consecutively; see ``two_versions``.

    A step takes m(tF+tB+tW) once the pipeline is full; rank r keeps min(P-r, m) micro-batches.
    """
    return one_forward_one_backward(num_ranks, NUM_STEPS * num_microbatches)


SCHEDULES: Mapping[str, Callable[[int, int, int], list[Order]]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved_1f1b": interleaved,
    "breadth_first": breadth_first,
    "aiao": breadth_first,
    "pipedream_2bw": pipedream_2bw,
    "zb_h1": zb_h1,
    "zb_h2": zb_h2,
    "zb_v": zb_v,
    "chimera": chimera,
    "dualpipe": dualpipe,
    "dualpipe_v": dualpipe_v,
}
"""Orders by schedule name, from (P, m, v). ``zb_auto`` also needs durations and ``custom`` a file: see ``orders``.

``local`` has no order, as it has no backpropagation across stages: see ``sim.training.local``.
"""


def orders(pipeline: PipelineSpec, num_microbatches: int, times: "evaluate.Times | None" = None) -> list[Order]:
    """Return every rank's actions under the pipeline's schedule. ``times``: durations for which ``zb_auto`` is made."""
    p, v = pipeline.degree, pipeline.virtual_stages
    match pipeline.schedule:
        case "custom":
            return [Order.of(order) for order in pipeline.actions]
        case "zb_auto":
            if times is None:
                raise ValueError("zb_auto is made for stated times, and there are none")
            limit = greedy.Limit(pipeline.max_live_microbatches or p, pipeline.kept_for_weights)
            return greedy.zb_auto(p, num_microbatches, times, limit, barrier=pipeline.has_barrier)
        case "interleaved_1f1b":
            return interleaved(p, num_microbatches, v, pipeline.microbatch_group_size)
        case "terapipe":
            return terapipe(p, num_microbatches, pipeline.num_slices)
        case "seq_1f1b":
            return seq_1f1b(p, num_microbatches, pipeline.num_slices)
    return SCHEDULES[pipeline.schedule](p, num_microbatches, v)


def placement(pipeline: PipelineSpec) -> Placement:
    """Return the placement of a pipeline's virtual stages."""
    match TRAITS[pipeline.schedule].placement:
        case "v":
            return v_shape(pipeline.degree)
        case "bidirectional":
            return bidirectional(pipeline.degree)
        case "blocks":
            return blocks(pipeline.degree, pipeline.virtual_stages)
        case "custom":
            return custom_placement(pipeline.actions)
    return loop(pipeline.degree, pipeline.virtual_stages)
