"""Ring attention: keys and values go around a ring of ranks, one block per step (Liu et al. 2023, Ring Attention).

A rank has two chunks of the sequence (``sim.plan.functions.context``). At step j it holds the keys and values of the
rank j places before it. If that rank is earlier in the sequence, all queries see the first chunk of its keys and none
sees the second. If it is later, only the second chunk of queries sees its keys. Either way half of the scores remain,
without a mask (Transformer Engine, AttnFuncWithCPAndKVP2P). The kernel learns the half from the rank's place and the
step. Results and gradients have a row for each of the rank's tokens; rows without scores in this step are zero.

A sequence in one block per rank shows what this avoids. Keys of a later rank are seen by no query, so rank i computes
in i + 1 of the n steps, and the last rank's time is the ring's (Brandon et al. 2023, Striped Attention, section 2).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sim.plan.functions import basic as f
from sim.plan.functions.context import SharedSequence, zeros_like
from sim.plan.functions.ring import Ring
from sim.plan.functions.tracing import Gradients, TaskTracer, Tensor
from sim.plan.words.buffer import Kind
from sim.plan.words.op import Direction

_KEYS_AND_VALUES = (".k", ".v")


def ring_attention(t: TaskTracer, name: str, qkv: Sequence[Tensor], shared: SharedSequence) -> Tensor:
    """Return attention of this rank's queries to the keys and values of all ranks.

    While a rank computes with its keys and values, it sends them to the next rank and receives those of the rank
    before. The results of all steps are merged by their log-sum-exp. The keys and values of the last step are kept:
    backward passes them back, and after each pair the sum of its gradients.
    """
    q, *held = qkv
    layouts, around = (q.layout, f.heads_layout(q)), _ring(shared, Direction.FORWARD)
    y = lse = q
    for step in range(shared.degree):
        label = _label(name, step)
        coming = held
        if step + 1 < shared.degree:
            coming = _passed(around, t, label, held, 1, Kind.ACTIVATION)
        mask = _mask(t, shared, step)
        if mask is not None:
            result = t.compute(label, "flash_attention", (q, *held), layouts, labels=("", "lse"), **mask)
            if step:
                t.update(f"{label}.merge", "merge_attention", result, (y, lse))
            else:
                y, lse = result
        last, held = held, coming

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return _backward(r, f"{name}.backward", shared, (f.only(gradients), q, *last, y, lse))

    t.record(qkv, (y,), backward)
    return y


def _backward(r: TaskTracer, name: str, shared: SharedSequence, saved: Sequence[Tensor]) -> Gradients:
    """Return the gradients of q, k and v from the operands of the forward's last step and the forward's results.

    Sums of the gradients of keys and values follow the keys and values one step later, because a step's result is added
    after it is computed. If a rank sees none of the first keys, its sums begin with zeros.
    """
    dy, q, *held, y, lse = saved
    back, sums = _ring(shared, Direction.FORWARD), _ring(shared, Direction.BACKWARD)
    layouts = (q.layout, *(x.layout for x in held))
    dq: list[Tensor] = []
    totals: Sequence[Tensor] = ()
    for step in reversed(range(shared.degree)):
        label = _label(name, step)
        coming = _passed(back, r, label, held, -1, Kind.WORKSPACE) if step else held
        mask, parts = _mask(r, shared, step), list[Tensor]()
        if mask is not None:
            own, *parts = r.compute(
                label, "flash_attention_backward", (dy, q, *held, y, lse), layouts, labels=("q", "k", "v"),
                kind=Kind.WORKSPACE, **mask,
            )  # fmt: skip
            dq = _added(r, label, (own,), dq, "q")
        if totals:
            totals = sums.receive(r, f"{label}.sum.recv", held, _KEYS_AND_VALUES, 1, Kind.WORKSPACE)
        elif mask is None:
            totals = [zeros_like(r, f"{label}.sum.{what}", x) for what, x in zip("kv", held, strict=True)]
        totals = _added(r, label, parts, totals, "kv")
        if step:
            sums.send(r, f"{_label(name, step - 1)}.sum", totals, -1)
        held = coming
    return [*dq, *totals]


def _ring(shared: SharedSequence, direction: Direction) -> Ring:
    """Return the ring of keys and values (forward) or of their gradients; the two use different streams."""
    return Ring(shared.axis, direction, f"_{direction}")


def _label(name: str, step: int) -> str:
    """Return the label of a step's ops."""
    return f"{name}.{step}" if step else name


def _mask(t: TaskTracer, shared: SharedSequence, step: int) -> Mapping[str, Any] | None:
    """Return the mask attributes of a step's keys: causal for the own keys; None if no query sees the keys."""
    if step == 0 or not shared.causal:
        return f.masked(causal=shared.causal)
    if shared.zigzag:
        return {"causal": False, "ring": shared.axis, "step": step}
    return {"causal": False, "mirrored": True} if step <= shared.place(t) else None


def _passed(ring: Ring, t: TaskTracer, name: str, held: Sequence[Tensor], ahead: int, kind: Kind) -> list[Tensor]:
    """Send keys and values ``ahead`` places forward; return those received from the rank as far behind."""
    ring.send(t, name, held, ahead)
    return list(ring.receive(t, f"{name}.recv", held, _KEYS_AND_VALUES, -ahead, kind))


def _added(r: TaskTracer, name: str, parts: Sequence[Tensor], totals: Sequence[Tensor], labels: str) -> list[Tensor]:
    """Return the totals plus the parts, or the parts if there are no totals yet."""
    for label, part, total in zip(labels, parts, totals, strict=False):
        r.update(f"{name}.{label}_sum", "add", (part,), (total,))
    return list(totals or parts)
