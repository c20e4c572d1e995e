"""The readable output of ``compare``: the difference of two timelines of one plan."""

from pathlib import Path

from rich.console import Console

from scenarios.console.blocks import print_blocks, print_written
from scenarios.report.pages.side_by_side import difference_blocks
from scenarios.summaries.comparing.comparison import ComparisonSummary


def print_comparison(summary: ComparisonSummary, console: Console, out: Path | None = None) -> None:
    """Print the difference of two timelines: the first less the second, as a part of the second."""
    print_blocks(difference_blocks(summary), console)
    print_written(out, console)
