"""The readable output of ``execute`` and ``compare``: how far two timelines of one plan lie apart."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from costmodels.units import format_bytes, format_change, format_percent, format_time
from scenarios.report.words import spread_words
from scenarios.summaries.algorithm import algorithm_words
from traces.comparison.compare import difference_s
from traces.comparison.critical_path import IDLE

MAX_OPS: Final = 8
MAX_NAME: Final = 60
_LESS: Final = "first less second"


def print_execution(summary: Mapping[str, Any], console: Console, out: Path | None = None) -> None:
    """Print what a run with torch measured, beside what the simulation said."""
    console.print(Text(f"{summary['scenario']}, {summary['world_size']:,} ranks, run with torch", style="bold"))
    table = Table.grid(padding=(0, 2))
    table.add_row("step time", _step_time(summary))
    if other := algorithm_words(summary.get("algorithm", "")):
        table.add_row("algorithm", Text.assemble((summary["algorithm"], "bold yellow"), f": {other}"))
    table.add_row("memory", _peak_memory(summary))
    if "same_work" in summary:
        table.add_row("work", _work(summary, summary["ops"]))
    if "check_passed" in summary:
        table.add_row("check", _check(summary))
    console.print(table)
    if out is not None:
        console.print(Text(f"written to {out}"), soft_wrap=True)


def print_comparison(summary: Mapping[str, Any], console: Console, out: Path | None = None) -> None:
    """Print how two timelines differ: the first less the second, as a part of the second."""
    table = Table.grid(padding=(0, 2))
    first, second = (
        f"{format_time(summary[key])} ({name})"
        for key, name in zip(("first_s", "second_s"), summary["names"], strict=True)
    )
    table.add_row("step time", Text(f"{first} against {second}: {format_change(summary['makespan_error'])}"))
    table.add_row("work", _work(summary, summary["second_ops"]))
    table.add_row("aligned", Text(_aligned(summary["aligned"], summary["names"])))
    for words, key in (("by kind", "kind_error"), ("by stream", "stream_error")):
        table.add_row(words, Text(", ".join(f"{name} {format_change(error)}" for name, error in summary[key].items())))
    if not summary["passed"]:
        table.add_row("verdict", Text("FAILED: further apart than allowed", "bold red"))
    console.print(table)
    if summary.get("explanation"):
        print_explanation(summary["explanation"], console)
    console.print()
    console.print(_step_parts(summary))
    if summary["rows"]:
        console.print()
        console.print(_largest(summary))
    if out is not None:
        console.print(Text(f"written to {out}"), soft_wrap=True)


def _aligned(counts: Mapping[str, int], names: Sequence[str]) -> str:
    """Return how many ops were aligned how."""
    words = [f"{counts['by_name']:,} ops by name"]
    words += [f"{counts['by_kind']:,} by kind and place"] if counts["by_kind"] else []
    alone = counts["first_alone"], counts["second_alone"]
    words += [f"{alone[0]:,} in {names[0]} alone, {alone[1]:,} in {names[1]}"] if any(alone) else []
    return ", ".join(words)


def _step_parts(summary: Mapping[str, Any]) -> Table:
    """Return where the step goes on both sides, of the mean rank and on the critical path."""
    table = _sides("what the mean rank does", summary["names"], _LESS)
    for row in summary["step_time"]:
        if row["first_s"] or row["second_s"]:
            table.add_row(Text(row["part"].replace("_", " ")), *_both(row))
    for row in summary["critical_path"]:
        table.add_row(Text(f"critical path: {row['kind']}"), *_both(row))
    return table


def _both(row: Mapping[str, Any]) -> tuple[str, str, str]:
    more_s = difference_s(row["first_s"], row["second_s"])
    return _time(row, "first_s"), _time(row, "second_s"), _more({"difference_s": more_s})


def print_explanation(explanation: Mapping[str, Any], console: Console) -> None:
    """Print which of two simulated steps is slower, where its time goes, and which links decide."""
    console.print()
    console.print(Text(explanation["verdict"], style="bold"), soft_wrap=True)
    names = explanation["first"], explanation["second"]
    console.print()
    table = _sides("the mean rank's step", names, _LESS)
    for row in explanation["causes"]:
        table.add_row(Text(row["cause"]), *(_time(row, key) for key in ("first_s", "second_s")), _more(row))
    console.print(table)
    differing = [row for row in explanation["communication"] if row["difference_s"]]
    if differing:
        console.print()
        table = _sides("communication, per rank", names, _LESS, *(f"in {name} held back by" for name in names))
        for row in differing[:MAX_OPS]:
            words = Text(f"{row['kind']} on {row['stream']}")
            bound = (Text(_bound(row[f"{side}_bound_s"])) for side in ("first", "second"))
            table.add_row(words, _time(row, "first_s"), _time(row, "second_s"), _more(row), *bound)
        console.print(table)
    if explanation["links"]:
        console.print()
        table = _sides("the busiest link of a kind", names)
        for row in explanation["links"]:
            busy = (format_percent(row[f"{side}_busy_fraction"]) for side in ("first", "second"))
            table.add_row(Text(row["kind"]), *busy)
        console.print(table)


def _sides(heading: str, names: Sequence[str], *more: str) -> Table:
    """Return a table with a column of words, one per side, and more."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(Text(heading))
    for words in (*names, *more):
        table.add_column(Text(words), justify="left" if "held back" in words else "right")
    return table


def _time(row: Mapping[str, Any], key: str) -> str:
    return format_time(row[key])


def _more(row: Mapping[str, Any]) -> str:
    sign = "-" if row["difference_s"] < 0 else "+"
    return f"{sign}{format_time(abs(row['difference_s']))}" if row["difference_s"] else "0 s"


def _bound(bound_s: Mapping[str, float]) -> str:
    """Return what held an op back, as parts of its time, the largest first."""
    whole_s = sum(bound_s.values())
    parts = sorted(bound_s.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{kind} {format_percent(part / whole_s, 0)}" for kind, part in parts if part > 0.005 * whole_s)


def _step_time(summary: Mapping[str, Any]) -> Text:
    """Return the executed step's time, beside the simulated one's and what that lies in in 90 % of cases."""
    executed_s, simulated_s = summary["iteration_time_s"], summary["simulated_iteration_time_s"]
    known = [format_change((simulated_s - executed_s) / executed_s)] if executed_s else []
    known += [words] if (words := spread_words(summary["simulated_iteration_time_interval_s"])) else []
    beside = f" ({'; '.join(known)})" if known else ""
    return Text.assemble((format_time(executed_s), "bold"), f"; simulated: {format_time(simulated_s)}{beside}")


def _peak_memory(summary: Mapping[str, Any]) -> Text:
    """Return the fullest role's peak, and whether all roles have the simulated one."""
    fullest = max(summary["roles"], key=lambda role: role["peak_memory_bytes"])
    peak = f"{format_bytes(fullest['peak_memory_bytes'])} on {fullest['role'] or 'every rank'}: "
    if summary["same_peak_memory"]:
        return Text.assemble(peak, ("the simulated peak on every rank", "green"))
    simulated = format_bytes(fullest["simulated_peak_memory_bytes"])
    return Text.assemble(peak, (f"NOT AS SIMULATED ({simulated} there)", "bold red"))


def _work(summary: Mapping[str, Any], ops: int) -> Text:
    if summary["same_work"]:
        return Text.assemble(("the same", "green"), f": {ops:,} ops, their order on each stream, their bytes")
    found = ", ".join(f"{count:,} {what}" for what, count in summary["mismatches"].items())
    return Text.assemble(("NOT THE SAME", "bold red"), f": {found}")


def _check(summary: Mapping[str, Any]) -> Text:
    """Return how near the tensors came to those of a dense autograd run."""
    verdict = Text("passed", "green") if summary["check_passed"] else Text("FAILED", "bold red")
    error = summary["max_relative_error"]
    off = "no finite number" if error is None else f"{error:.1g} off"
    return Text.assemble(
        verdict,
        f": {summary['checked_tensors']:,} tensors against {_reference(summary.get('algorithm', ''))}, "
        f"worst {summary['worst_tensor']}, {off} (at most {summary['tolerance']:.1g})",
    )


def _reference(algorithm: str) -> str:
    """Return what a check compares with."""
    return f"dense autograd{f' of {algorithm}' if algorithm_words(algorithm) else ''}"


def _largest(summary: Mapping[str, Any]) -> Table:
    """Return the ops that explain most of the difference; with idle and all others they add up to it."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("what explains the difference", overflow="ellipsis", no_wrap=True, max_width=MAX_NAME)
    for words in ("ops", *summary["names"], _LESS, "of all"):
        table.add_column(Text(words), justify="right")
    for row in (*summary["rows"], summary["others"], summary["idle"]):
        counts = (
            {f"{row['first_count']:,}": None, f"{row['second_count']:,}": None} if row["op"] != IDLE else {"": None}
        )
        share = format_percent(row["share_fraction"])
        table.add_row(Text(row["op"]), " | ".join(counts), *_both(row), share)
    return table
