"""Attention to caches of several sequences, against attention of each whole sequence."""

from typing import Any

import pytest
import torch
from torch import Tensor

from backends.torch.reference.eight_bits import scaled_and_rounded
from tests.backends.kernels.test_kernels import D, G, N, S, assert_close, attention, random, run


def cached(kernel: str, width: int | None = None, **attributes: Any) -> tuple[Tensor, Tensor]:
    """Return attention of two sequences in caches with free slots between them, and what it must be."""
    lengths, firsts, news = (S, 4), (1, 8), (2, 4)
    found, q, keys, values = [], [], random(13, 1, G, D, seed=7), random(13, 1, G, 3, seed=8)
    for i, (length, first, new) in enumerate(zip(lengths, firsts, news, strict=True)):
        own_q, own_k = random(length, 1, N, D, seed=i), keys[first : first + length]
        own_v = values[first : first + length] if width is None else own_k[..., :width]
        found.append(attention(own_q, own_k, own_v)[-new:])
        q.append(own_q[-new:])
    caches = (keys, values) if width is None else (keys,)
    attributes["spans"] = tuple(zip(firsts, lengths, news, strict=True))
    return run(kernel, torch.cat(q), *caches, **attributes)[0], torch.cat(found)


@pytest.mark.parametrize("kernel", ["cached_attention", "decode_attention"])
def test_cached_attention_is_that_of_the_last_queries(kernel: str) -> None:
    """New tokens of sequences of unequal lengths get what the last of each one's queries get; shared values too."""
    for actual, expected in (cached(kernel), cached(kernel, 2, value_size=2)):
        assert_close([actual], [expected])
    plain, scaled = cached(kernel)[0], cached(kernel, scaled_as=4 * D)[0]
    assert not torch.allclose(plain, scaled)


def test_attention_to_latents_is_that_to_expanded_keys_and_values() -> None:
    """Absorbed queries against cached latents, expanded afterwards, are attention to heads of keys and values."""
    rank, value, size, turned = 5, 3, 4, 2
    q, latents = random(S, 1, N, size + turned), random(S, 1, rank + turned, seed=1)
    weight = random(rank, N, size + value, seed=2)
    expanded = torch.einsum("sbr,rnd->sbnd", latents[..., :rank], weight)
    keys = torch.cat((expanded[..., :size], latents[:, :, None, rank:].expand(-1, -1, N, -1)), -1)
    (absorbed,) = run("absorb_query", q, weight, head_size=size)
    spans = {"spans": ((0, S, S),), "value_size": rank, "scaled_as": size + turned}
    (y,) = run("decode_attention", absorbed, latents, **spans)
    assert_close(run("expand_values", y, weight, head_size=size), [attention(q, keys, expanded[..., size:])])


def test_latents_in_eight_bits_are_those_of_the_definition() -> None:
    """Latents that are written in parts, with a scale for 128 numbers each, get the attention of rounded ones."""
    rank, turned = 130, 2
    latents, positions = 9.0 * random(S, 1, rank), random(S, 1, 1, turned, seed=1)
    latents[..., 128:] /= 1000.0
    q = random(2, 1, N, rank + turned, seed=2)
    parts = ((latents[:3], positions[:3]), (latents[3:], positions[3:]))
    caches = run("append_latents", *parts[0], places=((0, 3),), rows=S)
    caches = run("append_latents", *parts[1], *caches, places=((3, S - 3),), rows=S)
    (y,) = run("decode_latents", q, *caches, spans=((0, S, 2),), scaled_as=6)
    kept = torch.cat([scaled_and_rounded(tile, (-1,)) for tile in latents.split(128, -1)], -1)
    whole = torch.cat((kept, positions[:, :, 0]), -1)
    assert_close([y], run("decode_attention", q, whole, spans=((0, S, 2),), value_size=rank, scaled_as=6))
    assert (kept - latents).abs().max() > 1e-3
