"""The page of docs that says what goes with what shows the table that the errors come from."""

import runpy
from pathlib import Path


def test_what_goes_with_what_is_todays(root: Path) -> None:
    """The matrix of docs/scenario.md is that of the table; ``make docs`` brings it up to date."""
    refresh = runpy.run_path(str(root / "docs" / "refresh.py"))
    page = (root / "docs" / "scenario.md").read_text(encoding="utf-8")
    assert refresh["replaced"](page, "combinations", refresh["combinations_block"]()) == page
