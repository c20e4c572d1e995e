"""Products of ring self-attention, computed block by block of keys (Li et al. 2021).

At each step a rank holds the keys or values of the rank ``step`` places before it along the axis ``ring``.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from torch import Tensor

from backends.torch.kernels.attention import kv_groups, merged_groups, query_groups, score_groups, summed_over_group
from backends.torch.kernels.context import Attributes, KernelContext, KernelFunction


def _columns(context: KernelContext, num_keys: int, attributes: Attributes) -> slice:
    """Return the columns, among all keys, of the block of keys that this rank holds."""
    owner = (context.index((attributes["ring"],)) - attributes["step"]) % attributes["blocks"]
    return slice(owner * num_keys, (owner + 1) * num_keys)


def ring_scores(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Write ``factor`` x held^T into the block's columns of scores[b, n, s, keys]; return the scores."""
    x, held, *given = inputs
    s, b, n, _ = x.shape
    scores = given[0] if given else x.new_zeros((b, n, s, attributes["blocks"] * held.shape[0]))
    made = (query_groups(x, held) @ kv_groups(held).transpose(-1, -2)).flatten(1, 2)
    scores[..., _columns(context, held.shape[0], attributes)] = attributes["factor"] * made
    return (scores,)


def ring_context(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return ``factor`` x (the block's columns of weights[b, n, s, keys]) x held, added to a given sum."""
    weights, held, *given = inputs
    own = weights[..., _columns(context, held.shape[0], attributes)]
    made = attributes["factor"] * merged_groups(score_groups(own, held) @ kv_groups(held))
    if not given:
        return (made,)
    given[0].add_(made)
    return (given[0],)


def transposed_context(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the product ``factor`` weights^T x as [keys, b, groups, d], summed over the heads of a group."""
    weights, x = inputs
    b, n, s, keys = weights.shape
    groups = attributes["groups"]
    rows = x.reshape(s, b, groups, n // groups, x.shape[3]).permute(1, 2, 3, 0, 4)
    columns = weights.reshape(b, groups, n // groups, s, keys).transpose(-1, -2)
    return (attributes["factor"] * summed_over_group(columns @ rows),)


RING_SCORE_KERNELS: Final[Mapping[str, KernelFunction]] = MappingProxyType(
    {"ring_scores": ring_scores, "ring_context": ring_context, "transposed_context": transposed_context}
)
