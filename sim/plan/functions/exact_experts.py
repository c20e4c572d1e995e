"""Experts without padding: one row per choice. Sizes follow the tokens, and no choice is dropped.

Dispatched tokens are [1, R, h]: one group of R rows, one row per choice, sorted by expert. Ranks with different experts
first exchange the numbers of rows (a small all_to_all of counts), then the rows themselves (He et al. 2021, FastMoE;
Gale et al. 2023, MegaBlocks, for the products). The plan takes the numbers of rows from a forced routing. Kernels read
them from the exchanged counts, as real systems do.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from sim.plan.functions import experts as ex
from sim.plan.functions.basic import only
from sim.plan.functions.tracing import MAIN_STREAM, Gradients, TaskTracer, Tensor
from sim.plan.words.buffer import E4M3, Buffer, Kind
from sim.plan.words.layout import REPLICATED
from sim.plan.words.op import Collective, CollectiveKind, SizeTable


class CopiesOfExperts(Protocol):
    """Where the experts of a layer lie, and which copy gets which tokens; see ``sim.moe.balancing.replicas``."""

    @property
    def num_ranks(self) -> int:
        """Return the number of ranks that share out the experts."""

    @property
    def most_held(self) -> int:
        """Return the largest number of experts that a rank has a copy of."""


class SharedCopies(Struct, frozen=True):
    """The copies of experts on the ranks of ``axis``, among which this rank has the place ``place``."""

    copies: CopiesOfExperts
    axis: str
    place: int


class ExactRoutes(Struct, frozen=True):
    """The choices of every token as rows. ``counts``, [E], int64: number of rows of each expert."""

    routes: ex.Routes
    counts: Tensor


class Forced(Struct, frozen=True):
    """The forced choices of a rank's tokens: ``top_k`` each, ``counts[e]`` of expert e.

    ``groups``: number of groups of experts, and in how many a token chooses; empty: in any.
    """

    top_k: int
    counts: tuple[int, ...]
    groups: tuple[int, int] | tuple[()] = ()

    @property
    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the op that chooses."""
        limit = dict(zip(("num_groups", "top_groups"), self.groups, strict=False))
        return {"top_k": self.top_k, "forced": self.counts, **limit}


def route_exact(t: TaskTracer, name: str, logits: Tensor, *, forced: Forced, balance_loss: float = 0.0) -> ExactRoutes:
    """Return the choices of logits[s, b, E], with one row per choice, sorted by expert.

    ``balance_loss``: see ``sim.plan.functions.experts.route``.
    """
    layouts = (logits.layout,) * 3
    weights, experts, rows, counts = t.compute(
        name, "route_exact", (logits,), (*layouts, REPLICATED), labels=("weights", "experts", "rows", "counts"),
        **forced.attributes,
    )  # fmt: skip
    ex.record_choice(t, name, logits, weights, experts, balance_loss)
    return ExactRoutes(ex.Routes(weights, rows, num_experts=1, capacity=sum(forced.counts)), counts)


def route_to_copies(
    t: TaskTracer, name: str, logits: Tensor, *, forced: Forced, balance_loss: float, shared: SharedCopies
) -> ExactRoutes:
    """Return the choices of logits[s, b, E] with one row per choice, sorted by the copy of its expert that gets it.

    All ranks that share experts gather the counts of all, and derive from them which copy gets which tokens (Nie et al.
    2023). ``counts`` of the result: rows that this rank gets, by source and own copy.
    """
    layout = logits.layout
    weights, experts, counts = choose(t, name, logits, forced, balance_loss)
    gathered = t.gather(counts, shared.axis, 0, Kind.WORKSPACE)
    copies = shared.copies
    rows, received = t.compute(
        f"{name}.assign", "assign_copies", (experts, gathered), (layout, REPLICATED), labels=("rows", "counts"),
        copies=copies, place=shared.place, parts=copies.num_ranks, width=copies.most_held,
    )  # fmt: skip
    return ExactRoutes(ex.Routes(weights, rows, num_experts=1, capacity=sum(forced.counts)), received)


def choose(
    t: TaskTracer, name: str, logits: Tensor, forced: Forced, balance_loss: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights and the experts of all choices of logits[s, b, E], and how many fall on each expert."""
    layout, labels = logits.layout, ("weights", "experts", "counts")
    weights, experts, counts = t.compute(
        name, "choose_exact", (logits,), (layout, layout, REPLICATED), labels=labels, **forced.attributes
    )
    ex.record_choice(t, name, logits, weights, experts, balance_loss)
    return weights, experts, counts


class Exchange(Struct, frozen=True):
    """An exchange of rows as one rank of ``axis`` takes part in it.

    ``sizes``: rows between the ranks. ``place``: this rank's among them. ``levelled``: the rank stands for all, and is
    the busiest of them. ``eight_bits``: rows travel in E4M3 on the way to experts, each with a scale: tokens, and
    gradients of experts' outputs (DeepSeek-AI 2024, section 3.3). ``beside``: what tells its stream from that of other
    exchanges over the axis. ``ends``: the streams on which rows are cast before they travel to experts, and back after.
    """

    axis: str
    sizes: SizeTable
    place: int
    levelled: bool = False
    eight_bits: bool = False
    beside: str = ""
    ends: tuple[str, str] = (MAIN_STREAM, MAIN_STREAM)

    @property
    def stream(self) -> str:
        """Return the stream of the exchange."""
        return f"{self.axis}_{self.beside}" if self.beside else self.axis

    @property
    def reverse(self) -> "Exchange":
        """Return the exchange in the other direction."""
        return replace(self, sizes=self.sizes.back)

    @property
    def in_own_type(self) -> "Exchange":
        """Return the exchange of rows that do not travel in eight bits."""
        return replace(self, eight_bits=False)

    @property
    def num_sent(self) -> int:
        """Return the rows that this rank sends; of ranks that stand for the busiest, the most that one sends."""
        return self.sizes.most_sent if self.levelled else sum(self.sizes[self.place])

    @property
    def num_received(self) -> int:
        """Return the rows that this rank gets; of ranks that stand for the busiest, the most that one gets."""
        return self.reverse.num_sent


def to_experts(t: TaskTracer, x: Tensor, exchange: Exchange, parts: Sequence[Tensor] = ()) -> Tensor:
    """Send the rows x[1, R, h] to the ranks of their experts; return the received rows [1, M, h].

    ``parts``: the rows as they travel, if they are ``packed`` already. Backward sends gradients back.
    """
    y = unpacked(t, x, parts or packed(t, x, exchange), exchange, Kind.ACTIVATION)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return [exchange_rows(r, only(gradients), exchange.reverse, Kind.WORKSPACE)]

    t.record((x,), (y,), backward, settles=False)
    return y


def from_experts(t: TaskTracer, x: Tensor, exchange: Exchange) -> Tensor:
    """Send the rows x[1, M, h] back to the ranks that they came from; the conjugate of ``to_experts``."""
    y = exchange_rows(t, x, exchange.reverse, Kind.ACTIVATION)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy = only(gradients)
        return [unpacked(r, dy, packed(r, dy, exchange), exchange, Kind.WORKSPACE)]

    t.record((x,), (y,), backward, settles=False)
    return y


def packed(t: TaskTracer, x: Tensor, exchange: Exchange) -> Sequence[Tensor]:
    """Return rows as they travel to experts: themselves, or cast to eight bits, with their scales."""
    if not exchange.eight_bits:
        return (x,)
    with t.on_stream(exchange.ends[0]):
        return t.compute(
            f"{x.name}.cast", "cast_float8", (x,), (x.layout,) * 2, labels=("", "scale"), kind=Kind.WORKSPACE,
            dtype=E4M3, copies=1, by_row=True,
        )  # fmt: skip


def unpacked(t: TaskTracer, x: Tensor, parts: Sequence[Tensor], exchange: Exchange, kind: Kind) -> Tensor:
    """Send the parts of packed rows x; return the received rows in the type of x."""
    if not exchange.eight_bits:
        return exchange_rows(t, x, exchange, kind)
    received = [exchange_rows(t, part, exchange, Kind.WORKSPACE) for part in parts]
    with t.on_stream(exchange.ends[1]):
        (y,) = t.compute(f"{x.name}.uncast", "uncast_float8", received, (x.layout,), kind=kind, dtype=x.dtype)
    return y


def exchange_rows(t: TaskTracer, x: Tensor, exchange: Exchange, kind: Kind) -> Tensor:
    """Emit an exchange of rows x[1, R, n], or of numbers x[R]."""
    name, axis, dim = t.unique(f"{x.name}.all_to_all"), exchange.axis, min(1, len(x.shape) - 1)
    shape = (*x.shape[:dim], exchange.num_received, *x.shape[dim + 1 :])
    y = t.program.tensor(Buffer(name + t.part, shape, x.dtype, kind, t.scope), x.layout)
    t.emit(
        Collective(
            name, CollectiveKind.ALL_TO_ALL, (axis,), (x.name,), (y.name,), exchange.stream, dim=dim,
            sizes=exchange.sizes, levelled=exchange.levelled,
        )
    )  # fmt: skip
    return y


def sort_rows(t: TaskTracer, x: Tensor, counts: Tensor, num_ranks: int, *, by_expert: bool) -> Tensor:
    """Return received rows x[1, M, h], ordered by source rank, sorted by expert; or the inverse. Backward sorts back.

    ``counts``: number of rows by source rank and expert, [ranks x experts of a rank].
    """
    y = _sort(t, x, counts, num_ranks, by_expert=by_expert, kind=Kind.ACTIVATION)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return [_sort(r, only(gradients), counts, num_ranks, by_expert=not by_expert, kind=Kind.WORKSPACE)]

    t.record((x,), (y,), backward, settles=False)
    return y


def _sort(t: TaskTracer, x: Tensor, counts: Tensor, num_ranks: int, *, by_expert: bool, kind: Kind) -> Tensor:
    (y,) = t.compute(
        f"{x.name}.sort", "sort_rows", (x, counts), (x.layout,), kind=kind, parts=num_ranks, by_expert=by_expert
    )
    return y


def part_rows(t: TaskTracer, x: Tensor, counts: Tensor, num_ranks: int, rows: Sequence[int]) -> tuple[Tensor, ...]:
    """Return the rows [1, n, h] of each copy with rows, from received rows x[1, M, h] ordered by source rank.

    ``rows``: number of rows of each copy. ``counts``: as for ``sort_rows``.
    """
    attributes: dict[str, Any] = {"parts": num_ranks, "rows": tuple(rows)}
    labels = [f"copy{index}" for index, number in enumerate(rows) if number]
    parts = t.compute(
        f"{x.name}.part", "part_rows", (x, counts), (x.layout,) * len(labels), labels=labels, **attributes
    )

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        given = [gradient for gradient in gradients if gradient is not None]
        return _joined(r, f"{x.name}.part.backward", given, counts, attributes, Kind.WORKSPACE)

    t.record((x,), parts, backward, settles=False)
    return parts


def join_rows(t: TaskTracer, parts: Sequence[Tensor], counts: Tensor, num_ranks: int, rows: Sequence[int]) -> Tensor:
    """Return the rows of all copies, [1, M, h], ordered by source rank; the inverse of ``part_rows``."""
    attributes: dict[str, Any] = {"parts": num_ranks, "rows": tuple(rows)}
    name = f"{parts[0].name}.join"
    (y,) = _joined(t, name, parts, counts, attributes, Kind.ACTIVATION)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy = only(gradients)
        labels = [f"copy{index}" for index, number in enumerate(rows) if number]
        return r.compute(
            f"{name}.backward", "part_rows", (dy, counts), (dy.layout,) * len(labels), labels=labels,
            kind=Kind.WORKSPACE, **attributes,
        )  # fmt: skip

    t.record(tuple(parts), (y,), backward, settles=False)
    return y


def _joined(
    r: TaskTracer, name: str, parts: Sequence[Tensor], counts: Tensor, attributes: Mapping[str, Any], kind: Kind
) -> tuple[Tensor, ...]:
    return r.compute(name, "join_rows", (counts, *parts), (parts[0].layout,), kind=kind, **attributes)
