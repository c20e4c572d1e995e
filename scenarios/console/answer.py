"""The readable output of the commands: the answer first, then where the time goes, then what would help most."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from costmodels.units import format_bytes, format_percent, format_rate, format_time
from scenarios.report.words import Advice, detail_rows, memory_words, spread_words, time_parts
from scenarios.summaries.algorithm import algorithm_words
from scenarios.summaries.long_run import interval_words, reliability_rows
from scenarios.summaries.role_names import row_names

_LEAST_PERCENT = 5e-4
"""Smaller shares of one would round to no per cent at all, and are shown as they are."""
MAX_ROLES = 10


def print_summary(summary: Mapping[str, Any], console: Console, *, advice: Advice | None) -> None:
    """Print a simulation's summary for people. ``advice``: what ``advise`` makes of it."""
    console.print(Text(f"{summary['scenario']}, {summary['world_size']:,} ranks", style="bold"))
    for part in (_answer(summary), _time_table(summary), _role_table(summary)):
        console.print(part)
        console.print()
    if "reliability" in summary:
        console.print(_reliability_table(summary["reliability"]))
        console.print(Text(interval_words(summary["reliability"])), soft_wrap=True)
        console.print()
    console.print(_advice_text(advice), soft_wrap=True)
    console.print(_run_text(summary), style="dim", soft_wrap=True)


def print_validation(summary: Mapping[str, Any], console: Console) -> None:
    """Print predicted against measured, table by table."""
    for entry in summary["tables"]:
        console.print(Text(f"{entry['table']}: {entry['prediction']} in {entry['unit']}", style="bold"))
        console.print(_records_table("", entry["groups"] or _without_empty(entry["rows"])))
        verdict = Text("passed", "green") if entry["passed"] else Text("FAILED", "bold red")
        most, coverage = entry["thresholds"], entry["coverage"]
        mean, worst = (
            f"{words} {format_percent(entry[key])} (at most {format_percent(most[bound])})"
            for words, key, bound in (
                ("mean absolute error", "mean_absolute_error", "mean"),
                ("worst", "worst", "worst"),
            )
        )
        inside = "" if coverage is None else f", {format_percent(coverage)} inside their 90 % intervals"
        console.print(Text.assemble(f"{mean}, {worst}{inside}: ", verdict))
        console.print(Text(entry["citation"], style="dim"), soft_wrap=True)
        console.print()


def _without_empty(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without the columns that none of them has anything in."""
    kept = [key for key in rows[0] if any(row[key] is not None for row in rows)]
    return [{key: row[key] for key in kept} for row in rows]


def _answer(summary: Mapping[str, Any]) -> Table:
    """Return step time, throughput, utilisation and memory."""
    table = Table.grid(padding=(0, 2))
    table.add_row("step time", _time_text(summary))
    if other := algorithm_words(summary.get("algorithm", "")):
        table.add_row("algorithm", Text.assemble((summary["algorithm"], "bold yellow"), f": {other}"))
    if summary.get("tokens_per_s"):
        table.add_row("throughput", Text(f"{summary['tokens_per_s']:,.0f} tokens/s"))
    if summary.get("model_flop_per_s_per_device"):
        rate = format_rate(summary["model_flop_per_s_per_device"], "FLOP/s")
        utilisation = f"MFU {format_percent(summary['mfu'])}, HFU {format_percent(summary['hfu'])}"
        table.add_row("per device", Text(f"{rate} ({utilisation})"))
    table.add_row("memory", _memory_text(summary))
    for name, words in detail_rows(summary):
        table.add_row(name, Text(words))
    return table


def _time_text(summary: Mapping[str, Any]) -> Text:
    """Return the step time, and the interval that holds it in 90 % of cases where there is one."""
    time = Text(format_time(summary["iteration_time_s"]), style="bold")
    interval = spread_words(summary.get("iteration_time_interval_s"))
    return Text.assemble(time, (f" ({interval})", "not bold")) if interval else time


def _memory_text(summary: Mapping[str, Any]) -> Text:
    """Return the fullest role's peak against its device's capacity."""
    words = memory_words(summary)
    if not words:
        return Text("not modelled: a textbook workload has stated times alone", "dim")
    verdict = Text("fits", "green") if summary["fits_memory"] else Text("DOES NOT FIT", "bold red")
    return Text.assemble(f"{words}: ", verdict)


def _time_table(summary: Mapping[str, Any]) -> Table:
    """Return what the mean rank spends the step on."""
    table = Table("where the time goes", "per rank", "of the step", box=None, header_style="bold", pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    total = summary["iteration_time_s"]
    for (words, _), seconds in time_parts(summary):
        table.add_row(Text(words), format_time(seconds), format_percent(seconds / total))
    return table


def _role_table(summary: Mapping[str, Any]) -> Table:
    """Return one row per role; of many roles the first, the last and the fullest."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for words in ("role", "ranks", "peak memory", "live micro-batches", "computing", "waiting"):
        table.add_column(words, justify="left" if words == "role" else "right")
    roles, total = list(summary["roles"]), summary["iteration_time_s"]
    for name, role in _shown_roles(roles):
        waiting = sum(role["exposed_s"].values())
        table.add_row(
            Text(name),
            f"{role['num_ranks']:,}",
            format_bytes(role["peak_memory_bytes"]) if summary.get("memory_capacity_bytes") else "-",
            f"{role['peak_live_microbatches']:g}",
            format_percent(role["busy_s"].get("compute", 0.0) / total),
            format_percent(waiting / total),
        )
    if len(roles) > MAX_ROLES:
        what = "roles" if len({role["role"] for role in roles}) == len(roles) else "classes of ranks"
        table.caption = f"{MAX_ROLES} of {len(roles)} {what}; all with --json"
        table.caption_justify = "left"
    return table


def _shown_roles(roles: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return at most MAX_ROLES roles, or classes of one, with their names, in their order."""
    named = list(zip(row_names(roles, "all"), roles, strict=True))
    if len(roles) <= MAX_ROLES:
        return named
    half = (MAX_ROLES - 1) // 2
    by_memory = sorted(range(len(roles)), key=lambda index: -roles[index]["peak_memory_bytes"])
    chosen = {*range(half), *range(len(roles) - half, len(roles))}
    for index in by_memory:
        if len(chosen) < MAX_ROLES:
            chosen.add(index)
    return [named[index] for index in sorted(chosen)]


def _reliability_table(reliability: Mapping[str, Any]) -> Table:
    """Return the long run: mean and spread of each quantity, and where its time goes."""
    table = Table("the long run", box=None, header_style="bold", pad_edge=False)
    for words in ("mean", "of the time", "9 runs of 10"):
        table.add_column(words, justify="right")
    for row in reliability_rows(reliability):
        table.add_row(Text(row.name), row.mean, row.fraction, row.between)
    return table


def _advice_text(advice: Advice | None) -> Text:
    if advice is None:
        return Text("what would help most: nothing that one of the scenario's keys could change")
    effect = f": {advice.effect}" if advice.effect else ""
    aim = Text(advice.aim)
    aim.stylize("bold", 0, len(advice.loss))
    return Text.assemble("what would help most: less ", aim, "; try ", (advice.options, "cyan"), effect)


def _run_text(summary: Mapping[str, Any]) -> Text:
    fold, engine = summary["fold"], summary["engine"]
    simulated = f"simulated {fold['simulated']:,} of {fold['ranks']:,} ranks"
    return Text(f"{simulated}, {engine['events']:,} events in {format_time(engine['wall_time_s'])}")


def _records_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return records as a table, a column per key of the first."""
    name = Text(title) if title else None
    table = Table(title=name, box=None, header_style="bold", pad_edge=False, title_justify="left")
    keys = list(rows[0]) if rows else []
    for key in keys:
        is_text = isinstance(rows[0][key], str)
        table.add_column(key, justify="left" if is_text else "right")
    for row in rows:
        table.add_row(*(Text(_shown(key, row.get(key))) for key in keys))
    return table


def _shown(key: str, value: object) -> str:
    """Return a value in the unit that its key's name ends in."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " to ".join(_shown(key, part) for part in value)
    if not isinstance(value, int | float):
        return str(value)
    if key.endswith("_s") and not key.endswith("per_s"):
        return format_time(value)
    if key.endswith("_bytes"):
        return format_bytes(value)
    if key.endswith(("error", "fraction", "difference")):
        return format_percent(value) if abs(value) >= _LEAST_PERCENT or not value else f"{value:.2g}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
