"""Alignment of the ops of two timelines: by name if names match, else by kind, size and place.

Per pair of ranks and streams the longest common subsequence of names (and micro-batches) is found, so a missing or
extra op moves no other. Remaining ops of the same name have changed places or streams: the n-th meets the n-th. Ops
with other names are aligned between aligned neighbours: those of one kind and size in order, then those of one kind if
both sides have the same number of them. Times play no part.
"""

from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traces.comparison.sequence import Codes, common_subsequence, nth_to_nth
from traces.comparison.sides import Sides
from traces.timeline import NO_INDEX, Rows

Positions = tuple[Codes, Codes]
Mask = NDArray[np.bool_]


class Alignment(Struct, frozen=True):
    """Positions of aligned ops in both sides, in order of the first; ``by_name``: both ops have the same name.

    ``first_alone`` and ``second_alone``: the positions of all other ops.
    """

    first: Rows
    second: Rows
    by_name: Mask
    first_alone: Rows
    second_alone: Rows


def align(both: Sides) -> Alignment:
    """Return the alignment of the ops. Swapping the sides only swaps the result."""
    first, second = both.first, both.second
    tokens = _codes((first.name, first.microbatch - NO_INDEX), (second.name, second.microbatch - NO_INDEX))
    partner = np.full(len(first), -1, dtype=np.int64)
    for ours, theirs in _queues(both):
        left, right = common_subsequence(tokens[0][ours], tokens[1][theirs])
        partner[ours[left]] = theirs[right]
    in_place = partner.copy()
    _pair_moved(both, tokens, partner)
    by_name = partner >= 0
    for ours, theirs in _queues(both):
        _pair_by_kind(both, (ours, theirs), in_place, partner)
    found = np.flatnonzero(partner >= 0)
    alone = np.ones(len(second), dtype=np.bool_)
    alone[partner[found]] = False
    return Alignment(
        found, partner[found], by_name[found], np.flatnonzero(partner < 0).astype(np.int64),
        np.flatnonzero(alone).astype(np.int64),
    )  # fmt: skip


def _codes(first: Positions, second: Positions) -> Positions:
    """Return one number per row for two columns, equal on both sides, in the order of the columns."""
    leading, following = (
        np.unique(np.concatenate(both), return_inverse=True)[1].astype(np.int64)
        for both in zip(first, second, strict=True)
    )
    numbers = leading * (int(following.max(initial=0)) + 1) + following
    return numbers[: len(first[0])], numbers[len(first[0]) :]


def _queues(both: Sides) -> Iterator[Positions]:
    """Yield the positions of each pair of streams of each pair of ranks, by time, if both have some."""
    groups = []
    for side in (both.first, both.second):
        key = side.pair * len(both.streams) + side.stream
        order = np.lexsort((side.end_s, side.start_s, key))
        present, begin = np.unique(key[order], return_index=True)
        groups.append(dict(zip(present.tolist(), np.split(order, begin[1:]), strict=True)))
    for key in sorted(groups[0].keys() & groups[1].keys()):
        yield groups[0][key], groups[1][key]


def _pair_moved(both: Sides, tokens: Positions, partner: Codes) -> None:
    """Pair remaining ops of one name and micro-batch on one pair of ranks, by time, on any stream."""
    left = _left(both, partner)
    keys = _codes((both.first.pair, tokens[0]), (both.second.pair, tokens[1]))
    ordered = [
        rows[np.argsort(side.start_s[rows], kind="stable")]
        for rows, side in zip(left, (both.first, both.second), strict=True)
    ]
    ours, theirs = nth_to_nth(keys[0][ordered[0]], keys[1][ordered[1]])
    partner[ordered[0][ours]] = ordered[1][theirs]


def _left(both: Sides, partner: Codes) -> Positions:
    taken = np.zeros(len(both.second), dtype=np.bool_)
    taken[partner[partner >= 0]] = True
    return np.flatnonzero(partner < 0), np.flatnonzero(~taken)


def _pair_by_kind(both: Sides, queue: Positions, in_place: Codes, partner: Codes) -> None:
    """Pair remaining ops of one pair of streams between aligned neighbours: by kind and size, then by kind."""
    ours, theirs = queue
    fixed = np.flatnonzero(in_place[ours] >= 0)
    place = np.full(len(both.second), -1, dtype=np.int64)
    place[theirs] = np.arange(len(theirs))
    gaps = (
        np.searchsorted(fixed, np.arange(len(ours))),
        np.searchsorted(place[in_place[ours[fixed]]], np.arange(len(theirs))),
    )
    free = partner[ours] < 0, ~np.isin(theirs, partner[partner >= 0])
    left, right = ours[free[0]], theirs[free[1]]
    if not (len(left) and len(right)):
        return
    gap = gaps[0][free[0]], gaps[1][free[1]]
    kinds = _codes((gap[0], both.first.kind[left]), (gap[1], both.second.kind[right]))
    sizes = _codes((kinds[0], both.first.bytes[left]), (kinds[1], both.second.bytes[right]))
    one, other = _of_one_size(sizes, both.first.bytes[left] > 0, both.second.bytes[right] > 0)
    partner[left[one]] = right[other]
    rest = np.setdiff1d(np.arange(len(left)), one), np.setdiff1d(np.arange(len(right)), other)
    one, other = _equally_many(kinds[0][rest[0]], kinds[1][rest[1]])
    partner[left[rest[0][one]]] = right[rest[1][other]]


def _of_one_size(tokens: Positions, first_sized: Mask, second_sized: Mask) -> Positions:
    """Return the common subsequence of ops with a size. Gaps are joined, so one search covers them all."""
    one, other = np.flatnonzero(first_sized), np.flatnonzero(second_sized)
    left, right = common_subsequence(tokens[0][one], tokens[1][other])
    return one[left], other[right]


def _equally_many(first: Codes, second: Codes) -> Positions:
    """Return the n-th with the n-th op of each code that occurs equally often on both sides."""
    numbers = np.unique(np.concatenate([first, second]), return_inverse=True)[1].astype(np.int64)
    first, second = numbers[: len(first)], numbers[len(first) :]
    size = int(numbers.max(initial=0)) + 1
    equal = np.bincount(first, minlength=size) == np.bincount(second, minlength=size)
    kept = np.flatnonzero(equal[first]), np.flatnonzero(equal[second])
    left, right = nth_to_nth(first[kept[0]], second[kept[1]])
    return kept[0][left], kept[1][right]
