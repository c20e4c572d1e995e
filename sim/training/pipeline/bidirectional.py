"""Orders with micro-batches from both ends of the pipeline: Chimera and DualPipe; also DualPipe folded to a V.

Chimera and DualPipe hold two copies of the model: stages 0..P-1 go down the ranks, P..2P-1 go up. The first half of the
micro-batches goes down, the second half up.
"""

import numpy as np

from sim.training.pipeline.actions import Order
from sim.training.pipeline.zero_bubble import OrderWriter


def chimera(num_ranks: int, num_microbatches: int, _: int = 1) -> list[Order]:
    """Chimera (Li and Hoefler 2021): units of P micro-batches, P/2 each way.

    A unit starts in the gaps of the previous one.

    P is even, m a multiple of P. In slots of one forward or backward, micro-batch i of unit k runs stage s forward in
    slot 2Pk + s + 2i and backward in slot 2Pk + P + 2i + (P-1-s); no two actions of a rank share a slot. The makespan
    is 2m+P-2 slots where tF = tB+tW. Where m = P, between P/2+1 (outer ranks) and P (middle ranks) micro-batches are in
    memory.
    """
    p, half = num_ranks, num_microbatches // 2
    every, orders = np.arange(half), []
    entry = every // (p // 2) * 2 * p + every % (p // 2) * 2
    for r in range(p):
        parts = []
        for stage, depth, first in ((r, r, 0), (2 * p - 1 - r, p - 1 - r, half)):
            parts.append((entry + depth, Order.alike("F", stage, first + every)))
            parts.append((entry + p + (p - 1 - depth), Order.alike("B", stage, first + every)))
        orders.append(Order.in_slots(*parts))
    return orders


def dualpipe(num_ranks: int, num_microbatches: int, _: int = 1) -> list[Order]:
    """DualPipe (DeepSeek-V3 2024): P even, m even, m >= 2P; forwards overlap backwards of the other direction.

    Bubble (P/2-1)(tF + 2(tB+tW) - 3tW) where tF = tB >= tW and overlapping saves nothing; P+1 micro-batches in memory.
    """
    p, half = num_ranks, num_microbatches // 2
    orders = []
    for r in range(p):
        ways = [(r, 0), (2 * p - 1 - r, half)]
        near, far = ways if r < p // 2 else reversed(ways)
        depth = min(r, p - 1 - r)
        writer = OrderWriter({"0": near[0], "1": far[0]}, {"0": near[1], "1": far[1]})
        orders.append(_dual(writer, p // 2, depth, half, whole_first=depth == p // 2 - 1))
    return orders


def dualpipe_v(num_ranks: int, num_microbatches: int, _: int = 2) -> list[Order]:
    """DualPipe folded to a V, with one copy of the model, as torch's ScheduleDualPipeV; m >= 2P."""
    p, m = num_ranks, num_microbatches
    return [_dual(OrderWriter({"0": r, "1": 2 * p - 1 - r}), p, r, m, whole_first=r == p - 1) for r in range(p)]


def _dual(queue: OrderWriter, half: int, depth: int, num_microbatches: int, *, whole_first: bool) -> Order:
    """Return the eight phases of a rank ``depth`` ranks from the nearer end of ``half`` ranks.

    ``num_microbatches``: micro-batches that enter at each end.
    ``whole_first``: the first forward and backward that could overlap do not.
    """
    inner, meetings = half - 1 - depth, num_microbatches - 2 * half + depth + 1
    queue.add("F0", 2 * inner)
    queue.add("F0 F1", depth + 1)
    queue.add("I1 W F1", inner)
    queue.add("F0 B1 F1&B0" if whole_first else "F0&B1 F1&B0", min(meetings, 1))
    queue.add("F0&B1 F1&B0", meetings - 1)
    queue.add("B1 F1&B0", inner)
    queue.add(" ".join(f"{'B' if k <= depth else 'I'}{1 - k % 2}" for k in range(2 * (depth + 1))))
    queue.add("W I0", inner)
    queue.add("W", depth + 1)
    return queue.order
