"""The results of a validation on this machine, for a terminal."""

from pathlib import Path

from rich.console import Console

from costmodels.units import format_change, format_percent, format_time
from scenarios.console.blocks import print_blocks, print_written
from scenarios.report.blocks import Block, Only, Piece, Table, Text
from scenarios.summaries.measured.here import HereSummary, Pick, PlanRow


def print_here(summary: HereSummary, console: Console, out: Path | None = None) -> None:
    """Print predicted against measured, plan by plan, and the verdict."""
    print_blocks([here_block(summary)], console)
    print_written(out, console)


def here_block(summary: HereSummary) -> Block:
    """Return predicted against measured, plan by plan, and the verdict."""
    machine, runs, order, most = summary.machine, summary.runs, summary.ranking, summary.thresholds
    words = f"{summary.processes} processes on {machine.processor}, {machine.cores} cores"
    rows = [_cells(row) for row in summary.plans]
    quiet = f"{summary.measured}; {runs.quiet:,} of {runs.all:,} runs were quiet"
    mean = f"mean absolute error {format_percent(summary.mean_absolute_error)} (at most {format_percent(most.mean, 0)})"
    worst = f"worst {format_percent(summary.worst)} (at most {format_percent(most.worst, 0)})"
    least = format_percent(most.ranking, 0)
    right = f"{order.right} of {order.pairs} pairs in the right order (at least {least})"
    inside = f"{format_percent(summary.coverage, 0)} inside their 90 % intervals"
    verdict = Piece("passed", "good") if summary.passed else Piece("FAILED", "bad")
    return Only(
        "terminal",
        (
            Text((Piece(f"Plans of {words}", "strong"),), is_wrapped=True),
            Table(("plan", "measured", "predicted", "error", "90 %", "inside", "runs", "spread"), rows),
            Text((Piece(quiet, "soft"),), is_wrapped=True),
            Text(_pick(summary.pick), is_wrapped=True),
            Text((f"{mean}, {worst}, {right}, {inside}: ", verdict), is_wrapped=True),
        ),
    )


def _pick(pick: Pick) -> str:
    loss = "is the fastest" if pick.loss == 0.0 else f"takes {format_percent(pick.loss)} longer than {pick.fastest}"
    tau = "no pair is told apart" if pick.tau is None else f"Kendall's tau {pick.tau:.2f} over {pick.pairs} pairs"
    return f"the fastest by prediction, {pick.plan}, {loss}; {tau} that intervals tell apart"


def _cells(row: PlanRow) -> tuple[str, ...]:
    bounds = f"{format_time(row.low_s)} to {format_time(row.high_s)}"
    times = format_time(row.measured_s), format_time(row.predicted_s)
    error, spread = format_change(row.error), format_percent(row.spread)
    return (row.plan, *times, error, bounds, "yes" if row.inside else "no", str(row.runs), spread)
