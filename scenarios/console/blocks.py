"""Blocks in a terminal: what a page shows of them too, but for charts. A blank line stands between two of them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console, RenderableType
from rich.table import Table as Grid
from rich.text import Text as Words

from scenarios.report.blocks import (
    Bar,
    Block,
    Card,
    Cell,
    Column,
    Columns,
    Fact,
    Facts,
    Fold,
    Group,
    Headline,
    Line,
    Look,
    Only,
    Piece,
    Section,
    SplitBar,
    Table,
    Text,
)

STYLES: Final[Mapping[Look, str]] = {
    "plain": "", "strong": "bold", "soft": "dim", "good": "green", "bad": "bold red", "unusual": "bold yellow",
    "warning": "yellow", "code": "cyan",
}  # fmt: skip
_CUT_AFTER: Final = 60

Printed = tuple[RenderableType, bool]
"""What is printed, and whether its lines are broken at the width of the terminal."""


def print_blocks(blocks: Sequence[Block], console: Console) -> None:
    """Print blocks, those that a terminal shows."""
    parts = [part for block in blocks if (part := list(_printed(block)))]
    for index, part in enumerate(parts):
        if index:
            console.print()
        for renderable, is_wrapped in part:
            console.print(renderable, soft_wrap=not is_wrapped)


def print_written(out: Path | None, console: Console) -> None:
    """Print where files were written, if any were."""
    if out is not None:
        console.print(Words(f"written to {out}"), soft_wrap=True)


def _printed(block: Block) -> Iterator[Printed]:
    """Yield what a terminal shows of a block, nothing of a chart."""
    match block:
        case Headline():
            yield Words(block.terminal_title or block.title, style="bold"), True
            facts = tuple(map(_card_fact, block.cards)) if block.facts is None else block.facts
            if facts:
                yield _grid(facts), True
        case Facts() if block.rows:
            yield _grid(block.rows), True
        case Text():
            yield words_of(block.line), block.is_wrapped
        case Table():
            yield _table(block), True
        case SplitBar():
            yield _parts(block), True
        case Section() | Group() | Fold():
            for inner in block.blocks:
                yield from _printed(inner)
        case Only(surface="terminal"):
            for inner in block.blocks:
                yield from _printed(inner)
        case Columns():
            for group in block.groups:
                yield from _printed(group)


def words_of(line: Line) -> Words:
    """Return a line with its looks as colours."""
    if isinstance(line, str):
        return Words(line)
    if len(line) == 1 and isinstance(line[0], Piece):
        return Words(line[0].text, style=STYLES[line[0].look])
    return Words.assemble(*(part if isinstance(part, str) else (part.text, STYLES[part.look]) for part in line))


def _card_fact(card: Card) -> Fact:
    """Return a card as a line: the value, and its detail in brackets."""
    value = Piece(card.value, "bad" if card.mood == "bad" else "strong")
    return Fact(card.label.lower(), (value, f" ({card.detail})") if card.detail else (value,))


def _grid(facts: Sequence[Fact]) -> Grid:
    grid = Grid.grid(padding=(0, 2))
    for fact in facts:
        grid.add_row(Words(fact.name), words_of(fact.words))
    return grid


def _parts(bar: SplitBar) -> Grid:
    rows = [(part.words, *part.amounts) for part in bar.parts]
    return _table(Table(bar.columns, rows))


def _table(block: Table) -> Grid:
    grid = Grid(box=None, header_style="bold", pad_edge=False)
    shown = [place for place in range(len(block.heads)) if not any(isinstance(row[place], Bar) for row in block.rows)]
    for place in shown:
        _add_column(grid, block.heads[place])
    for row in block.rows:
        grid.add_row(*(_cell(row[place]) for place in shown))
    if block.caption:
        grid.caption, grid.caption_justify = block.caption, "left"
    return grid


def _add_column(grid: Grid, column: Column) -> None:
    is_cut = column.overflow == "cut"
    grid.add_column(
        Words(column.name),
        justify="right" if column.is_number else "left",
        no_wrap=column.overflow in {"cut", "whole"},
        overflow="fold" if column.overflow in {"anywhere", "whole"} else "ellipsis",
        max_width=_CUT_AFTER if is_cut else None,
    )


def _cell(cell: Cell) -> Words:
    return Words() if isinstance(cell, Bar) else words_of(cell)
