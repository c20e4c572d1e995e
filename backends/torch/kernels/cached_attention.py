"""Attention of some tokens of several sequences to caches of keys and values.

Queries are [s, 1, n, d], keys [slots, 1, g, d], or [slots, 1, d] for all heads, and values [slots, 1, g, e]. ``spans``:
per sequence the slot of its first key, the number of keys, and the number of queries, which are the last of these keys.
Without a cache of values the first ``value_size`` channels of a key are its value. ``scaled_as``: scores are divided by
the root of this width; left out: of the keys' own.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from backends.torch.kernels.attention import kv_groups, masked, merged_groups, query_groups
from backends.torch.kernels.context import Attributes, KernelContext, KernelFunction, wide


def cached_attention(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the attention of every query to the keys of its sequence up to its own."""
    q, *caches = inputs
    caches = [cache.to(q.dtype) for cache in caches]
    k, *cached = (cache if cache.dim() == 4 else cache.unsqueeze(2) for cache in caches)
    v = cached[0] if cached else k[..., : attributes["value_size"]]
    divisor = sqrt(attributes.get("scaled_as", q.shape[-1]))
    found, start = [], 0
    for slot, keys, queries in attributes["spans"]:
        own, seen = q[start : start + queries], slice(slot, slot + keys)
        scores = wide(query_groups(own, k) @ kv_groups(k[seen]).transpose(-1, -2)) / divisor
        weights = torch.softmax(masked(scores), -1).to(v.dtype)
        found.append(merged_groups(weights @ kv_groups(v[seen])))
        start += queries
    return (torch.cat(found),)


CACHED_ATTENTION_KERNELS: Final[Mapping[str, KernelFunction]] = MappingProxyType(
    {"cached_attention": cached_attention, "decode_attention": cached_attention}
)
