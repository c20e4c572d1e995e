"""Collectives and messages between real processes, on hand-written plans."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from backends.execution.result import Execution
from backends.torch.communication.groups import group_key
from backends.torch.values.randomness import initial_normal
from sim.plan.words.op import Collective
from tests.backends.plans import SHAPE, collective_plan, ring_plan

Values = list[NDArray[np.float64]]


def slices(num_ranks: int) -> Values:
    """Return what each rank starts with."""
    shape = (SHAPE[0] * num_ranks, SHAPE[1])
    whole = initial_normal(11, "x", shape, [0, 0], shape, device=torch.device("cpu"))
    return list(whole.numpy().reshape(num_ranks, *SHAPE))


def values(execution: Execution, name: str) -> Values:
    """Return a buffer of every rank."""
    return [result.values[name, None] for result in execution.ranks]


X = slices(4)
ROWS, COLUMNS = [(0, 2), (1, 3)], [(0, 1), (2, 3)]
"""The groups over each axis of the two-by-two mesh."""


def group_of(rank: int, groups: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the group that a rank is in."""
    return next(group for group in groups if rank in group)


def expected(name: str, rank: int) -> NDArray[np.float64]:
    """Return what a rank's buffer must hold, by definition of its collective."""
    row, column = group_of(rank, ROWS), group_of(rank, COLUMNS)
    table = {
        "sum": lambda: sum(X),
        "max": lambda: np.maximum(*(X[r] for r in row)),
        "first": lambda: sum(X[r] for r in column),
        "second": lambda: sum(X[r] for r in column),
        "root": lambda: X[0],
        "some": lambda: X[rank],
        "gathered.0": lambda: np.concatenate([X[r] for r in column]),
        "gathered.1": lambda: np.concatenate([X[r] for r in row], axis=1),
        "gathered.all": lambda: np.concatenate([X[r] for r in (0, 2, 1, 3)]),
        "scattered.0": lambda: sum(X[r] for r in row)[[row.index(rank)]],
        "scattered.1": lambda: np.split(sum(X[r] for r in column), 2, axis=1)[column.index(rank)],
    }
    return np.asarray(table[name]())


@pytest.mark.parametrize(
    "name",
    ["sum", "max", "first", "second", "root", "some", "gathered.0", "gathered.1", "gathered.all", "scattered.0",
     "scattered.1"],
)  # fmt: skip
def test_collective_does_what_its_name_says(results: Mapping[str, Execution], name: str) -> None:
    """Reductions, gathers and scatters along both dimensions, over one axis, two, and two in the other order."""
    for rank, value in enumerate(values(results["collectives"], name)):
        np.testing.assert_allclose(value, expected(name, rank), rtol=1e-14)


def test_flat_collectives_pad_the_last_piece(results: Mapping[str, Execution]) -> None:
    """17 elements over two ranks: pieces of nine, a zero at the end; gathering them gives the sums back."""
    execution = results["collectives"]
    odd = values(execution, "odd")
    for rank, piece in enumerate(values(execution, "piece")):
        row = group_of(rank, ROWS)
        flat = np.concatenate([sum(X[r] for r in row).ravel(), sum(odd[r] for r in row).ravel(), [0.0]])
        np.testing.assert_allclose(piece, np.split(flat, 2)[row.index(rank)], rtol=1e-14, atol=1e-14)
        np.testing.assert_allclose(values(execution, "back.x")[rank].ravel(), flat[:12], rtol=1e-14, atol=1e-14)
        np.testing.assert_allclose(values(execution, "back.odd")[rank], flat[12:17], rtol=1e-14, atol=1e-14)


def test_flat_collectives_in_place_sum_each_piece_where_it_lies(results: Mapping[str, Execution]) -> None:
    """Scattered and gathered in place, 17 elements hold their sums over two ranks, the last piece one element short."""
    execution = results["collectives"]
    odd = values(execution, "odd")
    for rank, (x, last) in enumerate(zip(values(execution, "own.x"), values(execution, "own.odd"), strict=True)):
        row = group_of(rank, ROWS)
        np.testing.assert_allclose(x, sum(X[r] for r in row), rtol=1e-14, atol=1e-14)
        np.testing.assert_allclose(last, sum(odd[r] for r in row), rtol=1e-14, atol=1e-14)


def test_ranks_that_both_send_first_do_not_wait_for_ever(results: Mapping[str, Execution]) -> None:
    """In a ring of two, previous and next are one peer: each direction's messages arrive in their own order."""
    start = slices(2)
    execution = results["ring"]
    for rank, (other, received) in enumerate(zip(reversed(start), execution.ranks, strict=True)):
        assert received.rank == rank
        for name, factor in (("ahead.0", 1), ("ahead.1", 2), ("back.0", 2), ("back.1", 1)):
            np.testing.assert_array_equal(received.values[name, None], factor * other)


def test_streams_never_share_a_communicator() -> None:
    """The same ranks on another stream are another group; forward and backward messages are apart."""
    plan = collective_plan()
    ops = [op for op in plan.programs[0].tasks["work"].ops if isinstance(op, Collective)]
    keys = {op.name: group_key(plan, op, 0) for op in ops}
    assert keys["gather.1"] == ("two", (0, 2))
    assert keys["flat scatter"] == ("one", (0, 2))
    assert keys["some"] is None
    assert keys["gather.all"] == ("one", (0, 2, 1, 3))
    ring = ring_plan()
    sends = {op.name: group_key(ring, op, 0) for op in ring.programs[0].tasks["work"].ops}
    assert sends["send.ahead.0"] != sends["send.back.0"]
    assert sends["send.ahead.0"] == sends["send.ahead.1"]
    received = {op.name: group_key(ring, op, 1) for op in ring.programs[0].tasks["work"].ops}
    assert received["recv.ahead.0"] == sends["send.ahead.0"]
