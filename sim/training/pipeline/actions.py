"""Actions of a pipeline schedule, in memory and as text.

The text has the format of ``torch.distributed.pipelining``: stage, kind, micro-batch, such as ``2F0``. A schedule is a
CSV with one row per rank; empty cells are idle slots without meaning. A forward and a backward that overlap are written
``(0F3;7B1)OVERLAP_F_B``.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Self

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.integers import Integers, Ints, integer_type, narrowed
from sim.plan.words.columns import Column, Columns
from sim.sorting import distinct_values

KINDS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
"""Kinds of action, and the task of each. A backward is whole (B), or split into inputs (I) and later weights (W)."""

LETTERS: Final = "".join(KINDS)

_ACTION: Final = r"(\d{1,9})([FBIW])(\d{1,9})"
_OVERLAPPED: Final = r"\(([^()]*)\)OVERLAP_F_B"


class Action(NamedTuple):
    """One forward ("F") or backward ("B", or "I" and "W") of one virtual stage for one micro-batch.

    ``overlaps``: this forward runs together with the next action, a backward, kernel by kernel. Both wait for the
        inputs of both, and deliver their outputs when both have ended.
    """

    kind: str
    stage: int
    microbatch: int
    overlaps: bool = False

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


class Order(Columns[Action], frozen=True, dict=True, eq=False):
    """A rank's actions in order.

    ``kinds``: places in ``LETTERS``. Columns may be narrow (``sim.integers``).

        Order.joined(Order.alike("F", 0, np.arange(4)), Order.alike("B", 0, np.arange(4)))     # gpipe, one rank
    """

    kinds: Integers
    stages: Integers
    microbatches: Integers
    overlaps: NDArray[np.bool_]

    @classmethod
    def of(cls, actions: Iterable[Action]) -> "Order":
        """Return actions as numbers."""
        if isinstance(actions, Order):
            return actions
        kinds, stages, microbatches, overlaps = zip(*found, strict=True) if (found := tuple(actions)) else [()] * 4
        numbers = np.array([LETTERS.index(kind) for kind in kinds], np.int64)
        return cls(numbers, np.array(stages, np.int64), np.array(microbatches, np.int64), np.array(overlaps, np.bool_))

    @classmethod
    def alike(cls, kind: str, stages: int | Integers, microbatches: Integers, *, overlaps: bool = False) -> "Order":
        """Return actions of one kind, one per micro-batch."""
        size = len(microbatches)
        kinds = np.full(size, LETTERS.index(kind), np.int8)
        of_stages = np.full(size, stages, integer_type(stages)) if isinstance(stages, int) else narrowed(stages)
        return cls(kinds, of_stages, narrowed(microbatches), np.full(size, overlaps))

    @classmethod
    def joined(cls, *parts: "Order") -> "Order":
        """Return all actions of the parts, one part after the other."""
        return cls(*map(np.concatenate, zip(*[part.columns for part in parts], strict=True)))

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return kinds, stages, micro-batches, and which overlap."""
        return self.kinds, self.stages, self.microbatches, self.overlaps

    def with_columns(self, *columns: Column) -> Self:
        """Return other actions."""
        return type(self)(*columns)

    def rows(self) -> Iterator[Action]:
        """Yield the actions."""
        kinds, *others = (column.tolist() for column in self.columns)
        return map(Action, map(LETTERS.__getitem__, kinds), *others)

    def stages_of(self, kind: str) -> frozenset[int]:
        """Return the stages of the actions of a kind."""
        return frozenset(distinct_values(self.stages[self.kinds == LETTERS.index(kind)]).tolist())


def alternating(forwards: Order, backwards: Order, warmup: int) -> Order:
    """Return ``warmup`` forwards, then alternating forwards and as many backwards, then the other backwards."""
    return Order.joined(forwards, backwards).taken(alternating_turns(len(forwards), warmup))


def alternating_turns(num: int, warmup: int) -> Ints:
    """Return the order of ``alternating`` as places: ``num`` forwards have the first ones, then come the backwards."""
    turns, end = np.arange(2 * num), 2 * num - warmup
    turns[warmup:end:2], turns[warmup + 1 : end : 2] = np.arange(warmup, num), np.arange(num, end)
    return turns


class Part(Struct, frozen=True):
    """Actions of one kind on every rank, each in a slot of its rank.

    ``slots``: of shape (ranks, actions). ``stages``: of that shape, or of one that numpy stretches to it.
    ``microbatches``: of every action, the same on all ranks.
    """

    kind: str
    slots: Ints
    stages: Ints
    microbatches: Ints


def orders_in_slots(*parts: Part) -> list[Order]:
    """Return every rank's actions by their slots, of which no two of a rank are the same."""
    sizes = [len(part.microbatches) for part in parts]
    turns = np.argsort(np.concatenate([part.slots for part in parts], axis=1), axis=1, kind="stable")
    stages = np.concatenate([np.broadcast_to(part.stages, part.slots.shape) for part in parts], axis=1)
    kinds = np.repeat([LETTERS.index(part.kind) for part in parts], sizes)[turns]
    microbatches = np.concatenate([part.microbatches for part in parts])[turns]
    overlaps = np.zeros(sum(sizes), dtype=np.bool_)
    columns = zip(kinds, np.take_along_axis(stages, turns, axis=1), microbatches, strict=True)
    return [Order(*of_rank, overlaps) for of_rank in columns]


class ActionError(ValueError):
    """A cell of a CSV that is no action. ``row``: the row of the cell; the first is 1."""

    def __init__(self, row: int, cell: str) -> None:
        super().__init__(f"{cell[:40]!r} is no action")
        self.row = row


def steps(order: Sequence[Action]) -> Iterator[tuple[Action, ...]]:
    """Yield the actions of an order one by one; two actions that overlap come together."""
    rest = iter(order)
    for action in rest:
        yield (action, next(rest)) if action.overlaps else (action,)


def parse_orders(text: str) -> list[list[Action]]:
    """Return every rank's actions from the text of a CSV. Raises ActionError for a cell that is no action."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [[a for cell in row if cell for a in _parse_cell(cell, number)] for number, row in enumerate(rows, start=1)]


def _parse_cell(cell: str, row: int) -> list[Action]:
    """Return the action of a cell, or the forward and the backward that overlap in it."""
    overlapped = re.fullmatch(_OVERLAPPED, cell)
    parts = overlapped[1].split(";") if overlapped else [cell]
    matches = [match for part in parts if (match := re.fullmatch(_ACTION, part.strip()))]
    found = [Action(match[2], int(match[1]), int(match[3])) for match in matches]
    if len(found) != len(parts) or (overlapped and [action.kind for action in found] != ["F", "B"]):
        raise ActionError(row, cell)
    return [found[0]._replace(overlaps=True), found[1]] if overlapped else found


def format_orders(orders: Sequence[Sequence[Action]]) -> str:
    """Return every rank's actions as the text of a CSV."""
    return "".join(",".join(_format(step) for step in steps(order)) + "\n" for order in orders)


def _format(step: tuple[Action, ...]) -> str:
    return str(step[0]) if len(step) == 1 else f"({';'.join(map(str, step))})OVERLAP_F_B"
