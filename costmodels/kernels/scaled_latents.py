"""Latents cached in eight bits: 128 of them share a scale, and the keys' position part keeps its width.

DeepSeek's cache (FlashMLA, ``tests/quant.py``: 512 E4M3 numbers, 4 float32 scales, 64 bfloat16 numbers, 656 bytes per
token). Three caches stand for it: latents [slots, 1, r], scales [slots, 1, tiles], positions [slots, 1, p]. A latent is
its number times its scale. One kernel writes them all, as vLLM's ``concat_and_cache_ds_mla``. Decoding widens what it
reads, and multiplies as it does in 16 bits.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from costmodels.kernels.cached_attention import DECODE_ATTENTION
from costmodels.kernels.tensor import Attributes, Kernel, TensorSpec, Work, require, total_bytes

TILE: Final = 128
"""Neighbouring numbers of a latent that share a scale."""
LATENT_DTYPE: Final = "float8_e4m3fn"
SCALE_DTYPE: Final = "float32"


def num_tiles(kv_rank: int) -> int:
    """Return the scales of a latent of this width."""
    return -(-kv_rank // TILE)


def scaled_caches(slots: int, kv_rank: int, position: TensorSpec) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """Return the caches of latents, scales and positions. ``position``: the keys' position part, as it is written."""
    return (
        TensorSpec((slots, 1, kv_rank), LATENT_DTYPE),
        TensorSpec((slots, 1, num_tiles(kv_rank)), SCALE_DTYPE),
        TensorSpec((slots, 1, position.shape[-1]), position.dtype),
    )


def _append_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the caches with x[s, 1, r] and its positions [s, 1, 1, p] at ``places``: those given, or new ones.

    ``places``: first row and number of rows, of each run of rows of x; ``rows``: of the caches.
    """
    latent, position, *given = inputs
    places, slots = attributes["places"], attributes["rows"]
    caches = scaled_caches(slots, latent.shape[-1], position)
    alike = latent.shape[1] == 1 and position.shape[:-1] == (latent.shape[0], 1, 1)
    has_room = all(first + count <= slots for first, count in places)
    fits = sum(count for _, count in places) == latent.shape[0] and tuple(given) in {(), caches}
    require(alike and fits and has_room, f"latents [s,1,r] and positions [s,1,1,p] need {slots} slots", *inputs)
    return caches


def _append_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of reading the new tokens and writing their rows; the caches' other rows are not touched."""
    latent, position = inputs[:2]
    written = [cache.like(latent.shape[0], *cache.shape[1:]) for cache in outputs]
    return Work(0.0, 2.0 * latent.num_elements, total_bytes((latent, position)), total_bytes(written))


def _decode_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the weighed latents of each query [s, 1, n, r+p]; ``spans`` as in ``decode_attention``."""
    q, latents, scales, positions = inputs
    caches = scaled_caches(latents.shape[0], latents.shape[-1], positions)
    require((latents, scales, positions) == caches, "the caches must be of latents, scales and positions", *inputs)
    return DECODE_ATTENTION.outputs((q, _keys(inputs)), _plain(inputs, attributes))


def _decode_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    """Return the work of the attention to latents in the queries' type, but for the bytes that the caches have."""
    q, *caches = inputs
    keys = sum(count for _, count, _ in attributes["spans"])
    read = total_bytes([q, *(cache.like(keys, *cache.shape[1:]) for cache in caches)])
    return replace(DECODE_ATTENTION.work((q, _keys(inputs)), outputs, _plain(inputs, attributes)), bytes_read=read)


def _keys(inputs: Sequence[TensorSpec]) -> TensorSpec:
    """Return the cache of whole keys that the caches stand for, in the queries' type."""
    q, latents, _, positions = inputs
    return TensorSpec((*latents.shape[:-1], latents.shape[-1] + positions.shape[-1]), q.dtype)


def _plain(inputs: Sequence[TensorSpec], attributes: Attributes) -> Attributes:
    """Return the attributes of the attention to whole keys."""
    return {**attributes, "value_size": inputs[1].shape[-1]}


SCALED_LATENT_KERNELS = (
    Kernel("append_latents", "elementwise", (2, 5), _append_outputs, _append_work),
    Kernel("decode_latents", "decode", (4, 4), _decode_outputs, _decode_work),
)
