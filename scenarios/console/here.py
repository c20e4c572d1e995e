"""What a validation on this machine found out, for people."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from costmodels.units import format_change, format_percent, format_time


def print_here(summary: Mapping[str, Any], console: Console, out: Path | None = None) -> None:
    """Print predicted against measured, plan by plan, and the verdict."""
    machine, runs = summary["machine"], summary["runs"]
    words = f"{summary['processes']} processes on {machine['processor']}, {machine['cores']} cores"
    console.print(Text(f"Plans of {words}", style="bold"))
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("plan")
    for name in ("measured", "predicted", "error", "90 %", "inside", "runs", "spread"):
        table.add_column(name, justify="right")
    for row in summary["plans"]:
        bounds = f"{format_time(row['low_s'])} to {format_time(row['high_s'])}"
        times = [format_time(row[key]) for key in ("measured_s", "predicted_s")]
        inside = "yes" if row["inside"] else "no"
        error, spread = format_change(row["error"]), format_percent(row["spread"])
        table.add_row(Text(row["plan"]), *times, error, bounds, inside, str(row["runs"]), spread)
    console.print(table)
    console.print(Text(f"{summary['measured']}; {runs['quiet']:,} of {runs['all']:,} runs were quiet", style="dim"))
    order, most = summary["ranking"], summary["thresholds"]
    mean, worst = (
        f"{words} {format_percent(summary[key])} (at most {format_percent(most[bound], 0)})"
        for words, key, bound in (("mean absolute error", "mean_absolute_error", "mean"), ("worst", "worst", "worst"))
    )
    least = format_percent(most["ranking"], 0)
    right = f"{order['right']} of {order['pairs']} pairs in the right order (at least {least})"
    inside = f"{format_percent(summary['coverage'], 0)} inside their 90 % intervals"
    verdict = Text("passed", "green") if summary["passed"] else Text("FAILED", "bold red")
    console.print(Text.assemble(f"{mean}, {worst}, {right}, {inside}: ", verdict))
    if out is not None:
        console.print(Text(f"written to {out}"), soft_wrap=True)
