"""What a validation on this machine found out, for people."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from costmodels.units import format_change, format_percent, format_time
from scenarios.console.blocks import print_blocks, print_written
from scenarios.report.blocks import Block, Only, Piece, Table, Text


def print_here(summary: Mapping[str, Any], console: Console, out: Path | None = None) -> None:
    """Print predicted against measured, plan by plan, and the verdict."""
    print_blocks([here_block(summary)], console)
    print_written(out, console)


def here_block(summary: Mapping[str, Any]) -> Block:
    """Return predicted against measured, plan by plan, and the verdict."""
    machine, runs = summary["machine"], summary["runs"]
    words = f"{summary['processes']} processes on {machine['processor']}, {machine['cores']} cores"
    rows = []
    for row in summary["plans"]:
        bounds = f"{format_time(row['low_s'])} to {format_time(row['high_s'])}"
        times = [format_time(row[key]) for key in ("measured_s", "predicted_s")]
        inside = "yes" if row["inside"] else "no"
        error, spread = format_change(row["error"]), format_percent(row["spread"])
        rows.append((row["plan"], *times, error, bounds, inside, str(row["runs"]), spread))
    quiet = f"{summary['measured']}; {runs['quiet']:,} of {runs['all']:,} runs were quiet"
    order, most = summary["ranking"], summary["thresholds"]
    mean, worst = (
        f"{words} {format_percent(summary[key])} (at most {format_percent(most[bound], 0)})"
        for words, key, bound in (("mean absolute error", "mean_absolute_error", "mean"), ("worst", "worst", "worst"))
    )
    least = format_percent(most["ranking"], 0)
    right = f"{order['right']} of {order['pairs']} pairs in the right order (at least {least})"
    inside = f"{format_percent(summary['coverage'], 0)} inside their 90 % intervals"
    verdict = Piece("passed", "good") if summary["passed"] else Piece("FAILED", "bad")
    return Only(
        "terminal",
        (
            Text((Piece(f"Plans of {words}", "strong"),), is_wrapped=True),
            Table(("plan", "measured", "predicted", "error", "90 %", "inside", "runs", "spread"), rows),
            Text((Piece(quiet, "soft"),), is_wrapped=True),
            Text((f"{mean}, {worst}, {right}, {inside}: ", verdict), is_wrapped=True),
        ),
    )
