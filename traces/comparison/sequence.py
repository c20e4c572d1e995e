"""The longest common subsequence of two sequences of numbers, as in a text comparison, for ops.

Equal ends are removed first. The rest is aligned exactly, by Hirschberg's division ("A linear space algorithm for
computing maximal common subsequences", CACM 18, 1975) over bit-parallel rows (Hyyrö, "Bit-parallel LCS-length
computation revisited", AWOCA 2004): a row of the table is one long integer, so a hundred thousand ops take seconds.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int64]

MAX_CELLS: Final = 1 << 33
"""Largest table that is computed exactly; for larger ones the n-th of a code meets the n-th, without crossings."""
_MAX_BITS: Final = 1 << 27
"""Bits of the largest table that is held in memory as a whole."""

Pairs = tuple[Codes, Codes]


def common_subsequence(first: Codes, second: Codes) -> Pairs:
    """Return positions in both sequences, ascending, of a longest common subsequence.

    The choice among several does not depend on the order of the arguments.
    """
    if (len(first), first.tobytes()) > (len(second), second.tobytes()):
        right, left = common_subsequence(second, first)
        return left, right
    found: list[Pairs] = []
    pending = [(0, len(first), 0, len(second))]
    while pending:
        begin, end, other_begin, other_end = pending.pop()
        one, other = first[begin:end], second[other_begin:other_end]
        same = min(len(one), len(other))
        head = _num_equal(one[:same], other[:same])
        tail = _num_equal(one[::-1][: same - head], other[::-1][: same - head])
        found.append((begin + np.arange(head), other_begin + np.arange(head)))
        found.append((end - tail + np.arange(tail), other_end - tail + np.arange(tail)))
        begin, end, other_begin, other_end = begin + head, end - tail, other_begin + head, other_end - tail
        num_cells = (end - begin) * (other_end - other_begin)
        if num_cells == 0:
            continue
        one, other = first[begin:end], second[other_begin:other_end]
        if num_cells <= _MAX_BITS or len(one) == 1:
            left, right = _traced(one.tolist(), other.tolist())
        elif num_cells <= MAX_CELLS:
            half, other_half = (end - begin) // 2, _best_split(one, other)
            pending.append((begin, begin + half, other_begin, other_begin + other_half))
            pending.append((begin + half, end, other_begin + other_half, other_end))
            continue
        else:
            left, right = _in_turn(one, other)
        found.append((begin + left, other_begin + right))
    lefts, rights = (np.concatenate(parts).astype(np.int64) for parts in zip(*found, strict=True))
    order = np.argsort(lefts)
    return lefts[order], rights[order]


def occurrence(codes: Codes) -> Codes:
    """Return the number of equal codes before each code."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(codes) else order
    result = np.empty(len(codes), dtype=np.int64)
    result[order] = np.arange(len(codes)) - np.repeat(first, np.diff(np.append(first, len(codes))))
    return result


def nth_to_nth(first: Codes, second: Codes) -> Pairs:
    """Return positions where the n-th of a code meets the n-th of the same code, ascending in ``first``."""
    numbers = np.unique(np.concatenate([first, second]), return_inverse=True)[1].astype(np.int64)
    one, other = numbers[: len(first)], numbers[len(first) :]
    turns = occurrence(one), occurrence(other)
    factor = 1 + max(int(turn.max(initial=0)) for turn in turns)
    _, left, right = np.intersect1d(
        one * factor + turns[0], other * factor + turns[1], assume_unique=True, return_indices=True
    )
    order = np.argsort(left)
    return left[order].astype(np.int64), right[order].astype(np.int64)


def _num_equal(first: Codes, second: Codes) -> int:
    """Return the number of equal elements at the beginning."""
    differing = np.flatnonzero(first != second)
    return int(differing[0]) if len(differing) else len(first)


def _rows(first: list[int], second: list[int]) -> Iterator[int]:
    """Yield the table, a row after each element of ``first``: bit j is 0 where element j of ``second`` adds one."""
    positions: dict[int, list[int]] = {}
    for position, code in enumerate(second):
        positions.setdefault(code, []).append(position)
    places = {code: _bits(positions[code], len(second)) for code in set(first) & positions.keys()}
    full = (1 << len(second)) - 1
    row = full
    for code in first:
        here = row & places.get(code, 0)
        row = (row + here | row - here) & full
        yield row


def _bits(positions: list[int], size: int) -> int:
    """Return the number that has these bits."""
    marks = np.zeros(size, dtype=np.uint8)
    marks[positions] = 1
    return int.from_bytes(np.packbits(marks, bitorder="little").tobytes(), "little")


def _traced(first: list[int], second: list[int]) -> Pairs:
    """Return the subsequence, walked back through the whole table."""
    rows = list(_rows(first, second))
    one, other = len(first), len(second)
    left, right = [], []
    while one and other:
        if first[one - 1] == second[other - 1]:
            one, other = one - 1, other - 1
            left.append(one)
            right.append(other)
        elif rows[one - 1] >> (other - 1) & 1:
            other -= 1
        else:
            one -= 1
    return np.array(left[::-1], dtype=np.int64), np.array(right[::-1], dtype=np.int64)


def _lengths(first: list[int], second: list[int]) -> Codes:
    """Return the lengths of the common subsequences of ``first`` and each prefix of ``second``, the empty one first."""
    row = deque(_rows(first, second), maxlen=1)[0]
    packed = np.frombuffer(row.to_bytes((len(second) + 7) // 8, "little"), dtype=np.uint8)
    adds = 1 - np.unpackbits(packed, bitorder="little")[: len(second)].astype(np.int64)
    return np.concatenate([[0], np.cumsum(adds)])


def _best_split(first: Codes, second: Codes) -> int:
    """Return the cut of ``second`` at which the halves of ``first`` lose nothing."""
    half = len(first) // 2
    forward = _lengths(first[:half].tolist(), second.tolist())
    backward = _lengths(first[half:][::-1].tolist(), second[::-1].tolist())[::-1]
    return int(np.argmax(forward + backward))


def _in_turn(first: Codes, second: Codes) -> Pairs:
    """Return n-th to n-th pairs without crossings: a longest ascending subsequence of the places."""
    left, right = nth_to_nth(first, second)
    tails: list[int] = []
    last: list[int] = []
    before = np.full(len(right), -1, dtype=np.int64)
    for position, place in enumerate(right.tolist()):
        slot = bisect_left(tails, place)
        before[position] = last[slot - 1] if slot else -1
        if slot == len(tails):
            tails.append(place)
            last.append(position)
        else:
            tails[slot], last[slot] = place, position
    kept, position = [], last[-1] if last else -1
    while position >= 0:
        kept.append(position)
        position = int(before[position])
    chosen = np.array(kept[::-1], dtype=np.int64)
    return left[chosen], right[chosen]
