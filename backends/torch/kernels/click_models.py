"""Models that predict clicks: inputs, interactions of embedding vectors, and the logistic loss."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from backends.torch.kernels.context import DTYPES, Attributes, KernelContext, KernelFunction
from backends.torch.values.clicks import drawn_clicks


def click_inputs(context: KernelContext, _: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return numbers [b, n] and labels [b, 1], 0 or 1, of this rank's samples; the batch does not depend on ranks."""
    count, dtype = attributes["num_samples"], DTYPES[attributes["dtype"]]
    first = context.index(attributes["axes"]) * count
    total = count * context.rank.mesh.degree(*attributes["axes"])
    drawn = drawn_clicks(context.rank.seed, context.rank.step, total, attributes["num_numbers"])
    return tuple(x[first : first + count].to(context.rank.device, dtype).clone() for x in drawn)


def relu(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return max(x, 0)."""
    return (torch.relu(inputs[0]),)


def relu_backward(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return dy where x is above 0, given dy and x."""
    dy, x = inputs
    return (dy * (x > 0),)


def features(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return numbers beside the first ``width`` elements of each vector."""
    numbers, vectors = inputs
    return (torch.cat([numbers, vectors[..., : attributes["width"]].flatten(1)], dim=1),)


def features_backward(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the gradient of the vectors, given dy and the vectors."""
    dy, vectors = inputs
    width, gradient = attributes["width"], torch.zeros_like(vectors)
    num_numbers = dy.shape[1] - vectors.shape[1] * width
    gradient[..., :width] = dy[:, num_numbers:].view(*vectors.shape[:2], width)
    return (gradient,)


def _joined(x: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return x and the vectors together [b, T + 1, d], and the two places of each pair of them."""
    joined = torch.cat([x[:, None], vectors], dim=1)
    return joined, torch.tril_indices(joined.shape[1], joined.shape[1], -1, device=x.device)


def dot_interaction(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return x beside the product of each two of x and the vectors (Naumov et al. 2019, DLRM)."""
    joined, pairs = _joined(*inputs)
    products = torch.bmm(joined, joined.transpose(1, 2))[:, pairs[0], pairs[1]]
    return (torch.cat([inputs[0], products], dim=1),)


def dot_interaction_backward(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the gradients of x and the vectors, given dy and both."""
    dy, x, vectors = inputs
    joined, pairs = _joined(x, vectors)
    of_products = dy.new_zeros(len(x), joined.shape[1], joined.shape[1])
    of_products[:, pairs[0], pairs[1]] = dy[:, x.shape[1] :]
    gradient = torch.bmm(of_products + of_products.transpose(1, 2), joined)
    return gradient[:, 0] + dy[:, : x.shape[1]], gradient[:, 1:].clone()


def factorization(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return [b, 1]: the sum of the last columns and, with ``pairs``, of the products of all pairs of the others.

    Rendle 2010, factorization machines: the pairs' sum is half of the squared sum less the sum of squares.
    """
    (vectors,) = inputs
    first, others = vectors[..., -1].sum(1, keepdim=True), vectors[..., :-1]
    if not attributes["pairs"]:
        return (first,)
    pairs = (others.sum(1).square() - others.square().sum(1)).sum(1, keepdim=True) / 2
    return (first + pairs,)


def factorization_backward(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the gradient of the vectors, given dy and the vectors."""
    dy, vectors = inputs
    others, gradient = vectors[..., :-1], torch.zeros_like(vectors)
    gradient[..., -1] = dy
    if attributes["pairs"]:
        gradient[..., :-1] = dy[..., None] * (others.sum(1, keepdim=True) - others)
    return (gradient,)


def cross(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return x0 s + bias + x (Wang et al. 2017, deep & cross network)."""
    x0, s, bias, x = inputs
    return (x0 * s + bias + x,)


def cross_backward(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the gradients of x0 and s, given dy and both."""
    dy, x0, s = inputs
    return dy * s, (dy * x0).sum(1, keepdim=True)


def logistic_loss(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Write the sum of the samples' losses, over the number of samples of the whole batch, in place."""
    logits, labels, loss = inputs
    total = binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    return (loss.copy_(total.reshape(1) / attributes["batch_size"]),)


def logistic_loss_backward(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the gradient of the logits, given logits and labels."""
    logits, labels = inputs
    return ((torch.sigmoid(logits) - labels) / attributes["batch_size"],)


def join_tables(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return [b, T, w] from the ranks' blocks [b, T_r, w], one after the other."""
    (rows,) = inputs
    tables, width = attributes["tables"], rows.shape[1]
    samples = rows.shape[0] // sum(tables)
    blocks = torch.split(rows, [samples * count for count in tables])
    return (torch.cat([block.view(samples, -1, width) for block in blocks], dim=1),)


def part_tables(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the ranks' blocks [b, T_r, w] as rows, one after the other, from [b, T, w]."""
    (vectors,) = inputs
    parts = torch.split(vectors, list(attributes["tables"]), dim=1)
    return (torch.cat([part.reshape(-1, vectors.shape[2]) for part in parts]),)


CLICK_MODEL_KERNELS: Final[Mapping[str, KernelFunction]] = MappingProxyType(
    {
        function.__name__: function
        for function in (
            click_inputs,
            relu,
            relu_backward,
            features,
            features_backward,
            dot_interaction,
            dot_interaction_backward,
            factorization,
            factorization_backward,
            cross,
            cross_backward,
            logistic_loss,
            logistic_loss_backward,
            join_tables,
            part_tables,
        )
    }
)
