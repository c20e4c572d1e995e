"""Actions of a pipeline schedule, in memory and as text.

The text is the format of ``torch.distributed.pipelining``: stage, kind, micro-batch, as in ``2F0``. A schedule is a CSV
with one row per rank; empty cells are idle slots and mean nothing. A forward and a backward that overlap are written
``(0F3;7B1)OVERLAP_F_B``.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import NamedTuple

KINDS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
"""Kinds of action, and the tasks that they call. A backward is whole, or for inputs first and for weights later."""

_ACTION = re.compile(r"(\d{1,9})([FBIW])(\d{1,9})")
_OVERLAPPED = re.compile(r"\(([^()]*)\)OVERLAP_F_B")


class Action(NamedTuple):
    """Run one virtual stage forward ("F") or backward ("B", or "I" and "W") for one micro-batch.

    ``overlaps``: the forward runs together with the next action, a backward, kernel by kernel: both need their
    inputs before either begins, and give their outputs when both have ended.
    """

    kind: str
    stage: int
    microbatch: int
    overlaps: bool = False

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @property
    def task(self) -> str:
        """Return the name of the task that the action calls."""
        return f"{KINDS[self.kind]}.{self.stage}"


Order = list[Action]


def steps(order: Sequence[Action]) -> Iterator[tuple[Action, ...]]:
    """Yield an order's actions one by one, those that overlap together."""
    rest = iter(order)
    for action in rest:
        yield (action, next(rest)) if action.overlaps else (action,)


def parse_orders(text: str) -> list[Order]:
    """Return every rank's actions from the text of a CSV; ValueError, naming row and cell, for what is no action."""
    orders = []
    for number, row in enumerate(csv.reader(StringIO(text)), start=1):
        try:
            orders.append([action for cell in row for action in _parse_cell(cell.strip())])
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from error
    return orders


def _parse_cell(cell: str) -> Iterator[Action]:
    overlapped = _OVERLAPPED.fullmatch(cell)
    if overlapped is None:
        if cell:
            yield _parse(cell, cell)
        return
    pair = [_parse(part.strip(), cell) for part in overlapped[1].split(";")]
    if [action.kind for action in pair] != ["F", "B"]:
        raise ValueError(f"{cell[:40]!r} is no forward with a backward")
    yield pair[0]._replace(overlaps=True)
    yield pair[1]


def _parse(text: str, cell: str) -> Action:
    match = _ACTION.fullmatch(text)
    if match is None:
        raise ValueError(f"{cell[:40]!r} is no action")
    return Action(match[2], int(match[1]), int(match[3]))


def format_orders(orders: Sequence[Sequence[Action]]) -> str:
    """Return every rank's actions as the text of a CSV."""
    return "".join(",".join(_format(step) for step in steps(order)) + "\n" for order in orders)


def _format(step: tuple[Action, ...]) -> str:
    return str(step[0]) if len(step) == 1 else f"({';'.join(map(str, step))})OVERLAP_F_B"
