"""Blocks in a few lines: the text that an interactive Python shows for a result."""

from collections.abc import Sequence
from itertools import chain
from typing import Final

from scenarios.errors import printable
from scenarios.report.blocks import Block, Card, Fact, Facts, Headline, Line, Piece
from scenarios.report.rendering.surfaces import every_block

_MOST: Final = 2
_WANTED: Final = ("step time", "memory")


def brief_text(what: str, blocks: Sequence[Block]) -> str:
    """Return ``what`` with the title, and below it the time of a step and the memory.

    Without these two facts, the first two answers of the blocks are shown.
    """
    every = list(chain(every_block("page", blocks), every_block("terminal", blocks)))
    headline = next((block for block in every if isinstance(block, Headline)), Headline(""))
    facts = headline.facts or next((block.rows for block in every if isinstance(block, Facts)), None)
    facts = tuple(map(_fact, headline.cards)) if facts is None else facts
    chosen = [fact for fact in facts if fact.name in _WANTED] or facts[:_MOST]
    title = ": ".join(part for part in (what, headline.terminal_title or headline.title) if part)
    return "\n".join(map(printable, (title, *(f"  {fact.name}: {_text(fact.words)}" for fact in chosen))))


def _fact(card: Card) -> Fact:
    return Fact(card.name, ", ".join(part for part in (card.value, card.detail) if part))


def _text(line: Line) -> str:
    parts = (line,) if isinstance(line, str) else line
    return "".join(part.text if isinstance(part, Piece) else part for part in parts)
