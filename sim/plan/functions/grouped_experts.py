"""Experts of which a token is sent once: to the group, on one rank, that has all experts it chooses (``gate: sam``).

A token has a slot in its group, [s, b, 1], and slots of its experts, [s, b, k]. What travels is the group's slots: the
tokens, and beside them the weights and slots of their choices. The rank of the group copies each token to its experts'
slots and returns the weighted sum of their outputs, so that an exchange is as long for many experts as for one.
"""

from sim.plan.functions import experts as ex
from sim.plan.functions.tracing import TaskTracer, Tensor


def route_mixed(
    t: TaskTracer, name: str, logits: Tensor, *, top_k: int, capacity: int, groups: tuple[int, int],
    balance_loss: float,
) -> ex.Routes:  # fmt: skip
    """Return the ``top_k`` best experts of each token in its best group, and its slots in both.

    ``groups``: their number, and the slots of each. A token without a slot in its group has none of its experts.
    """
    labels = ("weights", "experts", "slots", "group_slots")
    weights, experts, slots, of_group = t.compute(
        name, "route_mixed", (logits,), (logits.layout,) * 4, labels=labels,
        top_k=top_k, capacity=capacity, num_groups=groups[0], group_capacity=groups[1],
    )  # fmt: skip
    ex.record_choice(t, name, logits, weights, experts, balance_loss)
    return ex.Routes(weights, slots, logits.shape[-1], capacity, ex.GroupSlots(of_group, *groups))


def to_groups(t: TaskTracer, name: str, x: Tensor, routes: ex.Routes, axis: str) -> tuple[Tensor, ex.Routes]:
    """Return the tokens x[s, b, h] in the slots of this rank's groups, [G, C, h], and the slots of its experts.

    ``axis``: along which ranks have groups of their own; empty: one rank has all.
    """
    groups = routes.groups
    assert groups is not None
    layout = ex.slots_layout(x, axis)
    tokens = ex.dispatch(t, f"{name}.dispatch", x, groups, layout)
    weights = ex.dispatch(t, f"{name}.weights", routes.weights, groups, layout)
    (slots,) = t.compute(
        f"{name}.slots", "dispatch_slots", (routes.slots, groups.slots), (layout,),
        num_slots=routes.num_experts * routes.capacity, **ex.slot_attributes(groups),
    )  # fmt: skip
    if not axis:
        return tokens, ex.Routes(weights, slots, routes.num_experts, routes.capacity)
    tokens, weights, slots = (ex.exchange(t, sent, axis, 0) for sent in (tokens, weights, slots))
    parts = t.mesh.degree(axis)
    own = ex.Routes(weights, slots, routes.num_experts // parts, routes.capacity * parts)
    (numbered,) = t.compute(
        f"{name}.own_slots", "own_slots", (slots,), (slots.layout,), parts=parts, **ex.slot_attributes(own)
    )
    return tokens, ex.Routes(weights, numbered, own.num_experts, own.capacity)


def from_groups(t: TaskTracer, name: str, y: Tensor, routes: ex.Routes, axis: str) -> Tensor:
    """Return the outputs y[G, C, h] of this rank's groups, sent back to their tokens: [s, b, h]."""
    groups = routes.groups
    assert groups is not None
    y = ex.exchange(t, y, axis, 1) if axis else y
    return ex.collect(t, f"{name}.return", y, groups, routes.weights.layout)
