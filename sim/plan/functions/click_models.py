"""Differentiable functions of models that predict clicks: interactions of embedding vectors."""

from collections.abc import Sequence

from sim.plan.functions.basic import only, summed_layout
from sim.plan.functions.tracing import Gradients, Parameter, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Kind
from sim.plan.words.layout import Shard
from sim.plan.words.op import Collective, CollectiveKind


def features(t: TaskTracer, name: str, numbers: Tensor, vectors: Tensor, width: int) -> Tensor:
    """Return [b, n + T*width]: numbers [b, n] beside the first elements of each vector [b, T, w]."""
    (y,) = t.compute(name, "features", (numbers, vectors), (numbers.layout,), width=width)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        inputs = only(gradients), vectors
        (dv,) = r.compute(
            f"{name}.backward", "features_backward", inputs, (vectors.layout,), kind=Kind.WORKSPACE, width=width
        )
        return [dv]

    t.record((vectors,), (y,), backward)
    return y


def dot_interaction(t: TaskTracer, name: str, x: Tensor, vectors: Tensor) -> Tensor:
    """Return x [b, d] beside the products of each two of x and the vectors [b, T, d]."""
    (y,) = t.compute(name, "dot_interaction", (x, vectors), (x.layout,))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return r.compute(
            f"{name}.backward", "dot_interaction_backward", (only(gradients), x, vectors), (x.layout, vectors.layout),
            labels=("x", "vectors"), kind=Kind.WORKSPACE,
        )  # fmt: skip

    t.record((x, vectors), (y,), backward)
    return y


def factorization(t: TaskTracer, name: str, vectors: Tensor, *, pairs: bool) -> Tensor:
    """Return [b, 1]: the vectors' first-order weights and, with ``pairs``, the products of all pairs of vectors."""
    (y,) = t.compute(name, "factorization", (vectors,), (vectors.layout,), pairs=pairs)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        inputs = only(gradients), vectors
        return r.compute(
            f"{name}.backward", "factorization_backward", inputs, (vectors.layout,), kind=Kind.WORKSPACE, pairs=pairs
        )

    t.record((vectors,), (y,), backward)
    return y


def cross(t: TaskTracer, name: str, x0: Tensor, s: Tensor, bias: Parameter, x: Tensor) -> Tensor:
    """Return x0 s + bias + x: a layer of a cross network, s [b, 1] being the product of x and its weight."""
    (y,) = t.compute(name, "cross", (x0, s, bias.value, x), (x.layout,))
    t.program.set_gradient_layout(bias, summed_layout(bias, x))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy = only(gradients)
        dx0, ds = r.compute(
            f"{name}.backward", "cross_backward", (dy, x0, s), (x0.layout, s.layout), labels=("x0", "s"),
            kind=Kind.WORKSPACE,
        )  # fmt: skip
        r.update(f"{name}.bias_gradient", "bias_gradient", (dy,), (bias.gradient,))
        return [dx0, ds, dy]

    t.record((x0, s, x), (y,), backward)
    return y


def logistic_loss(t: TaskTracer, name: str, logits: Tensor, labels: Tensor, loss: Tensor, batch_size: int) -> Tensor:
    """Write the mean logistic loss of a batch, of which a rank has the terms of its samples; return ``loss``."""
    t.update(name, "logistic_loss", (logits, labels), (loss,), batch_size=batch_size)

    def backward(r: TaskTracer, _: Gradients) -> Gradients:
        return r.compute(
            f"{name}.backward", "logistic_loss_backward", (logits, labels), (logits.layout,), kind=Kind.WORKSPACE,
            batch_size=batch_size,
        )  # fmt: skip

    t.record((logits,), (loss,), backward, settles=False)
    return loss


def exchange_tables(t: TaskTracer, rows: Tensor, axis: str, tables: Sequence[int], rank: int) -> Tensor:
    """Return the vectors [own samples, tables, w] of all tables for this rank's samples.

    ``rows``: the vectors of the rank's tables for all samples, [samples * tables of the rank, w]. ``tables``: how many
    tables each rank has.
    """
    samples = rows.shape[0] // tables[rank] // len(tables)
    sizes = tuple((samples * count,) * len(tables) for count in tables)
    counts = tuple(tables)
    received = _exchanged(t, rows, axis, sizes, rank, Kind.ACTIVATION)
    layout = rows.layout.with_(axis, Shard(0))
    (y,) = t.compute(f"{rows.name}.joined", "join_tables", (received,), (layout,), tables=counts)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy, back = only(gradients), tuple(zip(*sizes, strict=True))
        (parts,) = r.compute(f"{rows.name}.parted", "part_tables", (dy,), (layout,), kind=Kind.WORKSPACE, tables=counts)
        return [_exchanged(r, parts, axis, back, rank, Kind.WORKSPACE)]

    t.record((rows,), (y,), backward)
    return y


def _exchanged(
    t: TaskTracer, rows: Tensor, axis: str, sizes: tuple[tuple[int, ...], ...], rank: int, kind: Kind
) -> Tensor:
    """Emit an uneven all_to_all of rows."""
    name = t.unique(f"{rows.name}.all_to_all")
    shape = (sum(sent[rank] for sent in sizes), rows.shape[1])
    received = t.program.tensor(Buffer(name + t.part, shape, rows.dtype, kind, t.scope))
    reads, writes = (rows.name,), (received.name,)
    t.emit(Collective(name, CollectiveKind.ALL_TO_ALL, (axis,), reads, writes, axis, dim=0, sizes=sizes))
    return received
