"""Fused attention: of whole sequences (blocks of queries against the keys before them), and of one new token each.

Sources: Dao 2023, FlashAttention-2, sections 3.1 to 3.3 (blocks, causal work, backward's 5 products for 2); flash
decoding (Dao et al. 2023) for keys split over multiprocessors.
"""

from typing import Final

import numpy as np
from msgspec import Struct

from costmodels.hardware import DeviceSpec
from costmodels.timing.times import Array, Calls, Times, cache_speedup, throttling, waves

_QUERY_TILES: Final = (16, 32, 64, 128)
_DECODE_KEYS: Final = 64
_SPLITS: Final = (1, 2, 4, 8, 16, 32, 64)
_BACKWARD_FLOP: Final = 2.5


class AttentionProfile(Struct, frozen=True, kw_only=True):
    """Fused attention over whole sequences.

    ``peak_fraction``: fraction of the peak that a block's products reach, with the softmax that overlaps them.
    ``score_s``: time of the whole device per score for a softmax (an exponential, a maximum, a sum) that runs after the
    products, as on CPUs. ``throttle``, ``throttle_after_s``: see ``throttling``. ``key_tile``: keys that a block takes
    at a time; ``step_s``: its least time for them. ``tail``: fraction of the longest block that the others wait for.
    ``memory_fraction``: of the memory bandwidth. ``cache_fraction``, ``cache_speedup``: tensors below this fraction of
    the cache move faster by this factor. ``backward_ratio``: the backward's rate over the forward's.
    """

    peak_fraction: float
    throttle: float
    throttle_after_s: float
    step_s: float
    tail: float
    memory_fraction: float
    cache_fraction: float
    cache_speedup: float
    backward_ratio: float
    latency_s: float
    score_s: float = 0.0
    key_tile: int = 64


class DecodeProfile(Struct, frozen=True, kw_only=True):
    """Attention of one new token per sequence to a cache of keys and values.

    ``block_s``: fixed time of a thread block; ``step_s``: its least time per 64 keys; ``split_s``: adding up what
    several blocks found. ``block_bandwidth_bytes_per_s``: what one block reads at most. ``memory_fraction``: of the
    memory bandwidth; ``query_passes``: passes over queries and results. ``overlap``: exponent of the p-norm.
    """

    block_s: float
    step_s: float
    split_s: float
    block_bandwidth_bytes_per_s: float
    memory_fraction: float
    query_passes: float
    wave_quantisation: float
    overlap: float
    latency_s: float


def attention_times(
    calls: Calls, peak_flop_per_s: float, device: DeviceSpec, attention: AttentionProfile, *, backward: bool
) -> Times:
    """Return the times of attention of m queries to n keys: causal, the last m of which are their own, or to all.

    A block of queries takes the keys from where its first query's window begins to its last query.
    """
    units = device.num_multiprocessors
    rate = peak_flop_per_s * attention.peak_fraction / units
    best_s = np.full_like(calls.m, np.inf)
    for rows in _QUERY_TILES:
        per_head = np.ceil(calls.m / rows)
        most = calls.window + rows - 1.0
        seen = calls.n - calls.causal * (calls.m - (per_head + 1.0) / 2.0 * rows)
        mean = (seen - _hidden_keys(calls, most, rows, per_head)) / attention.key_tile
        longest = np.ceil(np.minimum(calls.n, most) / attention.key_tile)
        fill = calls.batch * per_head / units
        step_s = rows * attention.key_tile * (4.0 * calls.k / rate + attention.score_s * units)
        last_s = longest * np.maximum(step_s, attention.step_s)
        shared_s = fill * np.clip(mean, 1.0, longest) * step_s
        tail_s = attention.tail * last_s * (1.0 - 1.0 / np.maximum(fill, 1.0))
        best_s = np.minimum(best_s, np.maximum(last_s, shared_s + tail_s))
    least = calls.batch * calls.m * calls.n * (1.0 - calls.causal / 2.0)
    least = least - calls.batch * calls.m * (calls.n - calls.window) ** 2 / (2.0 * calls.n)
    best_s = np.maximum(best_s, least * (4.0 * calls.k / (rate * units) + attention.score_s))
    busy = throttling(calls.executed_flop, peak_flop_per_s, attention.throttle, attention.throttle_after_s)
    compute_s = best_s * busy * (_BACKWARD_FLOP / attention.backward_ratio if backward else 1.0)
    return Times(np.full_like(best_s, attention.latency_s), compute_s, moving_s(calls.num_bytes, device, attention))


def _hidden_keys(calls: Calls, most: Array, rows: int, per_head: Array) -> Array:
    """Return the number of keys before its queries' windows that a block skips, averaged over a head's blocks.

    Block j of ``rows`` queries ends at key n - m + j rows, and reads at most ``most`` keys.
    """
    before = calls.n - calls.m
    whole = np.clip(np.floor((most - before) / rows), 0.0, per_head)
    ends = rows * (per_head * (per_head + 1.0) - whole * (whole + 1.0)) / 2.0
    hidden: Array = ((per_head - whole) * (before - most) + ends) / per_head
    return hidden


def moving_s(num_bytes: Array, device: DeviceSpec, attention: AttentionProfile) -> Array:
    """Return the seconds to move queries, keys, values and results to and from the memory."""
    speedup = cache_speedup(num_bytes, attention.cache_fraction * device.l2_cache_bytes, attention.cache_speedup)
    rate: Array = device.memory_bandwidth_bytes_per_s * attention.memory_fraction * speedup
    return num_bytes / rate


def decode_times(calls: Calls, peak_flop_per_s: float, device: DeviceSpec, decode: DecodeProfile) -> Times:
    """Return the times of ``m`` query heads per group attending to n keys, of ``batch`` groups of size k.

    A group is one sequence's key head. If groups are fewer than multiprocessors, their keys are split, with the fastest
    number of splits.
    """
    units, bandwidth = device.num_multiprocessors, device.memory_bandwidth_bytes_per_s
    query_bytes = calls.m * calls.batch * calls.k * calls.element_bytes * 2.0
    key_bytes = np.maximum(calls.num_bytes - query_bytes, 0.0)
    best_s, best_memory_s = np.full_like(calls.m, np.inf), np.zeros_like(calls.m)
    for split in _SPLITS:
        blocks = calls.batch * split
        block_s = decode.block_s + np.ceil(calls.n / (_DECODE_KEYS * split)) * decode.step_s
        busy_s = waves(blocks / units, decode.wave_quantisation) * block_s
        rate = np.minimum(
            bandwidth * decode.memory_fraction, np.minimum(blocks, units) * decode.block_bandwidth_bytes_per_s
        )
        memory_s, p = key_bytes / rate, decode.overlap
        whole_s = (busy_s**p + memory_s**p) ** (1.0 / p) + (decode.split_s if split > 1 else 0.0)
        better = (whole_s < best_s) & (calls.n >= _DECODE_KEYS * split if split > 1 else True)
        best_memory_s = np.where(better, key_bytes / (bandwidth * decode.memory_fraction), best_memory_s)
        best_s = np.where(better, whole_s, best_s)
    fixed_s = decode.latency_s + decode.query_passes * query_bytes / 2.0 / bandwidth
    compute_s = calls.executed_flop / peak_flop_per_s
    return Times(fixed_s + best_s - np.maximum(compute_s, best_memory_s), compute_s, best_memory_s)
