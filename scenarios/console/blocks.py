"""Blocks in a terminal: the contents of a page without its charts, with a blank line between blocks."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace
from rich.cells import cell_len
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
_MOST_PARTS: Final = 4
_GAP: Final = 2
"""Blanks between two columns."""

Printed = tuple[RenderableType, bool]
"""A printed part, and whether its lines are broken at the width of the terminal."""


def print_blocks(blocks: Sequence[Block], console: Console) -> None:
    """Print the blocks that a terminal shows."""
    parts = [part for block in blocks if (part := list(_printed(block, console.width)))]
    for index, part in enumerate(parts):
        if index:
            console.print()
        for renderable, is_wrapped in part:
            console.print(renderable, soft_wrap=not is_wrapped)


def print_written(out: Path | None, console: Console) -> None:
    """Print where files were written, if any were."""
    if out is not None:
        console.print(Words(f"written to {out}"), soft_wrap=True)


def _printed(block: Block, width: int) -> Iterator[Printed]:
    """Yield the printed parts of a block, none for a chart."""
    match block:
        case Headline():
            yield Words(block.in_terminal, style="bold"), True
            facts = tuple(map(_card_fact, block.cards)) if block.facts is None else block.facts
            if facts:
                yield _grid(facts), True
        case Facts() if block.rows:
            yield _grid(block.rows), True
        case Text():
            yield words_of(block.line), block.is_wrapped
        case Table():
            yield from _tables(block, width)
        case SplitBar():
            yield _parts(block), True
        case Section() | Group() | Fold():
            for inner in block.blocks:
                yield from _printed(inner, width)
        case Only(surface="terminal"):
            for inner in block.blocks:
                yield from _printed(inner, width)
        case Columns():
            for group in block.groups:
                yield from _printed(group, width)


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
    return Fact(card.name, (value, f" ({card.detail})") if card.detail else (value,))


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


def _tables(block: Table, width: int) -> Iterator[Printed]:
    """Yield a table: in parts that fit, with its first columns repeated; or a line per row if few columns would fit."""
    if not block.repeats:
        yield _table(block), True
        return
    choices = _fitting(block, width)
    if not 1 <= len(choices) <= _MOST_PARTS:
        yield from ((_record(block, row), True) for row in block.rows)
        return
    for index, places in enumerate(choices):
        if index:
            yield Words(), True
        yield _table(_of_columns(block, places)), True


def _fitting(block: Table, width: int) -> list[list[int]]:
    """Return the columns of each part of a table, the first ones repeated; empty if some column does not fit."""
    widths = [max(cell_len(words_of(cell).plain) for cell in column) + _GAP for column in _columns(block)]
    keys, others = list(range(block.repeats)), range(block.repeats, len(widths))
    room = width + _GAP - sum(widths[: block.repeats])
    if room < 0 or any(widths[place] > room for place in others):
        return []
    choices, left = [keys.copy()], room
    for place in others:
        if widths[place] > left:
            choices.append(keys.copy())
            left = room
        choices[-1].append(place)
        left -= widths[place]
    return choices


def _columns(block: Table) -> Iterator[list[Line]]:
    """Yield the cells of each column, its head first."""
    for place, head in enumerate(block.heads):
        cells = [row[place] for row in block.rows]
        yield [head.name, *("" if isinstance(cell, Bar) else cell for cell in cells)]


def _of_columns(block: Table, places: Sequence[int]) -> Table:
    """Return a table with some of the columns."""
    rows = [[row[place] for place in places] for row in block.rows]
    return replace(block, columns=[block.heads[place] for place in places], rows=rows, repeats=0)


def _record(block: Table, row: Sequence[Cell]) -> Words:
    """Return a row as words: every head with its cell."""
    pairs = [(head.name, _cell(cell)) for head, cell in zip(block.heads, row, strict=True) if not isinstance(cell, Bar)]
    return Words(", ").join(Words.assemble((f"{name} ", STYLES["soft"]), cell) for name, cell in pairs)


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
