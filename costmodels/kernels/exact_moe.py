"""Kernels of experts with a row for every choice: choice, sorting, and grouped products of unequal groups.

Rows of all experts lie one after the other, [1, R, h]. ``counts`` are rows by source rank and expert, int64; the
attribute ``rows`` has those of each expert, and costs follow from it.
"""

from collections.abc import Sequence

from costmodels.kernels.elementwise import streaming
from costmodels.kernels.moe import ROUTING_KERNELS, routing
from costmodels.kernels.tensor import Attributes, GemmShape, Kernel, TensorSpec, Work, require, total_bytes


def _route_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return weights, experts, rows and counts of logits[..., E]."""
    weights, experts, counts = _choice_outputs(inputs, attributes)
    return weights, experts, experts, counts


def _choice_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return weights, experts and counts of logits[..., E]."""
    (logits,), top_k, forced = inputs, attributes["top_k"], attributes["forced"]
    num_experts = logits.shape[-1]
    require(1 <= top_k <= num_experts == len(forced), f"{len(forced)} counts must be those of the experts", logits)
    choices = (*logits.shape[:-1], top_k)
    weights = logits.like(*choices)
    require(sum(forced) == weights.num_elements, f"{sum(forced)} forced choices must be those of all tokens", logits)
    return weights, TensorSpec(choices, "int32"), TensorSpec((num_experts,), "int64")


def _assign_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the row of every choice, and the rows that come, by source rank and own copy.

    ``inputs``: chosen experts, and the counts of all ranks, rank by rank.
    """
    experts, gathered = inputs
    parts, width = attributes["parts"], attributes["width"]
    require(gathered.num_elements % parts == 0, f"counts must be those of {parts} ranks", gathered)
    return experts, TensorSpec((parts * width,), "int64")


def _assign_nodes_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the row of each choice of experts[..., k], the choices [1, rows, k] of each row, and the rows by node."""
    (experts,), parts, rows = inputs, attributes["parts"], attributes["rows"]
    num_tokens, top_k = experts.num_elements // experts.shape[-1], experts.shape[-1]
    fits = attributes["num_experts"] % parts == 0 and num_tokens <= rows <= num_tokens * min(parts, top_k)
    require(fits, f"{rows} rows for {parts} equal nodes must be one or more of every token", experts)
    return experts, TensorSpec((1, rows, top_k), "int32"), TensorSpec((parts,), "int64")


def _hand_on_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the row of each choice [1, m, k] of received rows, and the choices of each expert of the node."""
    experts, _ = inputs
    require(attributes["rows"] <= experts.num_elements, f"{attributes['rows']} rows must be choices", experts)
    return experts, TensorSpec((attributes["num_experts"],), "int64")


def _part_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the rows of each copy of an expert that has any, of rows x[1, m, h] as they come from ranks."""
    x, counts = inputs
    rows, parts = attributes["rows"], attributes["parts"]
    fits = len(rows) * parts <= counts.num_elements and sum(rows) == x.shape[1]
    require(fits, f"the rows of {len(rows)} copies, {sum(rows)} in all, must be those of x", x, counts)
    return tuple(x.like(1, number, *x.shape[2:]) for number in rows if number)


def _join_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the rows [1, m, h] of all copies, given ``counts`` and the rows of each that has any."""
    _, *parts = inputs
    filled = [number for number in attributes["rows"] if number]
    require([part.shape[1] for part in parts] == filled, f"copies must have {filled} rows", *parts)
    return (parts[0].like(1, sum(filled), *parts[0].shape[2:]),)


def _sort_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    x, counts = inputs
    parts = attributes["parts"]
    require(counts.num_elements % parts == 0, f"counts must be those of {parts} ranks", x, counts)
    return (x,)


def _ragged_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return x[1, m, k] times weight[g, k, *n], each row with the weight of its group."""
    x, weight, _ = inputs
    fits = len(x.shape) == 3 and len(weight.shape) > 2 and x.shape[2] == weight.shape[1]
    require(fits, "x must be [1,m,k] and the weight [g,k,*n]", x, weight)
    _check_rows(x, attributes, weight.shape[0])
    return (x.like(1, x.shape[1], *weight.shape[2:]),)


def _ragged_input_gradient_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    dy, weight, _ = inputs
    require(dy.shape[2:] == weight.shape[2:], "dy must be [1,m,*n] and the weight [g,k,*n]", dy, weight)
    _check_rows(dy, attributes, weight.shape[0])
    return (dy.like(1, dy.shape[1], weight.shape[1]),)


def _ragged_weight_gradient_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    x, dy, _, *gradient = inputs
    num_groups = len(attributes["rows"])
    require(x.shape[:2] == dy.shape[:2], "x and dy must agree in rows", x, dy)
    _check_rows(x, attributes, num_groups)
    return (gradient[0],) if gradient else (dy.like(num_groups, x.shape[2], *dy.shape[2:]),)


def _check_rows(x: TensorSpec, attributes: Attributes, num_groups: int) -> None:
    rows = attributes["rows"]
    fits = x.shape[0] == 1 and len(rows) == num_groups and sum(rows) == x.shape[1]
    require(fits, f"the rows of {num_groups} groups, {sum(rows)} in all, must be those of x", x)


def _ragged_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    x, weight, _ = inputs
    columns = weight.num_elements // (weight.shape[0] * weight.shape[1])
    return _ragged_products(x.shape[1], columns, weight.shape[1], inputs, outputs, attributes)


def _ragged_input_gradient_work(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes
) -> Work:
    dy, weight, _ = inputs
    columns = weight.num_elements // (weight.shape[0] * weight.shape[1])
    return _ragged_products(dy.shape[1], weight.shape[1], columns, inputs, outputs, attributes)


def _ragged_products(
    num_rows: int, n: int, k: int, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes
) -> Work:
    """Return the work of rows times the weights of their groups; no group without rows has its weight read.

    A call is timed as one of equally large groups, as many as have rows.
    """
    groups = _groups_with_rows(attributes)
    if not groups:
        return Work(0.0, 0.0, 0, 0)
    rows, weight, counts = inputs
    read = rows.num_bytes + weight.num_bytes * groups // weight.shape[0] + counts.num_bytes
    flop = 2.0 * num_rows * n * k
    return Work(flop, flop, read, total_bytes(outputs), GemmShape(-(-num_rows // groups), n, k, groups))


def _ragged_weight_gradient_work(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes
) -> Work:
    """Return the work of x^T dy group by group; groups without rows add nothing to an accumulated gradient."""
    x, dy, counts, *gradient = inputs
    groups, (whole,) = _groups_with_rows(attributes), outputs
    k, n = x.shape[2], whole.num_elements // (whole.shape[0] * x.shape[2])
    touched = whole.num_bytes * groups // whole.shape[0]
    written = touched if gradient else whole.num_bytes
    if not groups:
        return Work(0.0, 0.0, 0, written, GemmShape(1, 1, 1) if written else None)
    flop = 2.0 * x.shape[1] * n * k
    read = total_bytes((x, dy, counts)) + (touched if gradient else 0)
    return Work(flop, flop, read, written, GemmShape(k, n, -(-x.shape[1] // groups), groups))


def _groups_with_rows(attributes: Attributes) -> int:
    return sum(1 for rows in attributes["rows"] if rows)


EXACT_MOE_KERNELS = (
    Kernel("route_exact", "elementwise", (1, 1), _route_outputs, routing(0, 20, ROUTING_KERNELS)),
    Kernel("choose_exact", "elementwise", (1, 1), _choice_outputs, routing(0, 20, ROUTING_KERNELS)),
    Kernel("assign_copies", "elementwise", (2, 2), _assign_outputs, streaming(20)),
    Kernel("assign_nodes", "elementwise", (1, 1), _assign_nodes_outputs, streaming(20)),
    Kernel("hand_on", "elementwise", (2, 2), _hand_on_outputs, streaming(20)),
    Kernel("sort_rows", "elementwise", (2, 2), _sort_outputs, streaming(0)),
    Kernel("part_rows", "elementwise", (2, 2), _part_outputs, streaming(0)),
    Kernel("join_rows", "elementwise", (2, float("inf")), _join_outputs, streaming(0)),
    Kernel("ragged_matmul", "gemm", (3, 3), _ragged_outputs, _ragged_work),
    Kernel(
        "ragged_matmul_input_gradient", "gemm", (3, 3), _ragged_input_gradient_outputs, _ragged_input_gradient_work
    ),
    Kernel(
        "ragged_matmul_weight_gradient", "gemm", (3, 4), _ragged_weight_gradient_outputs, _ragged_weight_gradient_work
    ),
)  # fmt: skip
