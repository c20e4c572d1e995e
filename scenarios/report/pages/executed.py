"""The answer of an execution, for terminals and pages."""

from collections.abc import Sequence

from scenarios.report.blocks import Block, Fact, Facts, Headline, Only, Piece, Text


def executed_blocks(
    scenario: str, subtitle: str, facts: Sequence[Fact], on_page: Sequence[Block] = ()
) -> tuple[Block, ...]:
    """Return facts below a title. ``on_page``: blocks that a page shows below the facts, and a terminal does not."""
    shown, title = Facts(tuple(facts)), f"{scenario}, {subtitle}"
    return (
        Only("terminal", (Text((Piece(title, "strong"),), is_wrapped=True), shown)),
        Only("page", (Headline(scenario, subtitle, terminal_title=title), shown, *on_page)),
    )
