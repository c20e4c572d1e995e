"""Actions of a pipeline schedule, in memory and as text.

The text has the format of ``torch.distributed.pipelining``: stage, kind, micro-batch, such as ``2F0``. A schedule is a
CSV with one row per rank; empty cells are idle slots without meaning. A forward and a backward that overlap are written
``(0F3;7B1)OVERLAP_F_B``.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

KINDS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
"""Kinds of action, and the task of each. A backward is whole (B), or split into inputs (I) and later weights (W)."""

_ACTION = re.compile(r"(\d{1,9})([FBIW])(\d{1,9})")
_OVERLAPPED = re.compile(r"\(([^()]*)\)OVERLAP_F_B")


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


Order = list[Action]


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


def parse_orders(text: str) -> list[Order]:
    """Return every rank's actions from the text of a CSV. Raises ActionError for a cell that is no action."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [[a for cell in row if cell for a in _parse_cell(cell, number)] for number, row in enumerate(rows, start=1)]


def _parse_cell(cell: str, row: int) -> list[Action]:
    """Return the action of a cell, or the forward and the backward that overlap in it."""
    overlapped = _OVERLAPPED.fullmatch(cell)
    parts = overlapped[1].split(";") if overlapped else [cell]
    matches = [match for part in parts if (match := _ACTION.fullmatch(part.strip()))]
    found = [Action(match[2], int(match[1]), int(match[3])) for match in matches]
    if len(found) != len(parts) or (overlapped and [action.kind for action in found] != ["F", "B"]):
        raise ActionError(row, cell)
    return [found[0]._replace(overlaps=True), found[1]] if overlapped else found


def format_orders(orders: Sequence[Sequence[Action]]) -> str:
    """Return every rank's actions as the text of a CSV."""
    return "".join(",".join(_format(step) for step in steps(order)) + "\n" for order in orders)


def _format(step: tuple[Action, ...]) -> str:
    return str(step[0]) if len(step) == 1 else f"({';'.join(map(str, step))})OVERLAP_F_B"
