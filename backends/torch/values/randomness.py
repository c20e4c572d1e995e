"""Random values of a run: parameters, tokens, dropout masks, gate draws. The dense reference uses the same values."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from backends.torch.values.hashing import global_index, integers, key_of, normal, strided_index, uniform


def initial_normal(
    seed: int, source: str, shape: Sequence[int], starts: Sequence[int], sizes: Sequence[int], *, device: torch.device
) -> Tensor:
    """Return a slice of a parameter's standard normal tensor of global ``shape``, in float64."""
    places = [torch.arange(start, start + n, device=device) for start, n in zip(starts, sizes, strict=True)]
    return normal(key_of("parameter", seed, source), global_index(shape, places))


def token_ids(
    seed: int,
    step: int,
    *,
    first_sample: int,
    num_samples: int,
    positions: Tensor,
    vocab_size: int,
) -> Tensor:
    """Return the token ids [positions, samples] of consecutive samples of a step's global batch."""
    return integers(key_of("tokens", seed, step), _places(first_sample, num_samples, positions), vocab_size)


def expert_draws(seed: int, step: int, salt: str, *, first_sample: int, num_samples: int, positions: Tensor) -> Tensor:
    """Return a gate's random numbers for tokens of a step's batch: float64 [positions, samples] in [0, 1)."""
    return uniform(key_of("experts", seed, step, salt), _places(first_sample, num_samples, positions))


def gumbel_noise(
    seed: int, step: int, salt: str, num_experts: int, *, first_sample: int, num_samples: int, positions: Tensor
) -> Tensor:
    """Return Gumbel noise, float64 [positions, samples, expert], for tokens of a step's global batch."""
    places = _places(first_sample, num_samples, positions)[..., None] * num_experts
    index = places + torch.arange(num_experts, device=positions.device)
    drawn = uniform(key_of("gumbel", seed, step, salt), index)
    noise: Tensor = -torch.log(-torch.log(drawn.clamp(min=2.0**-53)))
    return noise


def hashed_experts(seed: int, salt: str, ids: Tensor, num_experts: int) -> Tensor:
    """Return the fixed expert, int64, of every token id."""
    return integers(key_of("hash", seed, salt), ids, num_experts)


def _places(first_sample: int, num_samples: int, positions: Tensor) -> Tensor:
    """Return the index of each token [positions, samples] of a step's global batch."""
    samples = torch.arange(first_sample, first_sample + num_samples, dtype=torch.int64, device=positions.device)
    return (samples[None, :] << 32) + positions[:, None]


def kept_by_dropout(
    key: int,
    shape: Sequence[int],
    places: Sequence[Tensor],
    *,
    batch_dim: int,
    first_sample: int,
    probability: float,
) -> Tensor:
    """Return a dropout mask (uint8, 1: kept) for elements of a tensor. ``places``: indices in each dimension.

    The mask of an element depends only on its sample's number in the global batch and its place in the sample. So it is
    the same for all micro-batch sizes and shardings.
    """
    inside = [1 if dim == batch_dim else n for dim, n in enumerate(shape)]
    strides = [prod(inside if dim == batch_dim else inside[dim + 1 :]) for dim in range(len(shape))]
    samples = torch.arange(first_sample, first_sample + len(places[batch_dim]), device=places[batch_dim].device)
    index = strided_index(strides, [samples if dim == batch_dim else x for dim, x in enumerate(places)])
    return (uniform(key, index) >= probability).to(torch.uint8)


def dropout_key(seed: int, step: int, salt: str) -> int:
    """Return the key of one dropout of one step."""
    return key_of("dropout", seed, step, salt)
