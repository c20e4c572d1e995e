"""Chunks: packing, the length that wastes least, and which units are still on the device."""

from itertools import combinations
from statistics import fmean, pstdev

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sim.memory.chunks import LEAST_ELEMENTS, best_chunk_elements, pack
from sim.memory.movement import BudgetError, Stay, still_there
from tests.examples import examples


@given(lengths=st.lists(st.integers(1, 30), max_size=20), chunk=st.integers(1, 20))
def test_every_tensor_lies_in_one_chunk_in_order(lengths: list[int], chunk: int) -> None:
    """Tensors of a chunk fit or are one alone; the next tensor would not have fitted."""
    chunks = pack(lengths, chunk)
    assert [place for places in chunks for place in places] == list(range(len(lengths)))
    sums = [sum(lengths[place] for place in places) for places in chunks]
    assert all(total <= chunk or len(places) == 1 for total, places in zip(sums, chunks, strict=True))
    for total, following in zip(sums, chunks[1:], strict=False):
        assert total + lengths[following[0]] > chunk


def test_the_length_that_wastes_least_is_found() -> None:
    """Three tensors of 12 Mi each fill chunks of 36 Mi; a small model is one chunk, of its own length."""
    third = 12 * 2**20
    assert best_chunk_elements([third] * 12, 2**20) == 3 * third
    assert best_chunk_elements([1000, 24], 8) == 1024


@settings(max_examples=examples(12), deadline=None)
@example(lengths=[2**22] * 10 + [2**22 + 1])
@given(lengths=st.lists(st.integers(2**22, 2**25), min_size=9, max_size=20))
def test_no_tried_length_wastes_less(lengths: list[int]) -> None:
    """Every length that is tried has at least as many empty elements as the found one, tensors that decide packed."""
    step, limit = 2**22, fmean(lengths) + 3 * pstdev(lengths)
    usual = [length for length in lengths if length <= limit]

    def empty(length: int) -> int:
        return len(pack(usual, length)) * length - sum(usual)

    found, tried = best_chunk_elements(lengths, step), range(LEAST_ELEMENTS, 2 * LEAST_ELEMENTS + 1, step)
    assert empty(found) == min(empty(length) for length in tried)


def _row(units: list[int]) -> list[Stay]:
    return [Stay(str(unit), place, place, 1) for place, unit in enumerate(units)]


@settings(max_examples=examples(24), deadline=None)
@given(units=st.lists(st.integers(0, 4), min_size=1, max_size=9), room=st.integers(1, 3))
def test_no_other_choice_finds_more_units_there(units: list[int], room: int) -> None:
    """Of all sets of stays that could find their unit there, none that fits is larger."""
    stays, found = _row(units), still_there(_row(units), [room] * len(units))
    again = [place for place, unit in enumerate(units) if unit in units[:place]]

    def fits(kept: tuple[int, ...]) -> bool:
        spans = [(max(i for i in range(place) if units[i] == units[place]), place) for place in kept]
        return all(1 + sum(a < place < b for a, b in spans) <= room for place in range(len(stays)))

    best = next(size for size in range(len(again), -1, -1) if any(map(fits, combinations(again, size))))
    assert sum(found) == best


def test_units_in_use_together_must_fit() -> None:
    """Two units at once need room for both; the error says how much."""
    with pytest.raises(BudgetError) as refused:
        still_there([Stay("a", 0, 2, 3), Stay("b", 1, 2, 4)], [6, 6])
    assert refused.value.needed_bytes == 7
