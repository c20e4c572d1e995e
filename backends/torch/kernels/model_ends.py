"""Token ids, embedding, loss, optimizer steps, and the delay kernel."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from backends.torch.kernels.context import DTYPES, Attributes, KernelContext, KernelFunction, rows_of, wide
from backends.torch.values.randomness import token_ids
from backends.torch.values.slicing import flat_piece, write_piece


def tokens(context: KernelContext, _: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return this rank's token ids [s, b] of a micro-batch; ``shift`` 1 gives the labels."""
    batch = attributes["microbatch_size"]
    places = context.positions(attributes["sequence_length"], **rows_of(attributes))
    ids = token_ids(
        context.rank.seed,
        context.rank.step,
        first_sample=context.first_sample(batch, attributes.get("batch_axes", ())),
        num_samples=batch,
        positions=places + attributes["shift"],
        vocab_size=attributes["vocab_size"],
    )
    return (ids,)


def prompt_tokens(context: KernelContext, _: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the token ids [tokens, 1] of this rank's sequences of a micro-batch, one sequence after the other."""
    runs, seed, step = attributes["runs"], context.rank.seed, context.rank.step
    first_sample, found = context.first_sample(len(runs)), []
    for sample, (start, count) in enumerate(runs, first_sample):
        positions = torch.arange(start, start + count, device=context.rank.device)
        found.append(
            token_ids(
                seed, step, first_sample=sample, num_samples=1, positions=positions, vocab_size=attributes["vocab_size"]
            )
        )
    return (torch.cat(found),)


def most_likely(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the numbers of the largest logits, of equal ones the first."""
    return (inputs[0].argmax(-1),)


def _local_rows(context: KernelContext, ids: Tensor, num_rows: int, axes: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return ids relative to this rank's first vocabulary row, 0 outside its rows, and a mask of the ids inside."""
    local = ids - context.index(axes) * num_rows
    inside = (local >= 0) & (local < num_rows)
    return torch.where(inside, local, 0), inside


def embedding(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the table's rows; zeros for ids outside this rank's part of the vocabulary."""
    ids, table = inputs
    rows, inside = _local_rows(context, ids, table.shape[0], attributes["vocab_axes"])
    return (table[rows] * inside.unsqueeze(-1).to(table.dtype),)


def embedding_backward(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Add dy to the rows of the table's gradient in place."""
    ids, dy, gradient = inputs
    rows, inside = _local_rows(context, ids, gradient.shape[0], attributes["vocab_axes"])
    terms = dy.to(gradient.dtype) * inside.unsqueeze(-1).to(gradient.dtype)
    gradient.index_add_(0, rows.reshape(-1), terms.reshape(-1, gradient.shape[1]))
    return (gradient,)


def _position_rows(context: KernelContext, x: Tensor, attributes: Attributes) -> Tensor:
    return context.positions(x.shape[0], attributes["sequence_axes"], **rows_of(attributes))


def add_positions(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return x[s, b, h] plus the table's rows of this rank's positions."""
    x, table = inputs
    return (x + table[_position_rows(context, x, attributes)].unsqueeze(1),)


def add_positions_backward(
    context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes
) -> tuple[Tensor, ...]:
    """Add dy, summed over samples, to the rows of the table's gradient at this rank's positions."""
    dy, gradient = inputs
    gradient[_position_rows(context, dy, attributes)] += dy.sum(1, dtype=gradient.dtype)
    return (gradient,)


def logits_max(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the largest logit of each token, in the type of statistics (``wide``)."""
    return (wide(inputs[0].amax(-1)),)


def exp_logits(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return exp(logits - max), its sum, and the label's logit minus max (0 if another rank has that logit)."""
    logits, maximum, labels = inputs
    rows, inside = _local_rows(context, labels, logits.shape[-1], attributes["vocab_axes"])
    shifted = wide(logits) - maximum.unsqueeze(-1)
    target = shifted.gather(-1, rows.unsqueeze(-1)).squeeze(-1) * inside.to(shifted.dtype)
    exp = shifted.exp_()
    return exp, exp.sum(-1), target


def cross_entropy(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Add scale x the sum over tokens of log(sum) - target to the loss."""
    total, target, loss = inputs
    loss += attributes["scale"] * (total.log() - target).sum().to(loss.dtype)
    return (loss,)


def cross_entropy_backward(
    context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes
) -> tuple[Tensor, ...]:
    """Return scale x (softmax - one-hot) in the logits' type."""
    exp, total, labels = inputs
    rows, inside = _local_rows(context, labels, exp.shape[-1], attributes["vocab_axes"])
    dlogits = exp / total.unsqueeze(-1)
    dlogits.scatter_add_(-1, rows.unsqueeze(-1), -inside.unsqueeze(-1).to(dlogits.dtype))
    return ((dlogits * attributes["scale"]).to(DTYPES[attributes["dtype"]]),)


def adam(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Update a parameter and its moments (Kingma and Ba 2015, bias-corrected), and the low-precision copy, if any.

    The attribute ``step`` is the optimizer's step number in the first step of the run.
    """
    parameter, gradient, exp_avg, exp_avg_sq, *copies = inputs
    step = attributes["step"] + context.rank.step
    beta1, beta2 = attributes["beta1"], attributes["beta2"]
    slope = gradient.to(exp_avg.dtype)
    exp_avg.mul_(beta1).add_(slope, alpha=1.0 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(slope, slope, value=1.0 - beta2)
    root = (exp_avg_sq / (1.0 - beta2**step)).sqrt_().add_(attributes["epsilon"])
    parameter.addcdiv_(exp_avg, root, value=-attributes["learning_rate"] / (1.0 - beta1**step))
    for copy in copies:
        copy.copy_(parameter)
    return (parameter, exp_avg, exp_avg_sq, *copies)


def sgd(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Update a parameter by its gradient, and the low-precision copy, if any."""
    parameter, gradient, *copies = inputs
    parameter.sub_(gradient.to(parameter.dtype), alpha=attributes["learning_rate"])
    for copy in copies:
        copy.copy_(parameter)
    return (parameter, *copies)


def _update_piece(
    update: KernelFunction, num_moments: int, context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes
) -> tuple[Tensor, ...]:
    """Update this rank's piece of the concatenated parameters, and its optimizer state, in place.

    The gradients are those of all parameters, from which the piece is cut, or those of the piece alone.
    """
    last = len(inputs) - attributes["num_parameters"]
    first = last - attributes["num_gradients"]
    state, gradients, parameters = inputs[:first], inputs[first:last], inputs[last:]
    size, index = attributes["size"], context.index(attributes["axes"])
    own, is_piece = flat_piece(parameters, index, size), [x.numel() for x in gradients] == [size]
    slope = gradients[0].view(-1) if is_piece else flat_piece(gradients, index, size)
    is_mixed = len(state) > num_moments
    operands = (state[0], slope, *state[1:], own) if is_mixed else (own, slope, *state)
    update(context, operands, attributes)
    write_piece(parameters, index, own)
    return (*state, *parameters)


def adam_piece(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Do what ``adam`` does, on this rank's piece of several parameters."""
    return _update_piece(adam, 2, context, inputs, attributes)


def sgd_piece(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Do what ``sgd`` does, on this rank's piece of several parameters."""
    return _update_piece(sgd, 0, context, inputs, attributes)


def delay(context: KernelContext, _: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Pass ``duration_s`` seconds; return zeros."""
    context.rank.sleep(attributes["duration_s"])
    return tuple(
        torch.zeros(buffer.shape, dtype=DTYPES[buffer.dtype], device=context.rank.device) for buffer in context.outputs
    )


MODEL_END_KERNELS: Final[Mapping[str, KernelFunction]] = MappingProxyType(
    {
        "tokens": tokens,
        "prompt_tokens": prompt_tokens,
        "most_likely": most_likely,
        "embedding": embedding,
        "embedding_backward": embedding_backward,
        "add_positions": add_positions,
        "add_positions_backward": add_positions_backward,
        "logits_max": logits_max,
        "exp_logits": exp_logits,
        "cross_entropy": cross_entropy,
        "cross_entropy_backward": cross_entropy_backward,
        "adam": adam,
        "sgd": sgd,
        "adam_piece": adam_piece,
        "sgd_piece": sgd_piece,
        "delay": delay,
    }
)
