"""Both ends of a language model, the optimizers and the delay: tokens, embedding, loss, Adam, SGD."""

from collections.abc import Sequence
from typing import NamedTuple

from costmodels.kernels.elementwise import streaming
from costmodels.kernels.tensor import (
    Attributes,
    Count,
    Kernel,
    TensorSpec,
    Work,
    require,
    statistics_dtype,
    total_bytes,
)

_ADAM_FLOP_PER_PARAMETER = 13
"""Two moments (3 each), two bias corrections, square root, division, epsilon, step, subtraction."""
_SGD_FLOP_PER_PARAMETER = 2
"""One multiplication, one subtraction."""


def _tokens_outputs(_inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    return (TensorSpec((attributes["sequence_length"], attributes["microbatch_size"]), "int64"),)


def _prompt_tokens_outputs(_inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the ids of several sequences' tokens, one sequence after the other."""
    return (TensorSpec((sum(count for _, count in attributes["runs"]), 1), "int64"),)


def _most_likely_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    return (TensorSpec(inputs[0].shape[:-1], "int64"),)


def _tokens_work(_inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of token ids that the data loader has already put on the device."""
    return Work(0.0, 0.0, 0, total_bytes(outputs))


def _embedding_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    ids, table = inputs
    require(len(table.shape) == 2, "the table must be [V,h]", table)
    return (table.like(*ids.shape, table.shape[1]),)


def _embedding_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of one table row read per token (never the whole table)."""
    return Work(0.0, 0.0, inputs[0].num_bytes + outputs[0].num_bytes, outputs[0].num_bytes)


def _accumulate_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    return (inputs[-1],)


def _embedding_backward_work(inputs: Sequence[TensorSpec], _outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of adding dy to the gradient's rows of the tokens: each such row is read and written once.

    There are at most as many such rows as tokens, and as the gradient has.
    """
    ids, dy, gradient = inputs
    rows = gradient.like(min(ids.num_elements, gradient.shape[0]), gradient.shape[1]).num_bytes
    return Work(0.0, float(dy.num_elements), ids.num_bytes + dy.num_bytes + rows, rows)


def _add_positions_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of adding my positions' rows of the table, each read once."""
    x, table = inputs
    rows = table.like(x.shape[0], table.shape[1]).num_bytes
    return Work(0.0, float(x.num_elements), x.num_bytes + rows, outputs[0].num_bytes)


def _add_positions_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    x, table = inputs
    require(x.shape[0] <= table.shape[0], "the table must have a row per position", x, table)
    return (x,)


def _add_positions_backward_work(inputs: Sequence[TensorSpec], _outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    dy, gradient = inputs
    rows = gradient.like(dy.shape[0], gradient.shape[1]).num_bytes
    return Work(0.0, float(dy.num_elements), dy.num_bytes + rows, rows)


def _logits_max_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    (logits,) = inputs
    return (TensorSpec(logits.shape[:-1], statistics_dtype(logits)),)


def _exp_logits_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    logits, maximum, labels = inputs
    fits = logits.shape[:-1] == maximum.shape == labels.shape
    require(fits, "max and labels must be the logits' leading dimensions", *inputs)
    token = TensorSpec(logits.shape[:-1], statistics_dtype(logits))
    return (TensorSpec(logits.shape, statistics_dtype(logits)), token, token)


def _cross_entropy_backward_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    return (TensorSpec(inputs[0].shape, attributes["dtype"]),)


def _optimizer_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    require(all(tensor.shape == inputs[0].shape for tensor in inputs), "all inputs must have one shape", *inputs)
    param, _gradient, *rest = inputs
    return (param, *rest)


def _adam_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of parameter, gradient and moments read, all but the gradient written back.

    The low-precision copy is written only.
    """
    read = total_bytes(inputs[:4])
    return Work(0.0, float(_ADAM_FLOP_PER_PARAMETER * inputs[0].num_elements), read, total_bytes(outputs))


def _sgd_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of parameter and gradient read, the parameter written.

    The low-precision copy is written only.
    """
    flop = float(_SGD_FLOP_PER_PARAMETER * inputs[0].num_elements)
    return Work(0.0, flop, total_bytes(inputs[:2]), total_bytes(outputs))


class _PieceOperands(NamedTuple):
    """What an optimizer reads that updates one rank's flat piece of some parameters, in place."""

    state: Sequence[TensorSpec]
    gradients: Sequence[TensorSpec]
    parameters: Sequence[TensorSpec]

    @classmethod
    def of(cls, inputs: Sequence[TensorSpec], attributes: Attributes) -> "_PieceOperands":
        last = len(inputs) - attributes["num_parameters"]
        first = last - attributes["num_gradients"]
        return cls(inputs[:first], inputs[first:last], inputs[last:])


def _elements(tensors: Sequence[TensorSpec]) -> int:
    return sum(tensor.num_elements for tensor in tensors)


def _piece_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return state and parameters. There are gradients for all parameters, or for the piece alone."""
    operands, size = _PieceOperands.of(inputs, attributes), attributes["size"]
    require(all(tensor.shape == (size,) for tensor in operands.state), f"the state must be [{size}]", *operands.state)
    fits = _elements(operands.gradients) in {_elements(operands.parameters), size}
    require(fits, f"there must be a gradient per parameter, or {size}", *operands.gradients)
    return (*operands.state, *operands.parameters)


def _piece_work(num_moments: int, flop_per_parameter: int) -> Count:
    """Return a count: state and gradients of the piece read, state and parameters written.

    Parameters are read too where the state has no copy of them in higher precision.
    """

    def count(inputs: Sequence[TensorSpec], _outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
        operands, size = _PieceOperands.of(inputs, attributes), attributes["size"]
        gradient, parameter = (tensors[0].like(size).num_bytes for tensors in operands[1:])
        state = total_bytes(operands.state)
        read = state + gradient + (parameter if len(operands.state) == num_moments else 0)
        return Work(0.0, float(flop_per_parameter * size), read, state + parameter)

    return count


def _delay_outputs(_inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return nothing: the outputs of abstract work are whatever the plan declares."""
    return ()


def _delay_work(_inputs: Sequence[TensorSpec], _outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    return Work(0.0, 0.0, 0, 0, duration_s=float(attributes["duration_s"]))


MODEL_END_KERNELS = (
    Kernel("tokens", "none", (0, 0), _tokens_outputs, _tokens_work),
    Kernel("prompt_tokens", "none", (0, 0), _prompt_tokens_outputs, _tokens_work),
    Kernel("most_likely", "elementwise", (1, 1), _most_likely_outputs, streaming(1)),
    Kernel("embedding", "elementwise", (2, 2), _embedding_outputs, _embedding_work),
    Kernel("embedding_backward", "elementwise", (3, 3), _accumulate_outputs, _embedding_backward_work),
    Kernel("add_positions", "elementwise", (2, 2), _add_positions_outputs, _add_positions_work),
    Kernel("add_positions_backward", "elementwise", (2, 2), _accumulate_outputs, _add_positions_backward_work),
    Kernel("logits_max", "elementwise", (1, 1), _logits_max_outputs, streaming(1)),
    Kernel("exp_logits", "elementwise", (3, 3), _exp_logits_outputs, streaming(5)),
    Kernel("cross_entropy", "elementwise", (3, 3), _accumulate_outputs, streaming(4)),
    Kernel("cross_entropy_backward", "elementwise", (3, 3), _cross_entropy_backward_outputs, streaming(3)),
    Kernel("adam", "optimizer", (4, 5), _optimizer_outputs, _adam_work),
    Kernel("sgd", "optimizer", (2, 3), _optimizer_outputs, _sgd_work),
    Kernel("adam_piece", "optimizer", (4, float("inf")), _piece_outputs, _piece_work(2, _ADAM_FLOP_PER_PARAMETER)),
    Kernel("sgd_piece", "optimizer", (2, float("inf")), _piece_outputs, _piece_work(0, _SGD_FLOP_PER_PARAMETER)),
    Kernel("delay", "delay", (0, float("inf")), _delay_outputs, _delay_work),
)
