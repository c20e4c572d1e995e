"""Rows of many steps: a terminal shows some of them, a page has all."""

from itertools import pairwise

from scenarios.report.blocks import Block, Headline
from scenarios.report.pages.step_rows import MOST_ROWS, step_rows
from scenarios.report.rendering.html_page import page_text
from tests.scenarios.report.test_blocks import printed

COLUMNS = ("step", "time")


def rows_of(count: int) -> list[Block]:
    """Return the blocks of so many steps."""
    return list(step_rows(COLUMNS, [(str(step), f"{step} ms") for step in range(count)], ("what columns mean",)))


def test_a_terminal_shows_first_last_and_some_between_and_says_where_all_are() -> None:
    """Of 1,000 steps so many rows are printed as of few, evenly spaced, and the page folds all of them away."""
    head, *lines = printed(rows_of(1_000)).splitlines()
    steps = [int(line.split()[0]) for line in lines[:MOST_ROWS]]
    assert head.split() == ["step", "time"]
    assert (steps[0], steps[-1], len(steps)) == (0, 999, MOST_ROWS)
    assert {after - before for before, after in pairwise(steps)} <= {52, 53}
    assert [line for line in lines[MOST_ROWS:] if line] == [
        f"{MOST_ROWS} of 1,000 steps; summary.json of --out DIR has all", "what columns mean"
    ]  # fmt: skip
    page = page_text([Headline("a title", ""), *rows_of(1_000)])
    assert "all 1,000 steps" in page
    assert all(f"{step} ms<" in page for step in range(1_000))


def test_few_steps_are_all_shown() -> None:
    """No row is left out, and nothing is folded away."""
    lines = [line for line in printed(rows_of(MOST_ROWS)).splitlines() if line]
    assert len(lines) == 1 + MOST_ROWS + 1
    assert "<details" not in page_text([Headline("a title", ""), *rows_of(MOST_ROWS)])
