"""Chunks of Colossal-AI's Gemini: tensors packed into buffers of one length, and the length that wastes least.

Rules as in Colossal-AI (colossalai/zero/gemini/chunk, search_utils.py): tensors are packed in order, a tensor never
lies in two chunks, and what is left at a chunk's end stays empty. A tensor that is longer than a chunk has one of its
own. Lengths are in elements.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

LEAST_ELEMENTS: Final = 32 * 2**20
"""The shortest chunk that the search tries; a model that is shorter is one chunk (min_chunk_size_m)."""
SEARCHED_ELEMENTS: Final = 32 * 2**20
"""How much longer than that the longest tried chunk is (search_range_m)."""
_LARGE_DEVIATIONS: Final = 3.0
"""Tensors so many standard deviations longer than the mean do not decide on the length."""


def pack(lengths: Sequence[int], chunk_elements: int) -> list[list[int]]:
    """Return the tensors of each chunk, by their places in ``lengths``. Example: ``pack([2, 2, 3], 4)``."""
    chunks: list[list[int]] = []
    left = 0
    for place, length in enumerate(lengths):
        if length > chunk_elements:
            chunks.append([place])
            left = 0
            continue
        if length > left or not chunks:
            chunks.append([])
            left = chunk_elements
        chunks[-1].append(place)
        left -= length
    return chunks


def best_chunk_elements(lengths: Sequence[int], step: int) -> int:
    """Return the length of chunks that leaves the fewest elements empty; of equal ones the shortest.

    ``step``: between the lengths that are tried, such as the hidden size.
    """
    total = sum(lengths)
    if total <= LEAST_ELEMENTS:
        return total
    usual = _without_large(lengths)
    least = max(LEAST_ELEMENTS, *usual)
    tried = np.arange(least, least + SEARCHED_ELEMENTS + 1, step)
    left = np.zeros_like(tried)
    empty = np.zeros_like(tried)
    for length in usual:
        is_new = left < length
        empty += np.where(is_new, left, 0)
        left = np.where(is_new, tried, left) - length
    return int(tried[int(np.argmin(empty + left))])


def _without_large(lengths: Sequence[int]) -> list[int]:
    limit = float(np.mean(lengths) + _LARGE_DEVIATIONS * np.std(lengths))
    return [length for length in lengths if length <= limit]
