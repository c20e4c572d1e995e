"""Exact dispatch in two hops: a token is sent once to every node with experts of its choice, and handed on there.

A row crosses from its source to the relay of a node, and beside it go the numbers and the weights of its choices there.
The relay sends a row for each choice to the rank of the expert, as ``exact_experts`` does among all ranks, and returns
the weighted sum of what comes back: one row. The source adds up the rows of a token. DeepSeek-AI 2024, DeepSeek-V3,
section 3.2.2: its kernels hand rows on while others still arrive; here one hop follows the other. Like these, what a
relay computes does not take its turn among the layers' kernels: it runs on the stream of the exchanges inside nodes.
That is a stream of its own, so that the hop of one pass inside nodes runs beside another's between nodes.
"""

from msgspec import Struct

from sim.plan.functions import exact_experts as exact
from sim.plan.functions import experts as ex
from sim.plan.functions.tracing import Gradients, TaskTracer, Tensor
from sim.plan.words.buffer import Kind
from sim.plan.words.layout import REPLICATED, Layout


class Hop(Struct, frozen=True):
    """An exchange of rows, and that of their numbers before it."""

    rows: exact.Exchange
    counts: exact.Exchange


class Relayed(Struct, frozen=True):
    """The rows of choices that came to this rank by way of relays, and how their outputs go back.

    ``x``: [1, M, h], by relay. ``counts``: their numbers, by relay and expert. ``routes``: the row, on the way from
    this rank as a relay, of every choice on its node. ``sent``: the rows of a token on its source.
    """

    x: Tensor
    counts: Tensor
    routes: ex.Routes
    sent: ex.GroupSlots


def to_nodes(
    t: TaskTracer, name: str, x: Tensor, chosen: tuple[Tensor, Tensor], hops: tuple[Hop, Hop], sizes: tuple[int, int]
) -> Relayed:
    """Send the tokens x[s, b, h] to the ranks of their experts, once to each node.

    ``chosen``: weights and experts [s, b, k] of every choice. ``hops``: to a relay, and from there to the ranks of the
    experts. ``sizes``: number of nodes, and of the experts of one.
    """
    (weights, experts), (across, within), (nodes, of_node) = chosen, hops, sizes
    layout = ex.slots_layout(x, across.rows.axis)
    rows, local, counts = t.compute(
        f"{name}.nodes", "assign_nodes", (experts,), (experts.layout, layout, REPLICATED),
        labels=("rows", "experts", "counts"), parts=nodes, num_experts=nodes * of_node, rows=across.rows.num_sent,
    )  # fmt: skip
    sent = ex.GroupSlots(rows, 1, across.rows.num_sent)
    y = ex.dispatch(t, f"{name}.dispatch", x, sent, layout)
    w = ex.dispatch(t, f"{name}.weights", weights, sent, layout)
    y, w, local, counts = _sent(t, (y, w, local, counts), across)
    with t.on_stream(within.rows.stream):
        handed, counts = t.compute(
            f"{name}.hand_on", "hand_on", (local, counts), (layout, REPLICATED), labels=("rows", "counts"),
            num_experts=of_node, rows=within.rows.num_sent,
        )  # fmt: skip
        routes = ex.Routes(w, handed, num_experts=1, capacity=within.rows.num_sent)
        y = ex.dispatch(t, f"{name}.relay.dispatch", y, routes, layout)
    parts = exact.packed(t, y, within.rows)
    counts = exact.exchange_rows(t, counts, within.counts, Kind.ACTIVATION)
    y = exact.to_experts(t, y, within.rows, parts)
    return Relayed(y, counts, routes, sent)


def _sent(t: TaskTracer, tensors: tuple[Tensor, ...], hop: Hop) -> tuple[Tensor, ...]:
    """Send rows, the weights and numbers of their choices, and the numbers of rows first; return what comes."""
    x, weights, experts, counts = tensors
    packed, plain = exact.packed(t, x, hop.rows), hop.rows.in_own_type
    counts = exact.exchange_rows(t, counts, hop.counts, Kind.ACTIVATION)
    received = tuple(exact.exchange_rows(t, sent, plain, Kind.ACTIVATION) for sent in (experts, weights))
    y = exact.unpacked(t, x, packed, hop.rows, Kind.ACTIVATION)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return [
            None if gradient is None else exact.exchange_rows(r, gradient, plain.reverse, Kind.WORKSPACE)
            for gradient in gradients
        ]

    t.record((x, weights), (y, received[1]), backward, settles=False)
    return y, received[1], received[0], counts


def from_nodes(t: TaskTracer, name: str, y: Tensor, relayed: Relayed, hops: tuple[Hop, Hop], layout: Layout) -> Tensor:
    """Send outputs y[1, M, h] back the way of their rows; return the weighted sum of each token's, [s, b, h].

    ``layout``: of the tokens' weights; the result is partial over each axis over which y is partial.
    """
    across, within = hops
    y = exact.from_experts(t, y, within.rows)
    with t.on_stream(within.rows.stream):
        y = ex.combine(t, f"{name}.relay.combine", y, relayed.routes)
    y = exact.from_experts(t, y, across.rows)
    return ex.collect(t, f"{name}.collect", y, relayed.sent, layout)
