"""Reshaping kernels of multi-head latent attention, between its projections and its scores."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from backends.torch.kernels.context import Attributes, KernelContext, KernelFunction, wide


def split_latent(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the first ``kv_rank`` channels of x[s, b, r+p], and the other channels as one head [s, b, 1, p]."""
    (x,), rank = inputs, attributes["kv_rank"]
    latent, position = x[..., :rank], x[..., rank:].unsqueeze(2)
    dense = torch.contiguous_format
    return latent.clone(memory_format=dense), position.clone(memory_format=dense)


def merge_latent(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return x[s, b, r+p], the inverse of ``split_latent``."""
    latent, position = inputs
    return (torch.cat((latent, position.squeeze(2)), -1),)


def latent_heads(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return k[s, b, n, d+p] and v[s, b, n, e] from kv[s, b, n, d+e] and the heads' common positions [s, b, 1, p]."""
    kv, position = inputs
    key, value = kv[..., : attributes["head_size"]], kv[..., attributes["head_size"] :]
    k = torch.cat((key, position.expand(-1, -1, kv.shape[2], -1)), -1)
    return k, value.clone(memory_format=torch.contiguous_format)


def latent_heads_backward(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the gradient of kv, and the gradient of the position part, summed over heads."""
    dk, dv = inputs
    size = attributes["head_size"]
    dposition = wide(dk[..., size:]).sum(2, keepdim=True).to(dk.dtype)
    return torch.cat((dk[..., :size], dv), -1), dposition


def absorb_query(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return q[s, b, n, d+p] as [s, b, n, r+p], to be compared with latents; the weight is [r, n, d+e]."""
    (q, weight), size = inputs, attributes["head_size"]
    return (torch.cat((torch.einsum("sbnd,rnd->sbnr", q[..., :size], weight[..., :size]), q[..., size:]), -1),)


def expand_values(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return weighed latents y[s, b, n, r] as values [s, b, n, e]; the weight is [r, n, d+e]."""
    y, weight = inputs
    return (torch.einsum("sbnr,rne->sbne", y, weight[..., attributes["head_size"] :]).contiguous(),)


LATENT_KERNELS: Final[Mapping[str, KernelFunction]] = MappingProxyType(
    {
        "split_latent": split_latent,
        "merge_latent": merge_latent,
        "latent_heads": latent_heads,
        "latent_heads_backward": latent_heads_backward,
        "absorb_query": absorb_query,
        "expand_values": expand_values,
    }
)
