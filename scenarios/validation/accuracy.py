"""The accuracy of predictions as Markdown: the output of ``simulate validate --markdown``.

docs/accuracy.md holds all of it, the README the verdicts of whole steps.
"""

from collections.abc import Iterator, Sequence

from scenarios.summaries.measured.validation import PredictedRow, ValidatedTable, Validation


def markdown_lines(summary: Validation) -> Iterator[str]:
    """Yield the table of tables, then the rows of each table, or its groups of rows; ``summary`` is that of ``run``."""
    tables = summary.tables
    yield from verdict_lines(summary)
    for table in tables:
        if not table.groups:
            yield from _row_lines(table)
    grouped = [table for table in tables if table.groups]
    if grouped:
        yield from _group_lines(grouped)


def verdict_lines(summary: Validation) -> Iterator[str]:
    """Yield the table of tables."""
    yield "| table | rows | mean absolute error | worst row | allowed (mean, worst) | in 90 % intervals | |"
    yield "|---|---|---|---|---|---|---|"
    for table in summary.tables:
        yield verdict_line(table)


def verdict_line(table: ValidatedTable) -> str:
    """Return one table's row: errors, thresholds, the number of rows inside their intervals, and the verdict."""
    allowed = ", ".join(_percent(part) for part in (table.thresholds.mean, table.thresholds.worst))
    errors = f"{table.mean_absolute_error:.1%} | {table.worst:.1%}"
    inside = "" if table.coverage is None else f"{table.coverage:.0%}"
    verdict = "passed" if table.passed else "FAILED"
    return f"| `{table.table}` | {len(table.rows)} | {errors} | {allowed} | {inside} | {verdict} |"


def _row_lines(table: ValidatedTable) -> Iterator[str]:
    yield ""
    yield f"`{table.table}`, {table.unit} ({table.citation}):"
    yield ""
    yield "| row | measured | predicted | error |"
    yield "|---|---|---|---|"
    yield from map(row_line, table.rows)


def _percent(fraction: float) -> str:
    return f"{fraction:.0%}" if fraction >= 0.01 else f"{fraction:.1%}"


def row_line(row: PredictedRow) -> str:
    """Return one row of a table: what was measured and what is predicted, in the table's unit, and the error."""
    return f"| {row.name} | {row.measured:.4g} | {row.predicted:.4g} | {row.error:+.1%} |"


def _group_lines(tables: Sequence[ValidatedTable]) -> Iterator[str]:
    yield ""
    yield "Rows by group (the mean is allowed to each group; of training rows constants are fitted to one half alone):"
    yield ""
    yield "| table | group | rows | mean absolute error | 95 % of the rows | worst row | in 90 % intervals |"
    yield "|---|---|---|---|---|---|---|"
    for table in tables:
        for group in table.groups:
            errors = f"{group.mean_absolute_error:.1%} | {group.percentile_95:.1%} | {group.worst:.1%}"
            inside = "" if group.coverage is None else f"{group.coverage:.0%}"
            yield f"| `{table.table}` | {group.group} | {group.rows} | {errors} | {inside} |"
