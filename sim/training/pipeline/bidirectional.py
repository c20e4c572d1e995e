"""Orders with micro-batches from both ends of the pipeline: Chimera and DualPipe; also DualPipe folded to a V.

Chimera and DualPipe hold two copies of the model: stages 0..P-1 go down the ranks, P..2P-1 go up. The first half of the
micro-batches goes down, the second half up.
"""

import numpy as np

from sim.integers import Ints
from sim.training.pipeline.actions import Order, Part, orders_in_slots
from sim.training.pipeline.zero_bubble import OrdersWriter


def chimera(num_ranks: int, num_microbatches: int, _: int = 1) -> list[Order]:
    """Chimera (Li and Hoefler 2021): units of P micro-batches, P/2 each way.

    A unit starts in the gaps of the previous one.

    P is even, m a multiple of P. In slots of one forward or backward, micro-batch i of unit k runs stage s forward in
    slot 2Pk + s + 2i and backward in slot 2Pk + P + 2i + (P-1-s); no two actions of a rank share a slot. The makespan
    is 2m+P-2 slots where tF = tB+tW. Where m = P, between P/2+1 (outer ranks) and P (middle ranks) micro-batches are in
    memory.
    """
    p, half = num_ranks, num_microbatches // 2
    every, rank = np.arange(half), np.arange(p)[:, None]
    entry = every // (p // 2) * 2 * p + every % (p // 2) * 2
    parts = []
    for stage, depth, first in ((rank, rank, 0), (2 * p - 1 - rank, p - 1 - rank, half)):
        parts.append(Part("F", entry + depth, stage, first + every))
        parts.append(Part("B", entry + p + (p - 1 - depth), stage, first + every))
    return orders_in_slots(*parts)


def dualpipe(num_ranks: int, num_microbatches: int, _: int = 1) -> list[Order]:
    """DualPipe (DeepSeek-V3 2024): P even, m even, m >= 2P; forwards overlap backwards of the other direction.

    Bubble (P/2-1)(tF + 2(tB+tW) - 3tW) where tF = tB >= tW and overlapping saves nothing; P+1 micro-batches in memory.
    """
    p, half, r = num_ranks, num_microbatches // 2, np.arange(num_ranks)
    is_near = r < p // 2
    near, far = np.where(is_near, r, 2 * p - 1 - r), np.where(is_near, 2 * p - 1 - r, r)
    writer = OrdersWriter({"0": near, "1": far}, {"0": np.where(is_near, 0, half), "1": np.where(is_near, half, 0)})
    return _dual(writer, p // 2, np.minimum(r, p - 1 - r), half)


def dualpipe_v(num_ranks: int, num_microbatches: int, _: int = 2) -> list[Order]:
    """DualPipe folded to a V, with one copy of the model, as torch's ScheduleDualPipeV; m >= 2P."""
    p, r = num_ranks, np.arange(num_ranks)
    return _dual(OrdersWriter({"0": r, "1": 2 * p - 1 - r}), p, r, num_microbatches)


def _dual(writer: OrdersWriter, half: int, depth: Ints, num_microbatches: int) -> list[Order]:
    """Return the eight phases of ranks ``depth`` ranks from the nearer end of ``half`` ranks.

    ``num_microbatches``: micro-batches that enter at each end. On the innermost rank the first forward and backward
    that could overlap do not.
    """
    inner, meetings = half - 1 - depth, num_microbatches - 2 * half + depth + 1
    innermost = (inner == 0).astype(np.int64)
    writer.add("F0", 2 * inner)
    writer.add("F0 F1", depth + 1)
    writer.add("I1 W F1", inner)
    writer.add("F0 B1 F1&B0", innermost)
    writer.add("F0&B1 F1&B0", meetings - innermost)
    writer.add("B1 F1&B0", inner)
    writer.add("B1 B0", (depth + 1) // 2)
    writer.add("B1 I0", (depth + 1) % 2)
    writer.add("I1 I0", (depth + 1) // 2)
    writer.add("W I0", inner)
    writer.add("W", depth + 1)
    return writer.orders
